"""The report document of a gate, which the renderers of a run's document show."""

import datetime as dt
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import specreg
from specreg.baselines.record import commit_of
from specreg.compare.decision import Decision
from specreg.compare.gate import Gate
from specreg.compare.judging import SideLaunch, value_of
from specreg.compare.pairs import OUTPUT, Pair, Side
from specreg.core.errors import ReportError
from specreg.core.files import replace_file
from specreg.measurement.figures import figures_of
from specreg.measurement.metrics import GATE_METRICS
from specreg.report.charts import break_even
from specreg.report.document import (
    Answer,
    ArmReport,
    CaseReport,
    Expected,
    Kind,
    Origin,
    Report,
    RunVerdict,
    Tone,
    count_outcomes,
    record_document,
)
from specreg.report.markdown import render_markdown
from specreg.report.page import render_page
from specreg.verdicts.judge import Verdict


def document_of(gate: Gate, *, command: str, status: int | None = None) -> Report:
    """What a gate says so far.

    Args:
        gate: which.
        command: what was typed.
        status: the command's, where something cut it short.
    """
    decision, request = gate.decide(), gate.request
    return Report(
        run=RunVerdict(
            run=gate.folder.name,
            tier=request.tier.name,
            environment=gate.environment.name,
            complete=gate.finished,
            exit_status=decision.answer.exit_status if status is None else status,
            outcomes=count_outcomes(decision.verdicts),
            verdicts=decision.verdicts,
        ),
        machine=gate.environment,
        origin=Origin(
            command=command,
            specreg_version=specreg.__version__,
            commit=commit_of(request.root),
            python_version=platform.python_version(),
            driver_version="",
        ),
        cases=tuple(_case_report(gate, pair, decision, command) for pair in gate.pairs),
        tier_cases=tuple(case.id for case in request.tier.cases),
        remarks=(*_how(gate), *_break_evens(gate)),
        ended_at=dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
        kind=Kind.GATE,
        title=f"May B take the place of A? Tier {request.tier.name} on {gate.environment.name}",
        answers=(_answer(decision),),
        arms=(_arm(gate, Side.A), _arm(gate, Side.B)),
        control=decision.control,
        hints=decision.takes,
    )


def _answer(decision: Decision) -> Answer:
    """The answer in a line: the word, then why."""
    tones = {"upgrade": Tone.GOOD, "don't": Tone.BAD, "undecided": Tone.DOUBT}
    texts = {
        "upgrade": "B is as good as A in all that was compared",
        "don't": "B is worse than A",
        "undecided": "it takes more to tell",
    }
    text = "; ".join((texts[decision.answer], *decision.reasons))
    return Answer(subject=decision.answer.upper(), tone=tones[decision.answer], text=text)


FILES = ("report.json", "report.md", "report.html")


def set_aside(folder: Path, names: Sequence[str] = FILES) -> None:
    """Rename what an earlier gate left in a folder, so that it isn't taken for this one's answer.

    Args:
        folder: of a gate; it needn't be there.
        names: of the files; `report.json` becomes `earlier-report.json`.

    Raises:
        OSError: the disk refuses.
    """
    for path in filter(Path.is_file, (folder / name for name in names)):
        path.replace(path.with_name(f"earlier-{path.name}"))


def write_document(folder: Path, report: Report, show: Callable[[str], None]) -> bool:
    """Write the document and its pages; say which can't be, False then."""
    written = True
    try:
        record_document(folder / FILES[0], report)
    except ReportError as error:
        show(str(error))
        written = False
    pages = (render_markdown(report), render_page(report))
    for name, page in zip(FILES[1:], pages, strict=True):
        try:
            replace_file(folder / name, page.encode())
        except OSError as error:
            show(f"'{folder / name}': can't be written, {error.strerror}")
            written = False
    return written


def _arm(gate: Gate, side: Side) -> ArmReport:
    request, place = gate.request, int(side is Side.B)
    return ArmReport(
        name=side,
        text=(request.a, request.b)[place],
        overrides=tuple((request.a_overrides, request.b_overrides)[place]),
        installed=gate.sides.installed[place],
        engine_versions=gate.versions(side),
    )


def _case_report(gate: Gate, pair: Pair, decision: Decision, command: str) -> CaseReport:
    case = pair.b
    measured = [
        one
        for one in gate.launches
        if one.pair_id == pair.id and one.side is Side.B and one.measurement is not None
    ]
    last = measured[-1] if measured else None
    return CaseReport(
        case_id=pair.id,
        engine=case.server.engine,
        method=case.server.method,
        models=case.server.models,
        dataset=case.dataset,
        target=case.server.target,
        draft=case.server.draft or "",
        settings=None,
        figures=figures_of(last.measurement, last.number) if last and last.measurement else None,
        expected=_expected(gate, [one for one in decision.verdicts if one.case_id == pair.id]),
        history=(),
        reproduce=command,
    )


def _expected(gate: Gate, verdicts: Sequence[Verdict]) -> Expected:
    """What side A did, in the place of a baseline."""
    return Expected(
        environment="side A",
        recorded_on=dt.datetime.now(tz=dt.UTC).date().isoformat(),
        engine_version=", ".join(gate.versions(Side.A)),
        reason=gate.sides.installed[0],
        values={one.metric: one.expected for one in verdicts if one.expected is not None},
        histogram=(),
        marginal_frac=(),
        category_acceptance_length_tokens={},
    )


def _how(gate: Gate) -> Iterator[str]:
    """How it measured and judged."""
    request, rules = gate.request, gate.rules
    together = any(group.together for group in gate.groups)
    yield (
        f"the servers of both sides were up {'at the same time' if together else 'one at a time'},"
        f" up to {rules.launches} times each, each asked for {request.least_s:g} s at least; a look"
        f" may err in {rules.level:.2%}, a loss in {rules.loss_level:.4%}"
    )
    if rules.tolerances:
        set_by_hand = ", ".join(f"{name} {frac:.1%}" for name, frac in rules.tolerances.items())
        yield f"tolerances that were set: {set_by_hand}"
    if request.pin_length_tokens is not None:
        yield f"the acceptance length of the pinned cases is {request.pin_length_tokens:g}"
    if not request.with_control:
        yield "side A was not measured against itself, so a machine that moves isn't told"
    for group in gate.groups:
        if group.with_control and (why := gate.why_no_control(group)):
            yield f"side A was no longer measured against itself: {why}"
    yield from gate.failed()


def _break_evens(gate: Gate) -> Iterator[str]:
    """Where speculation stops paying, of each server that was measured under several loads."""
    for side in (Side.A, Side.B):
        curves: dict[str, list[tuple[int, float]]] = {}
        for pair in gate.pairs:
            case, plain = pair.of(side), _plain_of(pair, gate.pairs, side)
            fast, slow = (_output(gate.launches, one, side) for one in (pair, plain))
            if case.load.concurrency and fast and slow:
                name = f"{case.server.id}-{case.dataset}"
                curves.setdefault(name, []).append((case.load.concurrency, fast / slow))
        for name, curve in curves.items():
            if len(curve) > 1:
                loads = sorted(curve)
                gains = ", ".join(f"{gain:.2f}x at {load}" for load, gain in loads)
                yield f"{name} on side {side}: {break_even(loads)}; {gains}"


def _plain_of(pair: Pair, pairs: Sequence[Pair], side: Side) -> Pair | None:
    """The pair without speculation of the same models, prompts and load."""
    case = pair.of(side)

    def alike(other: Pair) -> bool:
        one = other.of(side)
        return (
            not one.speculates
            and (one.server.engine, one.server.models) == (case.server.engine, case.server.models)
            and (one.dataset, one.load, one.prompts) == (case.dataset, case.load, case.prompts)
        )

    return next(filter(alike, pairs), None) if case.speculates else None


def _output(launches: Sequence[SideLaunch], pair: Pair | None, side: Side) -> float | None:
    """The mean throughput of a pair on a side, in tokens per second."""
    told = [
        value
        for one in launches
        if pair is not None and one.pair_id == pair.id and one.side is side
        if (value := value_of(GATE_METRICS[OUTPUT], one))
    ]
    return sum(told) / len(told) if told else None
