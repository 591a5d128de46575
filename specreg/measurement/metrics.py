"""The metrics, one row each: from the rounds and counts of a measurement to a number.

A metric without a value is None, never 0 and never NaN; of an invalid family it means nothing.
"""

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

import msgspec

from specreg.acceptance.record import AcceptanceRecord, Counts
from specreg.acceptance.trace import RequestTrace
from specreg.core.errors import InvalidMeasurementError, MatrixError, check_name
from specreg.core.reasons import Invalidity
from specreg.load.rounds import Round
from specreg.matrix.case import NO_LIMITS, Case, Limits
from specreg.stats.percentiles import TimeHistogram
from specreg.telemetry.power_record import POWER_INVALID, PowerRecord

_CountT = TypeVar("_CountT")

_NS_PER_MS = 10**6
_NS_PER_S = 10**9
_MS_PER_S = 10**3
_POSITIONS = 16
"""How many drafts of a step, from the first, have a metric of their own."""


class Family(StrEnum):
    """What a metric is about: one test file each."""

    ACCEPTANCE = "acceptance"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    SPEEDUP = "speedup"
    POWER = "power"


Invalid = Mapping[Family, Invalidity]
"""By family, why its figures mean nothing. Valid families are left out."""

ALL: AbstractSet[Family] = frozenset(Family)
# Acceptance is counted, not timed: neither a throttled GPU nor a late client says anything against
# it. Speed is timed by us: a server that miscounts its steps says nothing against that.
_COUNTED: AbstractSet[Family] = frozenset({Family.ACCEPTANCE})
_TIMED = ALL - _COUNTED

SPOILS: Mapping[str, AbstractSet[Family]] = MappingProxyType(
    {
        # The meter of acceptance. Tokens and times are the client's own.
        "ACCEPTANCE_MISSING": _COUNTED,
        "CHUNKS_MERGED": _COUNTED,
        "COUNTS_DISAGREE": _COUNTED,
        "COUNTS_INCONSISTENT": _COUNTED,
        "LENGTH_IMPOSSIBLE": _COUNTED,
        "METRICS_MISSING": _COUNTED,
        "METRICS_UNREADABLE": _COUNTED,
        # The machine and the client.
        "CLIENT_BEHIND": _TIMED,
        "CLOCK_LOW": _TIMED,
        "DEVICE_SHARED": _TIMED,
        "MACHINE_MOVED": _TIMED - {Family.SPEEDUP},
        "THROTTLED": _TIMED,
        POWER_INVALID: frozenset({Family.POWER}),
    }
)
"""The families that a reason spoils; any other reason spoils all of them."""


@contextlib.contextmanager
def noting(
    invalid: MutableMapping[Family, Invalidity], within: AbstractSet[Family] = ALL
) -> Iterator[None]:
    """Note which families a failed check makes invalid and go on; raise it if it spoils them all.

    Args:
        invalid: takes the invalidity of each family; the first one of a family stays.
        within: the families about which the check says something.
    """
    try:
        yield
    except InvalidMeasurementError as error:
        spoiled = SPOILS.get(error.invalidity.code, ALL) & within
        if spoiled == ALL:
            raise
        for family in spoiled:
            invalid.setdefault(family, error.invalidity)


def render_invalid(invalid: Invalid) -> str:
    """Render each invalidity after the families that it spoils: `latency, power: THROTTLED: …`."""
    families: dict[Invalidity, list[Family]] = {}
    for family in Family:
        if family in invalid:
            families.setdefault(invalid[family], []).append(family)
    sentences = []
    for invalidity, spoiled in families.items():
        if len(spoiled) == len(Family):
            sentences.append(str(invalidity))
        else:
            sentences.append(f"{', '.join(spoiled)}: {invalidity}")
    return "; ".join(sentences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What was measured of a case, to calculate metrics from.

    Attributes:
        rounds: of the case's server; control_rounds: of the control, empty without one.
        concurrency: requests in flight of a closed loop; 0 for a rate.
        acceptance: None for a case that doesn't speculate.
        power: what the devices drew; None where that wasn't watched.
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
        return tuple(trace for part in self.rounds for trace in part.traces)

    @property
    def of_control(self) -> "Replay":
        """The replay of the control, as if it were the case."""
        power = self.power
        return Replay(
            rounds=self.control_rounds,
            concurrency=self.concurrency,
            limits=self.limits,
            power=power and msgspec.structs.replace(power, case=power.control, control=None),
        )

    @property
    def gaps(self) -> TimeHistogram:
        """The times between two chunks of an answer, which are steps."""
        return TimeHistogram.merged(part.gaps for part in self.rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One quantity that is judged.

    Attributes:
        meaning: what it is, with its formula, for people.
        formula: its value, None where there is none; acceptance is a ratio of counts instead.
        sign: 1 where more is better, -1 where less is.
        tolerance_frac: the relative change that is still fine, on the same kind of machine.
        portable_tolerance_frac: the same against a baseline of another kind of machine; None for
            a metric that says nothing there.
        gate_tolerance_frac: the same of two arms of one hour, which may be finer; None for a metric
            that a gate doesn't compare.
        cause: what a loss of it is a loss of in a gate, for people.
        origin: subtracted before a relative change is taken: AL is judged as AL - 1.
        position: the draft position it is about, from 1; None for the others.
        of_proposed: whether a ratio of counts is one of the proposed drafts, not of the steps.
        needs_limits: whether it says nothing of a case without limits on TTFT and TPOT.
        of_output: whether it is tokens per step over the time of a step, or the reverse.
        two_sided: whether a change either way is one for the worse.
    """

    name: str
    family: Family
    meaning: str = ""
    formula: Callable[[Replay], float | None] | None = None
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

    @property
    def by_launch(self) -> bool:
        """Whether it varies by launch; ratios of counts vary by prompt."""
        return self.family is not Family.ACCEPTANCE

    def function(self, replay: Replay) -> float | None:
        """Its value, None where there is none."""
        if self.formula is not None:
            return self.formula(replay)
        parts = ratio_parts(self, replay.acceptance.total) if replay.acceptance else None
        return self.origin + parts[0] / parts[1] if parts and parts[1] else None

    def allowed_frac(self, case: Case) -> float:
        """The case's tolerance: the relative change that is fine on the same kind of machine."""
        return dict(case.tolerances).get(self.name, self.tolerance_frac)

    def applies_to(self, case: Case) -> bool:
        """Whether the case can have a value at all."""
        if self.family is Family.ACCEPTANCE:
            return case.speculates and (self.position or 0) <= case.server.draft_tokens
        if not case.speed or (self.needs_limits and case.limits == NO_LIMITS):
            return False
        return case.control is not None or self.family is not Family.SPEEDUP

    def is_judged(self, case: Case) -> bool:
        """Whether a value of the case is held against a baseline, and not shown alone."""
        pinned = self.family is Family.ACCEPTANCE and case.server.pinned_length_tokens
        return self.applies_to(case) and not pinned and self.name not in case.shown


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


def full_until_ns(part: Round, concurrency: int) -> int:
    """Until when a round kept its load: its end, or the drain's beginning in a closed loop.

    That is when a conversation ends after the last one has begun: from then on fewer are in flight
    than before, which is another load.
    """
    if not concurrency:
        return part.ended_ns
    begun_ns, ends_ns = part.started_ns, list[int]()
    for trace in part.traces:
        if trace.turn == 1:
            begun_ns = max(begun_ns, trace.sent_ns)
            ends_ns.append(0)
        ends_ns[-1:] = [trace.last_ns or trace.sent_ns]
    return min((end_ns for end_ns in ends_ns if end_ns > begun_ns), default=part.ended_ns)


def per_s(replay: Replay, amount: Callable[[RequestTrace], float]) -> float | None:
    """Σ of an amount of each request / Σ (until the load drains - first send) of the rounds.

    Of a request that ends later, the part that its tokens have come to by then. All over all, as an
    uninterrupted loop has it: a ratio of two such sums leans to neither side.
    """
    total, window_ns = 0.0, 0
    for part in replay.rounds:
        until_ns = full_until_ns(part, replay.concurrency)
        total += sum(amount(trace) * _said_frac(trace, until_ns) for trace in part.traces)
        window_ns += until_ns - part.started_ns
    return total * _NS_PER_S / window_ns if window_ns else None


def _said_frac(trace: RequestTrace, until_ns: int) -> float:
    """The part of an answer's tokens that had come by a moment, as if they came evenly: 0..1."""
    if trace.last_ns is None or trace.last_ns <= until_ns:
        return 1.0
    if trace.first_ns is None or trace.first_ns > until_ns:
        return 0.0
    later = (until_ns - trace.first_ns) / (trace.last_ns - trace.first_ns)
    return (trace.first_chunk_tokens + later * trace.later_tokens) / trace.tokens


def throughput_tokens_per_s(replay: Replay) -> float | None:
    """Tokens per second while the load was full, see `per_s`."""
    return per_s(replay, lambda trace: trace.tokens)


def is_good(trace: RequestTrace, limits: Limits) -> bool:
    """Whether a request kept the limits on TTFT and TPOT.

    One that has no TPOT, an answer of one chunk, keeps any.
    """
    ttft, tpot = ttft_ms(trace), tpot_ms(trace)
    in_time = ttft is not None and ttft <= (limits.ttft_ms or math.inf)
    return in_time and (tpot or 0.0) <= (limits.tpot_ms or math.inf)


def tokens_per_step(replay: Replay) -> float | None:
    """The tokens of a chunk, of all but each request's first; of any step, drafted or not."""
    chunks = sum(sum(trace.chunk_sizes) for trace in replay.traces)
    return sum(trace.later_tokens for trace in replay.traces) / chunks if chunks else None


def goodput_requests_per_s(replay: Replay) -> float | None:
    """The requests that kept their limits, per second while the load was full, see `per_s`."""
    return per_s(replay, lambda trace: is_good(trace, replay.limits))


def speedup_ratio(replay: Replay) -> float | None:
    """Throughput over the control's.

    Case and control take turns of seconds, so what slows the machine for longer slows both.
    """
    ours, theirs = map(throughput_tokens_per_s, (replay, replay.of_control))
    return ours / theirs if ours is not None and theirs else None


def round_ratios(replay: Replay) -> tuple[float, ...]:
    """The speedup of each round and the control's beside it."""
    ratios = (
        speedup_ratio(dataclasses.replace(replay, rounds=(one,), control_rounds=(other,)))
        for one, other in zip(replay.rounds, replay.control_rounds, strict=False)
    )
    return tuple(ratio for ratio in ratios if ratio is not None)


def _power(replay: Replay, field: str) -> float | None:
    """What all devices did in one block under load; None where it can't be judged."""
    power = replay.power
    if power is None or power.case is None or power.invalid or power.too_short:
        return None
    value: float | None = getattr(power.case, field)
    return value


def _median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def ratio_parts(metric: Metric, counts: Counts[_CountT]) -> tuple[_CountT, _CountT] | None:
    """What an acceptance metric divides, and by what: A/S, A/D or P_i/S.

    None where it isn't known. The metric's value is its origin plus their quotient.
    """
    below = counts.proposed if metric.of_proposed else counts.steps
    above = (counts.accepted, *counts.position_counts)
    place = metric.position or 0
    return None if below is None or place >= len(above) else (above[place], below)


_SUITE = (
    Metric(
        name="acceptance_length_tokens",
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
    ),
    *(
        Metric(
            name=f"acceptance_pos{position}_frac",
            family=Family.ACCEPTANCE,
            meaning=f"the share of the steps that accepted {position} drafts or more",
            tolerance_frac=0.1,
            portable_tolerance_frac=0.15,
            position=position,
        )
        for position in range(1, _POSITIONS + 1)
    ),
    Metric(
        name="throughput_tokens_per_s",
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
    ),
    Metric(
        name="speedup_ratio",
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
        meaning="the same energy over the time; a change either way is one for the worse",
        formula=lambda replay: _power(replay, "mean_w"),
        tolerance_frac=0.1,
        two_sided=True,
    ),
)
_STEP = Metric(
    name="step_p50_ms",
    family=Family.LATENCY,
    meaning="median time between two chunks of an answer: the cost of a step",
    formula=lambda replay: replay.gaps.quantile_ns(0.5) / _NS_PER_MS or None,
    sign=-1,
    gate_tolerance_frac=0.03,
    cause="the cost of a step",
)

RECORDED = Metric(name="tpot_s", family=Family.LATENCY)
"""What a case's benchmark is of: the TPOT of each round, which isn't judged."""
METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _SUITE})
"""What a run of the suite judges."""
GATE_METRICS: Mapping[str, Metric] = MappingProxyType(
    {one.name: one for one in (*_SUITE, _STEP) if one.gate_tolerance_frac is not None}
)
"""What a gate compares."""


def check_allowed(case: Case, where: str) -> None:
    """Check that every tolerance of the case, declared `where`, is of a metric that takes one.

    Raises:
        UnknownNameError: there is no such metric; it lists those that there are.
        MatrixError: one allows the loss of all there is, or is of what is only shown.
    """
    tolerances = dict(case.tolerances)
    for key, names in (("shown", case.shown), ("tolerances", tolerances)):
        for name in names:
            check_name(f"metric in {key}", name, METRICS, where)
    if both := tolerances.keys() & case.shown:
        message = f"'{min(both)}' is shown and has a tolerance; leave out one of the two"
        raise MatrixError(f"{where}: {message}")
    for name, tolerance in tolerances.items():
        if METRICS[name].sign > 0 and tolerance >= 1:
            raise MatrixError(
                f"{where}: tolerances.{name} = {tolerance:g}, needed less than 1: no loss is"
                " greater than all there is, so it could never fail; lower it"
            )


def acceptance_value(metric: Metric, record: AcceptanceRecord | None) -> float | None:
    """An acceptance metric's value of a record."""
    return metric.function(Replay(acceptance=record))


def better_frac(metric: Metric, value: float, expected: float) -> float:
    """The relative change, positive when better: ±(value - expected) / (expected - origin)."""
    base = expected - metric.origin
    # A baseline of 0 (no draft ever accepted) can only be kept or improved.
    relative = (value - expected) / base if base else float(value != expected)
    return metric.sign * relative


def metrics_of(case: Case, family: Family) -> tuple[Metric, ...]:
    """The metrics of a family that are judged of a case, in the order of the rows."""
    return tuple(
        metric for metric in METRICS.values() if metric.family is family and metric.is_judged(case)
    )
