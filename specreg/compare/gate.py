"""The gate: two sides of an engine measured side by side until their effects are decided."""

import contextlib
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import msgspec

from specreg.compare.answers import AnswerComparison
from specreg.compare.arms import SideError, Sides, naming
from specreg.compare.decision import Decision, Pace, decide
from specreg.compare.judging import (
    LAUNCHES_PER_BLOCK,
    Rules,
    SideLaunch,
    is_settled,
    judge_subject,
    why_broken,
)
from specreg.compare.pairs import (
    Group,
    Pair,
    Side,
    Subject,
)
from specreg.compare.pinning import (
    plain_case,
    record_answers,
    recording_of,
    why_not_pinned,
)
from specreg.compare.request import Request
from specreg.core.errors import (
    HungError,
    UnsupportedError,
)
from specreg.core.redaction import hide_known
from specreg.datasets.prompts import prompts_sha256
from specreg.load.chat_client import FinishedRequest, Record
from specreg.matrix.case import Case
from specreg.matrix.models import model_sha256, resolve_model
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.arm import Arm
from specreg.measurement.journal import Journal, Key, load_journal
from specreg.measurement.measure import Measurement, Plan, measure, workload_of
from specreg.servers.cores import cores_apart
from specreg.servers.server import StartedServer
from specreg.telemetry.identity import Environment
from specreg.verdicts.judge import Outcome

JOURNAL = "journal.jsonl"
_WAVES = 2
"""A round beside others asks for as many prompts as twice fill the load."""


_Requests = list[tuple[int, FinishedRequest]]
"""Requests with their rounds."""


@dataclass(slots=True, kw_only=True)
class Gate:
    """What a gate needs, and what has come of it so far.

    Attributes:
        request: see there; sides: where its servers come from.
        groups: what is compared, by what shares its servers.
        environment: the machine.
        rules: how much evidence there may be, and how it is weighed.
        journal: of this gate; answers: of both sides.
        launches: so far, as they came.
        spent_s: by pair, what each time at which servers were up took, since it began or went on.
        went_on: whether a gate that was cut off went on.
        out_of_time, finished: how it ended; neither where it was cut short.
    """

    request: Request
    sides: Sides
    groups: Sequence[Group]
    environment: Environment
    rules: Rules
    journal: Journal
    answers: AnswerComparison
    lock: filelock.BaseFileLock
    launches: list[SideLaunch] = field(default_factory=list)
    spent_s: dict[str, list[float]] = field(default_factory=dict)
    went_on: bool = False
    out_of_time: bool = False
    finished: bool = False

    @property
    def folder(self) -> Path:
        """Of what it leaves."""
        return self.sides.folder

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """What is compared."""
        return tuple(pair for group in self.groups for pair in group.pairs)

    def take_over(self) -> None:
        """Go on with what a gate that was cut off had measured.

        Raises:
            UnsupportedError: it is of another gate, or launches of one side were of two versions.
        """
        bare = {
            self._key(pair, side, 0): (pair, side)
            for group in self.groups
            for pair, side in itertools.product(group.pairs, group.sides)
        }
        for key, measurement in load_journal(self.journal.path).items():
            pair, side = bare.get(msgspec.structs.replace(key, launch=0), (None, Side.A))
            if pair is None:
                message = (
                    f"'{self.journal.path}': is of another gate; name the same sides, cases and"
                    " options as then, or another --out"
                )
                raise UnsupportedError(message)
            self._keep(pair, side, key.launch, measurement)
        self.answers.take_over()
        self.went_on = True
        for side in (Side.A, Side.B):
            self.sides.check_version(side, self.versions(side))
        blocks = max((one.block for one in self.launches), default=0)
        if blocks > self.rules.blocks:
            self.rules = dataclasses.replace(self.rules, blocks=blocks)
            self.request.show(
                f"--launches {self.request.launches}: {self.rules.launches} of each side were begun"
                f" before; all are judged as with --launches {self.rules.launches}"
            )

    def measure(
        self,
        is_known: Callable[[Decision], bool] = lambda _: False,
        *,
        sought: frozenset[str] | None = None,
        whole: bool = False,
    ) -> Decision:
        """Launch both sides until all is decided, or there is no time left.

        Args:
            is_known: asked before each further block; whether what this gate is for is known.
            sought: the metrics that have to be decided, None for all.
            whole: whether each of them is to be decided, also of a pair that is lost.

        Raises:
            SpecregError: a side can't start at all, or the disk refuses.
        """
        self._record_answers()
        for block in range(1, self.rules.blocks + 1):
            for group in self.groups:
                if block > 1 and self._is_done(group, is_known, sought, whole=whole):
                    continue
                first = LAUNCHES_PER_BLOCK * (block - 1) + 1
                for number in range(first, first + LAUNCHES_PER_BLOCK):
                    for sides in self._due(group, number):
                        if not self._has_time():
                            return self.decide()
                        self._launch(group, number, sides)
        self.finished = True
        return self.decide()

    def decide(self) -> Decision:
        """What the launches so far say."""
        subjects = [subject for group in self.groups for subject in group.subjects]
        return decide(subjects, self.launches, self.rules, self.answers.verdicts, self._pace)

    def failed(self) -> Iterator[str]:
        """What couldn't be measured, in words."""
        for one in self.launches:
            if one.failed:
                yield f"side {one.side}, launch {one.number}, {one.pair_id}: {one.failed}"

    def why_no_control(self, group: Group) -> str:
        """Why side A isn't launched once more, empty where it is: that failed too often."""
        whys = (
            why_broken([one for one in self.launches if one.pair_id == pair.id], Side.A2)
            for pair in group.pairs
        )
        return next(filter(None, whys), "")

    def _is_done(
        self,
        group: Group,
        is_known: Callable[[Decision], bool],
        sought: frozenset[str] | None,
        *,
        whole: bool,
    ) -> bool:
        """Whether a group has told all that it can; a control has nothing to prove."""
        if is_known(self.decide()):
            return True
        wrong = {one.case_id for one in self.answers.verdicts if one.outcome is Outcome.WRONG}

        def settled(subject: Subject) -> bool:
            judged = judge_subject(subject, self.launches, self.rules)
            wanted = [one for one in judged if sought is None or one.metric in sought]
            return is_settled(wanted, lost=subject.pair.id in wrong, whole=whole)

        ours = [subject for subject in group.subjects if not subject.is_control]
        return not self.answers.wants(group.pairs) and all(map(settled, ours))

    def _due(self, group: Group, number: int) -> Iterator[tuple[Side, ...]]:
        """The servers that a launch of each side still takes."""
        known = {
            (one.pair_id, one.side)
            for one in self.launches
            if one.number == number and not one.failed
        }
        dropped = {Side.A2} if self.why_no_control(group) else set()
        for slot in group.slots(number):
            sides = tuple(side for side in slot if side not in dropped)
            wanted = {(pair.id, side) for pair in group.pairs for side in sides}
            if sides and not wanted <= known:
                yield sides

    def _launch(self, group: Group, number: int, sides: tuple[Side, ...]) -> None:
        """Start servers and measure all pairs that share them; what fails is told, not raised."""
        named = f"side {sides[0]}" if len(sides) == 1 else f"sides {', '.join(sides)}"
        self.request.show(f"launch {number}, {named}: {group.name}")
        started = time.monotonic()
        with contextlib.ExitStack() as stack:
            try:
                servers = {
                    side: stack.enter_context(self._started(group, side, number)) for side in sides
                }
                for pair in group.pairs:
                    measured = self._measure(pair, number, servers)
                    with naming(servers):
                        self.answers.ask(pair, servers, math.ceil(number / LAUNCHES_PER_BLOCK))
                    for side, (measurement, requests) in measured.items():
                        self._keep(pair, side, number, measurement)
                        self._record(self._key(pair, side, number), measurement, requests)
            except SideError as error:
                if not error.started and not self._was_measured(group, error.side):
                    raise
                self.request.show(f"launch {number}, side {error.side}: {error}")
                for pair in group.pairs:
                    self._fail(pair, error.side, number, str(error))
            finally:
                spent_s = time.monotonic() - started
                for pair in group.pairs:
                    self.spent_s.setdefault(pair.id, []).append(spent_s)

    def _was_measured(self, group: Group, side: Side) -> bool:
        ids = {pair.id for pair in group.pairs}
        return any(
            one.pair_id in ids and one.side is side and not one.failed for one in self.launches
        )

    def _measure(
        self, pair: Pair, number: int, servers: Mapping[Side, StartedServer]
    ) -> Mapping[Side, tuple[Measurement, _Requests]]:
        """What a pair did on the servers that are up, without what failed.

        Raises:
            SideError: a server went away or hangs.
        """
        request, taken = self.request, list(servers)
        requests: dict[int, _Requests] = {}

        def record(arm: int, part: int) -> Record:
            return lambda finished: requests.setdefault(arm, []).append((part, finished))

        arms = [
            Arm(
                case=pair.of(side),
                server=server,
                origin=self.sides.source(side).origin.text,
                required=side is not Side.A2 or len(servers) == 1,
            )
            for side, server in servers.items()
        ]
        # An engine on a GPU is held up by its host now and then; nothing crowds it here.
        apart = contextlib.nullcontext() if request.on_gpu else cores_apart(servers.values())
        plan = Plan(
            show=lambda _: None,
            parts=rounds_of(pair.a, sides=len(servers)),
            least_s=request.least_s,
            record=record,
        )
        workload = workload_of(pair.a, load_case_prompts(request.root, pair.a))
        with naming(servers), apart:
            found = measure(arms, workload, plan)
        kept = {}
        for place, (side, measurement) in enumerate(zip(taken, found, strict=True)):
            why = why_not_pinned(pair.of(side), measurement.acceptance)
            if measurement.replay is None:
                why = next(iter(measurement.invalid.values()), "")
            if why:
                request.show(f"launch {number}, side {side}, {pair.id}: {why}")
                self._fail(pair, side, number, why)
            elif measurement.replay is not None:
                kept[side] = measurement, requests.get(place, [])
            if why.startswith(HungError.name):
                raise SideError(side, why)
        return kept

    def _record(self, key: Key, measurement: Measurement, requests: _Requests) -> None:
        """Write a measurement that is complete, with all of its requests."""
        self.journal.begin(key)
        for part, finished in requests:
            self.journal.record_round(0, part)(finished)
        self.journal.end(measurement)

    def _keep(self, pair: Pair, side: Side, number: int, measurement: Measurement) -> None:
        self.launches.append(
            SideLaunch(pair_id=pair.id, side=side, number=number, measurement=measurement)
        )

    def _fail(self, pair: Pair, side: Side, number: int, why: str) -> None:
        """Note that a side came to nothing; once a launch."""
        told = {(one.pair_id, one.side, one.number) for one in self.launches}
        if (pair.id, side, number) not in told:
            self.launches.append(SideLaunch(pair_id=pair.id, side=side, number=number, failed=why))

    def _key(self, pair: Pair, side: Side, number: int) -> Key:
        """What has to be equal for a launch to be taken over."""
        case, request = pair.of(side), self.request
        spec = case.server
        draft = None if recording_of(case) is not None else spec.draft
        models = [resolve_model(request.root, name) for name in (spec.target, draft) if name]
        files = [prompts_sha256(load_case_prompts(request.root, case)), *map(model_sha256, models)]
        how = "together" if self.groups[0].together else "in turn"
        return Key(
            case=hide_known(msgspec.json.encode(case).decode()),
            case_id=pair.id,
            launch=number,
            asked=f"side {side}, {how}, {request.least_s:g} s",
            environment=self.environment.name,
            engine=self.sides.installed[side is Side.B],
            files_sha256=" ".join(files),
        )

    def _record_answers(self) -> None:
        """Record what drafters of known success need to know, where it isn't there yet."""
        for side, pair in itertools.product((Side.A, Side.B), self.pairs):
            case = pair.of(side)
            path = recording_of(case)
            if path is None or path.exists():
                continue
            self.request.show(f"recording the answers of side {side} for {case.id}")
            prompts = load_case_prompts(self.request.root, case)[: case.prompts]
            with self.sides.server(plain_case(case), side, f"recording-{side}-{case.id}") as server:
                record_answers(case, server, prompts, path)

    @contextlib.contextmanager
    def _started(self, group: Group, side: Side, number: int) -> Iterator[StartedServer]:
        case = group.pairs[0].of(side)
        with self.sides.server(case, side, f"{number:03}-{side}-{case.server.id}") as server:
            self.sides.check_version(side, (*self.versions(side), server.engine_version))
            yield server

    def versions(self, side: Side) -> tuple[str, ...]:
        """What the servers of a side said that they are, each once; of A2 too where it is A's."""
        told = (
            one.measurement.engine_version
            for one in self.launches
            if one.measurement is not None and (one.side is Side.B) == (side is Side.B)
        )
        return tuple(sorted(set(filter(None, told))))

    @property
    def minutes(self) -> float:
        """What the launches took since it began or went on."""
        return sum(map(sum, self._spent.values())) / 60

    @property
    def _spent(self) -> Mapping[str, list[float]]:
        """By group, so that what is shared counts once."""
        return {group.name: self.spent_s.get(group.pairs[0].id, []) for group in self.groups}

    def _has_time(self) -> bool:
        """Whether servers that are up as long as any were will end in time."""
        limit = self.request.minutes
        longest_s = max(itertools.chain(*self._spent.values()), default=0.0)
        if limit is not None and longest_s:
            self.out_of_time = self.minutes + longest_s / 60 > limit
        return not self.out_of_time

    @property
    def _pace(self) -> Pace:
        launch_s: dict[str, float] = {}
        every = list(itertools.chain(*self._spent.values()))
        for group in self.groups:
            if some := self._spent[group.name] or every:
                each_s = statistics.fmean(some) * len(group.slots(1))
                launch_s |= {pair.id: each_s for pair in group.pairs}
        return Pace(launch_s=launch_s, longest_s=max(every, default=0.0), is_up=self.out_of_time)


def rounds_of(case: Case, *, sides: int) -> int:
    """Into how many rounds a case's prompts are cut where so many sides are up."""
    if sides == 1 or not case.load.concurrency:
        return case.rounds
    return max(math.ceil(case.prompts / (_WAVES * case.load.concurrency)), case.rounds)
