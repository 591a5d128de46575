"""Break-even: launches with and without speculation in, the load at which it stops paying out."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from specreg.compare.gate.launched import Arm, Launched
from specreg.compare.gate.plan import Pair
from specreg.compare.gate.quantities import OUTPUT
from specreg.stats.alpha_spending import LEVEL
from specreg.stats.intervals import t_quantile


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

    @property
    def is_clear(self) -> bool:
        """Whether its interval lies off 1.

        No proof: each end may err by 1 %, which no looks, loads or servers share.
        """
        if self.low_ratio is None or self.high_ratio is None:
            return False
        return self.low_ratio > 1 or self.high_ratio < 1


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """Where speculation stops paying on a side.

    Attributes:
        server: whose, with its dataset; arm: the side.
        speedups: by load, two at least.
        at_requests, low_requests, high_requests: the concurrency at which the speedup first falls
            to 1, by its estimate and the ends of its interval; null (?) where that is outside the
            loads, or there is no interval.
        said: the same in words, with all places where the speedup is 1, and each load of which
            nobody can tell whether speculation pays.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crossing:
    """Where a curve goes through 1.

    Attributes:
        falls: whether speculation stops paying there, or starts to.
        at_requests: by the estimate.
        low_requests, high_requests: by the nearest ends of its interval that do so; None where
            there are none within the loads.
    """

    falls: bool
    at_requests: float
    low_requests: float | None
    high_requests: float | None

    def __str__(self) -> str:
        ends = (self.low_requests, self.high_requests)
        between = " to ".join("?" if one is None else f"{one:.2g}" for one in ends)
        verb = "stops" if self.falls else "starts"
        return f"{verb} paying at about {self.at_requests:.2g} requests in flight ({between})"


def break_even(server: str, arm: Arm, speedups: Sequence[Speedup]) -> BreakEven:
    """Where a curve goes through 1: straight lines of log(ratio) over log(concurrency).

    Args:
        server: a name for it.
        arm: the side.
        speedups: by rising concurrency, two at least.
    """
    crossings = _crossings(speedups)
    fall = next((one for one in crossings if one.falls), None)
    return BreakEven(
        server=server,
        arm=arm,
        speedups=tuple(speedups),
        at_requests=fall.at_requests if fall else None,
        low_requests=fall.low_requests if fall else None,
        high_requests=fall.high_requests if fall else None,
        said=_in_words(speedups, crossings),
    )


def _in_words(speedups: Sequence[Speedup], crossings: Sequence[_Crossing]) -> str:
    """What a curve shows; clear is only a load whose interval lies off 1."""
    loads = f"from {speedups[0].concurrency} to {speedups[-1].concurrency} requests in flight"
    if crossings:
        said = ", ".join(map(str, crossings))
    else:
        said = f"pays {'at every load' if speedups[0].ratio > 1 else 'nowhere'} {loads}"
    untold = ", ".join(_one_in_words(one) for one in speedups if not one.is_clear)
    return f"{said} by the estimates; unclear: {untold}" if untold else said


def _one_in_words(one: Speedup) -> str:
    known = one.low_ratio is not None and one.high_ratio is not None
    interval = f" ({one.low_ratio:.2f}..{one.high_ratio:.2f})" if known else ""
    return f"{one.ratio:.2f}{interval} at {one.concurrency}"


def _crossings(speedups: Sequence[Speedup]) -> list[_Crossing]:
    """All places where the speedup is 1, by rising load."""
    loads = [one.concurrency for one in speedups]
    low = _through_1(loads, [one.low_ratio for one in speedups])
    high = _through_1(loads, [one.high_ratio for one in speedups])
    found = []
    for at, falls in _through_1(loads, [one.ratio for one in speedups]):
        # The lower end falls to 1 at a lower load than the estimate does, and rises at a higher.
        sooner, later = (low, high) if falls else (high, low)
        crossing = _Crossing(
            falls=falls,
            at_requests=at,
            low_requests=max((x for x, so in sooner if so is falls and x <= at), default=None),
            high_requests=min((x for x, so in later if so is falls and x >= at), default=None),
        )
        found.append(crossing)
    return found


def _through_1(loads: Sequence[int], ratios: Sequence[float | None]) -> list[tuple[float, bool]]:
    """The loads at which a curve falls to 1 or rises above it, and whether it falls."""
    known = [(load, ratio) for load, ratio in zip(loads, ratios, strict=True) if ratio is not None]
    if len(known) < len(loads):
        return []
    found = []
    for (before, one), (after, other) in itertools.pairwise(known):
        if (one > 1) != (other > 1):
            share = math.log(one) / (math.log(one) - math.log(other))
            at = math.exp(math.log(before) + share * (math.log(after) - math.log(before)))
            found.append((at, one > 1))
    return found


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
