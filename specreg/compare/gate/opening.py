"""Opening a gate: what was asked for in; a gate of which all that can be checked is checked out."""

import dataclasses
import datetime as dt
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

import specreg
from specreg.compare.gate.break_even import break_evens
from specreg.compare.gate.going import why_no_control
from specreg.compare.gate.hearing import Hearing
from specreg.compare.gate.journal import resumed
from specreg.compare.gate.launched import Arm, versions_of
from specreg.compare.gate.overriding import parse_override
from specreg.compare.gate.pages import render_html, render_markdown
from specreg.compare.gate.pinning import forget_recordings, pinnable, pinned_pairs
from specreg.compare.gate.plan import Pair, check_prompts, pairs_of, shared_launches
from specreg.compare.gate.report import Failed, GateReport, How, SideReport, encode_report
from specreg.compare.gate.request import Request, check_extent, rules_after, rules_of
from specreg.compare.gate.run import Gate, begun_of
from specreg.compare.gate.side import Side, parse_side
from specreg.compare.gate.sitting import Place
from specreg.compare.gate.source import Source, source_of
from specreg.core.errors import UnsupportedError
from specreg.core.files import replace_file
from specreg.matrix.case import Case, Tier
from specreg.matrix.prompts import check_contexts
from specreg.matrix.widening import served_models
from specreg.telemetry.identity import current_environment, find_gpus

_JOURNAL, _RECORDINGS = "gate.jsonl", "recordings"
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
            break_evens=break_evens(self.pairs, gate.launches),
            failed=tuple(
                Failed(case_id=one.case_id, arm=one.arm, block=one.block, reason=one.invalid)
                for one in gate.all_launches
                if one.invalid
            ),
        )

    @property
    def _how(self) -> How:
        asked, gate = self.request, self.gate
        whys = (why_no_control(shared.group, gate.all_launches) for shared in gate.shared)
        return How(
            together=any(shared.group.together for shared in gate.shared),
            with_control=asked.with_control,
            least_s=gate.place.least_s,
            level_frac=gate.rules.level,
            loss_level_frac=gate.rules.loss_level,
            blocks=gate.rules.blocks,
            launches=gate.rules.launches,
            minutes=asked.minutes,
            went_on=gate.earlier_s > 0,
            prompts=asked.prompts,
            pin_length_tokens=asked.pin_length_tokens,
            tolerances=dict(gate.rules.tolerances),
            control_failed=next(filter(None, whys), ""),
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
        return SideReport(
            text=(asked.a, asked.b)[place],
            overrides=tuple((asked.a_overrides, asked.b_overrides)[place]),
            installed=self.installed[place],
            engine_versions=versions_of(self.gate.launches, arm),
        )


def open_gate(asked: Request) -> Opened:
    """A gate that may start.

    Raises:
        SpecregError: something can't be measured as it is asked for; nothing was.
    """
    check_extent(asked)
    folder = _folder_of(asked)
    tier, root = asked.tier, asked.root
    on_gpu = tier.needs_gpus > 0
    sides = parse_side(asked.a), parse_side(asked.b)
    overrides = (
        tuple(map(parse_override, asked.a_overrides)),
        tuple(map(parse_override, asked.b_overrides)),
    )
    pairs = pairs_of(
        tier,
        asked.case_ids,
        overrides,
        prompts=asked.prompts,
        show=asked.show,
        unfit=_unfit(tier, sides),
    )
    pinned: tuple[Pair, ...] = ()
    if asked.pin_length_tokens is not None:
        able = pinnable(pairs, root, asked.show)
        pinned = pinned_pairs(able, asked.pin_length_tokens, folder / _RECORDINGS)
        pairs += pinned
    sources = (
        source_of(sides[0], on_gpu=on_gpu, show=asked.show, waits=asked.waits),
        source_of(sides[1], on_gpu=on_gpu, show=asked.show, waits=asked.waits),
    )
    together = not on_gpu if asked.together is None else asked.together
    shared = shared_launches(pairs, with_control=asked.with_control, together=together)
    rules = rules_of(asked, [one.group for one in shared])
    _check(asked, sources, pairs)
    environment = current_environment(needs_gpus=tier.gpus_used(find_gpus().memory_gib)).name
    begun = msgspec.structs.replace(
        begun_of(root, sources, pairs, environment),
        together=together,
        with_control=asked.with_control,
        least_s=asked.least_s,
    )
    journal, lines = resumed(folder / _JOURNAL, begun, resume=asked.resume)
    rules = rules_after(rules, lines, asked.show)
    if not lines:
        forget_recordings(pinned)
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
        hearing=Hearing(pairs=pairs, root=root, journal=journal, show=asked.show),
    )
    gate.take_over(lines)
    return Opened(
        request=dataclasses.replace(asked, out=folder),
        gate=gate,
        pairs=pairs,
        installed=(begun.a, begun.b),
        environment=environment,
    )


def _folder_of(asked: Request) -> Path:
    """Where a gate goes, or goes on.

    Raises:
        UnsupportedError: it is to go on where nothing lies.
    """
    if asked.resume and (asked.out is None or not (asked.out / _JOURNAL).exists()):
        where = f"in '{asked.out}'" if asked.out is not None else "without a folder"
        raise UnsupportedError(f"--resume: nothing to go on with {where}; name its --out")
    gates = asked.root / ".specreg" / "gates"
    return (asked.out or gates / time.strftime("%Y-%m-%dT%H-%M-%S")).resolve()


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
        served_models(asked.root, spec)
    check_prompts(asked.root, pairs)
    for source, arm in zip(sources, (Arm.A, Arm.B), strict=True):
        for spec in {pair.of(arm).server.engine: pair.of(arm).server for pair in pairs}.values():
            source.check_released(spec)
    for arm in (Arm.A, Arm.B):
        for said in check_contexts(asked.root, [pair.of(arm) for pair in pairs]):
            asked.show(said)
