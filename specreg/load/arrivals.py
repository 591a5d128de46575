"""The moments at which the requests of a load are due."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from specreg.matrix.schema import Arrivals, Load

_NS_PER_S = 10**9


def due_after_ns(load: Load) -> Iterator[int]:
    """When each request of an open load is due, counted from the start of a round; endless.

    A rate that rises linearly over the ramp T sends, by time t < T, t²/2T as many requests as one
    second at the full rate does; so a request that is due at u without the ramp is due at sqrt(2uT)
    while u < T/2, and at u + T/2 later.
    """
    gaps_s = _GAPS[load.arrivals](load, random.Random(load.seed))  # noqa: S311 - no cryptography
    for flat_s in itertools.accumulate(gaps_s, initial=0.0):
        half_s = load.ramp_up_s / 2
        ramped_s = flat_s + half_s if flat_s >= half_s else (4 * flat_s * half_s) ** 0.5
        yield round(ramped_s * _NS_PER_S)


def _constant(load: Load, _: random.Random) -> Iterator[float]:
    return itertools.repeat(1 / load.requests_per_s)


def _gamma(load: Load, draw: random.Random) -> Iterator[float]:
    """Gaps of mean 1/rate and of the shape `burstiness`."""
    scale_s = 1 / (load.requests_per_s * load.burstiness)
    while True:
        yield draw.gammavariate(load.burstiness, scale_s)


def _poisson(load: Load, draw: random.Random) -> Iterator[float]:
    while True:
        yield draw.expovariate(load.requests_per_s)


_GAPS: Mapping[Arrivals, Callable[[Load, random.Random], Iterator[float]]] = MappingProxyType(
    {Arrivals.CONSTANT: _constant, Arrivals.POISSON: _poisson, Arrivals.GAMMA: _gamma}
)
