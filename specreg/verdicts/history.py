"""Keep a record of each run, and estimate from identical runs how hours differ.

`.specreg/history/<environment>.jsonl`, a line for each case of a run. Verdicts don't depend on it;
a baseline that is recorded takes its noise from it.
"""

import hashlib
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from specreg.baselines.schema import Baseline, Noise
from specreg.core.errors import ReportError
from specreg.core.files import MIB, UNREADABLE, append_lines, read_regular
from specreg.core.names import ReportedCase
from specreg.core.values import readable_values
from specreg.matrix.case import CaseSettings
from specreg.matrix.models import model_sha256
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric
from specreg.stats.intervals import Spread
from specreg.verdicts.verdict import GOOD, JUDGED, Verdict

_FEWEST_RUNS = 5
_Text = Annotated[str, msgspec.Meta(max_length=1024)]
_LAST_RUNS = 7
_MOST_BYTES = 1024 * MIB
_TAKEN = b"short turns, all over all"
"""How speeds are taken; those of records of another way differ."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A case of one run.

    Attributes:
        run: the name of its folder, which begins with the time in UTC.
        settings_sha256: of all that must be equal to compare.
        values: by metric that was judged, the geometric mean over the launches that had some
            of it, 0 where none had; launches: how many had a speed, or were measured without.
        outcomes: by metric, the word; changes: by metric, against the baseline, better positive.
        baseline_sha256: of that baseline; empty without one.
    """

    run: _Text
    case_id: ReportedCase
    settings_sha256: str
    engine_version: str
    draft_sha256: str
    values: dict[str, float]
    outcomes: dict[str, str]
    changes: dict[str, float] = {}
    baseline_sha256: str = ""
    launches: int = 1

    def judged(self, metric: str) -> bool:
        """Whether the run held a metric against a baseline, and the measurement was in order."""
        return self.outcomes.get(metric) in JUDGED

    def fine(self, metric: str) -> bool:
        """Whether the run judged a valid metric, and it held."""
        return self.outcomes.get(metric) in GOOD


@dataclass(frozen=True, slots=True)
class History:
    """The records of a file by case's id, the oldest first; `wrong`: what couldn't be read."""

    by_case: Mapping[str, tuple[RunRecord, ...]]
    wrong: str = ""

    def of(self, case_id: str) -> tuple[RunRecord, ...]:
        """The records of a case, none of one that didn't run."""
        return self.by_case.get(case_id, ())


def comparable(records: Sequence[RunRecord], metric: str) -> tuple[RunRecord, ...]:
    """The runs that judged a metric, with the settings of the last one: others differ in more."""
    judged = [one for one in records if one.judged(metric)]
    return tuple(one for one in judged if one.settings_sha256 == judged[-1].settings_sha256)


def settings_sha256(settings: CaseSettings) -> str:
    """A checksum of all that must be equal to compare."""
    return hashlib.sha256(_TAKEN + msgspec.json.encode(settings)).hexdigest()


def baseline_sha256(baseline: Baseline | None) -> str:
    """A checksum of what a baseline expects, empty of none."""
    if baseline is None:
        return ""
    expects = msgspec.structs.replace(baseline, schema_version=0, noise={}, detects={})
    return hashlib.sha256(msgspec.json.encode(expects)).hexdigest()


def run_record(
    run: str,
    launches: Sequence[Measurement],
    verdicts: Sequence[Verdict],
    settings: CaseSettings,
    baseline: Baseline | None,
) -> RunRecord:
    """The record of a case: its launches with a valid value, one at least, and the verdicts.

    Only what was judged is kept: other speeds were measured without their control, or on fewer
    prompts.
    """
    first = launches[0]
    values = {}
    for name in {verdict.metric: None for verdict in verdicts}:
        found = [one.values[name] for one in launches if one.values.get(name, -1.0) >= 0]
        if found:
            some = [value for value in found if value > 0]  # there is no logarithm of nothing
            values[name] = statistics.geometric_mean(some) if some else 0.0
    return RunRecord(
        run=run,
        case_id=first.case.id,
        settings_sha256=settings_sha256(settings),
        engine_version=first.engine_version,
        draft_sha256=model_sha256(first.draft) if first.draft else "",
        values=values,
        outcomes={verdict.metric: str(verdict.outcome) for verdict in verdicts},
        changes={
            verdict.metric: verdict.comparison.change_frac
            for verdict in verdicts
            if verdict.comparison.change_frac is not None
        },
        baseline_sha256=baseline_sha256(baseline),
        launches=sum(any(METRICS[name].by_launch for name in one.values) for one in launches)
        or len(launches),
    )


def record_history(path: Path, records: Iterable[RunRecord]) -> None:
    """Add records to a history.

    Raises:
        ReportError: the disk refuses.
    """
    readable = map(readable_values, records)
    lines = b"".join(msgspec.json.encode(record) + b"\n" for record in readable)
    try:
        append_lines(path, lines)
    except OSError as error:
        advice = "make room or mend its rights"
        message = f"history '{path}': this run isn't in it, {error.strerror}; {advice}"
        raise ReportError(message) from error


def load_history(path: Path) -> History:
    """Load a history; a line that can't be read is left out, and `wrong` says so.

    Of a run that was gone on with only the last line of a case counts: it measured it once.
    """
    try:
        lines = read_regular(path, _MOST_BYTES).splitlines()
    except FileNotFoundError:
        return History({})
    except OSError as error:
        return History({}, f"history '{path}': {error.strerror}; mend its rights to have it shown")
    found: dict[str, dict[str, RunRecord]] = {}
    torn = 0
    for line in lines:
        try:
            record = msgspec.json.decode(line, type=RunRecord)
        except UNREADABLE:
            torn += 1
        else:
            found.setdefault(record.case_id, {})[record.run] = record
    wrong = f"history '{path}': {torn} line(s) can't be read; the rest is shown" if torn else ""
    return History({case_id: tuple(by_run.values()) for case_id, by_run in found.items()}, wrong)


def noise_of(identical: Sequence[RunRecord], spreads: Mapping[str, Spread]) -> dict[str, Noise]:
    """By metric how identical runs differ, beyond what the launches of one run do.

    s_b² = var(ln x over the runs) - s_w² / k for runs of k launches, no less than 0. There is none
    of a metric that fewer than five runs saw, or whose launches have no spread.
    """
    found = {}
    for name, spread in spreads.items():
        seen = [one for one in identical if one.values.get(name, 0) > 0]
        if len(seen) >= _FEWEST_RUNS:
            within = spread.within_frac**2 * statistics.fmean(1 / one.launches for one in seen)
            beyond = statistics.variance(math.log(one.values[name]) for one in seen) - within
            found[name] = Noise(between_frac=math.sqrt(max(beyond, 0.0)), runs=len(seen))
    return found


def identical_to(
    records: Iterable[RunRecord], settings: CaseSettings, engine_version: str, draft_sha256: str
) -> list[RunRecord]:
    """The runs with these settings, this engine and this draft."""
    alike = (settings_sha256(settings), engine_version, draft_sha256)
    return [r for r in records if (r.settings_sha256, r.engine_version, r.draft_sha256) == alike]


def headroom_frac(metric: Metric, baseline: Baseline, records: Sequence[RunRecord]) -> float | None:
    """How far a baseline lies below the last seven runs on average: a loss that would pass.

    None while fewer than five runs were judged against it, or where one of them wasn't better.
    """
    sha256 = baseline_sha256(baseline)
    changes = [
        one.changes[metric.name]
        for one in records
        if one.baseline_sha256 == sha256 and metric.name in one.changes
    ][-_LAST_RUNS:]
    if len(changes) < _FEWEST_RUNS or min(changes) <= 0:
        return None
    return statistics.fmean(changes)
