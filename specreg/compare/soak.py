"""A soak: keep one server under load for a long time, and judge how its figures drift."""

import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from specreg.compare.folders import SOAK_PURPOSE, check_owner, folder_of, open_ledger
from specreg.compare.options import SoakOptions
from specreg.compare.steadiness import (
    SoakGoal,
    news_of,
    next_segment,
    passed_s,
    undecided_servers,
    verdicts_of,
)
from specreg.core.counted import counted
from specreg.core.errors import InvalidMeasurementError, ServerError, UnsupportedError
from specreg.core.families import Family
from specreg.core.interrupts import INTERRUPTER, Interrupter
from specreg.matrix.case import Case, Tier
from specreg.matrix.prompts import check_contexts, check_drafts, files_sha256, load_case_prompts
from specreg.measurement.arm import Arm
from specreg.measurement.figures import figures_of
from specreg.measurement.measure import Measurement, Plan, Workload, batch_size_of
from specreg.measurement.metrics import Replay
from specreg.report.document import Tone
from specreg.report.parts import Output, Parts, Text, VerdictLine
from specreg.report.remarks import workload_remarks
from specreg.report.screen import LOG, Screen
from specreg.report.terminal import render_verdicts
from specreg.runs.execute import Executor
from specreg.runs.ledger import MAX_LAUNCHES, FailedLaunch, Key, Ledger, Segment
from specreg.servers.handle import Servers
from specreg.servers.installer import packages_sha256
from specreg.servers.launch import Launch
from specreg.servers.launcher import ServerLauncher
from specreg.servers.provision import parse_origin, provision_side
from specreg.servers.server import Server
from specreg.telemetry.devices import held_bytes
from specreg.telemetry.identity import current_environment, find_gpus
from specreg.verdicts.verdict import GOOD, Outcome, Verdict

_BATCHES = 4
"""How many batches of prompts a segment has by default, see `batch_size_of`."""
_LEAST_APART_S = 0.001
"""No two segments of a launch are as close to each other as this, in seconds."""
_NS_PER_S = 10**9
_NS_PER_MS = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """A soak that is ready to start or to be resumed.

    Attributes:
        options: the options of the command.
        goal: what it wants to know.
        executor: measures segment after segment on one server.
    """

    options: SoakOptions
    goal: SoakGoal
    executor: "SoakExecutor"

    @property
    def ledger(self) -> Ledger:
        """The segments that were measured."""
        return self.executor.ledger

    @property
    def is_finished(self) -> bool:
        """Whether its time is over, or its server failed. False if it was interrupted."""
        return next_segment(self.ledger, self.goal) is None

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on the segments so far, as at the end of the soak."""
        return verdicts_of(self.ledger.segments, self.goal)

    def run(self) -> None:
        """Start a server, and measure segment after segment until the time is over.

        Raises:
            SpecregError: the case can't be measured, or no longer. The segments so far remain.
        """
        try:
            self.executor.take_steps(
                lambda: next_segment(self.ledger, self.goal), lambda _: self.show_news()
            )
        finally:
            self.executor.servers.stop()
            self.ledger.close()

    def show_news(self, *, is_over: bool = False) -> None:
        """Show what the last segment shows; see `news_of`."""
        for line in news_of(self.ledger.segments, self.goal, is_over=is_over):
            self.options.show(line)


@dataclass(slots=True, kw_only=True)
class SoakExecutor(Executor[int]):
    """Measures the segments of a soak on this machine. A step is the number of a segment.

    Attributes:
        goal: what the soak wants to know.
        options: the options of the command.
        key: the key of this process's launch of the server.
        interrupter: knows whether a signal ends this process.
        _started_ns: when the first segment of the launch began; 0 before.
    """

    goal: SoakGoal
    options: SoakOptions
    key: Key
    interrupter: Interrupter = field(default_factory=lambda: INTERRUPTER)
    _started_ns: int = 0

    def execute(self, step: int) -> Iterator[Segment | FailedLaunch]:
        """Measure a segment, and start the server before the first one of this process.

        Raises:
            SpecregError: the case can't be measured, or no longer.
        """
        case = self.goal.case
        is_first = not self._started_ns
        if is_first:
            self.ledger.begin(self.key)
        server = self.servers.handle(Launch(spec=case.server, number=self.key.launch)).server

        # A segment has a number of prompts instead of a duration, and begins with the full load.
        load = dataclasses.replace(case.load, duration_s=None, ramp_up_s=0.0)

        # Only the first segment of a server needs a warm-up.
        arm = Arm(case=dataclasses.replace(case, load=load), server=server, warm=not is_first)

        # A segment has a single round, and its acceptance is needed only as a sum.
        plan = Plan(show=lambda _: None, parts=1, counts_apart=False)
        workload = self._workload()
        if is_first:
            segment_size = counted(len(workload.prompts), "prompt")
            self.options.show(f"{case.id}: {segment_size} in each segment")
        try:
            (measurement,) = self.measure_arms([arm], workload, plan)
            replay = _valid_replay(measurement)
        except (ServerError, InvalidMeasurementError) as error:
            # Another server would pass, and nobody would learn of this one. A signal may have ended
            # the server too, and the client of the load is specreg's own.
            if not self.interrupter.has_signal and error.reason.code != "CLIENT_DIED":
                yield FailedLaunch(
                    case_id=case.id, number=self.key.launch, reason=error.reason, error=error
                )
            raise
        if is_first:
            self._started_ns = replay.rounds[0].started_ns
            for remark in workload_remarks(figures_of(measurement, self.key.launch)):
                self.options.show(remark)

        yield self._segment(step, measurement, replay, server)

    def _workload(self) -> Workload:
        """Return the prompts of a segment."""
        case = self.goal.case
        prompts = load_case_prompts(self.root, case)
        segment_prompts = _prompts_of_segment(self.options, case)
        return Workload(prompts=prompts[:segment_prompts], warm_up=prompts)

    def _segment(
        self, number: int, measurement: Measurement, replay: Replay, server: Server
    ) -> Segment:
        """Return the segment of one replay of the prompts, with the memory of its server."""
        (segment_round,) = replay.rounds
        gaps = segment_round.gaps
        step_ms: float | None = None
        if gaps.size and Family.LATENCY not in measurement.invalid:
            step_ms = gaps.total_ns / gaps.size / _NS_PER_MS
        length_tokens: float | None = None
        if replay.acceptance is not None:
            length_tokens = replay.acceptance.total.acceptance_length

        # The case may choose its GPUs by a variable of its own.
        gpu_memory_bytes: int | None = None
        if self.goal.on_gpu:
            variables = {**os.environ, **dict(server.spec.engine_env)}
            gpus = server.spec.parallel.gpus
            gpu_memory_bytes = held_bytes(gpus, variables, server.pids())

        middle_ns = (segment_round.started_ns + segment_round.ended_ns) / 2
        duration_ns = segment_round.ended_ns - segment_round.started_ns
        return Segment(
            number=number,
            launch=self.key.launch,
            at_s=(middle_ns - self._started_ns) / _NS_PER_S,
            lasted_s=duration_ns / _NS_PER_S,
            requests=len(segment_round.traces),
            acceptance_length_tokens=length_tokens,
            step_ms=step_ms,
            # Processes that have ended hold 0 bytes, which isn't a figure.
            memory_bytes=server.memory_bytes(),
            gpu_memory_bytes=gpu_memory_bytes,
        )


def _prompts_of_segment(options: SoakOptions, case: Case) -> int:
    """Return how many prompts a segment replays at most."""
    return options.prompts or min(_BATCHES * batch_size_of(case), case.request.prompts)


def _valid_replay(measurement: Measurement) -> Replay:
    """Return the replay of a segment.

    Raises:
        InvalidMeasurementError: its acceptance is invalid, or nothing was answered.
    """
    # Invalid acceptance ends the soak, with the reason why it is invalid.
    invalidity = measurement.invalid.get(Family.ACCEPTANCE)
    if invalidity is not None:
        raise InvalidMeasurementError(invalidity)
    if measurement.replay is None:
        raise InvalidMeasurementError("NOTHING_ANSWERED")
    return measurement.replay


def open_soak(options: SoakOptions, tier: Tier) -> Soak:
    """Return a soak of the named case, or of the first case that speculates and fits the machine.

    Raises:
        SpecregError: the folder can't be used, no case fits, or the engine can't run the case.
    """
    # Check everything that needs no engine, before the engine is installed.
    folder = folder_of("soak", options)
    case = _chosen_case(options, tier)
    on_gpu = tier.needs_gpus > 0
    ledger = open_ledger("soak", folder, resume=options.resume)
    engine_origin = parse_origin(options.engine or case.server.engine)
    source = provision_side(engine_origin, [case], on_gpu=on_gpu, show=options.show)
    check_drafts(options.root, [case])
    check_contexts(options.root, [case])

    environment = current_environment(gpus=tier.gpus_used(find_gpus().memory_gib))
    prompts = counted(_prompts_of_segment(options, case), "prompt")
    key = Key(
        case=case.key,
        case_id=case.id,
        launch=0,
        purpose=f"{SOAK_PURPOSE} of {options.minutes} min, {prompts}",
        environment=environment.name,
        engine=source.install(case),
        files_sha256=files_sha256(options.root, case),
        packages_sha256=packages_sha256(source.packages(case.server)),
    )
    take_over_soak(ledger, key)
    launches_so_far = max((begun.launch for begun in ledger.recorded.begun_s), default=0)
    goal = SoakGoal(
        case=case, on_gpu=on_gpu, minutes=options.minutes, tolerance_frac=options.tolerance_frac
    )
    launcher = ServerLauncher(
        provision=source, root=options.root, ready_within_s=options.ready_within_s
    )
    executor = SoakExecutor(
        root=options.root,
        servers=Servers(launcher=launcher, logs=folder / "logs"),
        ledger=ledger,
        goal=goal,
        options=options,
        key=msgspec.structs.replace(key, launch=launches_so_far + 1),
    )
    return Soak(options=options, goal=goal, executor=executor)


def take_over_soak(ledger: Ledger, key: Key) -> None:
    """Take over the segments of an interrupted soak.

    The ledger may come from another machine.

    Args:
        ledger: the ledger, whose file needn't exist.
        key: the key of the soak, with the number 0.

    Raises:
        UnsupportedError: the folder belongs to another soak, a run or a gate.
        SpecregError: the ledger can't be read.
    """
    ledger.read([ledger.path])
    check_owner("soak", ledger, {key}, MAX_LAUNCHES)
    segments = ledger.recorded.segments
    known_launches = {begun.launch for begun in ledger.recorded.begun_s}
    problem = ""
    if max(known_launches, default=0) >= MAX_LAUNCHES:
        problem = f"was continued {MAX_LAUNCHES} times"
    for failure in ledger.recorded.failed:
        problem = f"server {failure.launch} failed, which ended the soak: {failure.text}"
    if not {segment.launch for segment in segments} <= known_launches:
        problem = "has segments, and nothing says of which soak, as in one of an earlier version"
    for number, segment in enumerate(segments, start=1):
        if segment.number != number:
            problem = f"has segment {segment.number} where {number} is needed"

    # A drift is a change per hour, so segments of one moment would have an infinite one.
    for earlier, later in itertools.pairwise(segments):
        if (earlier.launch, earlier.at_s + _LEAST_APART_S) > (later.launch, later.at_s):
            problem = f"segment {later.number} isn't later than segment {earlier.number}"
    if problem:
        raise UnsupportedError(f"'{ledger.path}': {problem}; name another --out")

    ledger.take_over()


def _chosen_case(options: SoakOptions, tier: Tier) -> Case:
    """Return the named case, or the first case that speculates and fits the machine.

    Raises:
        UnsupportedError: no case fits.
        SensorError: the GPUs can't be used.
        UnknownNameError: the tier has no such case.
    """
    gpus = find_gpus()
    if tier.needs_gpus:
        gpus.check_usable()
    unmet = tier.unmet(gpus.memory_gib)
    if options.case:
        candidates = [tier.named(options.case)]
    else:
        candidates = [case for case in tier.cases if case.speculates]

    fitting = [case for case in candidates if case.id not in unmet]
    if not fitting:
        reason = "no case that speculates fits this machine"
        if options.case in unmet:
            reason = f"case '{options.case}': {unmet[options.case]}"
        raise UnsupportedError(f"tier '{tier.name}': {reason}; choose another case")

    return fitting[0]


def view_of_soak(soak: Soak, verdicts: Sequence[Verdict], screen: Screen = LOG) -> Parts:
    """Return the answer of a soak, what it measured, its verdicts, and their reasons.

    The last eighth of the segments of a launch is compared with the first.
    """
    reasons = [
        f"{verdict.metric}: {verdict.explanation}"
        for verdict in verdicts
        if verdict.reason is not None
    ]
    segments = soak.ledger.segments
    measured = f"{counted(len(segments), 'segment')} in {passed_s(segments) / 60:.1f} min"
    compared = "the last ones against the first"
    servers = len({segment.launch for segment in segments})
    if servers > 1:
        measured = f"{measured} on {servers} servers, each judged by itself"
    return (
        _answer_of(soak, verdicts),
        Text(f"{measured}, {compared}; changes are per hour"),
        Output(render_verdicts(verdicts, screen, columns=("last", "first"))),
        *map(Text, reasons),
        *map(Text, undecided_servers(segments, soak.goal)),
        Text(f"segments: {soak.ledger.path}"),
    )


def _answer_of(soak: Soak, verdicts: Sequence[Verdict]) -> VerdictLine:
    """Return whether a server is steady, in one sentence."""
    case = soak.goal.case
    drifting = [verdict for verdict in verdicts if verdict.outcome is Outcome.REGRESSED]
    steady = [verdict for verdict in verdicts if verdict.outcome in GOOD]
    if drifting:
        drifts = [
            f"{verdict.metric} {verdict.comparison.change_frac or 0.0:+.1%} in an hour"
            for verdict in drifting
        ]
        return VerdictLine(tone=Tone.BAD, text=f"{case.id} drifts: {', '.join(drifts)}")

    if soak.ledger.failures:
        after = f"after {passed_s(soak.ledger.segments) / 60:.1f} min"
        text = f"Can't tell whether {case.id} is steady: its server failed {after}"
        return VerdictLine(tone=Tone.DOUBT, text=text)

    if len(steady) == len(verdicts):
        figures = counted(len(steady), "figure")
        return VerdictLine(tone=Tone.GOOD, text=f"{case.id} is steady: no drift in {figures}")
    undecided = f"{len(verdicts) - len(steady)} of {counted(len(verdicts), 'figure')} undecided"
    text = f"Can't tell yet whether {case.id} is steady: {undecided}"
    return VerdictLine(tone=Tone.DOUBT, text=text)
