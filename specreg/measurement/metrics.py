"""Define the metrics as rows of a table, and calculate them from rounds and counts.

A metric without a value is None, never 0 and never NaN. The values of an invalid family must not be
used.
"""

import contextlib
import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import msgspec

from specreg.acceptance.record import AcceptanceRecord, Counts
from specreg.acceptance.trace import RequestTrace
from specreg.core.catalogue import CATALOGUE
from specreg.core.errors import InvalidMeasurementError, MatrixError, check_name
from specreg.core.families import ALL, Family
from specreg.core.reasons import Reason
from specreg.engines.registry import engine_named
from specreg.load.rounds import Round
from specreg.matrix.case import NO_LIMITS, Case, Limits
from specreg.stats.percentiles import TimeHistogram
from specreg.telemetry.power_record import PowerRecord

_CountT = TypeVar("_CountT")

_NS_PER_MS = 10**6
_NS_PER_S = 10**9
_MS_PER_S = 10**3
_LEAST_ANSWER_NS = 10**6
"""Tokens that came within this time came together."""
_POSITIONS = 16
"""How many draft positions, from the first one, have a metric of their own."""


Invalid = Mapping[Family, Reason]
"""For each invalid family, the reason why its figures can't be used."""


@contextlib.contextmanager
def note_invalidity(
    invalid: MutableMapping[Family, Reason], checked_families: AbstractSet[Family] = ALL
) -> Iterator[None]:
    """Record which families a failed check makes invalid, and continue.

    Args:
        invalid: the mapping to which the invalidity is added. The first one of a family stays.
        checked_families: the families that the check concerns.

    Raises:
        InvalidMeasurementError: the failed check makes all families invalid.
    """
    try:
        yield
    except InvalidMeasurementError as error:
        spoiled_families = CATALOGUE[error.reason.code].spoils & checked_families
        if spoiled_families == ALL:
            raise
        for family in spoiled_families:
            invalid.setdefault(family, error.reason)


def render_invalid(invalid: Invalid) -> str:
    """Render each reason with the families that it affects: `latency, power: THROTTLED: …`."""
    families_by_reason: dict[Reason, list[Family]] = {}
    for family in Family:
        if family in invalid:
            families_by_reason.setdefault(invalid[family], []).append(family)
    sentences = []
    for reason, families in families_by_reason.items():
        if len(families) == len(Family):
            sentences.append(str(reason))
        else:
            sentences.append(f"{', '.join(families)}: {reason}")

    return "; ".join(sentences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The measured rounds and counts of a case, from which metrics are calculated.

    Attributes:
        rounds: the rounds of the case's server.
        control_rounds: the rounds of the control; empty without a control.
        concurrency: how many requests a closed loop keeps in flight; 0 for a rate.
        acceptance: the acceptance of the case; None if it is invalid or the case doesn't speculate.
        limits: the case's limits on TTFT and TPOT.
        power: the power of the devices; None if it wasn't sampled.
    """

    rounds: tuple[Round, ...] = ()
    control_rounds: tuple[Round, ...] = ()
    concurrency: int = 0
    acceptance: AcceptanceRecord | None = None
    limits: Limits = NO_LIMITS
    power: PowerRecord | None = None

    @property
    def traces(self) -> tuple[RequestTrace, ...]:
        """All requests of the case's server."""
        traces_of_rounds = (replayed_round.traces for replayed_round in self.rounds)
        return tuple(itertools.chain.from_iterable(traces_of_rounds))

    @property
    def counters(self) -> Mapping[str, float]:
        """How much each further counter of the engine rose in all rounds together.

        A counter that wasn't read in one of the rounds is left out.
        """
        rises = [replayed_round.counters for replayed_round in self.rounds]
        names = set.intersection(*(set(rise) for rise in rises)) if rises else set()
        return {name: sum(rise[name] for rise in rises) for name in names}

    @property
    def control_replay(self) -> "Replay":
        """The replay of the control, as if it were the case."""
        power = self.power
        if power is not None:
            power = msgspec.structs.replace(power, case=power.control, control=None)
        return Replay(
            rounds=self.control_rounds,
            concurrency=self.concurrency,
            limits=self.limits,
            power=power,
        )

    @property
    def gaps(self) -> TimeHistogram:
        """The times between two chunks of an answer, each of which is the time of a step."""
        return TimeHistogram.merged(replayed_round.gaps for replayed_round in self.rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One quantity that is judged.

    Attributes:
        name: the name under which values and verdicts are stored.
        family: what the metric is about.
        meaning: what the metric is, with its formula, for people.
        formula: returns the value, or None if a replay has no value. A metric of acceptance has no
            formula, because it is a ratio of counts.
        counters: the counters of the engine that the formula needs, by their names in
            `WireFormat.further_counters`. A case whose engine doesn't name all of them doesn't have
            the metric, and a server that lacks one gives no value.
        sign: 1 if more is better, -1 if less is better.
        tolerance_frac: the relative change that is tolerated on the same kind of machine.
        portable_tolerance_frac: the tolerance against a baseline of another kind of machine; None
            for a metric that can't be compared between kinds of machines.
        gate_tolerance_frac: the tolerance between two arms that are measured in the same hour,
            which may be finer; None for a metric that a gate doesn't compare.
        cause: what got worse if a gate finds a loss in this metric, for people.
        origin: what is subtracted before a relative change is taken; AL is judged as AL - 1.
        position: the draft position that the metric is about, from 1; None for other metrics.
        of_proposed: True if the metric is a ratio of counts whose denominator is the number of
            proposed drafts; False if it is the number of steps.
        needs_limits: True if only a case with limits on TTFT and TPOT has a value.
        of_output: True for metrics that follow from the tokens per step and the time of a step:
            throughput, TPOT, and the speedup.
        two_sided: True if a change in either direction is a change for the worse.
        follows: the metric that decides about this one, because both vary together: the rate and
            the positions move with AL; TPOT, goodput and the time of a step move with throughput.
            Empty for a metric that decides by itself.
    """

    name: str
    family: Family
    meaning: str = ""
    formula: Callable[[Replay], float | None] | None = None
    counters: tuple[str, ...] = ()
    sign: int = 1
    tolerance_frac: float = 0.05
    portable_tolerance_frac: float | None = None
    gate_tolerance_frac: float | None = None
    cause: str = ""
    origin: float = 0.0
    position: int | None = None
    of_proposed: bool = False
    needs_limits: bool = False
    of_output: bool = False
    two_sided: bool = False
    follows: str = ""

    @property
    def by_launch(self) -> bool:
        """True if the metric varies from launch to launch; a ratio of counts varies by prompt."""
        return self.family is not Family.ACCEPTANCE

    @property
    def quantity(self) -> str:
        """What the metric measures: acceptance, speed or power."""
        if self.family in {Family.ACCEPTANCE, Family.POWER}:
            return self.family.value
        return "speed"

    def render_ratio(self, value: float, digits: int = 4) -> str:
        """Return the value of a ratio with `digits` significant digits, and a share in percent."""
        if self.name.endswith("_frac"):
            return f"{100 * value:.{digits}g}%"
        return f"{value:.{digits}g}"

    def value_of(self, replay: Replay) -> float | None:
        """Return the metric's value, None if the replay has none."""
        if not replay.counters.keys() >= set(self.counters):
            return None
        if self.formula is not None:
            return self.formula(replay)
        if replay.acceptance is None:
            return None
        ratio = ratio_parts(self, replay.acceptance.total)
        if ratio is None:
            return None
        numerator, denominator = ratio
        if not denominator:
            return None
        return self.origin + numerator / denominator

    def allowed_frac(self, case: Case) -> float:
        """Return the case's tolerance: the relative change allowed on the same kind of machine."""
        return dict(case.judging.tolerances).get(self.name, self.tolerance_frac)

    def is_recordable(self, value: float) -> bool:
        """Return whether later values can be compared with a value.

        An engine may have counted nothing, such as no preemption, and a change from 0 has no ratio.
        """
        return value > 0 or not self.counters

    def applies_to(self, case: Case) -> bool:
        """Return whether a measurement of the case can have this metric."""
        if self.family is Family.ACCEPTANCE:
            return case.speculates and (self.position or 0) <= case.server.draft_tokens
        if not case.judging.speed:
            return False
        if self.needs_limits and case.judging.limits == NO_LIMITS:
            return False
        if self.counters:
            wire_format = engine_named(case.server.engine).wire_format
            if not wire_format.further_counters.keys() >= set(self.counters):
                return False

        return case.control is not None or self.family is not Family.SPEEDUP

    def is_judged(self, case: Case) -> bool:
        """Return whether the metric is compared with a baseline for this case, not only shown."""
        # A pinned acceptance length is set by the engine, so it says nothing about the drafter.
        is_pinned = self.family is Family.ACCEPTANCE and case.server.pinned_length_tokens
        return self.applies_to(case) and not is_pinned and self.name not in case.judging.shown


def ttft_ms(trace: RequestTrace) -> float | None:
    """Return the time to first token: from sending the request to its first chunk with a token."""
    if trace.first_ns is None:
        return None
    return (trace.first_ns - trace.sent_ns) / _NS_PER_MS


def e2e_ms(trace: RequestTrace) -> float | None:
    """Return the end-to-end latency: from sending the request to its last chunk with a token."""
    if trace.last_ns is None:
        return None
    return (trace.last_ns - trace.sent_ns) / _NS_PER_MS


def tpot_ms(trace: RequestTrace) -> float | None:
    """Return the time per output token: (last - first chunk) / tokens after the first chunk.

    The time is divided by tokens, not by chunks, because with speculation a chunk holds several.
    """
    if trace.first_ns is None or trace.last_ns is None or not trace.later_tokens:
        return None
    return (trace.last_ns - trace.first_ns) / trace.later_tokens / _NS_PER_MS


def output_tokens_per_s(trace: RequestTrace) -> float | None:
    """Return the output speed that one user sees, 1 / TPOT.

    Returns:
        None without a TPOT, or if all tokens came within a millisecond: chunks that the network
        delivered together show no speed.
    """
    tpot = tpot_ms(trace)
    if not tpot or trace.last_ns is None or trace.first_ns is None:
        return None
    if trace.last_ns - trace.first_ns < _LEAST_ANSWER_NS:
        return None
    return _MS_PER_S / tpot


def full_until_ns(replayed_round: Round, concurrency: int) -> int:
    """Return the moment until which the load of a round was full.

    In a closed loop, the load is full until a conversation ends and no further one begins. From
    then on fewer conversations are in flight, which is a different load.

    Args:
        concurrency: how many requests a closed loop keeps in flight; 0 for a rate, whose load is
            full until the end of the round.
    """
    if not concurrency:
        return replayed_round.ended_ns
    last_begin_ns = replayed_round.started_ns
    ends_ns: list[int] = []
    for trace in replayed_round.traces:
        end_ns = trace.last_ns or trace.sent_ns
        if trace.turn == 1:
            last_begin_ns = max(last_begin_ns, trace.sent_ns)
            ends_ns.append(end_ns)
        else:
            # The end of a later turn replaces that of the turn before it.
            ends_ns[-1:] = [end_ns]

    later_ends_ns = [end_ns for end_ns in ends_ns if end_ns > last_begin_ns]
    return min(later_ends_ns, default=replayed_round.ended_ns)


def per_s(replay: Replay, amount: Callable[[RequestTrace], float]) -> float | None:
    """Return the rate of an amount per second, over the time in which the load was full.

    It is the sum of the amounts of all requests, divided by the sum of these times over all rounds.
    If a request ended later, its amount is multiplied by the share of its tokens that came in time.
    The sums are taken before dividing, because the mean of the rounds' rates would be biased.

    Args:
        replay: the rounds.
        amount: returns the amount of a request, for example its tokens.

    Returns:
        None if the load was never full.
    """
    total = 0.0
    window_ns = 0
    for replayed_round in replay.rounds:
        until_ns = full_until_ns(replayed_round, replay.concurrency)
        total += sum(
            amount(trace) * _delivered_frac(trace, until_ns) for trace in replayed_round.traces
        )
        window_ns += until_ns - replayed_round.started_ns

    if not window_ns:
        return None
    return total * _NS_PER_S / window_ns


def _delivered_frac(trace: RequestTrace, until_ns: int) -> float:
    """Return the share of an answer's tokens that were delivered by a moment, 0..1.

    The tokens after the first chunk are assumed to arrive at a constant rate.
    """
    if trace.last_ns is None or trace.last_ns <= until_ns:
        return 1.0
    if trace.first_ns is None or trace.first_ns > until_ns:
        return 0.0
    later_frac = (until_ns - trace.first_ns) / (trace.last_ns - trace.first_ns)
    delivered_tokens = trace.first_chunk_tokens + later_frac * trace.later_tokens
    return delivered_tokens / trace.tokens


def throughput_tokens_per_s(replay: Replay) -> float | None:
    """Return the tokens per second while the load was full, see `per_s`."""
    return per_s(replay, lambda trace: trace.tokens)


def is_good(trace: RequestTrace, limits: Limits) -> bool:
    """Return whether a request kept the limits on TTFT and TPOT.

    An answer of one chunk has no TPOT and keeps any limit on it.
    """
    ttft_limit_ms = limits.ttft_ms or math.inf
    tpot_limit_ms = limits.tpot_ms or math.inf
    ttft = ttft_ms(trace)
    if ttft is None or ttft > ttft_limit_ms:
        return False
    tpot = tpot_ms(trace) or 0.0
    return tpot <= tpot_limit_ms


def tokens_per_chunk(replay: Replay) -> float | None:
    """Return the mean number of tokens in a chunk, without the first chunk of each request."""
    later_chunks = sum(sum(trace.chunk_sizes) for trace in replay.traces)
    if not later_chunks:
        return None
    later_tokens = sum(trace.later_tokens for trace in replay.traces)
    return later_tokens / later_chunks


def goodput_requests_per_s(replay: Replay) -> float | None:
    """Return how many requests a second kept the case's limits, while the load was full."""
    return per_s(replay, lambda trace: is_good(trace, replay.limits))


def speedup_ratio(replay: Replay) -> float | None:
    """Return the throughput of the case divided by that of its control.

    Case and control take turns every few seconds, so anything that slows the machine for longer
    slows both of them.
    """
    case_tokens_per_s = throughput_tokens_per_s(replay)
    control_tokens_per_s = throughput_tokens_per_s(replay.control_replay)
    if case_tokens_per_s is None or not control_tokens_per_s:
        return None
    return case_tokens_per_s / control_tokens_per_s


def round_ratios(replay: Replay) -> tuple[float, ...]:
    """Return the speedup of each pair of rounds: the case's, and the control's next to it."""
    ratios = []
    for case_round, control_round in zip(replay.rounds, replay.control_rounds, strict=False):
        pair = dataclasses.replace(replay, rounds=(case_round,), control_rounds=(control_round,))
        ratio = speedup_ratio(pair)
        if ratio is not None:
            ratios.append(ratio)
    return tuple(ratios)


def _power(replay: Replay, field: str) -> float | None:
    """Return a figure of all devices during the block under load; None if it can't be judged."""
    power = replay.power
    if power is None or power.case is None or power.invalid or power.too_short:
        return None
    value: float | None = getattr(power.case, field)
    return value


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that aren't None; None if all are."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    return statistics.median(present)


def ratio_parts(metric: Metric, counts: Counts[_CountT]) -> tuple[_CountT, _CountT] | None:
    """Return the numerator and the denominator of an acceptance metric.

    The numerator is the number of accepted drafts, or of the steps that accepted the draft at the
    metric's position. The denominator is the number of steps, or of proposed drafts. The metric's
    value is its origin plus the quotient of the two.

    Returns:
        None where the source doesn't provide one of the two counts.
    """
    denominator = counts.proposed if metric.of_proposed else counts.steps
    # A metric without a position takes all accepted drafts, which have the index 0.
    numerators = (counts.accepted, *counts.position_counts)
    index = metric.position or 0
    if denominator is None or index >= len(numerators):
        return None
    return numerators[index], denominator


ACCEPTANCE_LENGTH = "acceptance_length_tokens"
THROUGHPUT = "throughput_tokens_per_s"
SPEEDUP = "speedup_ratio"
STEP = "step_p50_ms"
_SUITE = (
    Metric(
        name=ACCEPTANCE_LENGTH,
        family=Family.ACCEPTANCE,
        meaning="acceptance length, AL = 1 + A / S: tokens per step; judged is AL - 1",
        portable_tolerance_frac=0.08,
        gate_tolerance_frac=0.02,
        cause="acceptance",
        origin=1.0,
    ),
    Metric(
        name="acceptance_rate_frac",
        family=Family.ACCEPTANCE,
        meaning="acceptance rate, A / D: the share of the drafted tokens that were accepted",
        portable_tolerance_frac=0.08,
        of_proposed=True,
        follows=ACCEPTANCE_LENGTH,
    ),
    *(
        Metric(
            name=f"acceptance_pos{position}_frac",
            family=Family.ACCEPTANCE,
            meaning=f"the share of the steps that accepted {position} drafts or more",
            tolerance_frac=0.1,
            portable_tolerance_frac=0.15,
            position=position,
            follows=ACCEPTANCE_LENGTH,
        )
        for position in range(1, _POSITIONS + 1)
    ),
    Metric(
        name=THROUGHPUT,
        family=Family.THROUGHPUT,
        meaning="tokens of all requests over the time in which the load was full",
        formula=throughput_tokens_per_s,
        gate_tolerance_frac=0.03,
        cause="output",
        of_output=True,
    ),
    Metric(
        name="goodput_requests_per_s",
        family=Family.THROUGHPUT,
        meaning="requests within the case's limits of TTFT and TPOT, over the same time",
        formula=goodput_requests_per_s,
        needs_limits=True,
        follows=THROUGHPUT,
    ),
    Metric(
        name="ttft_p50_ms",
        family=Family.LATENCY,
        meaning="median time to first token, TTFT: first chunk with a token - sent",
        formula=lambda replay: _median(map(ttft_ms, replay.traces)),
        sign=-1,
        gate_tolerance_frac=0.05,
        cause="prefill",
    ),
    Metric(
        name="tpot_p50_ms",
        family=Family.LATENCY,
        meaning="median time per output token, TPOT: (last - first chunk) / tokens after the first",
        formula=lambda replay: _median(map(tpot_ms, replay.traces)),
        sign=-1,
        of_output=True,
        follows=THROUGHPUT,
    ),
    Metric(
        name=SPEEDUP,
        family=Family.SPEEDUP,
        meaning="throughput over that of the control, measured in turns with it",
        formula=speedup_ratio,
        of_output=True,
    ),
    Metric(
        name="energy_j_per_token",
        family=Family.POWER,
        meaning="energy of all devices under load over the tokens delivered",
        formula=lambda replay: _power(replay, "energy_j_per_token"),
        sign=-1,
    ),
    Metric(
        name="power_w",
        family=Family.POWER,
        meaning="the same energy over the time under load; a change up or down is for the worse",
        formula=lambda replay: _power(replay, "mean_w"),
        tolerance_frac=0.1,
        two_sided=True,
    ),
)
_STEP = Metric(
    name=STEP,
    family=Family.LATENCY,
    meaning="median time between two chunks of an answer: the cost of a step",
    formula=lambda replay: replay.gaps.quantile_ns(0.5) / _NS_PER_MS or None,
    sign=-1,
    gate_tolerance_frac=0.03,
    cause="the cost of a step",
    follows=THROUGHPUT,
)

BENCHMARK_METRIC = Metric(name="tpot_s", family=Family.LATENCY)
"""The metric of the benchmarks for pytest-benchmark: the TPOT of each round, which isn't judged."""
METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _SUITE})
"""The metrics that a run of the suite judges, by name."""
GATE_METRICS: Mapping[str, Metric] = MappingProxyType(
    {metric.name: metric for metric in (*_SUITE, _STEP) if metric.gate_tolerance_frac is not None}
)
"""The metrics that a gate compares, by name."""


def is_speed(name: str) -> bool:
    """Return whether a metric or a check is a speed, given its name."""
    metric = METRICS.get(name)
    return metric is not None and metric.quantity == "speed"


def check_allowed(case: Case, where: str) -> None:
    """Check the tolerances of a case, and the names of the metrics that are only shown.

    Args:
        case: the case with its tolerances and the names of the metrics that are only shown.
        where: where the case is declared, for the message.

    Raises:
        UnknownNameError: a metric doesn't exist; the message lists those that do.
        MatrixError: a tolerance allows the loss of all there is, or belongs to a metric that is
            only shown.
    """
    tolerances = dict(case.judging.tolerances)
    for name in case.judging.shown:
        check_name("metric in shown", name, METRICS, where)
    for name in tolerances:
        check_name("metric in tolerances", name, METRICS, where)
    shown_with_tolerance = tolerances.keys() & case.judging.shown
    if shown_with_tolerance:
        name = min(shown_with_tolerance)
        message = f"'{name}' is shown and has a tolerance; leave out one of the two"
        raise MatrixError(f"{where}: {message}")

    for name, tolerance in tolerances.items():
        if METRICS[name].sign > 0 and tolerance >= 1:
            raise MatrixError(
                f"{where}: tolerances.{name} = {tolerance:g}, needed less than 1: no loss is"
                " greater than all there is, so it could never fail; lower it"
            )


def acceptance_value(metric: Metric, record: AcceptanceRecord | None) -> float | None:
    """Return the value of an acceptance metric in a record; None if it has none."""
    return metric.value_of(Replay(acceptance=record))


def better_frac(metric: Metric, value: float, expected: float) -> float:
    """Return the relative change of a metric, ±(value - expected) / (expected - origin).

    It is positive if the value is better than expected; for a two-sided metric, if it is higher. If
    `expected` is the origin, any other value is a change of 1, with the sign of the metric.
    """
    base = expected - metric.origin
    if not base:
        # A baseline of 0 (no draft ever accepted) can only be kept or improved.
        return metric.sign * float(value != expected)
    return metric.sign * (value - expected) / base


def metrics_of(case: Case, family: Family) -> tuple[Metric, ...]:
    """Return the metrics of a family that are judged for a case, in the order of the table."""
    return tuple(
        metric for metric in METRICS.values() if metric.family is family and metric.is_judged(case)
    )
