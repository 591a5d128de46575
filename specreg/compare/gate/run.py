"""One gate: a plan and two sources in; servers, launches and a decision out."""

import contextlib
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from specreg.compare.gate.answer import Decision, decide
from specreg.compare.gate.beside import SideError
from specreg.compare.gate.going import Group, Slot, go_on, is_settled
from specreg.compare.gate.hearing import Hearing
from specreg.compare.gate.journal import Begun, Journal, Rehearsed, Spent
from specreg.compare.gate.judging import LAUNCHES_PER_BLOCK, Rules
from specreg.compare.gate.launched import Arm, Launched, versions_of
from specreg.compare.gate.needs import Pace, Time
from specreg.compare.gate.pinning import plain_case, record_answers, recording_of
from specreg.compare.gate.plan import Pair, Shared
from specreg.compare.gate.sitting import Place, Sitting
from specreg.compare.gate.source import Source
from specreg.core.errors import MemoryHeldError, SpecregError, UnsupportedError
from specreg.datasets.prompts import prompts_sha256
from specreg.matrix.case import Case
from specreg.matrix.models import model_sha256, resolve_model
from specreg.matrix.prompts import load_case_prompts
from specreg.servers.server import StartedServer
from specreg.servers.start import start_server
from specreg.verdicts.judge import Outcome


@dataclass(slots=True, kw_only=True)
class Gate:
    """What a gate needs, and what has come of it so far.

    Attributes:
        place: see there.
        sources: of A and of B.
        shared: what is compared, by what shares its launches.
        rules: how much evidence there may be, and how it is weighed.
        minutes: how long the launches from here on may take, None for as long as it takes.
        journal: of this gate.
        hearing: of the answers' texts.
        launches, rehearsed, spent_s: so far; earlier_s: of that, before it was cut off;
            spent_by_case_s: the same by the last case that was measured in a sitting.
        failed_before: launches that came to nothing then; they are tried again.
        out_of_time, finished: how it ended; neither where it was cut short.
    """

    place: Place
    sources: tuple[Source, Source]
    shared: Sequence[Shared]
    rules: Rules
    minutes: float | None
    journal: Journal
    hearing: Hearing
    launches: tuple[Launched, ...] = ()
    failed_before: tuple[Launched, ...] = ()
    rehearsed: bool = False
    spent_s: list[float] = field(default_factory=list)
    spent_by_case_s: dict[str, list[float]] = field(default_factory=dict)
    earlier_s: float = 0.0
    out_of_time: bool = False
    finished: bool = False

    def take_over(self, lines: Sequence[object]) -> None:
        """What a gate that was cut off had measured; what failed is no verdict on a side yet.

        Raises:
            UnsupportedError: launches of one side were of two versions.
        """
        launches = [one for one in lines if isinstance(one, Launched)]
        self.launches = tuple(one for one in launches if not one.invalid)
        self.failed_before = tuple(one for one in launches if one.invalid)
        self.hearing.take_over(lines)
        self.rehearsed = any(isinstance(one, Rehearsed) for one in lines)
        self.spent_s = [one.launch_s for one in lines if isinstance(one, Spent)]
        self.spent_by_case_s = sittings_s(lines)
        self.earlier_s = sum(self.spent_s)
        for arm in (Arm.A, Arm.B):
            self._check_version(arm)

    def rehearse(self) -> None:
        """Starts every server once; together those that will be up together.

        What a side can't do is said before anything is measured; and what a first start pays for
        is paid.

        Raises:
            ServerStartError: one didn't start; the message names the side.
        """
        if self.rehearsed:
            return
        for shared in self.shared:
            for arms in dict.fromkeys(tuple(sorted(arms)) for arms in shared.group.block(1)):
                if arms == (Arm.A2,):  # what A can start, it can
                    continue
                with contextlib.ExitStack() as stack:
                    for arm in arms:
                        self.place.show(f"rehearsing side {arm}: {shared.group.name}")
                        case = shared.pairs[0].of(arm)
                        name = f"rehearsal-{arm}-{case.server.id}"
                        with self._naming(arm):
                            stack.enter_context(self._server(case, arm, name))
        self.journal.write(Rehearsed())
        self.rehearsed = True

    def record(self) -> None:
        """Records what drafters of known success need to know, where it isn't there yet.

        Raises:
            SpecregError: a server didn't start, or doesn't answer in ids; the message names the
                side.
        """
        pairs = [pair for shared in self.shared for pair in shared.pairs]
        for arm, pair in itertools.product((Arm.A, Arm.B), pairs):
            case = pair.of(arm)
            path = recording_of(case)
            if path is None or path.exists():
                continue
            self.place.show(f"recording the answers of side {arm} for {case.id}")
            prompts = load_case_prompts(self.place.root, case)[: case.prompts]
            plain = plain_case(case)
            with (
                self._naming(arm),
                self._server(plain, arm, f"recording-{arm}-{case.id}") as (server, _),
            ):
                record_answers(case, server, prompts, path)

    def measure(
        self, is_known: Callable[[Decision], bool] = lambda _: False, *, whole: bool = False
    ) -> Decision:
        """Launches until all is decided, or there is no time left.

        Args:
            is_known: asked before each further block; whether what this gate is for is known.
            whole: whether each figure is to be decided, also of a case that is lost.
        """
        go_on(
            [shared.group for shared in self.shared],
            self.launch,
            self.rules,
            earlier=self.all_launches,
            may_go_on=self._has_time,
            is_done=lambda group, done: (
                self._is_done(group, done, whole=whole) or is_known(self.decide())
            ),
        )
        self.finished = not self.out_of_time
        return self.decide()

    def _is_done(self, group: Group, done: Sequence[Launched], *, whole: bool) -> bool:
        """Whether a group has told all that it can, of its figures and of its answers."""
        wrong = {one.case_id for one in self.hearing.judged if one.outcome is Outcome.WRONG}
        wanted = self.hearing.wants(one.case_id for one in group.subjects)
        return not wanted and is_settled(group, done, self.rules, wrong=wrong, whole=whole)

    @property
    def all_launches(self) -> tuple[Launched, ...]:
        """Those that count, and those that failed before it was cut off."""
        return (*self.failed_before, *self.launches)

    def decide(self) -> Decision:
        """What the launches so far say."""
        subjects = list(
            itertools.chain.from_iterable(shared.group.subjects for shared in self.shared)
        )
        return decide(subjects, self.launches, self.rules, self.hearing.judged, self._time)

    @property
    def _time(self) -> Time:
        """How long launches take: of each group what its own took, of a new one what all did."""
        spent_s = self.spent_by_case_s
        paces = []
        for shared in self.shared:
            case_ids = frozenset(pair.id for pair in shared.pairs)
            own_s = [one_s for case_id in case_ids for one_s in spent_s.get(case_id, ())]
            if some_s := own_s or self.spent_s:
                sittings = len(shared.group.block(1)) / LAUNCHES_PER_BLOCK
                launch_s = statistics.fmean(some_s) * sittings
                paces.append(Pace(case_ids=case_ids, launch_s=launch_s))
        longest_s = max(self.spent_s, default=0.0)
        return Time(paces=tuple(paces), longest_s=longest_s, is_up=self.out_of_time)

    def launch(self, slot: Slot) -> Sequence[Launched]:
        """Starts the servers of a slot and measures all that share them; see `Sitting`.

        What was measured, or failed, is kept however the servers end.
        """
        shared = next(one for one in self.shared if one.group == slot.group)
        said = f"side {slot.arms[0]}" if len(slot.arms) == 1 else f"sides {', '.join(slot.arms)}"
        self.place.show(f"block {slot.block}, {said}: {slot.group.name}")
        self.hearing.begin(shared.pairs, slot.block)
        sitting = Sitting(
            place=self.place, hearing=self.hearing, shared=shared, slot=slot, start=self._server
        )
        started = time.monotonic()
        try:
            with contextlib.ExitStack() as stack:
                sitting.run(stack)
        finally:
            self._keep(sitting.launches, time.monotonic() - started)
        return sitting.launches

    def _keep(self, launches: Sequence[Launched], launch_s: float) -> None:
        """Notes what came of a sitting, here and in the journal; nothing where nothing did."""
        if not launches:
            return
        self.spent_s.append(launch_s)
        self.spent_by_case_s.setdefault(launches[-1].case_id, []).append(launch_s)
        self.launches = (*self.launches, *launches)
        self.journal.write(*launches, Spent(launch_s=launch_s))

    def _check_version(self, arm: Arm, now: str = "") -> None:
        """Silent where all launches of a side are of one version, by its servers' own word.

        An interpreter that is taken as it is may hold another one by the time that a gate goes on.
        """
        before = versions_of(self.all_launches, arm)
        versions = dict.fromkeys(filter(None, (*before, now)))
        if len(versions) > 1:
            side = self._source(arm).side.text
            message = (
                f"side {arm} ('{side}'): its servers said {', '.join(versions)}, so its launches"
                " aren't of one version; bring back the one it had, or begin another gate"
            )
            raise UnsupportedError(message)

    @contextlib.contextmanager
    def _naming(self, arm: Arm) -> Iterator[None]:
        """Says of an error whose it is."""
        try:
            yield
        except MemoryHeldError:  # it is the machine's, whosever server it was
            raise
        except SpecregError as error:
            side = self._source(arm).side.text
            raise SideError(arm, f"side {arm} ('{side}'): {error}") from error

    def _source(self, arm: Arm) -> Source:
        return self.sources[1 if arm is Arm.B else 0]

    @contextlib.contextmanager
    def _server(self, case: Case, arm: Arm, name: str) -> Iterator[tuple[StartedServer, float]]:
        """A running server of a side, and how long it took to its first token."""
        environment = self._source(arm).environment(case)
        with self._source(arm).leased(case):
            started = time.monotonic()
            with start_server(
                case.server,
                environment,
                root=self.place.root,
                log_path=self.place.folder / "logs" / f"{name.replace(' ', '')}.log",
                on_gpu=self.place.on_gpu,
                ready_within_s=self.place.ready_within_s,
                show=lambda _: None,
            ) as server:
                self._check_version(arm, server.engine_version)
                yield server, time.monotonic() - started

    def _has_time(self) -> bool:
        """Whether one launch more, as long as they were, ends in time."""
        if self.minutes is None or not self.spent_s:
            return True
        ours_s = sum(self.spent_s) - self.earlier_s
        self.out_of_time = ours_s + max(self.spent_s) > 60 * self.minutes
        return not self.out_of_time


def sittings_s(lines: Iterable[object]) -> dict[str, list[float]]:
    """How long each sitting in a journal took, by the last case that was measured in it."""
    spent_s: dict[str, list[float]] = {}
    case_id = ""
    for line in lines:
        if isinstance(line, Launched):
            case_id = line.case_id
        elif isinstance(line, Spent):
            spent_s.setdefault(case_id, []).append(line.launch_s)
    return spent_s


def begun_of(
    root: Path, sources: tuple[Source, Source], pairs: Sequence[Pair], environment: str
) -> Begun:
    """What another gate must have in common with one to go on with it."""
    cases = [case for pair in pairs for case in (pair.a, pair.b)]
    files: dict[str, None] = {}
    for case in cases:
        spec = case.server
        files[prompts_sha256(load_case_prompts(root, case))] = None
        # A drafter of one's own is a class, no model.
        draft = None if spec.method == "custom_class" else spec.draft
        for name in filter(None, (spec.target, draft)):
            files[model_sha256(resolve_model(root, name))] = None
    a, b = (
        ", ".join(dict.fromkeys(source.installed(pair.of(arm)) for pair in pairs))
        for source, arm in zip(sources, (Arm.A, Arm.B), strict=True)
    )
    return Begun(
        a=a,
        b=b,
        cases=msgspec.json.encode([dataclasses.asdict(case) for case in cases]).decode(),
        environment=environment,
        files_sha256=" ".join(files),
    )
