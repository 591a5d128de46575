"""Opening a gate: what was asked for in; a gate of which all that can be checked is checked out."""

import dataclasses
import datetime as dt
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

import specreg
from specreg.context import check_contexts
from specreg.errors import UnknownNameError, UnsupportedError
from specreg.files import replace_file
from specreg.gate.break_even import break_evens
from specreg.gate.going import Group
from specreg.gate.journal import resumed
from specreg.gate.judging import LAUNCHES_PER_BLOCK, Rules, count_figures
from specreg.gate.launched import Arm
from specreg.gate.overriding import parse_override
from specreg.gate.pages import render_html, render_markdown
from specreg.gate.pinning import forget_recordings, pinned_pairs
from specreg.gate.plan import Pair, Shared, check_prompts, pairs_of, shared_launches
from specreg.gate.quantities import ACCEPTANCE, QUANTITIES
from specreg.gate.report import Failed, GateReport, How, SideReport, encode_report
from specreg.gate.run import Gate, Place, begun_of
from specreg.gate.side import Side, Source, parse_side, source_of
from specreg.identity import current_environment, find_gpus
from specreg.matrix import Case, Tier
from specreg.models import resolve_model

_RECORDINGS = "recordings"
_SPEED_BLOCKS = 2
_SPEED_LAUNCHES = _SPEED_BLOCKS * LAUNCHES_PER_BLOCK
PAGES = ("gate.json", "gate.md", "gate.html")


def set_aside(folder: Path, names: Sequence[str] = PAGES) -> None:
    """Renames what an earlier run left in a folder, so that nobody takes it for this one's answer.

    Args:
        folder: of a gate; it needn't be there.
        names: of the files; `gate.json` becomes `earlier-gate.json`.

    Raises:
        OSError: the disk refuses.
    """
    for path in filter(Path.is_file, (folder / name for name in names)):
        path.replace(path.with_name(f"earlier-{path.name}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks a gate; texts are as they were typed.

    Attributes:
        a, b: the sides; a_overrides, b_overrides: what their cases have otherwise.
        tier: of which; case_ids: which of its cases, none for all.
        pin_length_tokens: the acceptance length of further cases, None for none.
        launches: the most of each side; minutes: the most that all of them may take.
        prompts: how many each case replays, None for its own number.
        tolerances: `QUANTITY=FRACTION`.
        with_control: whether side A is measured against itself.
        together: whether the servers of all sides are up at the same time, None for where no GPU
            has to hold them.
        least_s: how long a launch is asked, at least, where speed counts.
        resume: whether to go on with what lies in the folder.
        root: the repository's root; out: the folder of the gate, None for a new one in `.specreg`.
        ready_within_s: how long a server may take to its first token.
        show: is told what goes on.
    """

    a: str
    b: str
    a_overrides: Sequence[str] = ()
    b_overrides: Sequence[str] = ()
    tier: Tier
    case_ids: Sequence[str] = ()
    pin_length_tokens: float | None = None
    launches: int = 16
    minutes: float | None = None
    prompts: int | None = None
    tolerances: Sequence[str] = ()
    with_control: bool = True
    together: bool | None = None
    least_s: float = 20.0
    resume: bool = False
    root: Path
    out: Path | None = None
    ready_within_s: float = 600.0
    waits: bool = True
    show: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A gate and what its report needs beside it."""

    request: Request
    gate: Gate
    pairs: tuple[Pair, ...]
    installed: tuple[str, str]
    environment: str

    def report(self) -> GateReport:
        """What the gate says so far."""
        gate, decision = self.gate, self.gate.decide()
        numbers = {(one.number, one.arm) for one in gate.all_launches}
        return GateReport(
            specreg_version=specreg.__version__,
            answer=decision.answer,
            exit_status=decision.answer.exit_status,
            a=self._side(Arm.A),
            b=self._side(Arm.B),
            environment=self.environment,
            tier=self.request.tier.name,
            cases=tuple(pair.id for pair in self.pairs),
            launches=len(numbers),
            minutes=sum(gate.spent_s) / 60,
            complete=gate.finished,
            finished_on=dt.datetime.now(tz=dt.UTC).date().isoformat(),
            decision=decision,
            how=self._how,
            break_evens=break_evens(self.pairs, gate.all_launches),
            failed=tuple(
                Failed(case_id=one.case_id, arm=one.arm, block=one.block, reason=one.invalid)
                for one in gate.all_launches
                if one.invalid
            ),
        )

    @property
    def _how(self) -> How:
        gate = self.gate
        return How(
            together=any(shared.group.together for shared in gate.shared),
            with_control=self.request.with_control,
            least_s=gate.place.least_s,
            level_frac=gate.rules.level,
            loss_level_frac=gate.rules.loss_level,
            tolerances=dict(gate.rules.tolerances),
        )

    @property
    def extent(self) -> str:
        """How much is to be measured, in a sentence."""
        groups = [shared.group for shared in self.gate.shared]
        block = sum(group.launches for group in groups)
        return (
            f"{len(self.pairs)} cases on {len(groups)} servers of each side: {block} launches in a"
            f" block, at most {block * self.gate.rules.blocks}"
        )

    def record(self, report: GateReport) -> bool:
        """Writes `gate.json`, `gate.md` and `gate.html`; says which it couldn't, False then."""
        pages = (
            encode_report(report),
            render_markdown(report).encode(),
            render_html(report).encode(),
        )
        written = [self._written(*named) for named in zip(PAGES, pages, strict=True)]
        return all(written)

    def _written(self, name: str, page: bytes) -> bool:
        path = self.gate.place.folder / name
        try:
            replace_file(path, page)
        except OSError as error:
            self.request.show(f"'{path}': can't be written, {error.strerror}")
            return False
        return True

    def _side(self, arm: Arm) -> SideReport:
        asked, place = self.request, int(arm is Arm.B)
        versions = {
            one.engine_version
            for one in self.gate.launches
            if (one.arm is Arm.B) == (arm is Arm.B) and one.engine_version
        }
        return SideReport(
            text=(asked.a, asked.b)[place],
            overrides=tuple((asked.a_overrides, asked.b_overrides)[place]),
            installed=self.installed[place],
            engine_versions=tuple(sorted(versions)),
        )


def open_gate(asked: Request) -> Opened:
    """A gate that may start.

    Raises:
        SpecregError: something can't be measured as it is asked for; nothing was.
    """
    _check_numbers(asked)
    tier, root = asked.tier, asked.root
    on_gpu = tier.needs_gpus > 0
    sides = parse_side(asked.a), parse_side(asked.b)
    overrides = (
        tuple(map(parse_override, asked.a_overrides)),
        tuple(map(parse_override, asked.b_overrides)),
    )
    tolerances = _tolerances(asked.tolerances)
    folder = (
        asked.out or root / ".specreg" / "gates" / time.strftime("%Y-%m-%dT%H-%M-%S")
    ).resolve()
    pairs = pairs_of(
        tier,
        asked.case_ids,
        overrides,
        prompts=asked.prompts,
        show=asked.show,
        unfit=_unfit(tier, sides),
    )
    if asked.pin_length_tokens is not None:
        pairs += pinned_pairs(pairs, asked.pin_length_tokens, folder / _RECORDINGS)
    sources = (
        source_of(sides[0], on_gpu=on_gpu, show=asked.show, waits=asked.waits),
        source_of(sides[1], on_gpu=on_gpu, show=asked.show, waits=asked.waits),
    )
    together = not on_gpu if asked.together is None else asked.together
    shared = shared_launches(pairs, with_control=asked.with_control, together=together)
    rules = _rules([one.group for one in shared], asked.launches, tolerances)
    if rules.blocks < _SPEED_BLOCKS and _has_speeds(shared):
        asked.show(
            f"--launches {asked.launches}: a speed is decided by {_SPEED_LAUNCHES} launches of each"
            f" side at least, so these will stay undecided; give --launches {_SPEED_LAUNCHES} or"
            " more"
        )
    _check(asked, sources, pairs)
    environment = current_environment(needs_gpus=tier.gpus_used(find_gpus().memory_gib)).name
    begun = msgspec.structs.replace(
        begun_of(root, sources, pairs, environment),
        together=together,
        with_control=asked.with_control,
        least_s=asked.least_s,
    )
    journal, lines = resumed(folder / "gate.jsonl", begun, resume=asked.resume)
    if not lines:
        forget_recordings(folder / _RECORDINGS)
    gate = Gate(
        place=Place(
            root=root,
            folder=folder,
            on_gpu=on_gpu,
            ready_within_s=asked.ready_within_s,
            least_s=asked.least_s,
            show=asked.show,
        ),
        sources=sources,
        shared=shared,
        rules=rules,
        minutes=asked.minutes,
        journal=journal,
    )
    gate.take_over(lines)
    return Opened(
        request=dataclasses.replace(asked, out=folder),
        gate=gate,
        pairs=pairs,
        installed=(begun.a, begun.b),
        environment=environment,
    )


def _unfit(tier: Tier, sides: tuple[Side, Side]) -> Callable[[Case], str]:
    """Why a case can't be compared here, empty where it can: its engine, or what GPUs it needs."""
    unmet = tier.unmet(find_gpus().memory_gib)
    engines = {side.engine for side in sides if side.engine}

    def unfit(case: Case) -> str:
        if engines - {case.server.engine}:
            return f"'{case.id}' is of engine '{case.server.engine}'"
        return unmet.get(case.id, "")

    return unfit


def _check(asked: Request, sources: tuple[Source, Source], pairs: Sequence[Pair]) -> None:
    """Silent where all could be measured, as far as one can tell before anything is installed."""
    unmet = asked.tier.unmet(find_gpus().memory_gib)
    for pair in pairs:
        if pair.a.id in unmet:
            raise UnsupportedError(f"{unmet[pair.a.id]}; choose other cases with --case")
    for source, arm in zip(sources, (Arm.A, Arm.B), strict=True):
        source.check(tuple(pair.of(arm) for pair in pairs))
    for spec in {case.server for pair in pairs for case in (pair.a, pair.b)}:
        resolve_model(asked.root, spec.target, padding_layers=spec.padding_layers)
        if spec.draft is not None:
            resolve_model(asked.root, spec.draft)
    check_prompts(asked.root, pairs)
    for source, arm in zip(sources, (Arm.A, Arm.B), strict=True):
        for spec in {pair.of(arm).server.engine: pair.of(arm).server for pair in pairs}.values():
            source.check_released(spec)
    for arm in (Arm.A, Arm.B):
        for said in check_contexts(asked.root, [pair.of(arm) for pair in pairs]):
            asked.show(said)


def _check_numbers(asked: Request) -> None:
    """Silent where what has to be a time is one.

    Raises:
        UnsupportedError: it is not above 0, or no number.
    """
    for option, value in (
        ("--seconds", asked.least_s),
        ("--minutes", asked.minutes),
        ("--ready-within-s", asked.ready_within_s),
    ):
        if value is not None and not 0 < value < math.inf:
            raise UnsupportedError(f"{option} {value:g}: is no time; give a number above 0")


def _has_speeds(shared: Sequence[Shared]) -> bool:
    """Whether the answer rests on something else than acceptance."""
    subjects = (subject for one in shared for subject in one.group.subjects)
    return any(subject.deciding - {ACCEPTANCE} for subject in subjects if not subject.is_control)


def _tolerances(texts: Sequence[str]) -> Mapping[str, float]:
    found = {}
    for text in texts:
        name, _, frac = text.partition("=")
        if name not in QUANTITIES:
            raise UnknownNameError("quantity", name, QUANTITIES, f"--tolerance {text}")
        try:
            found[name] = float(frac)
        except ValueError:
            found[name] = -1.0
        if not 0 < found[name] < 1:
            message = f"--tolerance {text}: '{frac}' is no fraction between 0 and 1; 0.03 is 3 %"
            raise UnsupportedError(message)
    return MappingProxyType(found)


def _rules(groups: Sequence[Group], launches: int, tolerances: Mapping[str, float]) -> Rules:
    subjects = [subject for group in groups for subject in group.subjects]
    if launches < LAUNCHES_PER_BLOCK or launches % LAUNCHES_PER_BLOCK:
        message = (
            f"--launches {launches}: a block of ABBA has two of each side; give an even number"
        )
        raise UnsupportedError(message)
    return Rules(
        blocks=launches // LAUNCHES_PER_BLOCK,
        figures=count_figures(subjects),
        tolerances=tolerances,
    )
