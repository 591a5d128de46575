"""Tell a slower engine from a slower machine, by measuring the recorded engine in the same hour.

If all cases of a run became slower alike, or if their control did too, the cause is the machine or
the engine, and the run's own measurements can't tell which. But if the baselines were recorded with
another version of the engine, a gate can: it runs both versions in the same hour, on one case.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from specreg.compare.document import record_gate, set_aside
from specreg.compare.gate import JOURNAL, open_gate
from specreg.compare.judging import Decision
from specreg.compare.options import TOLERANCE, GateOptions
from specreg.core.commands import specreg_command
from specreg.core.errors import SpecregError
from specreg.core.reasons import Reason
from specreg.core.timeline import Phase
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.measurement.metrics import GATE_METRICS, METRICS
from specreg.report.tables import label_of
from specreg.suite.context import CaseLaunch, RunContext
from specreg.suite.document import exact_baseline
from specreg.suite.result import Run, RunResult
from specreg.verdicts.by_nights import MACHINE_MOVED
from specreg.verdicts.multiple_testing import draw_of
from specreg.verdicts.verdict import GOOD, Outcome, Verdict

ENGINE_SLOWER = "ENGINE_SLOWER"
"""The code of a loss that the engine caused: the recorded version didn't lose it in this hour."""
FOLDER = "engines"
"""The folder of a run that has the gate of the two versions."""
_LAUNCHES = 8
"""A gate of four launches finds a loss of 30 % always, and one of eight a loss of 10 % usually."""
_MINUTES = 15.0
_SHORTEST_S = 0.01
"""A launch is under load as long as in the run, and a gate takes no less than this."""
_DECIDED = GOOD | {Outcome.REGRESSED}
"""The outcomes that tell whether the engine is worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChange:
    """An engine whose version changed since the baseline of a case was recorded.

    Attributes:
        engine: The name of the engine.
        recorded: The version with which the baseline was recorded.
        measured: The version that the run measured.
    """

    engine: str
    recorded: str
    measured: str

    @property
    def sides(self) -> tuple[str, str]:
        """Both versions as a gate takes them, the recorded one first."""
        return f"{self.engine}=={self.recorded}", f"{self.engine}=={self.measured}"

    def __str__(self) -> str:
        return f"{self.engine} {self.recorded} -> {self.measured}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCheck:
    """A comparison of two versions of an engine on one case.

    Attributes:
        case: The case on which both versions are measured.
        change: The two versions.
        tolerances: The tolerance of each doubtful metric of the case, 0..1.
    """

    case: Case
    change: EngineChange
    tolerances: Mapping[str, float]


def is_doubtful(verdict: Verdict) -> bool:
    """Return whether either the machine or the engine may have caused the loss of a verdict."""
    return verdict.has_code(MACHINE_MOVED)


def planned_check(result: RunResult) -> EngineCheck | None:
    """Return the comparison that tells the engine from the machine; None if none is possible.

    It needs a doubtful verdict on a case whose baseline was recorded with another version, which
    can be installed. Of several such cases, the one that took the least time is chosen.
    """
    provision = result.context.provision
    is_installed_by_us = not (provision.url or provision.python or provision.build)
    # One of several processes knows only some cases, and others still need the machine.
    if result.context.is_part or not is_installed_by_us:
        return None
    checks = []
    for case in result.cases:
        change = _change_of(result, case)
        tolerances = _doubtful_tolerances(result.verdicts_of(case.id))
        if change is not None and tolerances:
            checks.append(EngineCheck(case=case, change=change, tolerances=tolerances))
    times_s = {pair.pair: pair.total_s for pair in result.time.pairs}
    return min(
        checks,
        key=lambda check: times_s.get(CaseLaunch.of(check.case, 1).server.id, 0.0),
        default=None,
    )


def _change_of(result: RunResult, case: Case) -> EngineChange | None:
    """Return how the engine of a case changed; None if it didn't, or if that can't be measured."""
    if engine_named(case.server.engine).program is not None:
        # The engine is a program on PATH, of which there is only one version.
        return None
    baseline = exact_baseline(result.context, case)
    if baseline is None:
        return None
    recorded = _released(baseline.provenance.engine_version)
    measured = _released(result.measurements_of(case)[-1].engine_version)
    if not recorded or not measured or recorded == measured:
        return None
    return EngineChange(engine=case.server.engine, recorded=recorded, measured=measured)


def _released(version: str) -> str:
    """Return a version as an index has it, without its local part; empty if it is no version."""
    with contextlib.suppress(InvalidVersion):
        return Version(version).public
    return ""


def _doubtful_tolerances(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return the tolerances of the doubtful metrics that a gate compares, by the metric's name.

    Metrics that move together are decided by the first of them, so only that one is compared.
    """
    tolerances = {}
    for verdict in verdicts:
        tolerance_frac = verdict.comparison.tolerance_frac
        if not is_doubtful(verdict) or not tolerance_frac:
            continue
        leader = draw_of(METRICS[verdict.metric])
        if leader == verdict.metric and leader in GATE_METRICS:
            tolerances[leader] = tolerance_frac
    return tolerances


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswer:
    """What the comparison of two versions of an engine says about the losses of a run.

    Attributes:
        check: What was compared.
        case_ids: The cases whose engine changed in the same way.
        by_metric: The verdict of the gate on each compared metric, by the metric's name.
    """

    check: EngineCheck
    case_ids: AbstractSet[str]
    by_metric: Mapping[str, Verdict]

    def judge(self, verdict: Verdict) -> Verdict:
        """Return a verdict of the run in the light of the comparison.

        A doubtful loss is REGRESSED if the present version of the engine is worse than the recorded
        one, and INVALID if it isn't. As long as the comparison can't tell, nothing changes.
        """
        if not is_doubtful(verdict) or verdict.reason is None:
            return verdict
        compared = self.by_metric.get(draw_of(METRICS[verdict.metric]))
        if compared is None or verdict.case_id not in self.case_ids:
            return verdict
        comparison = compared.comparison
        effect = ""
        if comparison.change_frac is not None:
            effect = f": {label_of(compared.metric)} {comparison.change_frac:+.1%}"
        measured = f"{self.check.change} on {self.check.case.id} in the same hour{effect}"
        if compared.outcome is Outcome.REGRESSED:
            reason = Reason(
                code=ENGINE_SLOWER,
                text=f"it is the engine, not the machine: {measured}; {verdict.reason.text}",
                remedy="look at the gate's report, and find the release with specreg bisect",
            )
            return dataclasses.replace(verdict, outcome=Outcome.REGRESSED, reason=reason)
        if compared.outcome in GOOD:
            reason = Reason(
                code=MACHINE_MOVED,
                text=f"it is the machine, not the engine: {measured}; {verdict.reason.text}",
                remedy="quieten the machine and run again",
            )
            return dataclasses.replace(verdict, outcome=Outcome.INVALID, reason=reason)
        text = f"{verdict.reason.text}; side by side it couldn't be told yet: {measured}"
        return dataclasses.replace(verdict, reason=dataclasses.replace(verdict.reason, text=text))


Measure = Callable[[EngineCheck, RunContext], Sequence[Verdict]]
"""Measures both versions on the case of a check, and returns the verdicts of the gate."""


def check_engine(run: Run[Any], measure: Measure | None = None) -> Iterator[str]:
    """Measure the recorded engine beside the present one if a loss is doubtful, and judge it again.

    An interrupt ends the measurement only; the verdicts then stay as they are.

    Args:
        run: The run, which has measured and judged everything, and has stopped its servers.
        measure: Measures both versions; None to do so with a gate.

    Yields:
        A line for the summary: what was compared, or why it couldn't be.
    """
    result = run.result()
    check = planned_check(result)
    if check is None:
        return
    context = run.context
    subject = f"{check.change} on {check.case.id}"
    context.provision.tell(
        f"is the machine slower, or the engine? Measuring {subject} side by side, for"
        f" {_MINUTES:g} minutes at most; Ctrl-C leaves the verdicts as they are"
    )
    launch_id = CaseLaunch.of(check.case, 1).server.id
    try:
        with run.judge.timeline.during(Phase.CONFIRMING, launch_id, of=subject):
            verdicts = (measure or measure_by_gate)(check, context)
    except SpecregError as error:
        yield f"{subject}: couldn't be measured side by side: {error}"
        return
    except KeyboardInterrupt:
        yield f"{subject}: interrupted, so the verdicts are those of the run alone"
        return
    answer = EngineAnswer(
        check=check,
        case_ids={case.id for case in result.cases if _change_of(result, case) == check.change},
        by_metric={
            verdict.metric: verdict for verdict in verdicts if verdict.metric in check.tolerances
        },
    )
    run.judge.revise(answer.judge)
    yield f"{subject}, side by side: {context.run_folder / FOLDER / 'report.html'}"


def measure_by_gate(check: EngineCheck, context: RunContext) -> tuple[Verdict, ...]:
    """Measure both versions on the case of a check, until each doubtful metric is decided.

    Raises:
        SpecregError: A version can't be installed, or can't be measured.
    """
    folder = context.run_folder / FOLDER
    recorded, measured = check.change.sides
    options = GateOptions(
        a=recorded,
        b=measured,
        case_ids=[check.case.id],
        launches=_LAUNCHES,
        minutes=_MINUTES,
        least_s=max(check.case.least_s, _SHORTEST_S),
        tolerances=[f"{name}={frac:g}" for name, frac in check.tolerances.items()],
        # A run that is resumed goes on with the launches that it had measured.
        resume=(folder / JOURNAL).exists(),
        out=folder,
        tier=context.tier.name,
        root=context.root,
        matrix=Path(context.options.matrix),
        ready_within_s=context.options.ready_within_s,
        show=context.provision.show,
    )

    def is_decided(decision: Decision) -> bool:
        return all(
            verdict.outcome in _DECIDED
            for verdict in decision.verdicts
            if verdict.metric in check.tolerances
        )

    set_aside(folder)
    gate = open_gate(options, context.tier)
    with contextlib.closing(gate.journal):
        decision = gate.measure(is_decided)
        record_gate(gate, command=_command_of(options))
    return decision.verdicts


def _command_of(options: GateOptions) -> str:
    """Return the command that does the same measurement again, in a folder of its own."""
    arguments = [options.a, options.b, f"--tier={options.tier}"]
    arguments += [f"--case={case_id}" for case_id in options.case_ids]
    arguments += [f"{TOLERANCE}={tolerance}" for tolerance in options.tolerances]
    return specreg_command("gate", *arguments)
