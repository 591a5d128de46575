"""The report: what was compared and decided in, `gate.json` out, and what the pages show."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from specreg.compare.gate.answer import Answer, Decision, cause_of
from specreg.compare.gate.break_even import BreakEven
from specreg.compare.gate.judging import DIFFERS, Judged
from specreg.compare.gate.launched import Arm
from specreg.compare.gate.quantities import ACCEPTANCE
from specreg.verdicts.judge import Outcome

SCHEMA_VERSION = 1
NOTHING = "–"
_BYTES_PER_MIB = 2**20


class SideReport(msgspec.Struct, frozen=True, kw_only=True):
    """A side.

    Attributes:
        text: as it was typed; overrides: what its cases have otherwise.
        installed: package and version, and where it came from if that is no index.
        engine_versions: by its servers' own word.
    """

    text: str
    overrides: tuple[str, ...]
    installed: str
    engine_versions: tuple[str, ...]


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A case on a launch that came to nothing; see `Launched`."""

    case_id: str
    arm: Arm
    block: int
    reason: str


class How(msgspec.Struct, frozen=True, kw_only=True):
    """How a gate measured and judged.

    Attributes:
        together: whether the servers of all sides were up at the same time.
        with_control: whether side A was launched once more; control_failed: why no longer, empty
            where it was to the end.
        least_s: how long a launch was asked, at least, where speed counts.
        level_frac: how often an interval misses the truth on either side.
        loss_level_frac: the same where a loss is to be proven, which all figures share.
        blocks: among how many looks the level is shared; launches: the most of each side.
        minutes: the most that the launches might take, null for as long as it took.
        went_on: whether a gate that had been cut off went on; the minutes are those since then.
        prompts: how many each case replayed, null for its own number.
        pin_length_tokens: the acceptance length of the pinned cases, null for none.
        tolerances: by quantity, those that somebody set.
    """

    together: bool
    with_control: bool
    least_s: float
    level_frac: float
    loss_level_frac: float
    blocks: int | None = None
    launches: int | None = None
    minutes: float | None = None
    went_on: bool = False
    prompts: int | None = None
    pin_length_tokens: float | None = None
    tolerances: dict[str, float] = {}
    control_failed: str = ""


class GateReport(msgspec.Struct, frozen=True, kw_only=True):
    """`gate.json`.

    Attributes:
        answer: see `Answer`; exit_status: 0, 1 or 10, and 130 where Ctrl-C or a
            signal cut it short; the command's.
        a, b: the sides.
        environment: name of the kind of machine.
        tier: of the cases; cases: what was compared.
        launches: how many servers were measured; minutes: what they took.
        complete: whether all was decided, or all launches that there may be were made; not where
            it was cut short or there was no time left.
        finished_on: the day.
        decision: all outcomes.
        how: it measured and judged; null in reports that didn't say so yet.
        break_evens: where speculation stops paying, of each side.
        failed: what couldn't be measured; the figures are without it.
    """

    schema_version: int = SCHEMA_VERSION
    specreg_version: str
    answer: Answer
    exit_status: int
    a: SideReport
    b: SideReport
    environment: str
    tier: str
    cases: tuple[str, ...]
    launches: int
    minutes: float
    complete: bool
    finished_on: str
    decision: Decision
    how: How | None = None
    break_evens: tuple[BreakEven, ...] = ()
    failed: tuple[Failed, ...] = ()


def render_schema() -> str:
    """The JSON Schema of `gate.json`."""
    return json.dumps(msgspec.json.schema(GateReport), indent=1, sort_keys=True) + "\n"


def encode_report(report: GateReport) -> bytes:
    """`gate.json`."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def load_report(path: Path) -> GateReport:
    """A report that was written.

    Raises:
        OSError: it can't be read.
        msgspec.DecodeError: it is none.
    """
    return msgspec.json.decode(path.read_bytes(), type=GateReport)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A case on the page: what it is called, its cause if it lost, and its rows."""

    title: str
    cause: str
    rows: tuple[tuple[str, ...], ...]

    @property
    def heading(self) -> str:
        """Both in a line."""
        return f"{self.title}{f': worse by {self.cause}' if self.cause else ''}"


HEADER = ("", "A", "B", "change", "interval", "tolerance", "launches", "outcome")
CONTROL_HEADER = tuple("A2" if name == "B" else name for name in HEADER)


def sections(judged: Sequence[Judged]) -> Iterator[Section]:
    """The cases of a report, in their order."""
    by_case: dict[str, list[Judged]] = {}
    for one in judged:
        by_case.setdefault(one.case_id, []).append(one)
    for case_id, ones in by_case.items():
        yield Section(title=case_id, cause=cause_of(ones), rows=tuple(map(_row, ones)))


def _row(one: Judged) -> tuple[str, ...]:
    name = one.quantity if one.decides else f"({one.quantity})"
    return (
        name,
        _value(one.quantity, one.a),
        _value(one.quantity, one.b),
        _frac(one.change_frac),
        NOTHING
        if one.low_frac is None or one.high_frac is None
        else f"{_percent(one.low_frac)}..{_percent(one.high_frac)}",
        f"{one.tolerance_frac:.1%}",
        str(one.launches),
        str(one.outcome),
    )


def notes(judged: Sequence[Judged]) -> Iterator[str]:
    """What rows don't say: what output came from, and why something can't be told."""
    for one in judged:
        if one.parts_frac and one.decides:
            parts = ", ".join(f"{part:+.1%} by {name}" for name, part in one.parts_frac.items())
            yield f"{one.case_id}, {one.quantity}: {parts}"
        if one.reason:
            yield f"{one.case_id}, {one.quantity}: {one.reason}"


def headline(report: GateReport) -> str:
    """The answer in a sentence."""
    sides = f"{report.a.text} → {report.b.text}"
    overrides = " and ".join(
        f"{name} with {', '.join(side.overrides)}"
        for name, side in (("A", report.a), ("B", report.b))
        if side.overrides
    )
    return f"{str(report.answer).upper()}: {sides}{f' ({overrides})' if overrides else ''}"


def facts(report: GateReport) -> str:
    """What the answer rests on, in a sentence."""
    return (
        f"{len(report.cases)} cases of tier {report.tier} on {report.environment},"
        f" {report.launches} launches in {report.minutes:.0f} minutes"
        f"{'' if report.complete else ', cut short'}; {report.finished_on},"
        f" specreg {report.specreg_version}"
    )


def sides(report: GateReport) -> tuple[str, ...]:
    """What was installed on each side, and what its servers said that they are."""
    return tuple(
        f"{name}: {side.installed}{_own_word(side)}"
        for name, side in ((Arm.A, report.a), (Arm.B, report.b))
    )


def _own_word(side: SideReport) -> str:
    versions = ", ".join(side.engine_versions)
    return f"; its servers said {versions}" if versions else ""


def how_in_words(report: GateReport) -> Iterator[str]:
    """How it was measured and judged, in sentences; none of a report that doesn't say."""
    how = report.how
    if how is None:
        return
    place = "at the same time, asked by turns" if how.together else "one after another"
    yield f"servers: {place}; a launch was asked for {how.least_s:g} s at least"
    yield f"control: {_control(how, report.decision.control)}"
    yield (
        f"intervals: each end is missed in {100 * how.level_frac:.3g} % of looks; a loss must stand"
        f" at {100 * how.loss_level_frac:.3g} %"
    )
    yield from _limits(how)
    if how.tolerances:
        tolerances = ", ".join(f"{name} {frac:.1%}" for name, frac in how.tolerances.items())
        yield f"tolerances set by hand: {tolerances}"


def _limits(how: How) -> Iterator[str]:
    """How much there might be of it; nothing of a report that doesn't say."""
    if how.launches is None:
        return
    since = " from where it went on" if how.went_on else ""
    minutes = "" if how.minutes is None else f" and {how.minutes:g} minutes{since}"
    looks = f"; the level is shared among {how.blocks} looks, one after each block"
    yield f"at most: {how.launches} launches of each side{minutes}{looks}"
    if how.prompts is not None:
        yield f"prompts: {how.prompts} of each case"
    if how.pin_length_tokens is not None:
        yield f"pinned: to an acceptance length of {how.pin_length_tokens:g}"


def _control(how: How, control: Sequence[Judged]) -> str:
    """What it said, in words."""
    if not how.with_control:
        return "none"
    deciding = [one for one in control if one.decides]
    moved = [
        f"{one.quantity} of {one.case_id} by {_frac(one.change_frac)}"
        for one in deciding
        if one.outcome in DIFFERS
    ]
    if how.control_failed and not moved:
        return f"none, as it failed and was given up: {how.control_failed}"
    untold = sum(one.outcome is Outcome.INVALID for one in deciding)
    said = f"the machine moved {', '.join(moved)}" if moved else "no difference was proven"
    return f"{said}, in {len(deciding)} figures{f'; {untold} INVALID' if untold else ''}"


def legend() -> str:
    """How to read the tables."""
    return (
        "Better is positive. What stands in brackets decides nothing. The change of"
        f" {ACCEPTANCE} is that of AL − 1. PASS: proven within the tolerance. IMPROVED: proven"
        " better by more. REGRESSED: proven worse than A, the interval at the level that all"
        " figures share being below 0, by an estimate beyond the tolerance. INCONCLUSIVE: none of"
        " these. The control is side A against itself: a difference there is the machine's."
    )


def _value(quantity: str, value: float | None) -> str:
    if value is None:
        return NOTHING
    if quantity == "memory_bytes":
        return f"{value / _BYTES_PER_MIB:.0f} MiB"
    return f"{value:.4g}"


def _frac(frac: float | None) -> str:
    return NOTHING if frac is None else _percent(frac)


def _percent(frac: float) -> str:
    # An interval of one degree of freedom reaches very far.
    return f"{frac:+.1%}" if abs(frac) < 10 else f"{'-' if frac < 0 else '+'}∞"  # noqa: PLR2004
