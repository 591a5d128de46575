"""Say since when a figure isn't fine, how much it lost, and which commits may have brought it."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specreg.measurement.metrics import METRICS, better_frac
from specreg.report.document import CaseReport, began_at
from specreg.report.tables import label_of, render_change
from specreg.verdicts.history import RunRecord, comparable
from specreg.verdicts.verdict import JUDGED, Outcome, Verdict

_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A figure that became bad and wasn't fine again.

    Attributes:
        change_frac: the change of the first bad run from the baseline, or else from the last fine
            run; better is positive. None if it isn't known.
        bad: the first bad run and all that judged the figure since.
        before: the runs that judged it before.
    """

    metric: str
    change_frac: float | None
    bad: Sequence[RunRecord]
    before: Sequence[RunRecord]

    def __str__(self) -> str:
        change = ""
        if self.change_frac is not None:
            change = f" {render_change(self.change_frac)}"
        return f"{label_of(self.metric)}{change}: {self.story}"

    @property
    def fine(self) -> RunRecord | None:
        """The last fine run before the loss; None without one."""
        return next((run for run in reversed(self.before) if run.fine(self.metric)), None)

    @property
    def story(self) -> str:
        """Since when the figure isn't fine, when it was fine last, and what was committed since."""
        version = self.bad[0].engine_version
        has_same_version = self.fine is not None and self.fine.engine_version == version
        name_moment = _time_of if has_same_version else moment_of
        parts = [f"not fine since {name_moment(self.bad[0])}"]
        if len(self.bad) > 1:
            parts[0] += f", {len(self.bad)} judged runs in a row"
        if self.fine is not None:
            parts.append(f"last fine {name_moment(self.fine)}")
        elif self.before:
            parts.append("undecided before")
        else:
            parts.append("no earlier run was fine")

        if has_same_version and version:
            parts.append(f"both with {version}")
        return "; ".join(filter(None, (*parts, self._commits())))

    def _commits(self) -> str:
        """Return the command that lists what was committed; the commit alone if none is earlier."""
        commit = self.bad[0].commit

        # Readers type the command, and a history may come from another machine.
        if not _COMMIT.fullmatch(commit):
            return ""
        if self.fine is None or not _COMMIT.fullmatch(self.fine.commit):
            return f"at commit {commit}"
        if self.fine.commit == commit:
            return f"both at commit {commit}"
        return f"git log {self.fine.commit}..{commit}"


def losses_of(records: Sequence[RunRecord], expected: Mapping[str, float]) -> Iterator[Loss]:
    """Yield each figure of a case that became bad and wasn't fine again.

    Args:
        records: the records of the case, the earliest first.
        expected: the values in the baseline of the case, by metric.
    """
    for name in dict.fromkeys(name for record in records for name in record.outcomes):
        runs = comparable(records, name)
        first_bad_index = first_bad(runs, name)
        if first_bad_index == len(runs):
            continue
        loss = Loss(
            metric=name, change_frac=None, bad=runs[first_bad_index:], before=runs[:first_bad_index]
        )
        level = expected.get(name)
        if level is None and loss.fine is not None:
            level = loss.fine.values.get(name)
        value = loss.bad[0].values.get(name)
        # A correctness check isn't a metric, so it has no change.
        if name in METRICS and level is not None and value is not None:
            change_frac = better_frac(METRICS[name], value, level)
            loss = dataclasses.replace(loss, change_frac=change_frac)
        yield loss


def since_when(case: CaseReport, failing: Iterable[Verdict]) -> Iterator[str]:
    """Yield a sentence with the first bad run and the last fine one for each group of metrics.

    Metrics with the same history form a group. A metric is left out if only one run judged it, or
    if no run was bad after the last fine one.
    """
    names = {verdict.metric for verdict in failing if verdict.outcome in JUDGED}
    labels_by_story: dict[str, list[str]] = {}
    for loss in losses_of(case.history, {}):
        # A single run has no earlier one from which a loss could date.
        if loss.metric in names and len(loss.bad) + len(loss.before) > 1:
            labels_by_story.setdefault(loss.story, []).append(label_of(loss.metric))

    for story, labels in labels_by_story.items():
        yield f"{', '.join(labels)}: {story}"


def first_bad(runs: Sequence[RunRecord], metric: str) -> int:
    """Return the index of the first bad run after the last fine one.

    An INCONCLUSIVE run is neither bad nor fine, so a loss doesn't begin with it.

    Returns:
        The number of runs if none is bad after the last fine one.
    """
    first = len(runs)
    for index, run in enumerate(runs):
        if run.fine(metric):
            first = len(runs)
        elif is_bad(run, metric):
            first = min(first, index)
    return first


def is_bad(run: RunRecord, metric: str) -> bool:
    """Return whether a run proved that a metric is worse or wrong."""
    is_undecided = run.outcomes.get(metric) == Outcome.INCONCLUSIVE
    return run.judged(metric) and not run.fine(metric) and not is_undecided


def moment_of(run: RunRecord) -> str:
    """Return when a run began, and the engine's version: `2026-11-21 02:00 UTC with 0.32.0`."""
    moment = _time_of(run)
    if run.engine_version:
        moment += f" with {run.engine_version}"
    return moment


def _time_of(run: RunRecord) -> str:
    """Return when a run began; its name if that has no time."""
    began = began_at(run.run)
    if began is None:
        return f"run {run.run}"
    return f"{began:%Y-%m-%d %H:%M} UTC"
