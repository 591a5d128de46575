"""The families of metrics, and which of them one fault spoils together."""

from collections.abc import Set as AbstractSet
from enum import StrEnum


class Family(StrEnum):
    """The kind of a metric. Each family has a test file of its own."""

    ACCEPTANCE = "acceptance"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    SPEEDUP = "speedup"
    POWER = "power"


ALL: AbstractSet[Family] = frozenset(Family)
# Acceptance is counted and not timed, so neither a throttled GPU nor a late client affects it.
# Speed is timed by the client, so a server that counts its steps wrongly doesn't affect it.
COUNTED: AbstractSet[Family] = frozenset({Family.ACCEPTANCE})
TIMED: AbstractSet[Family] = ALL - COUNTED
