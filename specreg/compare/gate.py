"""The gate: two sides of an engine measured side by side until their effects are decided.

What can be checked of it is checked before anything is measured.
"""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from specreg.compare.answers import AnswerComparison
from specreg.compare.judging import (
    Decision,
    Rules,
    SideLaunch,
    decide,
    is_lost,
    plan_launches,
    rules_of,
)
from specreg.compare.options import GateOptions
from specreg.compare.pairs import (
    COMPARED,
    Group,
    Pair,
    Side,
    groups_of,
    pairs_of,
    parse_override,
    pinned_pairs,
    slots_of,
)
from specreg.core.errors import (
    DatasetError,
    EnvironmentSetupError,
    HungError,
    MemoryHeldError,
    ServerDiedError,
    SpecregError,
    UnsupportedError,
)
from specreg.core.reasons import Reason
from specreg.datasets.prompts import prompts_sha256
from specreg.load.chat_client import FinishedRequest, Record
from specreg.matrix.case import Case, Tier
from specreg.matrix.models import model_sha256, resolve_model, served_models
from specreg.matrix.prompts import check_contexts, load_case_prompts
from specreg.measurement.arm import Arm
from specreg.measurement.journal import Journal, Key, load_journal
from specreg.measurement.measure import Plan, measure, workload_of
from specreg.report.vocabulary import declare_vocabulary
from specreg.servers.launch import ServerStart
from specreg.servers.provision import Origin, Provision, parse_origin, provision_side
from specreg.servers.server import StartedServer
from specreg.telemetry.identity import Environment, current_environment, find_gpus

JOURNAL = "journal.jsonl"
_MINUTES_WITHOUT_GPU = 20.0


class SideError(SpecregError):
    """One of the sides failed: which, and whether its server had started."""

    def __init__(self, side: Side, message: str, *, started: bool = True) -> None:
        super().__init__(message)
        self.side, self.started = side, started


@dataclass(slots=True, kw_only=True)
class Gate:
    """A gate, and its launches so far, as they came.

    Attributes:
        sources: where the servers of A and of B come from; installed: what they are.
        together: whether those of a launch are up at the same time.
        finished: whether it ended by itself.
    """

    options: GateOptions
    tier: Tier
    folder: Path
    sources: Sequence[Provision]
    installed: Sequence[str]
    groups: Sequence[Group]
    together: bool
    environment: Environment
    rules: Rules
    journal: Journal
    answers: AnswerComparison
    launches: list[SideLaunch] = field(default_factory=list)
    finished: bool = False

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The cases that are compared, as both sides run them."""
        return tuple(itertools.chain.from_iterable(self.groups))

    def take_over(self) -> None:
        """Go on with what a gate that was cut off had measured.

        Raises:
            UnsupportedError: it is of another gate.
        """
        sides = itertools.product(self.pairs, Side)
        known = {self._key(pair, side, 0): (pair.id, side) for pair, side in sides}
        for key, measurement in load_journal(self.journal.path, last=True).items():
            place = known.get(msgspec.structs.replace(key, launch=0))
            if place is None:
                message = (
                    f"'{self.journal.path}': is of another gate; name the same sides, cases and"
                    " options as then, or another --out"
                )
                raise UnsupportedError(message)
            self.launches.append(SideLaunch(*place, key.launch, measurement))
        self.answers.take_over()
        begun = max((one.number for one in self.launches), default=0)
        if begun > self.rules.launches:
            self.rules = dataclasses.replace(self.rules, launches=begun)
            self.options.show(
                f"--launches {self.options.launches}: {begun} of each side were begun before; all"
                f" are judged as with --launches {begun}"
            )

    def measure(self, is_done: Callable[[Decision], bool] | None = None) -> Decision:
        """Launch both sides until the answer is there, or there is no time left.

        `is_done` is asked at each look, else whether a further launch would change the answer.

        Raises:
            SpecregError: a side can't start at all, or the disk refuses.
        """
        usual = math.inf if self.sources[0].on_gpu else _MINUTES_WITHOUT_GPU
        minutes = usual if self.options.minutes is None else self.options.minutes
        deadline_s, longest_s = time.monotonic() + 60 * minutes, 0.0
        for group, number, sides in plan_launches(
            self.groups, self.rules, self.decide, is_done or is_lost, self.answers.wants
        ):
            left = self._unknown(group, number, sides)
            for slot in slots_of(number, sides, together=self.together) if left else ():
                began_s = time.monotonic()
                if longest_s and began_s + longest_s > deadline_s:
                    return self.decide()
                self._launch(left, number, slot)
                longest_s = max(longest_s, time.monotonic() - began_s)
        self.finished = True
        return self.decide()

    def decide(self) -> Decision:
        """Decide by the launches so far."""
        return decide(self.pairs, self.launches, self.rules, self.answers.verdicts)

    def versions(self, side: Side) -> tuple[str, ...]:
        """The versions that the servers of a side told, each once."""
        ours = (one.measurement for one in self.launches if one.side.is_b == side.is_b)
        return tuple(sorted({one.engine_version for one in ours if one is not None} - {""}))

    def _unknown(self, group: Group, number: int, sides: tuple[Side, Side]) -> Group:
        """Return the pairs of a group that weren't measured on both sides by that number.

        What one side did alone is forgotten: it would be compared with a launch of another hour.
        Why a launch failed is kept, for the page.
        """
        same = [one for one in self.launches if one.number == number and not one.failed]
        known = {(one.pair_id, one.side) for one in same}
        left = tuple(pair for pair in group if not {(pair.id, side) for side in sides} <= known)
        again = {(pair.id, side) for pair in left for side in sides}
        for one in same:
            if (one.pair_id, one.side) in again:
                self.launches.remove(one)
        return left

    def _launch(self, group: Group, number: int, sides: tuple[Side, ...]) -> None:
        """Start servers and measure all pairs that share them; what fails is noted, not raised.

        Raises:
            SideError: a side's server never started.
        """
        named = f"side {sides[0]}" if len(sides) == 1 else f"sides {', '.join(sides)}"
        servers_of = dict.fromkeys((group[0].a.server.id, group[0].b.server.id))
        self.options.show(f"launch {number}, {named}: {' > '.join(servers_of)}")
        starts: dict[Side, ServerStart] = {}
        servers: dict[Side, StartedServer] = {}
        with contextlib.ExitStack() as stack:
            try:
                for side in sides:
                    case, source = group[0].of(side), self.sources[side.is_b]
                    name = f"{number:03}-{side}-{case.server.id}".replace(" ", "")
                    log_path = self.folder / "logs" / f"{name}.log"
                    start = ServerStart(
                        spec=case.server,
                        provision=source,
                        root=self.options.root,
                        ready_within_s=self.options.ready_within_s,
                        log_path=log_path,
                    )
                    with _blaming(side, self.options):
                        starts[side] = stack.enter_context(start.begin())
                for side, start in starts.items():
                    with _blaming(side, self.options):
                        servers[side] = start.ready()
                with _naming(servers):
                    for pair in group:
                        self._measure(pair, number, servers)
            except SideError as error:
                ours = [one for one in self.launches if one.side.is_b == error.side.is_b]
                ids = dict.fromkeys(pair.id for pair in group)
                if not error.started and all(one.failed or one.pair_id not in ids for one in ours):
                    raise
                self.options.show(f"launch {number}, side {error.side}: {error}")
                had = {(one.pair_id, one.number) for one in ours if one.side is error.side}
                for pair_id in ids:
                    if (pair_id, number) not in had:
                        reason = Reason(text=str(error))
                        failed = SideLaunch(pair_id, error.side, number, failed=reason)
                        self.launches.append(failed)

    def _measure(self, pair: Pair, number: int, servers: dict[Side, StartedServer]) -> None:
        """Measure a pair on the servers that are up, and compare its answers.

        Raises:
            SideError: a server went away or hangs; nothing is kept then.
        """
        options = self.options
        requests: list[list[tuple[int, FinishedRequest]]] = [[] for _ in servers]

        def record(arm: int, part: int) -> Record:
            return lambda finished: requests[arm].append((part, finished))

        arms = [Arm(case=pair.of(side), server=server) for side, server in servers.items()]
        plan = Plan(show=lambda _: None, least_s=options.least_s, record=record)
        workload = workload_of(pair.a, load_case_prompts(options.root, pair.a))
        found = measure(arms, workload, plan)
        kept = []
        for side, measurement, replayed in zip(tuple(servers), found, requests, strict=True):
            if measurement.replay is not None:
                kept.append((side, measurement, replayed))
                continue
            invalidities = [Reason.of(each) for each in measurement.invalid.values()]
            reason = next(iter(invalidities), Reason(text="nothing was measured"))
            options.show(f"launch {number}, side {side}, {pair.id}: {reason}")
            self.launches.append(SideLaunch(pair.id, side, number, failed=reason))
            if reason.code == HungError.code:
                raise SideError(side, str(reason))
        if servers.keys() <= {*COMPARED}:
            measured = {side: measurement for side, measurement, _ in kept}
            self.answers.ask(pair, servers, number, measured)
        for side, measurement, replayed in kept:
            self.launches.append(SideLaunch(pair.id, side, number, measurement))
            self.journal.begin(self._key(pair, side, number))
            for part, finished in replayed:
                self.journal.record_round(0, part)(finished)
            self.journal.end(measurement)

    def _key(self, pair: Pair, side: Side, number: int) -> Key:
        """What has to be equal for a launch to be taken over."""
        case, root = pair.of(side), self.options.root
        spec = case.server
        models = [resolve_model(root, name) for name in (spec.target, spec.draft) if name]
        files = [prompts_sha256(load_case_prompts(root, case)), *map(model_sha256, models)]
        how = "together" if self.together else "in turn"
        return Key(
            case=case.key,
            case_id=pair.id,
            launch=number,
            asked=f"side {side}, {how}, {self.options.least_s:g} s",
            environment=self.environment.name,
            engine=self.installed[side.is_b],
            files_sha256=" ".join(files),
        )


@contextlib.contextmanager
def _blaming(
    side: Side, options: GateOptions, kinds: tuple[type[SpecregError], ...] = (SpecregError,)
) -> Iterator[None]:
    """Say which side can't start."""
    try:
        yield
    except MemoryHeldError:  # of the machine, not of a side
        raise
    except kinds as error:
        typed = options.b if side.is_b else options.a
        raise SideError(side, f"side {side} ('{typed}'): {error}", started=False) from error


@contextlib.contextmanager
def _naming(servers: Mapping[Side, StartedServer]) -> Iterator[None]:
    """Say which side's server went away."""
    try:
        yield
    except ServerDiedError:
        for side, server in servers.items():
            try:
                server.check_alive()
            except ServerDiedError as error:
                raise SideError(side, error.head) from error
        raise


def open_gate(options: GateOptions, tier: Tier) -> Gate:
    """Return a gate that is ready to start, or to go on.

    Raises:
        SideError: a side can't be had.
        SpecregError: something can't be measured as it is asked for; nothing was.
    """
    if options.resume and (options.out is None or not options.out.is_dir()):
        where = f"in '{options.out}'" if options.out is not None else "without a folder"
        raise UnsupportedError(f"--resume: nothing to go on with {where}; name its --out")
    folder = options.folder_in("gates")
    root, on_gpu = options.root, tier.needs_gpus > 0
    origins = parse_origin(options.a), parse_origin(options.b)
    a, b = (list(map(parse_override, some)) for some in (options.a_overrides, options.b_overrides))
    declare_vocabulary(tier.cases, tier.name, folder.name)
    chosen = _chosen(options, tier, origins)
    pairs = pairs_of(tier, chosen, (a, b), prompts=options.prompts, show=options.show)
    if options.pin_length_tokens is not None:
        pairs += pinned_pairs(pairs, options.pin_length_tokens, on_gpu=on_gpu)
    rules = rules_of(options, figures=sum(len(pair.deciding) for pair in pairs))
    for spec in {case.server for pair in pairs for case in (pair.a, pair.b)}:
        served_models(root, spec)
    for pair in pairs:
        if load_case_prompts(root, pair.a) != load_case_prompts(root, pair.b):
            what = "the sides' targets would be asked other prompts; choose a dataset of texts"
            raise DatasetError(f"'{pair.id}': {what}")
    sources, installed = _sides(options, origins, pairs, on_gpu=on_gpu)
    journal = Journal(folder / JOURNAL)
    journal.hold()
    if journal.path.exists() and not options.resume:
        message = f"'{journal.path}': holds a gate already; say --resume to go on, or another --out"
        raise SpecregError(message)
    gate = Gate(
        options=options,
        tier=tier,
        folder=folder,
        sources=sources,
        installed=installed,
        groups=groups_of(pairs),
        together=not on_gpu if options.together is None else options.together,
        environment=current_environment(needs_gpus=tier.gpus_used(find_gpus().memory_gib)),
        rules=rules,
        journal=journal,
        answers=AnswerComparison(
            pairs=pairs, root=root, path=folder / "answers.json", show=options.show
        ),
    )
    if journal.path.exists():
        gate.take_over()
    return gate


def _sides(
    options: GateOptions, origins: Sequence[Origin], pairs: Sequence[Pair], *, on_gpu: bool
) -> tuple[list[Provision], list[str]]:
    """Where both sides come from, and what they are once their environments are made."""
    sources, installed = [], []
    kinds = UnsupportedError, EnvironmentSetupError
    for side, origin in zip(COMPARED, origins, strict=True):
        cases = [pair.of(side) for pair in pairs]
        with _blaming(side, options, kinds):
            sources.append(provision_side(origin, cases, on_gpu=on_gpu, show=options.show))
            check_contexts(options.root, cases)
    for side, source in zip(COMPARED, sources, strict=True):
        with _blaming(side, options, kinds):
            installed.append(", ".join(dict.fromkeys(source.installed(p.of(side)) for p in pairs)))
    return sources, installed


def _chosen(options: GateOptions, tier: Tier, origins: tuple[Origin, Origin]) -> Sequence[Case]:
    """The cases that are named; without any those of the sides' engine that fit the GPUs."""
    gpus = find_gpus()
    if tier.needs_gpus:
        gpus.check_usable()
    unmet = dict(tier.unmet(gpus.memory_gib))
    if named := [tier.named(case_id) for case_id in dict.fromkeys(options.case_ids)]:
        for case in named:
            if case.id in unmet:
                raise UnsupportedError(f"{unmet[case.id]}; choose other cases with --case")
        return named
    for case in tier.cases:
        if {one.engine for one in origins} - {"", case.server.engine}:
            unmet[case.id] = f"'{case.id}' is of engine '{case.server.engine}'"
    for why in unmet.values():
        options.show(f"left out: {why}")
    found = [case for case in tier.cases if case.id not in unmet]
    if not found:
        message = (
            f"tier '{tier.name}': none of its {len(unmet)} cases can be compared,"
            f" {list(unmet.values())[-1]}; choose another --tier, or other sides"
        )
        raise UnsupportedError(message)
    return found
