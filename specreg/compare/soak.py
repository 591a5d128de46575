"""A soak: keep one server under load for a long time, and judge how its figures drift."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specreg.compare.drift import (
    SEGMENT_PARTS,
    Trend,
    change_of_segments,
    detectable_frac,
    part_means,
    times_to_find,
)
from specreg.compare.options import SoakOptions
from specreg.core.counted import counted
from specreg.core.errors import InvalidMeasurementError, UnsupportedError
from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.matrix.case import Case, Tier
from specreg.matrix.prompts import check_contexts, check_drafts, load_case_prompts
from specreg.measurement.arm import Arm
from specreg.measurement.figures import figures_of
from specreg.measurement.measure import Plan, Workload, batch_size_of, measure
from specreg.measurement.metrics import METRICS, Invalid, Replay
from specreg.report.document import Tone
from specreg.report.parts import Output, Text, VerdictLine, View
from specreg.report.remarks import workload_remarks
from specreg.report.screen import LOG, Screen
from specreg.report.terminal import render_verdicts
from specreg.runs.ledger import LEDGER, Ledger, Segment
from specreg.servers.handle import ServerHandle
from specreg.servers.launch import Launch
from specreg.servers.launcher import ServerLauncher
from specreg.servers.provision import parse_origin, provision_side
from specreg.servers.server import Server
from specreg.telemetry.devices import held_bytes
from specreg.telemetry.identity import find_gpus
from specreg.verdicts.judge import outcome_of
from specreg.verdicts.verdict import GOOD, Comparison, Outcome, Verdict

LEAD_IN_FRAC = 0.1
"""The first share of a soak's time, which isn't judged because buffers fill and caches warm up."""
LOOKS = (0.2, 0.4, 0.6, 0.8)
"""The shares of a soak's time after which it is judged before its end."""
LEVEL = 0.01
"""The probability that the soak of a steady server raises an alarm."""
EARLY_LEVEL = LEVEL / 2 / len(LOOKS)
"""The level of each look before the end. The levels of all looks add up to `LEVEL`."""
LAST_LEVEL = LEVEL / 2
"""The level of the look at the end."""
FORECAST_SEGMENTS = 20
"""After this many segments the soak forecasts which drift it will be able to find."""
_MEMORY_TOLERANCE_FRAC = 0.05
"""The growth of memory per hour that is tolerated."""
_BATCHES = 4
"""How many batches of prompts a segment has by default, see `batch_size_of`."""
_AGAINST = "the first segments"
_NS_PER_S = 10**9
_NS_PER_MS = 10**6
_S_PER_H = 3600.0


class Figure(NamedTuple):
    """A field of each segment that shouldn't drift.

    Attributes:
        name: the name of the field.
        tolerance_frac: the loss per hour that is tolerated.
        sign: 1 if less is worse, -1 if more is worse.
        origin: the zero point of the figure. Changes are relative to the distance from it.
    """

    name: str
    tolerance_frac: float = _MEMORY_TOLERANCE_FRAC
    sign: int = -1
    origin: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Which drift of a figure a soak can find.

    Attributes:
        minutes: the length of the soak.
        found_frac: the drift per hour that it finds 99 times out of 100; None if it can't find any.
        tolerance_frac: the loss per hour that is tolerated.
        enough_minutes: the length of a soak that finds a loss as small as the tolerance; None if no
            reasonable length is enough.
    """

    minutes: float
    found_frac: float | None
    tolerance_frac: float
    enough_minutes: float | None

    @property
    def is_enough(self) -> bool:
        """Whether the soak finds a loss as small as the tolerance."""
        return self.found_frac is not None and self.found_frac <= self.tolerance_frac

    @property
    def remedy(self) -> str:
        """What to do if the soak isn't enough."""
        if self.enough_minutes is None:
            return "raise --tolerance, or make the segments longer with --prompts"
        return "soak longer"

    def __str__(self) -> str:
        soak = f"a soak of {self.minutes:g} min"
        sentence = f"{soak} finds no drift, because neighbouring segments move together"
        if self.found_frac is not None:
            sentence = f"{soak} finds a drift of {self.found_frac:.1%} in an hour"
        if self.is_enough:
            return sentence
        if self.enough_minutes is None:
            return f"{sentence}, and a longer one doesn't find {self.tolerance_frac:.1%}"
        return (
            f"{sentence}, and one of about {self.enough_minutes:.0f} min finds"
            f" {self.tolerance_frac:.1%}"
        )


@dataclass(slots=True, kw_only=True)
class Soak:
    """A soak and its segments so far.

    Attributes:
        options: the options of the command.
        tier: the tier of the case.
        case: the case whose server is kept under load.
        ledger: the ledger that the segments are written to.
        segments: the segments so far.
        alarms: the first verdict on each figure that raised an alarm, by the figure's name.
    """

    options: SoakOptions
    tier: Tier
    case: Case
    ledger: Ledger
    segments: list[Segment] = field(default_factory=list)
    alarms: dict[str, Verdict] = field(default_factory=dict)

    @property
    def passed_s(self) -> float:
        """The time from the start of the first segment to the end of the last one, in seconds."""
        if not self.segments:
            return 0.0
        last = self.segments[-1]
        return last.at_s + last.lasted_s / 2

    def run(self) -> None:
        """Start the server, and measure segment after segment until the time is over.

        Raises:
            SpecregError: the case can't be measured, or no longer. The segments so far remain.
        """
        options = self.options
        case = self.case
        engine_origin = parse_origin(options.engine or case.server.engine)
        on_gpu = self.tier.needs_gpus > 0
        source = provision_side(engine_origin, [case], on_gpu=on_gpu, show=options.show)
        check_drafts(options.root, [case])
        check_contexts(options.root, [case])
        handle = ServerHandle(
            launch=Launch(spec=case.server, number=1),
            launcher=ServerLauncher(
                provision=source, root=options.root, ready_within_s=options.ready_within_s
            ),
            log_path=self.ledger.path.parent / "logs" / f"{case.server.id}.log",
        )
        with handle:
            self._soak(handle.server)

    def _soak(self, server: Server) -> None:
        """Measure segments on a server, and judge them from time to time."""
        # A segment has a number of prompts instead of a duration, and begins with the full load.
        load = dataclasses.replace(self.case.load, duration_s=None, ramp_up_s=0.0)
        arm = Arm(case=dataclasses.replace(self.case, load=load), server=server)
        prompts = load_case_prompts(self.options.root, self.case)
        usual_prompts = min(_BATCHES * batch_size_of(arm.case), self.case.request.prompts)
        segment_prompts = self.options.prompts or usual_prompts
        workload = Workload(prompts=prompts[:segment_prompts], warm_up=prompts)
        segment_size = counted(len(workload.prompts), "prompt")
        self.options.show(f"{self.case.id}: {segment_size} in each segment")
        remaining_looks = list(LOOKS)
        started_ns = 0
        length_s = 60 * self.options.minutes
        while self.passed_s < length_s:
            # Judge the figures whenever the share of the time for a look has passed.
            if remaining_looks and self.passed_s >= remaining_looks[0] * length_s:
                remaining_looks.pop(0)
                self.look(EARLY_LEVEL)
            # Measure a segment. Only the first one needs a warm-up.
            arm = dataclasses.replace(arm, warm=bool(self.segments))
            # A segment has a single round, and its acceptance is needed only as a sum.
            plan = Plan(show=lambda _: None, parts=1, counts_apart=False)
            (measurement,) = measure([arm], workload, plan)
            # Invalid acceptance ends the soak, with the reason why it is invalid.
            invalidity = measurement.invalid.get(Family.ACCEPTANCE)
            if invalidity is not None:
                raise InvalidMeasurementError(invalidity)
            if measurement.replay is None:
                raise InvalidMeasurementError("NOTHING_ANSWERED")
            if not self.segments:
                for remark in workload_remarks(figures_of(measurement, launch=1)):
                    self.options.show(remark)
            # Record the segment at once, so that a soak that is cut short keeps it.
            replay = measurement.replay
            started_ns = started_ns or replay.rounds[0].started_ns
            segment = self._segment(replay, measurement.invalid, server, started_ns)
            self.segments.append(segment)
            self.ledger.note_segment(segment)
            if len(self.segments) == FORECAST_SEGMENTS:
                for sentence in self.forecast():
                    self.options.show(sentence)

    def _segment(
        self, replay: Replay, invalid: Invalid, server: Server, started_ns: int
    ) -> Segment:
        """Return the segment for one replay of the prompts.

        Args:
            replay: the replay.
            invalid: which metric families of the replay are invalid.
            server: the server, whose memory is read.
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
        # The case may choose its GPUs by a variable of its own.
        gpu_memory_bytes: int | None = None
        if self.tier.needs_gpus:
            variables = {**os.environ, **dict(server.spec.engine_env)}
            gpus = server.spec.parallel.gpus
            gpu_memory_bytes = held_bytes(gpus, variables, server.pids())
        middle_ns = (segment_round.started_ns + segment_round.ended_ns) / 2
        duration_ns = segment_round.ended_ns - segment_round.started_ns
        return Segment(
            number=len(self.segments) + 1,
            at_s=(middle_ns - started_ns) / _NS_PER_S,
            lasted_s=duration_ns / _NS_PER_S,
            requests=len(segment_round.traces),
            acceptance_length_tokens=length_tokens,
            step_ms=step_ms,
            # Processes that have ended hold 0 bytes, which isn't a figure.
            memory_bytes=server.memory_bytes(),
            gpu_memory_bytes=gpu_memory_bytes,
        )

    def forecast(self) -> Iterator[str]:
        """Yield a sentence for each figure about the drift that the whole soak can find."""
        figures = tuple(self._figures())
        for figure in figures:
            points = self._points(figure, from_s=0.0)
            if len(points) < SEGMENT_PARTS:
                continue
            sensitivity = self._sensitivity_of(figure, points, LAST_LEVEL / len(figures))
            if sensitivity is not None:
                yield f"{figure.name}: {sensitivity}"

    def _sensitivity_of(
        self, figure: Figure, points: Sequence[tuple[float, float]], level: float
    ) -> Sensitivity | None:
        """Estimate which drift of a figure the whole soak can find.

        Args:
            figure: the figure.
            points: the hour and the value of each segment so far, at least `SEGMENT_PARTS`.
            level: the level of the look that has to find the drift.

        Returns:
            None if the first eighth of the values isn't above the figure's origin on average, so
            there is no relative trend.
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
        # The last segment may end after the planned time.
        growth_ratio = max(minutes / part_minutes, 1.0)
        return Sensitivity(
            minutes=minutes,
            found_frac=detectable_frac(trend, level, growth_ratio),
            tolerance_frac=tolerance_frac,
            enough_minutes=enough_minutes,
        )

    def _tolerance_frac(self, figure: Figure) -> float:
        """Return the loss of a figure per hour that is tolerated."""
        if self.options.tolerance_frac is not None:
            return self.options.tolerance_frac
        return figure.tolerance_frac

    def look(self, level: float) -> tuple[Verdict, ...]:
        """Judge each figure by the segments so far. A figure that drifts raises a lasting alarm.

        Args:
            level: the probability that any figure of a steady server raises an alarm, 0..1.

        Returns:
            The verdict on each figure. A figure that has raised an alarm keeps the verdict of its
            first alarm.
        """
        figures = tuple(self._figures())
        # Any of the figures may raise the alarm, so the level is divided by their number.
        level_of_figure = level / len(figures)
        verdicts = [self._judge(figure, level_of_figure) for figure in figures]
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
        if self.case.judging.speed:
            yield Figure("step_ms", step.allowed_frac(self.case))
        yield Figure("memory_bytes")
        if self.tier.needs_gpus:
            yield Figure("gpu_memory_bytes")

    def _judge(self, figure: Figure, level: float) -> Verdict:
        """Judge the change of a figure per hour, over the segments after the lead-in.

        Args:
            figure: the figure.
            level: the probability that the true change is below its interval, which is also the
                probability that it is above the interval.

        Returns:
            PASS or IMPROVED if the interval excludes a loss beyond the tolerance. REGRESSED if the
            whole interval is a loss and the estimate is beyond the tolerance. Otherwise
            INCONCLUSIVE, which doesn't fail if the whole soak is too short to find a loss as small
            as the tolerance.
        """
        # Without enough segments, or without anything to lose, no change can be estimated.
        points = self._points(figure, from_s=LEAD_IN_FRAC * 60 * self.options.minutes)
        if len(points) < SEGMENT_PARTS:
            segments = counted(len(points), "segment")
            reason = Reason.of("few_segments", segments=segments, needed=SEGMENT_PARTS)
            return self._undecided(figure, reason)
        hours, values = zip(*points, strict=True)
        means = part_means(values)
        # AL is judged as AL - 1, because even a drafter without any use has an AL of 1.
        above_origin = float(means[0]) - figure.origin
        if above_origin <= 0:
            reason = Reason.of("nothing_to_lose", value=means[0])
            return self._undecided(figure, reason)

        tolerance_frac = self._tolerance_frac(figure)
        change = change_of_segments(values, hours, figure.sign / above_origin)
        low, high = change.bounds(level)
        outcome = outcome_of(change.estimate_frac, low, high, tolerance_frac)
        drift_reason: Reason | None = None
        sensitivity: Sensitivity | None = None
        if outcome is Outcome.REGRESSED:
            drift_reason = Reason.of("soak_drifts", loss_frac=-change.estimate_frac)
        elif outcome is Outcome.INCONCLUSIVE:
            drift_reason = Reason.of("soak_undecided")
            sensitivity = self._sensitivity_of(figure, points, level)
        # A soak that is too short to find a loss as small as the tolerance could never pass, so it
        # doesn't fail either.
        is_too_short = False
        if sensitivity is not None and not sensitivity.is_enough:
            is_too_short = True
            drift_reason = Reason.of(
                "soak_too_short", sensitivity=sensitivity, loss_frac=-low, remedy=sensitivity.remedy
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
        """Return the verdict on a figure whose change can't be estimated."""
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
            figure: the figure.
            from_s: segments whose middle was earlier than this are left out.
        """
        points = []
        for segment in self.segments:
            value = getattr(segment, figure.name)
            if segment.at_s >= from_s and value is not None:
                points.append((segment.at_s / _S_PER_H, float(value)))
        return points


def _trend_of(figure: Figure, points: Sequence[tuple[float, float]]) -> Trend | None:
    """Return the trend of a figure, relative to the mean of the first eighth of its values.

    Args:
        figure: the figure.
        points: the hour and the value of each segment, at least `SEGMENT_PARTS`.

    Returns:
        None if that mean isn't above the figure's origin.
    """
    hours, values = zip(*points, strict=True)
    above_origin = float(part_means(values)[0]) - figure.origin
    if above_origin <= 0:
        return None
    scale = figure.sign / above_origin
    return Trend.of([scale * value for value in values], hours)


def open_soak(options: SoakOptions, tier: Tier) -> Soak:
    """Return a soak of the named case, or of the first case that speculates and fits the machine.

    Raises:
        UnsupportedError: the folder contains a soak already, or no case fits.
        SensorError: the GPUs can't be used.
        UnknownNameError: the tier has no such case.
    """
    path = options.folder_in("soaks") / LEDGER
    # `exists` is False for a link that leads nowhere, but the segments would be written behind it.
    if os.path.lexists(path):
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
        reason = "no case that speculates fits this machine"
        if options.case in unmet:
            reason = f"case '{options.case}': {unmet[options.case]}"
        raise UnsupportedError(f"tier '{tier.name}': {reason}; choose another case")
    case = fitting[0]
    return Soak(options=options, tier=tier, case=case, ledger=Ledger(path))


def view_of_soak(soak: Soak, verdicts: Sequence[Verdict], screen: Screen = LOG) -> View:
    """Return the answer of a soak, what it measured, its verdicts, and their reasons.

    The last eighth of the segments is compared with the first.
    """
    reasons = [
        f"{verdict.metric}: {verdict.explanation}"
        for verdict in verdicts
        if verdict.reason is not None
    ]
    measured = f"{counted(len(soak.segments), 'segment')} in {soak.passed_s / 60:.1f} min"
    return (
        _answer_of(soak.case, verdicts),
        Text(f"{measured}, the last ones against the first; changes are per hour"),
        Output(render_verdicts(verdicts, screen, columns=("last", "first"))),
        *map(Text, reasons),
        Text(f"segments: {soak.ledger.path}"),
    )


def _answer_of(case: Case, verdicts: Sequence[Verdict]) -> VerdictLine:
    """Return whether a server is steady, in one sentence."""
    drifting = [verdict for verdict in verdicts if verdict.outcome is Outcome.REGRESSED]
    steady = [verdict for verdict in verdicts if verdict.outcome in GOOD]
    if drifting:
        drifts = [
            f"{verdict.metric} {verdict.comparison.change_frac or 0.0:+.1%} in an hour"
            for verdict in drifting
        ]
        return VerdictLine(tone=Tone.BAD, text=f"{case.id} drifts: {', '.join(drifts)}")
    if len(steady) == len(verdicts):
        figures = counted(len(steady), "figure")
        return VerdictLine(tone=Tone.GOOD, text=f"{case.id} is steady: no drift in {figures}")
    undecided = f"{len(verdicts) - len(steady)} of {counted(len(verdicts), 'figure')} undecided"
    text = f"Can't tell yet whether {case.id} is steady: {undecided}"
    return VerdictLine(tone=Tone.DOUBT, text=text)
