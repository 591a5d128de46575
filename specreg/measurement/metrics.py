"""The metrics, one row each: from the rounds and counts of a measurement to a number.

A metric without a value is None, never 0 and never NaN.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import TypeVar

import msgspec

from specreg.acceptance.record import NO_STEPS, AcceptanceRecord, Counts, StepCounts
from specreg.acceptance.trace import RequestTrace
from specreg.core.errors import MatrixError, UnknownNameError
from specreg.load.rounds import Round
from specreg.matrix.case import Case
from specreg.matrix.schema import MOST_DRAFT_TOKENS, NO_LIMITS, Limits
from specreg.stats.percentiles import Histogram
from specreg.telemetry.record import ArmPower, PowerRecord

_CountT = TypeVar("_CountT")

_NS_PER_MS = 10**6
_NS_PER_S = 10**9
_MS_PER_S = 10**3


class Family(StrEnum):
    """What a metric is about: one test file each."""

    ACCEPTANCE = "acceptance"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    SPEEDUP = "speedup"
    POWER = "power"


class Direction(Enum):
    """Which way is better."""

    UP = 1
    DOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What was seen of a case.

    Attributes:
        rounds: of the case's server.
        control_rounds: of the control, replayed in alternation; empty without one.
        acceptance: None for a case that doesn't speculate.
        limits: what a request must keep to count as good.
        power: what the devices drew; None where that wasn't watched.
    """

    rounds: tuple[Round, ...]
    control_rounds: tuple[Round, ...]
    acceptance: AcceptanceRecord | None
    limits: Limits = NO_LIMITS
    power: PowerRecord | None = None

    @property
    def traces(self) -> tuple[RequestTrace, ...]:
        """All requests of the case's server."""
        return tuple(trace for part in self.rounds for trace in part.traces)

    @property
    def of_control(self) -> "Replay":
        """What was seen of the control, as if it were the case."""
        power = self.power
        return Replay(
            rounds=self.control_rounds,
            control_rounds=(),
            acceptance=None,
            limits=self.limits,
            power=power and msgspec.structs.replace(power, case=power.control, control=None),
        )

    @property
    def counts(self) -> StepCounts:
        """All steps; none without speculation."""
        return self.acceptance.total if self.acceptance else NO_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One quantity that is judged.

    Attributes:
        name: ends in its unit.
        family: which test judges it.
        direction: which way is better.
        function: its value, None where there is none.
        tolerance_frac: the relative change that is still fine, on the same kind of machine.
        gate_tolerance_frac: the same of two arms of one hour, which may be finer; None for a metric
            that a gate doesn't compare.
        in_suite: whether runs of the suite judge it.
        cause: what a loss of it is a loss of, for people.
        portable_tolerance_frac: the same against a baseline of another kind of machine; None for
            a metric that says nothing there.
        by_launch: whether launches are what it varies by; the others are ratios of counts, which
            vary by prompt.
        origin: subtracted before a relative change is taken: AL is judged as AL - 1.
        position: the draft position it is about, from 1; None for the others.
        of_proposed: whether a ratio of counts is one of the proposed drafts, not of the steps.
        needs_limits: whether it says nothing of a case without limits on TTFT and TPOT.
        of_output: whether it is tokens per step over the time of a step, or the reverse.
        two_sided: whether a change either way is one for the worse.
    """

    name: str
    family: Family
    direction: Direction
    function: Callable[[Replay], float | None]
    tolerance_frac: float
    portable_tolerance_frac: float | None = None
    gate_tolerance_frac: float | None = None
    in_suite: bool = True
    cause: str = ""
    by_launch: bool = False
    origin: float = 0.0
    position: int | None = None
    of_proposed: bool = False
    needs_limits: bool = False
    of_output: bool = False
    two_sided: bool = False

    def allowed_frac(self, case: Case) -> float:
        """The relative change of a case that is still fine on the same kind of machine."""
        return dict(case.tolerances).get(self.name, self.tolerance_frac)

    def applies_to(self, case: Case) -> bool:
        """Whether the case can have a value at all."""
        if not case.speed and self.family is not Family.ACCEPTANCE:
            return False
        if self.family is Family.SPEEDUP:
            return case.control is not None
        if self.needs_limits and case.limits == NO_LIMITS:
            return False
        if self.family is Family.ACCEPTANCE:
            return case.speculates and (self.position or 0) <= case.server.draft_tokens
        return True


def ttft_ms(trace: RequestTrace) -> float | None:
    """Time to first token: the first chunk with a token - sent."""
    return None if trace.first_ns is None else (trace.first_ns - trace.sent_ns) / _NS_PER_MS


def e2e_ms(trace: RequestTrace) -> float | None:
    """End-to-end latency: the last chunk with a token - sent."""
    return None if trace.last_ns is None else (trace.last_ns - trace.sent_ns) / _NS_PER_MS


def tpot_ms(trace: RequestTrace) -> float | None:
    """Time per output token: (last - first) / (N - tokens of the first chunk).

    Divided by tokens, not by chunks: with speculation a chunk holds several.
    """
    if trace.first_ns is None or trace.last_ns is None or not trace.later_tokens:
        return None
    return (trace.last_ns - trace.first_ns) / trace.later_tokens / _NS_PER_MS


def output_tokens_per_s(trace: RequestTrace) -> float | None:
    """What one user sees: 1 / TPOT; None where all tokens came at once."""
    tpot = tpot_ms(trace)
    return _MS_PER_S / tpot if tpot else None


def throughput_tokens_per_s(part: Round) -> float | None:
    """Σ N / (last token of the round - its first send).

    A case's throughput is the median over its rounds: a machine that others use too stalls for
    seconds now and then, and a sum would keep that.
    """
    window_ns = part.ended_ns - part.started_ns
    tokens = sum(trace.tokens for trace in part.traces)
    return tokens * _NS_PER_S / window_ns if window_ns else None


def requests_per_s(part: Round, good: Callable[[RequestTrace], bool]) -> float | None:
    """The good requests of a round over the same window as throughput's."""
    window_ns = part.ended_ns - part.started_ns
    return sum(map(good, part.traces)) * _NS_PER_S / window_ns if window_ns else None


def is_good(trace: RequestTrace, limits: Limits) -> bool:
    """Whether a request kept the limits on TTFT and TPOT.

    One that has no TPOT, an answer of one chunk, keeps any.
    """
    ttft, tpot = ttft_ms(trace), tpot_ms(trace)
    in_time = ttft is not None and ttft <= (limits.ttft_ms or math.inf)
    return in_time and (tpot or 0.0) <= (limits.tpot_ms or math.inf)


def step_p50_ms(replay: Replay) -> float | None:
    """The median time between two chunks of an answer, which is a step."""
    gaps = Histogram()
    for part in replay.rounds:
        gaps.merge(part.gaps)
    return gaps.quantile_ns(0.5) / _NS_PER_MS if gaps.size else None


def tokens_per_step(replay: Replay) -> float | None:
    """The tokens of a chunk, of all but each request's first; of any step, drafted or not."""
    chunks = sum(sum(trace.chunk_sizes) for trace in replay.traces)
    return sum(trace.later_tokens for trace in replay.traces) / chunks if chunks else None


def goodput_requests_per_s(replay: Replay) -> float | None:
    """The median over the rounds of good requests per second."""
    return _median(
        requests_per_s(part, lambda trace: is_good(trace, replay.limits)) for part in replay.rounds
    )


def speedup_ratio(replay: Replay) -> float | None:
    """The median over the rounds of throughput over the control's throughput.

    Case and control alternate round by round, so a slow minute of the machine slows both; the
    median leaves out a round that was hit on one side only.
    """
    ratios = []
    for part, control in zip(replay.rounds, replay.control_rounds, strict=False):
        ours, theirs = throughput_tokens_per_s(part), throughput_tokens_per_s(control)
        if ours is not None and theirs:
            ratios.append(ours / theirs)
    return statistics.median(ratios) if ratios else None


def _power(replay: Replay) -> ArmPower | None:
    """What all devices did while the case was under load; None where it can't be judged."""
    power = replay.power
    return None if power is None or power.invalid or power.too_short else power.case


def energy_j_per_token(replay: Replay) -> float | None:
    """Energy / Σ N, both of one block: a token's share of all that was drawn, idle power too."""
    power = _power(replay)
    return power.energy_j_per_token if power else None


def power_w(replay: Replay) -> float | None:
    """Energy / time of that block, of all devices."""
    power = _power(replay)
    return power.mean_w if power else None


def _median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def ratio_parts(metric: Metric, counts: Counts[_CountT]) -> tuple[_CountT, _CountT] | None:
    """What an acceptance metric divides, and by what: A/S, A/D or P_i/S.

    None where it isn't known. The metric's value is its origin plus their quotient.
    """
    below = counts.proposed if metric.of_proposed else counts.steps
    if metric.position is None:
        above = counts.accepted
    elif metric.position <= len(counts.position_counts):
        above = counts.position_counts[metric.position - 1]
    else:
        return None
    return None if below is None else (above, below)


def _acceptance(
    name: str,
    *,
    tolerance_frac: float,
    portable_tolerance_frac: float,
    gate_tolerance_frac: float | None = None,
    origin: float = 0.0,
    position: int | None = None,
    of_proposed: bool = False,
) -> Metric:
    def value(replay: Replay) -> float | None:
        parts = ratio_parts(metric, replay.counts)
        return metric.origin + parts[0] / parts[1] if parts and parts[1] else None

    metric = Metric(
        name=name,
        family=Family.ACCEPTANCE,
        direction=Direction.UP,
        function=value,
        tolerance_frac=tolerance_frac,
        portable_tolerance_frac=portable_tolerance_frac,
        gate_tolerance_frac=gate_tolerance_frac,
        cause="acceptance",
        origin=origin,
        position=position,
        of_proposed=of_proposed,
    )
    return metric


_ROWS = (
    _acceptance(
        "acceptance_length_tokens",
        tolerance_frac=0.05,
        portable_tolerance_frac=0.08,
        gate_tolerance_frac=0.02,
        origin=1.0,
    ),
    _acceptance(
        "acceptance_rate_frac",
        tolerance_frac=0.05,
        portable_tolerance_frac=0.08,
        of_proposed=True,
    ),
    *(
        _acceptance(
            f"acceptance_pos{position}_frac",
            tolerance_frac=0.1,
            portable_tolerance_frac=0.15,
            position=position,
        )
        for position in range(1, MOST_DRAFT_TOKENS + 1)
    ),
    Metric(
        name="throughput_tokens_per_s",
        family=Family.THROUGHPUT,
        direction=Direction.UP,
        function=lambda replay: _median(throughput_tokens_per_s(part) for part in replay.rounds),
        tolerance_frac=0.05,
        gate_tolerance_frac=0.03,
        cause="output",
        by_launch=True,
        of_output=True,
    ),
    Metric(
        name="goodput_requests_per_s",
        family=Family.THROUGHPUT,
        direction=Direction.UP,
        function=goodput_requests_per_s,
        tolerance_frac=0.05,
        needs_limits=True,
        by_launch=True,
    ),
    Metric(
        name="ttft_p50_ms",
        family=Family.LATENCY,
        direction=Direction.DOWN,
        function=lambda replay: _median(ttft_ms(trace) for trace in replay.traces),
        tolerance_frac=0.05,
        gate_tolerance_frac=0.05,
        cause="prefill",
        by_launch=True,
    ),
    Metric(
        name="tpot_p50_ms",
        family=Family.LATENCY,
        direction=Direction.DOWN,
        function=lambda replay: _median(tpot_ms(trace) for trace in replay.traces),
        tolerance_frac=0.05,
        by_launch=True,
        of_output=True,
    ),
    Metric(
        name="step_p50_ms",
        family=Family.LATENCY,
        direction=Direction.DOWN,
        function=step_p50_ms,
        tolerance_frac=0.05,
        gate_tolerance_frac=0.03,
        in_suite=False,
        cause="the cost of a step",
        by_launch=True,
    ),
    Metric(
        name="speedup_ratio",
        family=Family.SPEEDUP,
        direction=Direction.UP,
        function=speedup_ratio,
        tolerance_frac=0.05,
        by_launch=True,
        of_output=True,
    ),
    Metric(
        name="energy_j_per_token",
        family=Family.POWER,
        direction=Direction.DOWN,
        function=energy_j_per_token,
        tolerance_frac=0.05,
        by_launch=True,
    ),
    Metric(
        name="power_w",
        family=Family.POWER,
        direction=Direction.UP,
        function=power_w,
        tolerance_frac=0.1,
        by_launch=True,
        two_sided=True,
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType(
    {metric.name: metric for metric in _ROWS if metric.in_suite}
)
"""What a run of the suite judges."""
GATE_METRICS: Mapping[str, Metric] = MappingProxyType(
    {metric.name: metric for metric in _ROWS if metric.gate_tolerance_frac is not None}
)
"""What a gate compares."""


def check_allowed(case: Case, where: str) -> None:
    """Every tolerance of the case is one of a metric, and one that can be overstepped.

    Args:
        case: whose.
        where: it is declared, for errors.

    Raises:
        UnknownNameError: one isn't; the message lists the metrics.
        MatrixError: more can't be lost than there is.
    """
    for name, tolerance in case.tolerances:
        if name not in METRICS:
            raise UnknownNameError("metric in tolerances", name, METRICS, where)
        if METRICS[name].direction is Direction.UP and tolerance >= 1:
            message = (
                f"{where}: tolerances.{name} = {tolerance:g}, needed less than 1: no loss is"
                " greater than all there is, so it could never fail; lower it"
            )
            raise MatrixError(message)


def acceptance_value(metric: Metric, record: AcceptanceRecord | None) -> float | None:
    """An acceptance metric's value of a record."""
    return metric.function(Replay(rounds=(), control_rounds=(), acceptance=record))


def better_frac(metric: Metric, value: float, expected: float) -> float:
    """The relative change, positive when better: ±(value - expected) / (expected - origin)."""
    base = expected - metric.origin
    # A baseline of nothing (no draft ever accepted) can only be kept or improved.
    relative = (value - expected) / base if base else float(value != expected)
    return metric.direction.value * relative


def metrics_of(case: Case, family: Family) -> tuple[Metric, ...]:
    """The metrics of a family that the case can have, in the order of the rows."""
    return tuple(
        metric for metric in METRICS.values() if metric.family is family and metric.applies_to(case)
    )
