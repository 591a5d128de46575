"""A soak: one arm stays under load for long, and its last segments are compared to the first."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from specreg.compare.drift import (
    SEGMENT_PARTS,
    Trend,
    change_of_segments,
    detectable_frac,
    part_means,
    times_to_find,
)
from specreg.compare.options import SoakOptions
from specreg.core.errors import InvalidMeasurementError, UnsupportedError
from specreg.core.files import append_lines
from specreg.core.processes import resident_bytes
from specreg.core.reasons import Reason
from specreg.core.values import hide_values
from specreg.matrix.case import Case, Tier
from specreg.matrix.prompts import check_contexts, load_case_prompts
from specreg.measurement.arm import Arm
from specreg.measurement.figures import figures_of
from specreg.measurement.measure import Plan, Workload, batch_size_of, measure
from specreg.measurement.metrics import METRICS, Family, Invalid, Replay
from specreg.report.remarks import workload_remarks
from specreg.report.vocabulary import declare_vocabulary
from specreg.servers.launch import ServerStart
from specreg.servers.provision import parse_origin, provision_side
from specreg.servers.server import StartedServer
from specreg.telemetry.devices import held_bytes
from specreg.telemetry.identity import find_gpus
from specreg.verdicts.judge import outcome_of
from specreg.verdicts.verdict import Comparison, Outcome, Verdict

LEAD_IN_FRAC = 0.1
"""The share of a soak's time in which buffers fill and caches warm, so nothing of it is judged."""
LOOKS = (0.2, 0.4, 0.6, 0.8)
"""The fractions of a soak's time at which it is looked at before its end."""
LEVEL = 0.01
"""The share of soaks of a steady server that raise an alarm, at most."""
EARLY_LEVEL = LEVEL / 2 / len(LOOKS)
"""The level of each look before the end. The levels of all looks add up to `LEVEL`."""
LAST_LEVEL = LEVEL / 2
FORECAST_SEGMENTS = 20
"""After this many segments the soak forecasts what the whole of it can find."""
_MEMORY_TOLERANCE_FRAC = 0.05
_BATCHES = 4
"""A segment has this many times the prompts that are in flight."""
_AGAINST = "the first segments"
_NS_PER_S = 10**9
_NS_PER_MS = 10**6
_S_PER_H = 3600.0


class Segment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One replay of the prompts; a line of `soak.jsonl`, figures None where they have no value.

    Attributes:
        number: the segment's number, from 1.
        at_s: its middle, counted from the start of the first segment.
        lasted_s: how long it took.
        requests: the number of requests.
        acceptance_length_tokens: the acceptance length, AL.
        step_ms: the mean time between two chunks of a request. Chunks that are read at once don't
            change this mean, as they would a median.
        memory_bytes: the machine's memory that the server's processes hold.
        gpu_memory_bytes: the GPUs' memory that they hold.
    """

    number: int
    at_s: float
    lasted_s: float
    requests: int
    acceptance_length_tokens: float | None = None
    step_ms: float | None = None
    memory_bytes: float | None = None
    gpu_memory_bytes: float | None = None


class Figure(NamedTuple):
    """A field of each segment that should stay as it is, counted from `origin`.

    Attributes:
        name: the name of the field.
        tolerance_frac: the loss in an hour that passes.
        sign: 1 if less is worse, -1 if more is worse.
        origin: the value from which changes are counted.
    """

    name: str
    tolerance_frac: float = _MEMORY_TOLERANCE_FRAC
    sign: int = -1
    origin: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a soak can find of a figure.

    Attributes:
        minutes: how long the soak lasts.
        found_frac: the drift in an hour that it finds 99 times out of 100; None if it can't find
            any.
        tolerance_frac: the loss in an hour that passes.
        enough_minutes: how long a soak lasts that finds a loss of the tolerance; None if no
            reasonable length does.
    """

    minutes: float
    found_frac: float | None
    tolerance_frac: float
    enough_minutes: float | None

    @property
    def is_enough(self) -> bool:
        """Whether the soak finds a loss as small as the tolerance."""
        return self.found_frac is not None and self.found_frac <= self.tolerance_frac

    def __str__(self) -> str:
        sentence = f"{self.minutes:g} min find no drift, as neighbouring segments move together"
        if self.found_frac is not None:
            sentence = f"{self.minutes:g} min find a drift of {self.found_frac:.1%} in an hour"
        if self.is_enough:
            return sentence
        if self.enough_minutes is None:
            return f"{sentence}, and no longer soak finds {self.tolerance_frac:.1%}"
        return f"{sentence}, about {self.enough_minutes:.0f} min find {self.tolerance_frac:.1%}"


@dataclass(slots=True, kw_only=True)
class Soak:
    """A soak that is under way.

    Attributes:
        options: what it was asked for.
        tier: the tier of the case.
        case: the case whose server is kept under load.
        path: the file of its segments.
        segments: what was measured so far.
        alarms: by figure, the first verdict that is an alarm.
    """

    options: SoakOptions
    tier: Tier
    case: Case
    path: Path
    segments: list[Segment] = field(default_factory=list)
    alarms: dict[str, Verdict] = field(default_factory=dict)

    @property
    def passed_s(self) -> float:
        """The time from the start of the first segment to the end of the last, in seconds."""
        if not self.segments:
            return 0.0
        last = self.segments[-1]
        return last.at_s + last.lasted_s / 2

    def run(self) -> None:
        """Start the server, and measure segment after segment until the time is over.

        Raises:
            SpecregError: it can't be measured, or no more; what was measured stays.
        """
        options = self.options
        case = self.case
        origin = parse_origin(options.engine or case.server.engine)
        on_gpu = self.tier.needs_gpus > 0
        source = provision_side(origin, [case], on_gpu=on_gpu, show=options.show)
        check_contexts(options.root, [case])
        start = ServerStart(
            spec=case.server,
            provision=source,
            root=options.root,
            ready_within_s=options.ready_within_s,
            log_path=self.path.parent / "logs" / f"{case.server.id}.log",
        )
        with start.running() as server:
            self._soak(server)

    def _soak(self, server: StartedServer) -> None:
        # A segment is prompts, not a time, and each begins at full load.
        load = dataclasses.replace(self.case.load, duration_s=None, ramp_up_s=0.0)
        arm = Arm(case=dataclasses.replace(self.case, load=load), server=server)
        prompts = load_case_prompts(self.options.root, self.case)
        usual_prompts = min(_BATCHES * batch_size_of(arm.case), self.case.prompts)
        segment_prompts = self.options.prompts or usual_prompts
        workload = Workload(prompts=prompts[:segment_prompts], warm_up=prompts)
        self.options.show(f"{self.case.id}: {len(workload.prompts)} prompts in each segment")
        remaining_looks = list(LOOKS)
        started_ns = 0
        length_s = 60 * self.options.minutes
        while self.passed_s < length_s:
            if remaining_looks and self.passed_s >= remaining_looks[0] * length_s:
                remaining_looks.pop(0)
                self.look(EARLY_LEVEL)
            arm = dataclasses.replace(arm, warm=bool(self.segments))
            plan = Plan(show=lambda _: None, parts=1, counts_apart=False)
            (measurement,) = measure([arm], workload, plan)
            # A soak without acceptance has nothing to watch, so it ends with the reason.
            invalidity = measurement.invalid.get(Family.ACCEPTANCE)
            if invalidity is not None:
                raise InvalidMeasurementError(invalidity.code, invalidity.text)
            if measurement.replay is None:
                raise InvalidMeasurementError(
                    "ACCEPTANCE_MISSING", "the server answered nothing; look at its log"
                )
            if not self.segments:
                for remark in workload_remarks(figures_of(measurement, launch=1)):
                    self.options.show(remark)
            replay = measurement.replay
            started_ns = started_ns or replay.rounds[0].started_ns
            self.segments.append(self._segment(replay, measurement.invalid, server, started_ns))
            append_lines(self.path, msgspec.json.encode(hide_values(self.segments[-1])) + b"\n")
            if len(self.segments) == FORECAST_SEGMENTS:
                for sentence in self.forecast():
                    self.options.show(sentence)

    def _segment(
        self, replay: Replay, invalid: Invalid, server: StartedServer, started_ns: int
    ) -> Segment:
        """Return the figures of one replay of the prompts.

        Args:
            replay: what was timed.
            invalid: what of it isn't valid.
            server: the server, whose memory is read now.
            started_ns: when the first segment began.
        """
        (segment_round,) = replay.rounds
        gaps = segment_round.gaps
        step_ms: float | None = None
        if gaps.size and Family.LATENCY not in invalid:
            step_ms = gaps.total_ns / gaps.size / _NS_PER_MS
        length_tokens: float | None = None
        if replay.acceptance is not None:
            length_tokens = replay.acceptance.total.acceptance_length
        gpu_memory_bytes: int | None = None
        if self.tier.needs_gpus:
            variables = {**os.environ, **dict(server.spec.engine_env)}
            gpus = server.spec.parallel.gpus
            gpu_memory_bytes = held_bytes(gpus, variables, server.pids())
        middle_ns = (segment_round.started_ns + segment_round.ended_ns) / 2
        return Segment(
            number=len(self.segments) + 1,
            at_s=(middle_ns - started_ns) / _NS_PER_S,
            lasted_s=(segment_round.ended_ns - segment_round.started_ns) / _NS_PER_S,
            requests=len(segment_round.traces),
            acceptance_length_tokens=length_tokens,
            step_ms=step_ms,
            memory_bytes=resident_bytes(server.process) or None,
            gpu_memory_bytes=gpu_memory_bytes,
        )

    def forecast(self) -> Iterator[str]:
        """Yield for each figure the drift that the whole soak can find, by its segments so far."""
        figures = tuple(self._figures())
        for figure in figures:
            points = self._points(figure, from_s=0.0)
            if len(points) < SEGMENT_PARTS:
                continue
            sight = self._sight_of(figure, points, LAST_LEVEL / len(figures))
            if sight is not None:
                yield f"{figure.name}: {sight}"

    def _sight_of(
        self, figure: Figure, points: Sequence[tuple[float, float]], level: float
    ) -> Sight | None:
        """Return what the whole soak can find of a figure, by a part of it.

        Args:
            figure: what is watched.
            points: the hour and the value of each segment of the part, `SEGMENT_PARTS` at least.
            level: the level of the look that is to find it.

        Returns:
            None if the figure's first value isn't above 0, so that it has no relative trend.
        """
        trend = _trend_of(figure, points)
        if trend is None:
            return None
        minutes = self.options.minutes
        part_minutes = self.passed_s / 60
        tolerance_frac = self._tolerance_frac(figure)
        enough_minutes = None
        times = times_to_find(trend, level, tolerance_frac)
        if times is not None:
            enough_minutes = times * part_minutes
        return Sight(
            minutes=minutes,
            found_frac=detectable_frac(trend, level, max(minutes / part_minutes, 1.0)),
            tolerance_frac=tolerance_frac,
            enough_minutes=enough_minutes,
        )

    def _tolerance_frac(self, figure: Figure) -> float:
        """Return the loss of a figure in an hour that passes."""
        if self.options.tolerance_frac is not None:
            return self.options.tolerance_frac
        return figure.tolerance_frac

    def look(self, level: float) -> tuple[Verdict, ...]:
        """Judge each figure so far. A figure that drifts raises an alarm, which stays.

        Args:
            level: how often all figures together may wrongly raise an alarm, 0..1.
        """
        figures = tuple(self._figures())
        verdicts = [self._judge(figure, level / len(figures)) for figure in figures]
        for verdict in verdicts:
            if verdict.outcome is Outcome.REGRESSED and verdict.metric not in self.alarms:
                self.alarms[verdict.metric] = verdict
                after = f"after {self.passed_s / 60:.1f} min"
                self.options.show(f"{after}: {verdict.metric}: {verdict.explanation}")
        return tuple(self.alarms.get(verdict.metric, verdict) for verdict in verdicts)

    def _figures(self) -> Iterator[Figure]:
        """Yield the figures that this soak watches."""
        length = METRICS["acceptance_length_tokens"]
        step = METRICS["tpot_p50_ms"]
        if self.case.speculates:
            yield Figure(length.name, length.allowed_frac(self.case), 1, length.origin)
        if self.case.speed:
            yield Figure("step_ms", step.allowed_frac(self.case))
        yield Figure("memory_bytes")
        if self.tier.needs_gpus:
            yield Figure("gpu_memory_bytes")

    def _judge(self, figure: Figure, level: float) -> Verdict:
        """Judge how a figure moved in an hour, over the segments after the lead-in.

        Args:
            figure: what is judged.
            level: how often the interval of the change misses the truth, on either side.

        Returns:
            PASS if the interval excludes a loss beyond the tolerance. REGRESSED if all of the
            interval is a loss and the estimate is beyond the tolerance. Else INCONCLUSIVE, which
            doesn't fail if the whole soak is too short to find a loss as small as the tolerance.
        """
        points = self._points(figure, from_s=LEAD_IN_FRAC * 60 * self.options.minutes)
        if len(points) < SEGMENT_PARTS:
            reason = Reason(
                text=f"no telling from {len(points)} segments, {SEGMENT_PARTS} are needed",
                remedy="soak longer, or with fewer --prompts",
            )
            return self._undecided(figure, reason)
        hours, values = zip(*points, strict=True)
        means = part_means(values)
        beyond = float(means[0]) - figure.origin
        if beyond <= 0:
            reason = Reason(
                text=f"it is never beyond {figure.origin:g}", remedy="there is nothing to lose"
            )
            return self._undecided(figure, reason)

        tolerance_frac = self._tolerance_frac(figure)
        change = change_of_segments(values, hours, figure.sign / beyond)
        low, high = change.bounds(level)
        outcome = outcome_of(change.estimate_frac, low, high, tolerance_frac)
        drift_reason: Reason | None = None
        sight: Sight | None = None
        if outcome is Outcome.REGRESSED:
            drift_reason = Reason(
                text=f"worse by {-change.estimate_frac:.1%} in an hour",
                remedy="look at the server's log for what grows or fills",
            )
        elif outcome is Outcome.INCONCLUSIVE:
            drift_reason = Reason(text="no telling yet", remedy="soak longer")
            sight = self._sight_of(figure, points, level)
        # A soak that is too short for any such loss doesn't fail: it couldn't have passed either.
        is_too_short = sight is not None and not sight.is_enough
        if is_too_short:
            drift_reason = Reason(
                text=str(sight), remedy=f"it is no more than {-low:.1%} worse in an hour"
            )
        return Verdict(
            case_id=self.case.id,
            metric=figure.name,
            outcome=outcome,
            value=float(means[-1]),
            comparison=Comparison(
                expected=float(means[0]),
                against=_AGAINST,
                tolerance_frac=tolerance_frac,
                change_frac=change.estimate_frac,
                low_frac=low,
                high_frac=high,
                p_worse=change.p_worse,
            ),
            reason=drift_reason,
            softened=is_too_short,
        )

    def _undecided(self, figure: Figure, reason: Reason) -> Verdict:
        """Return the verdict on a figure of which nothing could be compared."""
        return Verdict(
            case_id=self.case.id,
            metric=figure.name,
            outcome=Outcome.INCONCLUSIVE,
            comparison=Comparison(against=_AGAINST, tolerance_frac=self._tolerance_frac(figure)),
            reason=reason,
        )

    def _points(self, figure: Figure, *, from_s: float) -> list[tuple[float, float]]:
        """Return the hour and the value of each segment that has the figure.

        Args:
            figure: what is watched.
            from_s: segments whose middle came earlier are left out.
        """
        points = []
        for segment in self.segments:
            value = getattr(segment, figure.name)
            if segment.at_s >= from_s and value is not None:
                points.append((segment.at_s / _S_PER_H, float(value)))
        return points


def _trend_of(figure: Figure, points: Sequence[tuple[float, float]]) -> Trend | None:
    """Return the trend of a figure relative to its first value; None if that isn't above 0.

    Args:
        figure: what is watched.
        points: the hour and the value of each segment, `SEGMENT_PARTS` at least.
    """
    hours, values = zip(*points, strict=True)
    beyond = float(part_means(values)[0]) - figure.origin
    if beyond <= 0:
        return None
    scale = figure.sign / beyond
    return Trend.of([scale * value for value in values], hours)


def open_soak(options: SoakOptions, tier: Tier) -> Soak:
    """Open a soak of a named case, or of the first that speculates and fits the machine.

    Raises:
        UnsupportedError: the folder holds a soak already, or no case fits.
        UnknownNameError: the tier has no such case.
    """
    path = options.folder_in("soaks") / "soak.jsonl"
    if path.exists():
        message = f"--out '{path.parent}': holds a soak already; name another folder"
        raise UnsupportedError(message)
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
        reason = unmet.get(options.case, "no case that speculates fits this machine")
        raise UnsupportedError(f"tier '{tier.name}': {reason}; choose another case")
    case = fitting[0]
    declare_vocabulary([case], tier.name, path.parent.name)
    return Soak(options=options, tier=tier, case=case, path=path)
