"""Decide what a soak measures next, and judge how its figures drift, by its segments alone.

A soak is judged several times. A figure that raises an alarm keeps the verdict of its first alarm.
A resumed soak has several launches of the server, and each is judged by itself, because memory and
caches begin anew.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from specreg.compare.drift import (
    SEGMENT_PARTS,
    Trend,
    change_of_segments,
    detectable_frac,
    part_means,
    times_to_find,
)
from specreg.core.counted import counted
from specreg.core.reasons import Reason
from specreg.matrix.case import Case
from specreg.measurement.metrics import METRICS
from specreg.runs.ledger import Ledger, Segment
from specreg.verdicts.judge import outcome_of
from specreg.verdicts.verdict import Comparison, Outcome, Verdict

LEAD_IN_FRAC = 0.1
"""The first share of a soak's time, which isn't judged because buffers fill and caches warm up."""
LOOKS = (0.2, 0.4, 0.6, 0.8)
"""The shares of a soak's time after which it is judged before its end."""
ALARM_LEVEL = 0.01
"""The probability that the soak of a steady server raises an alarm."""
EARLY_LEVEL = ALARM_LEVEL / 2 / len(LOOKS)
"""The level of each look before the end. The levels of all looks add up to `ALARM_LEVEL`."""
LAST_LEVEL = ALARM_LEVEL / 2
"""The level of the look at the end."""
FORECAST_SEGMENTS = 20
"""After this many segments the soak forecasts which drift it will be able to find."""
_MEMORY_TOLERANCE_FRAC = 0.05
"""The growth of memory per hour that is tolerated."""
_LEAST_ABOVE_ORIGIN = 1e-9
"""A figure that is no further above its zero point is nothing that could be lost."""
_AGAINST = "the first segments"
_S_PER_H = 3600.0


class SegmentFigure(NamedTuple):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakGoal:
    """What a soak wants to know.

    Attributes:
        case: the case whose server is kept under load.
        on_gpu: whether its server runs on GPUs, whose memory is watched too.
        minutes: how long it is kept under load.
        tolerance_frac: the loss per hour that is tolerated; None for that of each figure.
    """

    case: Case
    on_gpu: bool
    minutes: float
    tolerance_frac: float | None = None

    @property
    def length_s(self) -> float:
        """How long the server is kept under load, in seconds."""
        return 60 * self.minutes

    @property
    def figures(self) -> tuple[SegmentFigure, ...]:
        """The figures that the soak watches."""
        length = METRICS["acceptance_length_tokens"]
        step = METRICS["tpot_p50_ms"]
        figures = []
        if self.case.speculates:
            allowed_frac = length.allowed_frac(self.case)
            figures.append(SegmentFigure(length.name, allowed_frac, 1, length.origin))
        if self.case.judging.speed:
            figures.append(SegmentFigure("step_ms", step.allowed_frac(self.case)))
        figures.append(SegmentFigure("memory_bytes"))
        if self.on_gpu:
            figures.append(SegmentFigure("gpu_memory_bytes"))
        if self.tolerance_frac is None:
            return tuple(figures)
        return tuple(figure._replace(tolerance_frac=self.tolerance_frac) for figure in figures)


def next_segment(ledger: Ledger, goal: SoakGoal) -> int | None:
    """Return the number of the segment that a soak measures next, from 1; None at its end.

    A server that fails under load ends the soak, too.
    """
    segments = ledger.segments
    if ledger.failures or passed_s(segments) >= goal.length_s:
        return None
    return len(segments) + 1


def passed_s(segments: Sequence[Segment]) -> float:
    """Return how long the server was under load, on all launches together, in seconds."""
    return max(_times_s(segments), default=0.0)


def _times_s(segments: Sequence[Segment]) -> Iterator[float]:
    """Yield how long the server had been under load at the end of each segment, in seconds."""
    earlier_s = 0.0
    for launch in _launches_of(segments):
        yield from (earlier_s + _end_s(segment) for segment in launch)
        earlier_s += _end_s(launch[-1])


def _end_s(segment: Segment) -> float:
    """Return the end of a segment, in seconds from the start of its launch's first segment."""
    return segment.at_s + segment.lasted_s / 2


def _launches_of(segments: Sequence[Segment]) -> Sequence[Sequence[Segment]]:
    """Return the segments of each launch of the server, in order."""
    return [list(launch) for _, launch in groupby(segments, key=attrgetter("launch"))]


def verdicts_of(segments: Sequence[Segment], goal: SoakGoal) -> tuple[Verdict, ...]:
    """Return the verdict on each figure of a soak that has ended."""
    alarms = _early_alarms(segments, goal)
    verdicts = judge_segments(segments, goal, LAST_LEVEL)
    return tuple(alarms.get(verdict.metric, verdict) for verdict in verdicts)


def news_of(segments: Sequence[Segment], goal: SoakGoal, *, is_over: bool = False) -> Iterator[str]:
    """Yield what the last segment shows: which drift the soak can find, and first alarms.

    Args:
        segments: the segments so far.
        goal: what the soak wants to know.
        is_over: whether the soak is judged for the last time.
    """
    # A resumed soak has less than its time left, so its forecast would promise too much.
    is_resumed = len(_launches_of(segments)) > 1
    if len(segments) == FORECAST_SEGMENTS and not is_over and not is_resumed:
        yield from forecast(segments, goal)
    if is_over:
        known_alarms = _early_alarms(segments, goal)
        verdicts = verdicts_of(segments, goal)
    elif len(segments) in _early_looks(segments, goal):
        known_alarms = _early_alarms(segments[:-1], goal)
        verdicts = tuple(_early_alarms(segments, goal).values())
    else:
        return

    for verdict in verdicts:
        if verdict.outcome is Outcome.REGRESSED and verdict.metric not in known_alarms:
            after = f"after {passed_s(segments) / 60:.1f} min"
            yield f"{after}: {verdict.metric}: {verdict.explanation}"


def _early_alarms(segments: Sequence[Segment], goal: SoakGoal) -> dict[str, Verdict]:
    """Return the first verdict on each figure that raised an alarm before the end, by its name."""
    alarms: dict[str, Verdict] = {}
    for count in _early_looks(segments, goal):
        for verdict in judge_segments(segments[:count], goal, EARLY_LEVEL):
            if verdict.outcome is Outcome.REGRESSED:
                alarms.setdefault(verdict.metric, verdict)
    return alarms


def _early_looks(segments: Sequence[Segment], goal: SoakGoal) -> Iterator[int]:
    """Yield after how many segments a soak was judged before its end."""
    remaining_looks = list(LOOKS)
    for count, time_s in enumerate(_times_s(segments), start=1):
        share_frac = time_s / goal.length_s
        if remaining_looks and remaining_looks[0] <= share_frac < 1:
            remaining_looks.pop(0)
            yield count


def judge_segments(
    segments: Sequence[Segment], goal: SoakGoal, level: float
) -> tuple[Verdict, ...]:
    """Judge each figure by these segments alone, and each launch by itself.

    Args:
        segments: the segments so far.
        goal: what the soak wants to know.
        level: the probability that any figure of a steady server raises an alarm, 0..1.

    Returns:
        For each figure the verdict on the launch that raises an alarm, or else on the one that
        lasted longest.
    """
    launches = _judged_launches(segments, goal)
    figure_verdicts = []
    for figure in goal.figures:
        verdicts = _judge_launches(figure, launches, goal, level)
        alarms = (verdict for verdict in verdicts if verdict.outcome is Outcome.REGRESSED)
        figure_verdicts.append(next(alarms, verdicts[0]))

    return tuple(figure_verdicts)


def undecided_servers(segments: Sequence[Segment], goal: SoakGoal) -> Iterator[str]:
    """Yield a line for each figure and launch that is undecided and not in a verdict."""
    _, *other_launches = launches = _judged_launches(segments, goal)
    for figure in goal.figures:
        _, *verdicts = _judge_launches(figure, launches, goal, LAST_LEVEL)
        for launch, verdict in zip(other_launches, verdicts, strict=True):
            if verdict.outcome is Outcome.INCONCLUSIVE:
                server = f"server {launch[0].launch}, which ran {passed_s(launch) / 60:.1f} min"
                change = verdict.comparison.change_frac
                estimate = "" if change is None else f": {change:+.1%} in an hour so far"
                yield f"{figure.name}: undecided on {server}{estimate}"


def _judged_launches(segments: Sequence[Segment], goal: SoakGoal) -> Sequence[Sequence[Segment]]:
    """Return the launches that have enough segments after their lead-in, the longest one first.

    It is the longest launch alone if none has enough, and one without segments if there are none.
    """
    from_s = LEAD_IN_FRAC * goal.length_s
    longest_first = sorted(_launches_of(segments), key=passed_s, reverse=True) or [()]
    judged = [
        launch
        for launch in longest_first
        if sum(segment.at_s >= from_s for segment in launch) >= SEGMENT_PARTS
    ]
    return judged or longest_first[:1]


def _judge_launches(
    figure: SegmentFigure, launches: Sequence[Sequence[Segment]], goal: SoakGoal, level: float
) -> Sequence[Verdict]:
    """Judge a figure on each launch by itself.

    Args:
        level: the probability that any figure of a steady server raises an alarm, 0..1.
    """
    # Any figure on any launch may raise the alarm, so the level is divided by their number.
    level_of_figure = level / len(goal.figures)
    return [
        _judge(figure, launch, goal, level_of_figure / len(launches), level_of_figure)
        for launch in launches
    ]


def _judge(
    figure: SegmentFigure,
    segments: Sequence[Segment],
    goal: SoakGoal,
    level: float,
    level_of_one: float,
) -> Verdict:
    """Judge the change of a figure per hour, over the segments of a launch after the lead-in.

    Args:
        segments: the segments of the launch so far.
        goal: what the soak wants to know.
        level: the probability that the true change is below its interval, which is also the
            probability that it is above the interval.
        level_of_one: what it would be if the soak had only one launch.

    Returns:
        PASS or IMPROVED if the interval excludes a loss beyond the tolerance. REGRESSED if the
        whole interval is a loss and the estimate is beyond the tolerance. Otherwise INCONCLUSIVE,
        which doesn't fail if the whole soak is too short to find a loss as small as the tolerance.
    """
    undecided = Verdict(
        case_id=goal.case.id,
        metric=figure.name,
        outcome=Outcome.INCONCLUSIVE,
        comparison=Comparison(against=_AGAINST, tolerance_frac=figure.tolerance_frac),
    )

    # Without enough segments, or without anything to lose, no change can be estimated.
    points = _points(figure, segments, from_s=LEAD_IN_FRAC * goal.length_s)
    if len(points) < SEGMENT_PARTS:
        judged = counted(len(points), "segment")
        reason = Reason.of("few_segments", segments=judged, needed=SEGMENT_PARTS)
        return dataclasses.replace(undecided, reason=reason)

    hours, values = zip(*points, strict=True)
    means = part_means(values)

    # AL is judged as AL - 1, because even a drafter without any use has an AL of 1.
    above_origin = float(means[0]) - figure.origin
    if above_origin < _LEAST_ABOVE_ORIGIN:
        reason = Reason.of("nothing_to_lose", value=means[0])
        return dataclasses.replace(undecided, reason=reason)

    change = change_of_segments(values, hours, figure.sign / above_origin)
    low, high = change.bounds(level)
    outcome = outcome_of(change.estimate_frac, low, high, figure.tolerance_frac)
    drift_reason: Reason | None = None
    sensitivity: Sensitivity | None = None
    if outcome is Outcome.REGRESSED:
        drift_reason = Reason.of("soak_drifts", loss_frac=-change.estimate_frac)
    elif outcome is Outcome.INCONCLUSIVE:
        drift_reason = Reason.of("soak_undecided")
        passed_min = passed_s(segments) / 60
        sensitivity = _sensitivity_of(figure, points, level_of_one, goal.minutes, passed_min)

    # A soak that is too short to find a loss as small as the tolerance could never pass, so it
    # doesn't fail either.
    is_too_short = False
    if sensitivity is not None and not sensitivity.is_enough:
        is_too_short = True
        drift_reason = Reason.of(
            "soak_too_short", sensitivity=sensitivity, loss_frac=-low, remedy=sensitivity.remedy
        )

    return dataclasses.replace(
        undecided,
        outcome=outcome,
        value=float(means[-1]),
        comparison=Comparison(
            expected=float(means[0]),
            against=_AGAINST,
            tolerance_frac=figure.tolerance_frac,
            change_frac=change.estimate_frac,
            low_frac=low,
            high_frac=high,
            p_worse=change.p_worse,
        ),
        reason=drift_reason,
        softened=is_too_short,
    )


def forecast(segments: Sequence[Segment], goal: SoakGoal) -> Iterator[str]:
    """Yield a sentence for each figure about the drift that the whole soak can find."""
    for figure in goal.figures:
        points = _points(figure, segments, from_s=0.0)
        if len(points) < SEGMENT_PARTS:
            continue
        level = LAST_LEVEL / len(goal.figures)
        sensitivity = _sensitivity_of(figure, points, level, goal.minutes, passed_s(segments) / 60)
        if sensitivity is not None:
            yield f"{figure.name}: {sensitivity}"


def _sensitivity_of(
    figure: SegmentFigure,
    points: Sequence[tuple[float, float]],
    level: float,
    minutes: float,
    passed_minutes: float,
) -> Sensitivity | None:
    """Estimate which drift of a figure the whole soak can find.

    Args:
        points: the hour and the value of each segment so far, at least `SEGMENT_PARTS`.
        level: the level of the look that has to find the drift.
        minutes: the length of the whole soak.
        passed_minutes: how much of it has passed.

    Returns:
        None if the first eighth of the values isn't above the figure's origin on average, so there
        is no relative trend.
    """
    hours, values = zip(*points, strict=True)
    above_origin = float(part_means(values)[0]) - figure.origin
    if above_origin < _LEAST_ABOVE_ORIGIN:
        return None
    scale = figure.sign / above_origin
    trend = Trend.of([scale * value for value in values], hours)
    enough_minutes = None
    times = times_to_find(trend, level, figure.tolerance_frac)
    if times is not None:
        enough_minutes = times * passed_minutes

    # The last segment may end after the planned time.
    growth_ratio = max(minutes / passed_minutes, 1.0)
    return Sensitivity(
        minutes=minutes,
        found_frac=detectable_frac(trend, level, growth_ratio),
        tolerance_frac=figure.tolerance_frac,
        enough_minutes=enough_minutes,
    )


def _points(
    figure: SegmentFigure, segments: Sequence[Segment], *, from_s: float
) -> list[tuple[float, float]]:
    """Return the hour and the value of each segment that has the figure.

    Args:
        from_s: segments whose middle was earlier than this are left out.
    """
    points = []
    for segment in segments:
        value = getattr(segment, figure.name)
        if segment.at_s >= from_s and value is not None:
            points.append((segment.at_s / _S_PER_H, float(value)))
    return points
