"""How requests come: a load in, the moments at which they are due out."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

_NS_PER_S = 10**9


class Arrivals(StrEnum):
    """What decides when the next request is sent.

    `CLOSED`: the end of one before it. The others send at a rate, whatever the server does.
    """

    CLOSED = "closed"
    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many requests come, and when.

    Attributes:
        arrivals: closed loop, or how the gaps between requests are spread.
        concurrency: requests in flight in a closed loop; 0 for the others.
        requests_per_s: the mean rate of the others; 0 in a closed loop.
        burstiness: the shape of gamma's gaps: their coefficient of variation is its -1/2th power;
            1 is Poisson, below 1 comes in bursts, above is more even.
        ramp_up_s: a round begins this gently: a closed loop's requests start one after another
            over this time; a rate rises from 0 linearly.
        duration_s: a round sends its prompts again and again for this long; None sends each once.
        seed: of the gaps. Every round of a case has the same.
    """

    arrivals: Arrivals = Arrivals.CLOSED
    concurrency: int = 0
    requests_per_s: float = 0.0
    burstiness: float = 1.0
    ramp_up_s: float = 0.0
    duration_s: float | None = None
    seed: int = 0

    @property
    def id(self) -> str:
        """`c4` for four in flight; `poisson2.5` for 2.5 requests/s."""
        if self.arrivals is Arrivals.CLOSED:
            return f"c{self.concurrency}"
        return f"{self.arrivals}{self.requests_per_s:g}"


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
