"""How requests come: in a closed loop, or at a rate."""

from dataclasses import dataclass
from enum import StrEnum


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
