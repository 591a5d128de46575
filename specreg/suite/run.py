"""Measure and judge the cases of one run.

The pytest plugin and the fixtures hold one `Suite` and do nothing by themselves.
"""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from specreg.baselines.comparison import pooled_spreads
from specreg.core.errors import (
    BaselineError,
    HungError,
    InvalidMeasurementError,
    MemoryHeldError,
    ServerDiedError,
    SpecregError,
)
from specreg.core.processes import check_signalled
from specreg.core.reasons import Reason
from specreg.core.timeline import Phase, Timeline
from specreg.correctness.checks import ControlAnswers, CorrectnessCheck, RunningCase
from specreg.correctness.oracle_client import predict_drafts
from specreg.matrix.case import Case
from specreg.matrix.models import resolve_model
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.arm import Arm
from specreg.measurement.figures import Figures, figures_of
from specreg.measurement.journal import Journal, Key
from specreg.measurement.measure import Measurement, Plan, beside, measure, workload_of
from specreg.measurement.metrics import METRICS, Family, Metric
from specreg.report.progress import RunProgress
from specreg.servers.gpu_lease import GpuClaim
from specreg.servers.launch import Launch, Servers, Starting, launches_of
from specreg.servers.server import Server
from specreg.stats.intervals import PARTS, Look, Spread
from specreg.suite.plan import JOURNAL
from specreg.suite.scope import Scope
from specreg.telemetry.sampler import Watch, watch
from specreg.verdicts.confirmation import Confirmation, enough_for
from specreg.verdicts.detection import MOST_LAUNCHES, detectable
from specreg.verdicts.verdict import Outcome, Verdict

ServerPair = tuple[Starting, Starting | None]
"""A case's server and the control that stands beside it, None for no speedup."""
_ATTEMPTS = 2
_NS_PER_S = 10**9
_DoneT = TypeVar("_DoneT")


@dataclass(slots=True, kw_only=True)
class Suite(Scope):
    """A run: what it measures and judges, and what it has so far.

    Attributes:
        earlier, earlier_checks: what the run that is resumed had measured and checked.
        further_s: how long launches beyond the recorded ones may still take, all of them together.
        leave_page: leaves the page of what the run has, before each case; page_due_ns: from when on
            it is due again, on the monotonic clock.
        record_property: takes a property of the whole run for JUnit's file.
        taken_over: what an earlier run had measured; retried: what was measured a second time, as
            its server had gone away.
        errors: by case that failed otherwise than by a verdict, what was said first, in full.
    """

    journal: Journal = field(init=False)
    earlier: dict[Key, Measurement] = field(default_factory=dict)
    earlier_checks: dict[tuple[Key, str], Mapping[str, Any]] = field(default_factory=dict)
    further_s: float = 0.0
    progress: RunProgress = field(default_factory=RunProgress)
    leave_page: Callable[["Suite"], None] = lambda _: None
    page_due_ns: int = 0
    record_property: Callable[[str, object], None] = lambda *_: None
    timeline: Timeline = field(default_factory=Timeline)
    taken_over: list[str] = field(default_factory=list)
    retried: list[str] = field(default_factory=list)
    servers: Servers = field(init=False)
    confirmation: Confirmation = field(init=False)
    figures: list[Figures] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    _measured: dict[tuple[str, int], Measurement] = field(default_factory=dict)
    _checked: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    _failed: dict[str, SpecregError] = field(default_factory=dict)
    _verdict_rows: dict[tuple[str, str, int], int] = field(default_factory=dict)
    _control_answers: ControlAnswers = field(default_factory=dict)
    _furthered: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        Scope.__post_init__(self)
        self.journal = Journal(self.run_folder / JOURNAL)
        self.servers = Servers(
            root=self.root,
            provision=self.provision,
            ready_within_s=self.options.ready_within_s,
            logs=self.run_folder / "logs",
            timeline=self.timeline,
            claim=GpuClaim() if self.shares_machine else None,
        )
        self.confirmation = Confirmation(
            known_of=self.known_of, measure_afresh=self.measure_afresh, softened=self.softened
        )

    @property
    def verdicts(self) -> Sequence[Verdict]:
        """So far, in the order of the run."""
        return self.confirmation.verdicts

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """So far, in the order of the run."""
        return tuple(self._measured.values())

    def measure(self, case: Case, pair: ServerPair) -> Measurement:
        """Measure a case on a launch, once; or take over what the run that is resumed has.

        Raises:
            SpecregError: a server didn't start, or went away twice; the same when asked again.
        """
        launch = pair[0].launch
        if (case.id, launch.number) not in self._measured:
            self._at_most_once(launch.case_id(case), lambda: self._measure(case, pair))
        return self._measured[case.id, launch.number]

    def _at_most_once(self, name: str, attempt: Callable[[], _DoneT]) -> _DoneT:
        """Make an attempt; one that failed isn't made again, and raises its error again."""
        if name in self._failed:
            raise self._failed[name]
        try:
            return attempt()
        except SpecregError as error:
            self._failed[name] = error
            raise

    def _measure(self, case: Case, pair: ServerPair) -> None:
        """Measure a case, or take it over, and keep its figures."""
        number, name = pair[0].launch.number, pair[0].launch.case_id(case)
        self._begin(name)
        if self.merged is not None:
            measurement = self.merged.measurement(case, number)
        elif (found := self.earlier.get(key := self.key(case, number))) is not None:
            measurement = found
            self.taken_over.append(name)
        else:
            pair = pair if self.asks_speed(case) else (pair[0], None)
            once = functools.partial(self._measure_once, case, key, pair)
            measurement = self._twice(once, pair, again=f"{name}: measured again")
            if any(each.code == HungError.code for each in measurement.invalid.values()):
                for starting in filter(None, pair):  # a server that hangs isn't used again
                    starting.stop()
        self._measured[case.id, number] = measurement  # at once: its figures take a moment
        self.figures.append(figures_of(measurement, number))

    def _begin(self, name: str) -> None:
        """Note which case is at hand; before each one the page shows those that were judged."""
        if self.merged is None and self.progress.begin(name):
            self.leave_page(self)

    def _twice(self, attempt: Callable[[], _DoneT], pair: ServerPair, *, again: str) -> _DoneT:
        """Make an attempt; once more, on a fresh server, where one went away meanwhile."""
        attempts = 1 if self.provision.url is not None else _ATTEMPTS
        while True:
            try:
                return attempt()
            except ServerDiedError as error:
                attempts -= 1
                for starting in filter(None, pair):
                    starting.stop_if_dead()
                if not attempts:
                    raise
                self.retried.append(f"{again}, {error.head}")
            except HungError:
                for starting in filter(None, pair):
                    starting.stop()
                raise

    def _measure_once(self, case: Case, key: Key, pair: ServerPair) -> Measurement:
        server, control = pair
        own, *others = self._started(pair)
        like = case.dataset, case.load
        plain = dataclasses.replace(case, server=case.control or case.server, control=None)
        beside_it = functools.partial(Arm, case=plain, required=False)
        warm = control is not None and like in control.warm_for
        arms = [Arm(case=case, server=own), *(beside_it(server=one, warm=warm) for one in others)]
        name = server.launch.case_id(case)
        self.journal.begin(key)
        with (
            self.timeline.during(Phase.MEASURING, server.launch.id, of=name),
            self._watching(case, name) as watching,
        ):
            plan = self._plan(case, server.launch.number, watching)
            found = measure(arms, workload_of(case, load_case_prompts(self.root, case)), plan)
        if control is not None and not found[-1].invalid:
            control.warm_for.add(like)
        measurement = beside(*found) if len(found) > 1 else found[0]
        self.journal.end(measurement)
        return measurement

    def _started(self, pair: ServerPair) -> tuple[Server, ...]:
        """A case's server and its control, if there is one, both ready."""
        asked = tuple(filter(None, pair))
        if starting := [one for one in asked if not one.running]:
            names = " beside ".join(one.launch.id for one in starting)
            ahead = self._next(*pair) if starting == [pair[0]] else None
            with self.timeline.during(Phase.STARTING, pair[0].launch.id, of=names):
                self.servers.start_all(starting[::-1], ahead)  # the control first
        return tuple(one.server for one in asked)

    def _next(self, server: Starting, control: Starting | None) -> Launch | None:
        """The launch that is measured after a server's beside the same control."""
        if control is None or self.shares_machine:  # another process of the run may take it
            return None
        ids = self.asked.keys() - self.unfetched.keys()
        asked = (one for one in self.setups() if one[2].id in ids)
        left = itertools.dropwhile(lambda one: one[1] != server.launch, asked)
        with contextlib.suppress(SpecregError):  # its models aren't there: its own tests say so
            for plain, launch, case in left:
                other = plain == control.launch and launch not in {plain, server.launch}
                if other and self.key(case, launch.number) not in self.earlier:
                    return launch
        return None

    def _plan(self, case: Case, launch: int, watching: Watch | None) -> Plan:
        """How much of a case to measure: recording takes the extension too, once.

        A case that is asked for acceptance alone stops once that has regressed; speeds are those
        of all prompts.
        """
        timed = self.asks_speed(case)
        power = self.records or any(one.family is Family.POWER for one in self.asked_of(case))
        plan = Plan(
            show=self._show_or_stop,
            turn_to=self.timeline.turn_to,
            record=self.progress.count(case.load.concurrency, self.journal.record_round),
            least_s=self.least_s(case),
            power_s=case.power_s if power else 0.0,
            watching=watching,
        )
        if self.records:
            return dataclasses.replace(plan, enough=lambda _, at: at is Look.FULL and launch > 1)
        if metrics := [metric for metric in self.asked_of(case) if not metric.by_launch]:
            with contextlib.suppress(BaselineError):
                enough = enough_for(case, metrics, self.known_of(case), may_stop_early=not timed)
                return dataclasses.replace(plan, parts=None if timed else PARTS, enough=enough)
        return plan

    def _show_or_stop(self, what: str) -> None:
        """Tell what goes on, by round; stop where a signal came and its interrupt was lost."""
        check_signalled()
        self.show(what)

    def _watching(self, case: Case, name: str) -> contextlib.AbstractContextManager[Watch | None]:
        """Sample the power of a case that is timed, if anything can."""
        if not case.speed or not self.asks_speed(case) or self.provision.why_no_power(case.server):
            return contextlib.nullcontext()
        path = self.run_folder / "power" / f"{name}.jsonl"
        return watch(self.provision.devices(case.server), path)

    def measure_afresh(
        self, cases: Sequence[Case], further: int
    ) -> Mapping[str, Measurement | Reason]:
        """Measure cases on one launch more of their servers, after all others were stopped.

        `further` is how many more that makes, from 1.

        Returns:
            By case's id what was measured, or why it couldn't be.

        Raises:
            MemoryHeldError: a GPU hasn't got its memory back, so nothing more may be measured.
        """
        number = self.launches + further
        if not all((case.id, number) in self._measured for case in cases):
            self.servers.stop()
        found: dict[str, Measurement | Reason] = {}
        groups: dict[tuple[Launch, Launch], list[Case]] = {}
        for case in cases:
            groups.setdefault(launches_of(case, number), []).append(case)
        for (control, launch), together in groups.items():
            again = f"{launch.id} on a fresh launch"
            with (
                self.timeline.during(Phase.CONFIRMING, launch.id, of=again),
                self.servers.start(control) as beside,
                self.servers.start(launch, beside=beside) as server,
            ):
                for case in together:
                    pair = server, beside if case.control else None
                    try:
                        found[case.id] = self.measure(case, pair)
                    except MemoryHeldError:
                        raise
                    except SpecregError as error:
                        found[case.id] = error.reason
        return found

    def judge(self, metric: Metric, case: Case, pair: ServerPair) -> Verdict:
        """Judge a metric of a case, and with it all of its server group.

        The group is all cases that share the server: they are measured and checked, and what looks
        worse or undecided is measured again on fresh launches, before the first test says anything.

        Raises:
            SpecregError: the case couldn't be measured, as of `measure`.
            MemoryHeldError: a GPU hasn't got its memory back, so nothing more may be measured.
        """
        place = case.id, metric.name, pair[0].launch.number
        if place not in self._verdict_rows:
            self.measure(case, pair)
            self._judge_group(*pair)
        return self.verdicts[self._verdict_rows[place]]

    def _judge_group(self, server: Starting, control: Starting | None) -> None:
        number = server.launch.number
        for case in self.group(server.launch):
            pair = server, control if case.control else None
            try:
                if metrics := self.asked_of(case):
                    self.measure(case, pair)
                with self.timeline.during(Phase.JUDGING, server.launch.id):
                    for metric in metrics:
                        self._verdict_rows[case.id, metric.name, number] = len(self.verdicts)
                        self._judge(metric, case, number)
                for check in self.checks_of(case, number):
                    self.check(check, case, pair)
            except MemoryHeldError:
                raise
            except SpecregError:  # the case's own tests say so
                continue
        if not self.records:
            self.confirmation.confirm()
        elif number == self.launches:
            self.measure_further(server.launch)

    def measure_further(self, launch: Launch) -> None:
        """Measure more launches of a server, in its share of the time, where that tells runs more.

        Of merged shards all those count that they measured.
        """
        group, numbers = self.group(launch), range(1, MOST_LAUNCHES - launch.number + 1)
        if self.merged is not None:
            for further in numbers:
                self.measure_afresh(group, further)
            return
        asked = [case for case in self.tier.cases if case.id in self.asked]
        servers = {launches_of(case, launch.number)[1].id for case in asked}
        share_s = self.further_s / max(len(servers - self._furthered), 1)
        self._furthered.add(launch.id)
        times = self.timeline.so_far().pairs
        took_s = sum(one.total_s for one in times if one.pair == launch.id)
        for further in numbers:
            open_ones = [case for case in group if self._tells_more(case)]
            if not open_ones or took_s >= share_s:
                return
            began_ns = time.monotonic_ns()
            found = self.measure_afresh(open_ones, further)
            took_s = (time.monotonic_ns() - began_ns) / _NS_PER_S
            share_s, self.further_s = share_s - took_s, self.further_s - took_s
            if all(isinstance(one, Reason) for one in found.values()):
                return

    def _tells_more(self, case: Case) -> bool:
        """Whether a run can't tell a speed of a case, and could if more launches were recorded."""
        launches = sum(one.case == case for one in self.measurements)
        spreads = self.spreads if launches else {}
        for metric in self.asked_of(case):
            if metric.by_launch and (spread := spreads.get(metric.name)) is not None:
                freedom = spread.freedom + MOST_LAUNCHES - launches
                most = dataclasses.replace(spread, freedom=freedom)
                allowed_frac = metric.allowed_frac(case)
                now = detectable(metric, allowed_frac, launches, spread)
                then = detectable(metric, allowed_frac, MOST_LAUNCHES, most)
                if then.decides and not now.decides:
                    return True
        return False

    @property
    def spreads(self) -> Mapping[str, Spread]:
        """By speed how launches differ on this machine, those of this run among them."""
        rows: dict[str, list[Mapping[str, float]]] = {}
        for one in self.measurements:
            speeds = {name: value for name, value in one.values.items() if METRICS[name].by_launch}
            rows.setdefault(one.case.id, []).append(speeds)
        others = [one for path, one in self.store.own().items() if path.stem not in rows]
        launches = (*rows.values(), *(one.launches for one in others))
        return pooled_spreads(launches, [one.noise for one in others])

    def group(self, launch: Launch) -> list[Case]:
        """The cases that are asked for and share a server."""
        asked = (case for case in self.tier.cases if case.id in self.asked)
        return [case for case in asked if launches_of(case, launch.number)[1] == launch]

    def _judge(self, metric: Metric, case: Case, launch: int) -> None:
        """Judge a metric of a launch, which may wait for a fresh one.

        Speeds are judged with the last launch, on all. While recording, only validity counts.
        """
        measurement = self._measured[case.id, launch]
        value = measurement.values.get(metric.name)
        waits = self.records or (metric.by_launch and launch < self.launches)
        if waits and value is not None:
            verdict = Verdict(case_id=case.id, metric=metric.name, outcome=Outcome.MEASURED)
            self.confirmation.verdicts.append(dataclasses.replace(verdict, value=value))
            return
        launches = [self._measured.get((case.id, n)) for n in range(1, launch)]
        valid = [m for m in launches if m is not None and metric.family not in m.invalid]
        self.confirmation.judge(metric, [*valid, measurement])

    def check(self, check: CorrectnessCheck, case: Case, pair: ServerPair) -> Verdict:
        """Check what must hold of a case, once; again on a fresh server where one went away.

        Raises:
            SpecregError: it couldn't be made, as a server didn't start or went away twice.
        """
        launch = pair[0].launch
        name, of = launch.case_id(case), f"{check.name} of {case.id}"

        def attempt() -> Verdict:
            self._begin(name)
            with self.timeline.during(Phase.CHECKING, launch.id, of=of):
                if self.merged is not None:
                    return self.merged.verdict(check, case)
                key = self.key(case, launch.number)
                if (key, check.name) in self.earlier_checks:
                    return msgspec.convert(self.earlier_checks[key, check.name], Verdict)
                once = functools.partial(self._check_once, check, case, pair)
                verdict = self._twice(once, pair, again=f"{name}: {check.name} checked again")
                self.journal.note_check(key, check.name, verdict)
                return verdict

        place = case.id, check.name
        if place not in self._checked:
            self._checked[place] = self._at_most_once(" ".join(place), attempt)
            self.confirmation.verdicts.append(self._checked[place])
        return self._checked[place]

    def _check_once(self, check: CorrectnessCheck, case: Case, pair: ServerPair) -> Verdict:
        spec, servers = case.server, self._started(pair)
        predict = functools.partial(predict_drafts, on_gpu=self.provision.on_gpu, show=self.show)
        draft = resolve_model(self.root, spec.draft) if spec.draft else None
        measured = self._measured.get((case.id, pair[0].launch.number))
        running = RunningCase(
            case=case,
            server=servers[0],
            control=servers[1] if pair[1] else None,
            prompts=load_case_prompts(self.root, case)[: case.prompts],
            predict_drafts=predict,
            models=(resolve_model(self.root, spec.target), draft),
            control_answers=self._control_answers,
            replay=measured.replay if measured else None,
        )
        try:
            return check.check(running)
        except InvalidMeasurementError:
            for one in servers:
                one.check_alive()
            raise

    def conclude(self) -> list[str]:
        """Look at all verdicts together; return what to say where words change.

        JUnit's tests are told by then, so its file is told here.
        """
        before = tuple(self.verdicts)
        self.confirmation.conclude(self.merged.hosts if self.merged else {})
        changes = []
        for one, now in zip(before, self.verdicts, strict=True):
            if one.outcome is not now.outcome:
                name = f"specreg.final.{now.case_id}.{now.metric}"
                self.record_property(name, f"{now.outcome}: {now.explanation}")
                changes.append(f"{now.case_id} {now.metric}: {one.outcome} -> {now.outcome}")
        many = f"{len(changes)} verdict{'s' * (len(changes) > 1)}"
        told = f"{many} changed when the whole run was looked at: {', '.join(changes)}"
        return [told] if changes else []

    def note_failure(self, case: Case, metric: str, reason: Reason, told: str = "") -> Verdict:
        """Remember that a metric could not be judged, so that no table leaves it out.

        `told` is what was said, in full; of a case the first counts.
        """
        if told:
            self.errors.setdefault(case.id, told)
        verdict = Verdict(case_id=case.id, metric=metric, outcome=Outcome.INVALID, reason=reason)
        self.confirmation.verdicts.append(verdict)
        return verdict
