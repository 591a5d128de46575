"""Record the baselines of a run, with what later runs can tell against them."""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from specreg.baselines.comparison import pooled_spreads, spreads_of
from specreg.baselines.record import RecordedBaseline, record_measurements
from specreg.baselines.schema import Baseline
from specreg.core.commands import record_command
from specreg.core.errors import BaselineError, SpecregError
from specreg.matrix.case import Case
from specreg.matrix.models import model_sha256
from specreg.measurement.metrics import METRICS
from specreg.report.terminal import render_recorded, render_undecidable, render_written
from specreg.servers.launch import Launch, launches_of
from specreg.stats.intervals import Spread
from specreg.suite.finish import driver_version_of, measured_cases, torch_version_of
from specreg.suite.options import WIDTH
from specreg.suite.run import Suite
from specreg.verdicts.detection import MOST_LAUNCHES, detectable, detects_against
from specreg.verdicts.history import identical_to, load_history, noise_of
from specreg.verdicts.judge import Outcome

_NS_PER_S = 10**9


@dataclass(slots=True)
class FurtherLaunches:
    """Measure more launches of what is recorded, where that lets later runs tell more.

    All of them together may still take `left_s`.
    """

    left_s: float
    _begun: set[str] = field(default_factory=set)

    def __call__(self, suite: Suite, launch: Launch) -> None:
        """Measure further launches of a server, in its share of the time that is left."""
        asked = [case for case in suite.tier.cases if case.id in suite.asked]
        servers = {launches_of(case, launch.number)[1].id for case in asked}
        share_s = self.left_s / max(len(servers - self._begun), 1)
        self._begun.add(launch.id)
        pairs = {pair.pair: pair.total_s for pair in suite.timeline.so_far().pairs}
        took_s = pairs.get(launch.id, 0.0)
        for further in range(1, MOST_LAUNCHES - launch.number + 1):
            open_ones = [case for case in suite.group(launch) if _tells_more(suite, case)]
            if not open_ones or took_s > share_s:
                return
            began_ns = time.monotonic_ns()
            found = suite.measure_afresh(open_ones, further)
            took_s = (time.monotonic_ns() - began_ns) / _NS_PER_S
            share_s, self.left_s = share_s - took_s, self.left_s - took_s
            if all(isinstance(one, str) for one in found.values()):
                return


def take_further(suite: Suite, launch: Launch) -> None:
    """Take what shards measured beyond the launches that each case has."""
    for further in range(1, MOST_LAUNCHES - launch.number + 1):
        suite.measure_afresh(suite.group(launch), further)


def _tells_more(suite: Suite, case: Case) -> bool:
    """Whether a run can't tell a speed of a case, and could if more launches were recorded."""
    launches = sum(one.case == case for one in suite.measurements)
    spreads = _spreads(suite) if launches else {}
    for metric in suite.asked_of(case):
        if metric.by_launch and (spread := spreads.get(metric.name)) is not None:
            more = dataclasses.replace(spread, freedom=spread.freedom + MOST_LAUNCHES - launches)
            allowed_frac = metric.allowed_frac(case)
            now = detectable(metric, allowed_frac, launches, spread)
            if not now.decides and detectable(metric, allowed_frac, MOST_LAUNCHES, more).decides:
                return True
    return False


def _spreads(suite: Suite) -> Mapping[str, Spread]:
    """By speed how launches differ on this machine, those of this run among them."""
    rows: dict[str, list[Mapping[str, float]]] = {}
    for one in suite.measurements:
        speeds = {name: value for name, value in one.values.items() if METRICS[name].by_launch}
        rows.setdefault(one.case.id, []).append(speeds)
    others = [one for path, one in suite.store.own().items() if path.stem not in rows]
    launches = (*rows.values(), *(one.launches for one in others))
    return pooled_spreads(launches, [one.noise for one in others])


def record_baselines(suite: Suite, *, color: bool) -> tuple[list[str], bool]:
    """Write the baselines of the cases whose launches were all measured.

    Returns:
        What to say of those that were written and of those that weren't, and whether all were, each
        as a whole.
    """
    written: list[RecordedBaseline] = []
    refused: dict[str, str] = {}
    for case in measured_cases(suite):
        try:
            written.append(recorded := _record(suite, case))
            if recorded.left_out:
                refused[case.id] = recorded.left_out
        except SpecregError as error:
            refused[case.id] = str(error)
    said = list(refused.values())
    if written:
        everything = {case.id for case in suite.tier.cases}
        said += [render_recorded(written, width=WIDTH, color=color), render_undecidable(written)]
        said.append(render_written(written, everything, suite.store.options))
    failed = {verdict.case_id for verdict in suite.verdicts if verdict.fails}
    if again := tuple(case_id for case_id in refused if case_id not in failed):
        typed = record_command(again, suite.store.options)
        said.append(f"record again what wasn't written:\n  {typed}")
    return list(filter(None, said)), not refused


def _record(suite: Suite, case: Case) -> RecordedBaseline:
    measurements = [one for one in suite.measurements if one.case == case]
    for one in suite.verdicts:
        if one.case_id == case.id and one.outcome is Outcome.WRONG:
            raise BaselineError(f"baseline of '{case.id}': not written, WRONG: {one.reason}")
    if len(measurements) < suite.launches:
        why = f"{len(measurements)} of {suite.launches} launches were measured"
        raise SpecregError(f"baseline of '{case.id}': not written, {why}; select the whole case")
    first, settings = measurements[0], suite.settings(case)
    draft_sha256 = model_sha256(first.draft) if first.draft else ""
    history = load_history(suite.history).of(case.id)
    identical = identical_to(history, settings, first.engine_version, draft_sha256)

    def completed(baseline: Baseline) -> Baseline:
        """The baseline with how identical runs differed, and what a launch can tell against it."""
        detects = detects_against(baseline, case, _spreads(suite))
        noise = {**baseline.noise, **noise_of(identical, spreads_of((baseline,)))}
        return msgspec.structs.replace(baseline, noise=noise, detects=detects)

    return record_measurements(
        measurements,
        settings,
        suite.store,
        reason=(suite.options.reason or "").strip(),
        torch_version=torch_version_of(suite, case),
        driver_version=driver_version_of(suite),
        complete=completed,
    )
