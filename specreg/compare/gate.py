"""The gate: two sides of an engine measured side by side until their effects are decided."""

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
    LAUNCHES_PER_BLOCK,
    Decision,
    Rules,
    SideLaunch,
    decide,
    is_settled,
    judge_pair,
)
from specreg.compare.options import GateOptions, ServerOptions
from specreg.compare.pairs import Group, Pair, Side
from specreg.compare.pinning import plain_case, record_answers, recording_of, why_not_pinned
from specreg.core.errors import (
    HungError,
    MemoryHeldError,
    ServerDiedError,
    SpecregError,
    UnsupportedError,
)
from specreg.core.redaction import hide_known
from specreg.datasets.prompts import prompts_sha256
from specreg.load.chat_client import FinishedRequest, Record
from specreg.matrix.case import Case, Tier
from specreg.matrix.models import model_sha256, resolve_model
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.arm import Arm
from specreg.measurement.journal import Journal, Key, load_journal
from specreg.measurement.measure import Plan, measure, workload_of
from specreg.servers.cores import cores_apart
from specreg.servers.provision import Provision
from specreg.servers.server import StartedServer
from specreg.servers.start import ServerStart
from specreg.telemetry.identity import Environment
from specreg.verdicts.judge import Outcome

_WAVES = 2
"""A round beside others asks for as many prompts as twice fill the load."""


class SideError(SpecregError):
    """One of the sides failed: which, and whether its server had started."""

    def __init__(self, side: Side, message: str, *, started: bool = True) -> None:
        super().__init__(message)
        self.side, self.started = side, started


@dataclass(slots=True, kw_only=True)
class Gate:
    """What a gate needs, and what has come of it so far.

    Attributes:
        sources: where the servers of A and of B come from; installed: what they are.
        launches: so far, as they came; finished: whether it ended by itself.
    """

    options: GateOptions
    tier: Tier
    folder: Path
    sources: Sequence[Provision]
    installed: Sequence[str]
    groups: Sequence[Group]
    environment: Environment
    rules: Rules
    journal: Journal
    answers: AnswerComparison
    launches: list[SideLaunch] = field(default_factory=list)
    finished: bool = False

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """What is compared."""
        return tuple(pair for group in self.groups for pair in group.pairs)

    def take_over(self) -> None:
        """Go on with what a gate that was cut off had measured.

        Raises:
            UnsupportedError: it is of another gate.
        """
        bare = {
            self._key(pair, side, 0): (pair, side)
            for group in self.groups
            for pair, side in itertools.product(group.pairs, group.sides)
        }
        for key, measurement in load_journal(self.journal.path).items():
            known = bare.get(msgspec.structs.replace(key, launch=0))
            if known is None:
                message = (
                    f"'{self.journal.path}': is of another gate; name the same sides, cases and"
                    " options as then, or another --out"
                )
                raise UnsupportedError(message)
            self.launches.append(SideLaunch(known[0].id, known[1], key.launch, measurement))
        self.answers.take_over()
        blocks = max((one.block for one in self.launches), default=0)
        if blocks > self.rules.blocks:
            self.rules = dataclasses.replace(self.rules, blocks=blocks)
            self.options.show(
                f"--launches {self.options.launches}: {self.rules.launches} of each side were begun"
                f" before; all are judged as with --launches {self.rules.launches}"
            )

    def measure(self, is_done: Callable[[Decision], bool] | None = None) -> Decision:
        """Launch both sides until all is decided, or there is no time left.

        `is_done` is asked before each further block, else whether one would change the answer.

        Raises:
            SpecregError: a side can't start at all, or the disk refuses.
        """
        deadline_s = time.monotonic() + 60 * (self.options.minutes or math.inf)
        longest_s = 0.0
        self._record_answers()
        for block, group in itertools.product(range(self.rules.blocks), self.groups):
            if block and (is_done(self.decide()) if is_done else self._is_settled(group)):
                continue
            first = LAUNCHES_PER_BLOCK * block + 1
            for number in range(first, first + LAUNCHES_PER_BLOCK):
                for sides in group.slots(number):
                    if self._is_known(group, number, sides):
                        continue
                    began_s = time.monotonic()
                    if longest_s and began_s + longest_s > deadline_s:
                        return self.decide()
                    self._launch(group, number, sides)
                    longest_s = max(longest_s, time.monotonic() - began_s)
        self.finished = True
        return self.decide()

    def decide(self) -> Decision:
        """What the launches so far say."""
        return decide(self.groups, self.launches, self.rules, self.answers.verdicts)

    def versions(self, side: Side) -> tuple[str, ...]:
        """What the servers of a side said that they are, each once; of A2 too where it is A's."""
        told = (
            one.measurement.engine_version
            for one in self.launches
            if one.measurement is not None and (one.side is Side.B) == (side is Side.B)
        )
        return tuple(sorted(set(filter(None, told))))

    def _is_settled(self, group: Group) -> bool:
        """Whether a group has told all that it can; a control has nothing to prove."""
        wrong = {one.case_id for one in self.answers.verdicts if one.outcome is Outcome.WRONG}
        return not self.answers.wants(group.pairs) and all(
            is_settled(judge_pair(pair, self.launches, self.rules), lost=pair.id in wrong)
            for pair in group.pairs
        )

    def _is_known(self, group: Group, number: int, sides: tuple[Side, ...]) -> bool:
        """Whether a launch of sides has told of all pairs of the group."""
        known = {
            (one.pair_id, one.side)
            for one in self.launches
            if one.number == number and not one.failed
        }
        return {(pair.id, side) for pair in group.pairs for side in sides} <= known

    def _launch(self, group: Group, number: int, sides: tuple[Side, ...]) -> None:
        """Start servers and measure all pairs that share them; what fails is told, not raised."""
        named = f"side {sides[0]}" if len(sides) == 1 else f"sides {', '.join(sides)}"
        self.options.show(f"launch {number}, {named}: {group.name}")
        with contextlib.ExitStack() as stack:
            try:
                servers: dict[Side, StartedServer] = {}
                for side in sides:
                    case = group.pairs[0].of(side)
                    name = f"{number:03}-{side}-{case.server.id}"
                    try:
                        servers[side] = stack.enter_context(self._started(case, side, name))
                    except SideError as error:
                        if side is not Side.A2:
                            raise
                        self._note_failed(group, number, error)  # A and B are measured all the same
                with _naming(servers):
                    for pair in group.pairs:
                        if servers:
                            self._measure(pair, number, servers)
            except SideError as error:
                ours = [one for one in self.launches if one.side is error.side]
                ids = {pair.id for pair in group.pairs}
                measured = any(one.pair_id in ids and not one.failed for one in ours)
                if not error.started and not measured:
                    raise
                self._note_failed(group, number, error)

    def _note_failed(self, group: Group, number: int, error: SideError) -> None:
        """Say that a side told nothing on a launch, or not of all pairs."""
        self.options.show(f"launch {number}, side {error.side}: {error}")
        mine = [one for one in self.launches if (one.side, one.number) == (error.side, number)]
        told = {one.pair_id for one in mine}
        self.launches += [
            SideLaunch(pair.id, error.side, number, failed=str(error))
            for pair in group.pairs
            if pair.id not in told
        ]

    def _measure(self, pair: Pair, number: int, servers: dict[Side, StartedServer]) -> None:
        """Measure a pair on the servers that are up, and compare its answers.

        A control that hangs is taken off them: A and B are measured all the same.

        Raises:
            SideError: a server went away, or that of A or B hangs; nothing is kept then.
        """
        options = self.options
        requests: list[list[tuple[int, FinishedRequest]]] = [[] for _ in servers]

        def record(arm: int, part: int) -> Record:
            return lambda finished: requests[arm].append((part, finished))

        arms = [
            Arm(
                case=pair.of(side),
                server=server,
                required=side is not Side.A2 or len(servers) == 1,
            )
            for side, server in servers.items()
        ]
        parts, wave = pair.a.rounds, _WAVES * (pair.a.load.concurrency or pair.a.prompts)
        if len(servers) > 1:
            parts = max(math.ceil(pair.a.prompts / wave), parts)
        plan = Plan(show=lambda _: None, parts=parts, least_s=options.least_s, record=record)
        workload = workload_of(pair.a, load_case_prompts(options.root, pair.a))
        # An engine on a GPU is held up by its host now and then; nothing crowds it here.
        on_gpu = self.sources[0].on_gpu
        with contextlib.nullcontext() if on_gpu else cores_apart(servers.values()):
            found = measure(arms, workload, plan)
        kept = []
        for side, measurement, replayed in zip(tuple(servers), found, requests, strict=True):
            why = why_not_pinned(pair.of(side), measurement.acceptance)
            if measurement.replay is None:
                why = next(iter(measurement.invalid.values()), "nothing was measured")
            if why:
                options.show(f"launch {number}, side {side}, {pair.id}: {why}")
                self.launches.append(SideLaunch(pair.id, side, number, failed=why))
            else:
                kept.append((side, measurement, replayed))
            if why.startswith(HungError.name):
                del servers[side]
                if side is not Side.A2:
                    raise SideError(side, why)
        self.answers.ask(pair, servers, math.ceil(number / LAUNCHES_PER_BLOCK))
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
        draft = None if recording_of(case) is not None else spec.draft
        models = [resolve_model(root, name) for name in (spec.target, draft) if name]
        files = [prompts_sha256(load_case_prompts(root, case)), *map(model_sha256, models)]
        how = "together" if self.groups[0].together else "in turn"
        return Key(
            case=hide_known(msgspec.json.encode(case).decode()),
            case_id=pair.id,
            launch=number,
            asked=f"side {side}, {how}, {self.options.least_s:g} s",
            environment=self.environment.name,
            engine=self.installed[side is Side.B],
            files_sha256=" ".join(files),
        )

    def _record_answers(self) -> None:
        """Record what drafters of known success need to know, where it isn't there yet."""
        for side, pair in itertools.product((Side.A, Side.B), self.pairs):
            case = pair.of(side)
            path = recording_of(case)
            if path is None or path.exists():
                continue
            self.options.show(f"recording the answers of side {side} for {case.id}")
            prompts = load_case_prompts(self.options.root, case)[: case.prompts]
            with self._started(plain_case(case), side, f"recording-{side}-{case.id}") as server:
                record_answers(case, server, prompts, path)

    @contextlib.contextmanager
    def _started(self, case: Case, side: Side, name: str) -> Iterator[StartedServer]:
        """A running server of a side; SideError where it didn't start."""
        source = self.sources[side is Side.B]
        log_path = self.folder / "logs" / f"{name.replace(' ', '')}.log"
        with contextlib.ExitStack() as stack:
            try:
                started = server_of(source, case, self.options, log_path)
                server = stack.enter_context(started)
            except MemoryHeldError:  # whosever server it was
                raise
            except SpecregError as error:
                typed = self.options.b if side is Side.B else self.options.a
                message = f"side {side} ('{typed}'): {error}"
                raise SideError(side, message, started=False) from error
            yield server


@contextlib.contextmanager
def server_of(
    source: Provision, case: Case, options: ServerOptions, log_path: Path
) -> Iterator[StartedServer]:
    """A running server of a case, on GPUs that are its own; errors as of `ServerStart`."""
    environment = source.environment(case.server)
    with (
        source.leased(case.server),
        ServerStart(
            spec=case.server,
            environment=environment,
            root=options.root,
            log_path=log_path,
            on_gpu=source.on_gpu,
            ready_within_s=options.ready_within_s,
            show=options.show,
        ).running() as server,
    ):
        yield server


@contextlib.contextmanager
def _naming(servers: Mapping[Side, StartedServer]) -> Iterator[None]:
    """Say of a server that went away whose it is."""
    try:
        yield
    except ServerDiedError:
        for side, server in servers.items():
            try:
                server.check_alive()
            except ServerDiedError as error:
                raise SideError(side, str(error).splitlines()[0]) from error
        raise
