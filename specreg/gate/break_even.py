"""Break-even: launches with and without speculation in, the load at which it stops paying out."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from specreg.gate.launched import Arm, Launched
from specreg.gate.plan import Pair
from specreg.gate.quantities import OUTPUT
from specreg.intervals import t_quantile
from specreg.sequential import LEVEL


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """What speculation gains at a load, 1 being nothing.

    Attributes:
        concurrency: requests in flight.
        ratio: of throughput over that without speculation.
        low_ratio, high_ratio: its interval; null with fewer than two launches.
    """

    concurrency: int
    ratio: float
    low_ratio: float | None = None
    high_ratio: float | None = None


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """Where speculation stops paying on a side.

    Attributes:
        server: whose, with its dataset; arm: the side.
        speedups: by load, two at least.
        at_requests, low_requests, high_requests: the concurrency at which the speedup falls to 1,
            by its estimate and the ends of its interval; null (?) where that is outside the loads.
        said: the same in words.
    """

    server: str
    arm: Arm
    speedups: tuple[Speedup, ...]
    at_requests: float | None
    low_requests: float | None
    high_requests: float | None
    said: str


def break_evens(pairs: Sequence[Pair], launches: Sequence[Launched]) -> tuple[BreakEven, ...]:
    """Of each server that was measured under several loads, beside one without speculation.

    Args:
        pairs: what was compared.
        launches: of all arms.
    """
    found = []
    for arm in (Arm.A, Arm.B):
        curves: dict[str, list[Speedup]] = {}
        for pair in pairs:
            plain = _plain_of(pair, pairs, arm)
            case = pair.of(arm)
            ratios = _ratios(launches, arm, pair, plain) if plain is not None else []
            if ratios and case.load.concurrency:
                name = f"{case.server.id}-{case.dataset}"
                curves.setdefault(name, []).append(_speedup(case.load.concurrency, ratios))
        found += [
            break_even(name, arm, sorted(curve, key=lambda one: one.concurrency))
            for name, curve in curves.items()
            if len(curve) > 1
        ]
    return tuple(found)


def break_even(server: str, arm: Arm, speedups: Sequence[Speedup]) -> BreakEven:
    """Where a curve falls to 1: straight lines of log(ratio) over log(concurrency).

    Args:
        server: a name for it.
        arm: the side.
        speedups: by rising concurrency, two at least.
    """
    at = _crossing([(one.concurrency, one.ratio) for one in speedups])
    low = _crossing([(one.concurrency, one.low_ratio or one.ratio) for one in speedups])
    high = _crossing([(one.concurrency, one.high_ratio or one.ratio) for one in speedups])
    first, last = speedups[0], speedups[-1]
    if at is not None:
        between = " to ".join("?" if one is None else f"{one:.2g}" for one in (low, high))
        said = f"stops paying at about {at:.2g} requests in flight ({between})"
    elif first.ratio <= 1:
        said = f"pays nowhere from {first.concurrency} to {last.concurrency} requests in flight"
    else:
        said = (
            f"pays at every load from {first.concurrency} to {last.concurrency} requests in flight"
        )
    return BreakEven(
        server=server,
        arm=arm,
        speedups=tuple(speedups),
        at_requests=at,
        low_requests=low,
        high_requests=high,
        said=said,
    )


def _crossing(curve: Sequence[tuple[int, float]]) -> float | None:
    """The first load at which a curve that begins above 1 falls to it."""
    for (before, above), (after, below) in itertools.pairwise(curve):
        if above > 1 >= below:
            share = math.log(above) / (math.log(above) - math.log(below))
            return math.exp(math.log(before) + share * (math.log(after) - math.log(before)))
    return None


def _plain_of(pair: Pair, pairs: Sequence[Pair], arm: Arm) -> Pair | None:
    """The pair without speculation of the same models, prompts and load."""
    case = pair.of(arm)
    if not case.speculates:
        return None

    def alike(other: Pair) -> bool:
        one = other.of(arm)
        return (
            not one.speculates
            and (one.server.engine, one.server.models) == (case.server.engine, case.server.models)
            and (one.dataset, one.load, one.prompts) == (case.dataset, case.load, case.prompts)
        )

    return next(filter(alike, pairs), None)


def _ratios(launches: Sequence[Launched], arm: Arm, pair: Pair, plain: Pair) -> list[float]:
    """The logarithms of the ratios of launches that stand at the same place of the same block."""
    fast, slow = (_by_place(launches, arm, one.id) for one in (pair, plain))
    return [math.log(fast[place] / slow[place]) for place in fast if place in slow]


def _by_place(
    launches: Sequence[Launched], arm: Arm, case_id: str
) -> Mapping[tuple[int, int], float]:
    """The output of each launch; one that has none keeps its place."""
    ours = [one for one in launches if one.arm is arm and one.case_id == case_id]
    counted: Counter[int] = Counter()
    found: dict[tuple[int, int], float] = {}
    for one in sorted(ours, key=lambda launch: launch.number):
        if OUTPUT in one.values and not one.invalid:
            found[one.block, counted[one.block]] = one.values[OUTPUT]
        counted[one.block] += 1
    return found


def _speedup(concurrency: int, logs: Sequence[float]) -> Speedup:
    mean, size = math.fsum(logs) / len(logs), len(logs)
    if size < 2:  # noqa: PLR2004 - one has no spread
        return Speedup(concurrency=concurrency, ratio=math.exp(mean))
    variance = math.fsum((one - mean) ** 2 for one in logs) / (size - 1)
    reach = t_quantile(LEVEL, size - 1) * math.sqrt(variance / size)
    return Speedup(
        concurrency=concurrency,
        ratio=math.exp(mean),
        low_ratio=math.exp(mean - reach),
        high_ratio=math.exp(mean + reach),
    )
