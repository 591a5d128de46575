"""Build the report document of a gate. It has the form of a run's, so the same code renders it."""

import datetime as dt
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from specreg.baselines.comparison import difference_of_arms
from specreg.baselines.packages import render_differences
from specreg.baselines.record import commit_of
from specreg.compare.gate import Gate
from specreg.compare.judging import Decision
from specreg.compare.options import MOST_WORTH_ASKING, TOLERANCE
from specreg.compare.pairs import COMPARED, Pair, Side
from specreg.core.counted import counted
from specreg.core.errors import ReportError
from specreg.engines.launch_facts import changed_facts
from specreg.report.document import (
    CaseReport,
    ComparedReport,
    Expected,
    Headline,
    RunVerdict,
    SideReport,
    Tone,
    origin_of,
)
from specreg.report.expected import expected_by
from specreg.report.exports import ALWAYS, write_outputs
from specreg.report.files import FILE_NAME, record_document
from specreg.report.remarks import workload_remarks
from specreg.report.tables import label_of
from specreg.runs.ledger import FailedLaunch, MeasuredLaunch
from specreg.verdicts.status import UNDECIDED_STATUS, count_outcomes, exit_status

_HEADLINES = {
    "upgrade": (Tone.GOOD, "as good in all that was compared"),
    "don't": (Tone.BAD, "worse"),
    "undecided": (Tone.DOUBT, "what was measured doesn't decide it"),
}
INTERRUPTED_STATUS = 130
"""The status by which shells report a program that SIGINT ended: 128 and the signal's number, 2."""
_LARGEST_TOLERANCE_FRAC = 0.5
"""A larger loss need not be looked for with a tolerance."""


def set_report_aside(folder: Path) -> None:
    """Rename the report of an earlier gate, so that nobody takes it for the report of this one."""
    for path in folder.glob("report.*"):
        path.replace(path.with_name(f"earlier-{path.name}"))


def run_to_end(
    gate: Gate,
    *,
    command: str,
    resume_options: str = "",
    show: Callable[[ComparedReport], None] = lambda _: None,
) -> Decision:
    """Measure a gate, and write its report, also of what an interrupted gate has measured.

    Args:
        command: as for `record_gate`.
        resume_options: as for `record_gate`.
        show: called with the report once it is written.

    Raises:
        SpecregError: as in `Gate.measure`.
    """
    # A gate whose time is up isn't cut short: its verdicts stand.
    status: int | None = UNDECIDED_STATUS
    try:
        decision = gate.measure()
        status = None
    except KeyboardInterrupt:
        status = INTERRUPTED_STATUS
        raise
    finally:
        report = record_gate(gate, command=command, resume_options=resume_options, status=status)
        gate.ledger.close()
        # Show it last, because printing fails on a terminal that was closed.
        show(report)

    return decision


def record_gate(
    gate: Gate, *, command: str, resume_options: str = "", status: int | None = None
) -> ComparedReport:
    """Write the report of a gate and its pages, even if the gate isn't finished, and return it.

    Args:
        command: the command that was typed.
        resume_options: the options with which the command resumes the gate; empty if it needs none.
        status: the exit status if the gate was cut short; None for the status that follows from
            the verdicts.
    """
    options = gate.options
    decision = gate.decide()
    tone, text = _HEADLINES[decision.answer]
    explanation = "; ".join((text, *decision.reasons))
    answer = Headline(subject=decision.answer.upper(), tone=tone, text=explanation)
    if status is None:
        status = exit_status(decision.verdicts)
    run = RunVerdict(
        run=gate.folder.name,
        tier=gate.tier.name,
        environment=gate.environment.name,
        complete=gate.is_finished,
        exit_status=status,
        outcomes=count_outcomes(decision.verdicts),
        verdicts=decision.verdicts,
    )
    cases = [_case_report(gate, pair, decision, command) for pair in gate.goal.pairs]
    ended_at = dt.datetime.now(tz=dt.UTC)
    report = ComparedReport(
        run=run,
        machine=gate.environment,
        origin=origin_of(commit_of(options.root), command),
        cases=tuple(cases),
        tier_cases=tuple(case.id for case in gate.tier.cases),
        remarks=tuple(_remarks(gate)),
        ended_at=ended_at.isoformat(timespec="seconds"),
        answers=(answer,),
        sides=(_side_report(gate, Side.A), _side_report(gate, Side.B)),
        control=decision.control,
        hints=tuple(_hints(gate, decision, resume_options)),
    )

    # A page that can't be written must not end a gate that is measuring.
    try:
        record_document(gate.folder / FILE_NAME, report)
        write_outputs(ALWAYS, report, gate.folder, gate.folder)
    except ReportError as error:
        options.show(str(error))

    return report


def _side_report(gate: Gate, side: Side) -> SideReport:
    """Describe a side: what was typed, and what was installed and measured."""
    text = gate.options.a
    overrides = gate.options.a_overrides
    if side.is_b:
        text = gate.options.b
        overrides = gate.options.b_overrides
    return SideReport(
        name=side,
        text=text,
        overrides=tuple(overrides),
        installed=gate.installed[side],
        engine_versions=gate.engines(side),
    )


def _case_report(gate: Gate, pair: Pair, decision: Decision, command: str) -> CaseReport:
    """Describe a pair. B's figures take the place of a run's, and A's the place of a baseline's."""
    case = pair.b
    values_of_a = {}
    for verdict in decision.verdicts:
        expected = verdict.comparison.expected
        if verdict.case_id == pair.id and expected is not None:
            values_of_a[verdict.metric] = expected

    launch_of_b = _last_launch(gate, pair, Side.B)
    return CaseReport(
        case_id=pair.id,
        engine=case.server.engine,
        method=case.server.method,
        models=case.server.models,
        dataset=case.request.dataset,
        target=case.server.target,
        draft=case.server.draft or "",
        settings=None,
        figures=launch_of_b.figures if launch_of_b else None,
        expected=_expected_by_a(gate, pair, values_of_a),
        history=(),
        reproduce=command,
    )


def _expected_by_a(gate: Gate, pair: Pair, values: dict[str, float]) -> Expected | None:
    """Return what side A measured for a pair, in the form of a baseline; None without figures."""
    launch = _last_launch(gate, pair, Side.A)
    if launch is None:
        return None
    today = dt.datetime.now(tz=dt.UTC).date()
    expected = expected_by(
        launch.figures,
        environment="side A",
        recorded_on=today.isoformat(),
        # A page quotes the reason of a baseline. For side A it quotes what is installed there.
        reason=gate.installed[Side.A],
    )
    return msgspec.structs.replace(expected, values=values)


def _differing_packages(gate: Gate) -> Iterator[str]:
    """Yield a remark for each pair whose sides have one engine version but different packages."""
    for pair in gate.goal.pairs:
        last_launches = [_last_launch(gate, pair, side) for side in COMPARED]
        a, b = (launch.measurement if launch else None for launch in last_launches)
        # Two versions differ in their packages by design, which needs no remark.
        if a is None or b is None or a.engine_version != b.engine_version:
            continue
        changes = render_differences(a.packages, b.packages)
        if a.packages and b.packages and changes:
            engine = f"{pair.b.server.engine} {b.engine_version}"
            yield f"both sides are {engine}, but other packages differ; from A to B: {changes}"


def _differing_facts(gate: Gate) -> Iterator[str]:
    """Yield a remark for each pair whose engines ran or counted differently."""
    for pair in gate.goal.pairs:
        last_launches = [_last_launch(gate, pair, side) for side in COMPARED]
        a, b = (launch.measurement if launch else None for launch in last_launches)
        if a is None or b is None:
            continue
        changes = ", ".join(changed_facts(a.facts, b.facts))
        if changes:
            yield f"{pair.id}: from A to B, {changes}"
        difference = difference_of_arms([a], [b])
        if difference is not None:
            yield f"{pair.id}: {difference.description}"


def _last_launch(gate: Gate, pair: Pair, side: Side) -> MeasuredLaunch | None:
    """Return the last launch of a side that measured a pair; None if there is none."""
    for launch in reversed(gate.ledger.measured):
        if (launch.case_id, launch.arm) == (pair.id, side):
            return launch
    return None


def _hints(gate: Gate, decision: Decision, resume_options: str) -> Iterator[str]:
    """Yield a hint with the command that would decide the gate, and then what is unclear.

    Args:
        decision: its decision so far.
        resume_options: the options with which the command resumes the gate; empty if it needs none.
    """
    needed = decision.needed_launches or _launches_to_judge(decision)
    if needed > MOST_WORTH_ASKING:
        yield from _lower_demands(decision, resume_options)
    elif needed:
        options = resume_options
        if needed > gate.options.launches:
            options = f"{resume_options} --launches {needed}".lstrip()
        command = "type the same command"
        if options:
            command = f"type the same command with {options}"
        yield (
            f"about {counted(needed, 'launch')} of each side would decide: {command}; a quieter"
            " machine needs fewer"
        )

    yield from decision.unclear


def _launches_to_judge(decision: Decision) -> int:
    """Return how many launches would judge the speeds that a lost gate has too few launches for."""
    needed = [
        verdict.needed_launches or 0
        for verdict in decision.verdicts
        if verdict.fails and verdict.has_code("few_launches")
    ]
    return max(needed, default=0)


def _lower_demands(decision: Decision, resume_options: str) -> Iterator[str]:
    """Yield for each metric that isn't decidable here which tolerance is, and what to type."""
    losses_frac: dict[str, float] = {}
    for verdict in decision.verdicts:
        low_frac = verdict.comparison.low_frac
        needed = verdict.needed_launches or 0
        if verdict.fails and needed > MOST_WORTH_ASKING and low_frac is not None:
            losses_frac[verdict.metric] = max(losses_frac.get(verdict.metric, 0.0), -low_frac)

    for name, loss_frac in losses_frac.items():
        problem = f"{label_of(name)} isn't decidable at this tolerance, because its launches differ"
        tolerance_frac = math.ceil(100 * loss_frac + 1) / 100
        advice = "measure on a quieter machine"
        if tolerance_frac < _LARGEST_TOLERANCE_FRAC:
            options = f"{resume_options} {TOLERANCE} {name}={tolerance_frac:g}".lstrip()
            advice += f", or decide whether it lost {100 * tolerance_frac:.0f} % by typing the same"
            advice += f" command with {options}"
        yield f"{problem} too much on this machine: {advice}"


def _remarks(gate: Gate) -> Iterator[str]:
    """Yield remarks about how the gate measured and judged, and about launches that failed."""
    options = gate.options
    rules = gate.rules
    order = "at the same time" if gate.goal.together else "one after the other"
    yield (
        f"the servers of both sides were up {order}, in {counted(rules.launches, 'launch')} each"
        f" at most, and each launch was kept under load for at least {options.least_s:g} s"
    )
    if options.pin_length_tokens is not None:
        yield f"the acceptance length of the pinned cases is {options.pin_length_tokens:g}"
    for pair in gate.goal.pairs:
        for side in COMPARED:
            last_launch = _last_launch(gate, pair, side)
            if last_launch is not None:
                yield from workload_remarks(last_launch.figures, side)

    yield from _differing_facts(gate)
    yield from dict.fromkeys(_differing_packages(gate))

    for launch in gate.ledger.launches:
        if isinstance(launch, FailedLaunch):
            where = f"side {launch.arm}, launch {launch.number}, {launch.case_id}"
            yield f"{where}: {launch.reason}"
