"""Tell a slower engine from a slower machine, by measuring the earlier engine in the same hour.

If all cases of a run became slower by the same share, or if their control became slower too, the
cause is the machine or the engine, and the run's own measurements can't tell which. But if the
version of the engine has changed since the last good night, a gate can tell: it runs both versions
in the same hour, on one case.
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from specreg.baselines.schema import Baseline
from specreg.compare.document import run_to_end, set_report_aside
from specreg.compare.gate import open_gate
from specreg.compare.judging import Decision
from specreg.compare.options import TOLERANCE, GateOptions
from specreg.core.commands import specreg_command
from specreg.core.errors import SpecregError
from specreg.core.reasons import Reason
from specreg.core.timeline import Phase, Timeline
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import GATE_METRICS, METRICS
from specreg.report.tables import label_of
from specreg.runs.goals import CaseLaunch, EngineChange, EngineCheck
from specreg.runs.ledger import LEDGER, Ledger, MeasuredLaunch
from specreg.runs.verdicts import LedgerJudge
from specreg.suite.context import RunContext
from specreg.verdicts.history import History, settings_sha256
from specreg.verdicts.multiple_testing import draw_of, follow
from specreg.verdicts.verdict import GOOD, Outcome, Verdict, with_remark

ENGINES_FOLDER = "engines"
"""The folder, below the run's, for gates between two versions. Each case has a folder in it."""
_LAUNCHES = 8
"""The most launches of each side. With four launches a gate always finds a loss of 30 %, and with
eight it usually finds a loss of 10 %."""
_MINUTES = 15.0
"""The most time that the gate may take at the end of a run, in minutes."""
_S_PER_MIN = 60
_SHORTEST_S = 0.01
"""The smallest value of a gate's `--seconds`, for a case whose `least_s` is 0."""
_DECIDED = GOOD | {Outcome.REGRESSED}
"""The outcomes that tell whether the engine is worse."""
_BAD_NIGHT = frozenset({Outcome.REGRESSED, Outcome.INVALID, Outcome.WRONG})
"""The outcomes of a night that isn't good."""
_LAUNCH_PHASES = (Phase.STARTING, Phase.WARMING_UP, Phase.MEASURING, Phase.STOPPING)
"""The phases of a launch in a run that a launch in a gate has too."""
_MAIN_CAUSE_FRAC = 0.5
"""The engine alone is named as the cause if its loss is at least this share of the loss of all that
ran tonight."""


def is_doubtful(verdict: Verdict) -> bool:
    """Return whether either the machine or the engine may have caused what a verdict is about.

    This is true if the verdict is INVALID or REGRESSED because all cases, or the control, became
    worse tonight. It is also true if all cases seem to be worse by more than the tolerance, without
    a proof.
    """
    common_frac = verdict.comparison.common_frac
    tolerance_frac = verdict.comparison.tolerance_frac
    if verdict.has_code("MACHINE_MOVED"):
        return True

    # A proven loss beyond that of all cases is the case's own.
    is_own_loss = verdict.outcome is Outcome.REGRESSED
    if is_own_loss or common_frac is None or tolerance_frac is None:
        return False
    return common_frac < -tolerance_frac


def wanted_check(context: RunContext, judge: LedgerJudge) -> EngineCheck | None:
    """Return the gate that a run ends with; None if no loss is doubtful, or it takes too long."""
    check = _chosen_check(context, judge)
    return check if check is not None and _is_short_enough(check, context) else None


def _chosen_check(context: RunContext, judge: LedgerJudge) -> EngineCheck | None:
    """Return the gate that a run has begun, or else the one that tells most; None for none."""
    checks = possible_checks(context, judge)
    begun = [check for check in checks if check.found_in(judge.ledger)]
    return next(iter((*begun, *checks)), None)


def possible_checks(context: RunContext, judge: LedgerJudge) -> list[EngineCheck]:
    """Return the gates that can tell the engine from the machine, the best one first.

    The best one is on the case with the most doubtful metrics, and among such cases on the one
    whose launch took the least time.
    """
    provision = context.provision
    is_installed_by_specreg = not (
        provision.attached or provision.python or provision.build or provision.image
    )

    # Only an engine that specreg installs can be measured in an earlier version.
    if not is_installed_by_specreg:
        return []

    # One of several processes has only some of the cases, and the other processes still need the
    # machine. A user who wants no history wants verdicts by the committed files alone.
    if context.is_part or context.is_recording or not context.has_history:
        return []

    all_verdicts = follow(tuple(judge.verdicts(is_over=True).values()))
    checks = []
    for launch in _last_launches(judge.ledger):
        case = launch.case
        verdicts = [verdict for verdict in all_verdicts if verdict.case_id == case.id]
        tolerances = _doubtful_tolerances(verdicts)
        if not tolerances:
            continue
        change = _change_of(launch.measurement, tolerances, context, judge.references.history)
        if change is not None:
            launch_s = _launch_s(case, judge.timeline)
            checks.append(
                EngineCheck(case=case, change=change, tolerances=tolerances, launch_s=launch_s)
            )

    return sorted(checks, key=lambda check: (-len(check.tolerances), check.launch_s or math.inf))


def _last_launches(ledger: Ledger) -> Iterable[MeasuredLaunch]:
    """Return the last launch of each case that was measured."""
    return {launch.case_id: launch for launch in ledger.measured}.values()


def _doubtful_tolerances(verdicts: Iterable[Verdict]) -> dict[str, float]:
    """Return the tolerance of each metric that a gate compares to decide the doubtful verdicts.

    Metrics that move together are decided by the first of them, so a gate compares only that one.

    Returns:
        The tolerances, 0..1, by the name of the metric.
    """
    tolerances: dict[str, float] = {}
    for verdict in verdicts:
        tolerance_frac = verdict.comparison.tolerance_frac
        leader = draw_of(METRICS[verdict.metric]) if verdict.metric in METRICS else ""
        if not is_doubtful(verdict) or not tolerance_frac or leader not in GATE_METRICS:
            continue
        if verdict.metric == leader:
            tolerances[leader] = tolerance_frac
        else:
            tolerances.setdefault(leader, tolerance_frac)

    return tolerances


def _change_of(
    launch: Measurement, metrics: Iterable[str], context: RunContext, history: History
) -> EngineChange | None:
    """Return how the engine of a case changed; None if it didn't, or if that can't be measured.

    Args:
        launch: what was measured of the case.
        metrics: the names of the metrics by which a night is called good.
        context: what is fixed for the run.
        history: the earlier nights.
    """
    engine = launch.case.server.engine
    if engine_named(engine).program is not None:
        # The engine is a program on PATH, of which there is only one version.
        return None
    try:
        baseline = context.exact_baseline(launch.case)
    except SpecregError:
        # The verdicts of the case say so.
        return None
    if baseline is None:
        return None
    before = _released(_version_before(launch.case.id, baseline, frozenset(metrics), history))
    tonight = _released(launch.engine_version)
    if not before or not tonight or before == tonight:
        return None
    return EngineChange(engine=engine, before=before, tonight=tonight)


def _version_before(
    case_id: str, baseline: Baseline, metrics: AbstractSet[str], history: History
) -> str:
    """Return the engine's version on the last good night of a case.

    Returns:
        The version; without a good night the version of the baseline.
    """
    settings = settings_sha256(baseline.case)
    for record in reversed(history.of(case_id)):
        if record.settings_sha256 != settings:
            continue
        outcomes = {record.outcomes.get(metric) for metric in metrics} - {None}
        # A night that decided nothing may have had tonight's loss already.
        if outcomes & GOOD and not outcomes & _BAD_NIGHT:
            return record.engine_version
    return baseline.provenance.engine_version


def _released(version: str) -> str:
    """Return a version as a package index has it, without its local part.

    Returns:
        The version; empty for a development build or an unreadable version, which no index has.
    """
    with contextlib.suppress(InvalidVersion):
        parsed = Version(version)
        if not parsed.is_devrelease:
            return parsed.public
    return ""


def _launch_s(case: Case, timeline: Timeline) -> float:
    """Return how long the first launch of a case's server took, in seconds; 0 if unknown.

    All cases on that server count. Time that several servers used together is divided equally
    between them.
    """
    launch_id = CaseLaunch.of(case, 1).server.id
    for pair_time in timeline.so_far().pairs:
        if pair_time.pair == launch_id:
            return sum(pair_time.phases_s.get(phase, 0.0) for phase in _LAUNCH_PHASES)
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswer:
    """What the comparison of two versions of an engine says about the losses of a run.

    Attributes:
        check: what was compared.
        case_ids: the ids of the cases whose engine changed between the same two versions.
        by_metric: the verdict of the gate on each compared metric, by the metric's name.
    """

    check: EngineCheck
    case_ids: AbstractSet[str]
    by_metric: Mapping[str, Verdict]

    def judge(self, verdict: Verdict) -> Verdict:
        """Return a verdict of the run in the light of the comparison.

        If the present version of the engine is worse than the earlier one, a doubtful verdict is
        REGRESSED. If the present version isn't worse, the machine caused the loss, and a loss with
        the code MACHINE_MOVED is INVALID. In all other cases the outcome stays.
        """
        if not is_doubtful(verdict) or verdict.metric not in METRICS:
            return verdict
        compared = self.by_metric.get(draw_of(METRICS[verdict.metric]))
        if compared is None or verdict.case_id not in self.case_ids:
            return verdict

        # The engine has become worse.
        if compared.outcome is Outcome.REGRESSED:
            before, tonight = self.check.change.sides
            bisect = specreg_command(
                "bisect", self.check.case.id, f"--good={before}", f"--bad={tonight}"
            )
            reason = Reason.of(
                "ENGINE_SLOWER",
                cause=self._cause(verdict, compared),
                measured=self._measured(verdict, compared),
                bisect=bisect,
            )
            return dataclasses.replace(verdict, outcome=Outcome.REGRESSED, reason=reason)

        # The gate has decided nothing.
        if compared.outcome not in GOOD:
            measured = self._measured(verdict, compared)
            return with_remark(verdict, Reason.of("engine_undecided", measured=measured))

        # The engine isn't worse. Without the code MACHINE_MOVED, a verdict keeps its outcome.
        kept = Reason.of(
            "engine_kept",
            tolerated=compared.comparison.tolerated,
            measured=self._measured(verdict, compared),
        )
        if not verdict.has_code("MACHINE_MOVED"):
            return with_remark(verdict, kept)
        reason = Reason.of("MACHINE_MOVED", finding=kept.text)
        return dataclasses.replace(verdict, outcome=Outcome.INVALID, reason=reason)

    def _cause(self, verdict: Verdict, compared: Verdict) -> str:
        """Return a clause that says whether the engine alone explains tonight's loss."""
        # Both changes are losses, so they are negative.
        engine_frac = compared.comparison.change_frac or 0.0
        common_frac = verdict.comparison.common_frac or 0.0
        if engine_frac > _MAIN_CAUSE_FRAC * common_frac:
            return "the engine is slower, and so is the machine"
        return "it is the engine, not the machine"

    def _measured(self, verdict: Verdict, compared: Verdict) -> str:
        """Describe the change between both versions, and the change of all that ran tonight."""
        gate_metric = GATE_METRICS[compared.metric]
        text = f"{self.check} in the same hour"
        if compared.comparison.change_frac is not None:
            changed_frac = gate_metric.sign * compared.comparison.change_frac
            text = f"{text}: {label_of(compared.metric)} {changed_frac:+.1%}"
        common_frac = verdict.comparison.common_frac
        if common_frac is None:
            return text
        shown_frac = METRICS[verdict.metric].sign * common_frac
        return f"{text}; tonight all that ran changed by {shown_frac:+.1%}"


def engine_finding(
    context: RunContext, judge: LedgerJudge
) -> tuple[EngineAnswer | None, tuple[str, ...]]:
    """Return what the gate at the end of a run says, and a line for the summary.

    Returns:
        The answer, or None without one; and where both versions were compared, or why they weren't,
        if a loss was doubtful.
    """
    check = _chosen_check(context, judge)
    if check is None:
        return None, ()
    found = check.found_in(judge.ledger)
    failures = check.failures_in(judge.ledger)
    if found:
        verdicts = [msgspec.convert(line.verdict, Verdict) for line in found]
        folder = _folder_of(check, context)
        line = f"{check}, side by side: {folder / 'report.html'}"
        return _answer_of(check, verdicts, context, judge), (line,)
    if failures:
        return None, (f"{check}: {failures[-1].reason}",)
    if _is_short_enough(check, context):
        # The run was cut short, or another process measured it.
        return None, ()
    command = _command_of(_gate_options(check, context))
    problem = f"measuring both versions side by side takes more than {_MINUTES:g} minutes"
    return None, (f"{check}: {problem}, so it isn't done at the end of a run; type {command}",)


def _is_short_enough(check: EngineCheck, context: RunContext) -> bool:
    """Return whether a gate decides a clear change before it would delay the run's verdicts.

    If it isn't known how long a launch takes, the gate is tried, and ends when its time is up.
    """
    return _expected_s(check, context) <= _MINUTES * _S_PER_MIN


def _expected_s(check: EngineCheck, context: RunContext) -> float:
    """Return how long the launches that decide a clear change are expected to take, in seconds.

    Four launches of each side show a clear loss. Four more, in which the earlier version runs
    beside itself, show that the machine didn't cause the loss. Without a GPU, both sides run at the
    same time. On a GPU they take turns, which takes twice as long.
    """
    launches = 2 * _LAUNCHES if context.provision.on_gpu else _LAUNCHES
    return launches * check.launch_s


def _answer_of(
    check: EngineCheck, verdicts: Iterable[Verdict], context: RunContext, judge: LedgerJudge
) -> EngineAnswer:
    """Return what a gate's verdicts say about all cases whose engine changed in the same way."""
    metrics = check.tolerances
    history = judge.references.history
    case_ids = {
        launch.case_id
        for launch in _last_launches(judge.ledger)
        if _change_of(launch.measurement, metrics, context, history) == check.change
    }
    by_metric = {verdict.metric: verdict for verdict in verdicts}
    return EngineAnswer(check=check, case_ids=case_ids, by_metric=by_metric)


def measure_by_gate(context: RunContext, check: EngineCheck) -> tuple[Verdict, ...]:
    """Measure both versions on the case of a check, until each of its metrics is decided.

    If the launches or the time of the gate are used up before, some metrics stay undecided.

    Raises:
        SpecregError: a version can't be installed, or can't be measured.
        OSError: the answers can't be saved.
    """
    options = _gate_options(check, context)

    def is_decided(decision: Decision) -> bool:
        return all(
            verdict.outcome in _DECIDED
            for verdict in decision.verdicts
            if verdict.metric in check.tolerances
        )

    context.provision.tell(
        f"is the machine slower, or the engine? Measuring {check} side by side, for about"
        f" {_MINUTES:g} minutes at most; Ctrl-C leaves the verdicts as they are"
    )
    set_report_aside(_folder_of(check, context))
    gate = open_gate(options, context.tier).until(is_decided, goes_on_until_done=True)
    return run_to_end(gate, command=_command_of(options)).verdicts


def _folder_of(check: EngineCheck, context: RunContext) -> Path:
    """Return the folder of the gate on the case of a check."""
    return context.run_folder / ENGINES_FOLDER / check.case.id


def _gate_options(check: EngineCheck, context: RunContext) -> GateOptions:
    """Return the options of the gate that makes a check."""
    folder = _folder_of(check, context)
    before, tonight = check.change.sides
    return GateOptions(
        a=before,
        b=tonight,
        case_ids=[check.case.id],
        launches=_LAUNCHES,
        minutes=_MINUTES,
        least_s=max(check.case.judging.least_s, _SHORTEST_S),
        tolerances=[f"{name}={frac:g}" for name, frac in check.tolerances.items()],
        # A run that is resumed continues the gate that it had begun.
        resume=os.path.lexists(folder / LEDGER),
        out=folder,
        tier=context.tier.name,
        root=context.root,
        matrix=Path(context.options.matrix),
        ready_within_s=context.options.ready_within_s,
        show=context.provision.show,
        waits=context.provision.waits,
    )


def _command_of(options: GateOptions) -> str:
    """Return the command that makes the same comparison in a new folder."""
    named = {
        "--tier": options.tier,
        "--matrix": options.matrix,
        "--launches": options.launches,
        "--seconds": f"{options.least_s:g}",
    }
    arguments = [options.a, options.b]
    arguments += [f"{name}={value}" for name, value in named.items()]
    arguments += [f"--case={case_id}" for case_id in options.case_ids]
    arguments += [f"{TOLERANCE}={tolerance}" for tolerance in options.tolerances]
    return specreg_command("gate", *arguments)
