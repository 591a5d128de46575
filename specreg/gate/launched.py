"""What a launch left: a measurement in, the figures that a comparison needs out."""

from enum import StrEnum
from types import MappingProxyType

import msgspec

from specreg.acceptance.record import AcceptanceRecord
from specreg.measurement import Measurement
from specreg.metrics import Replay
from specreg.spread import Histogram

_NS_PER_MS = 10**6


class Arm(StrEnum):
    """Which side a launch is of; A2 is side A once more, from which only the machine differs."""

    A = "A"
    B = "B"
    A2 = "A2"


class Launched(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One case on one launch of a side's server.

    Attributes:
        case_id: the id of what is compared, the same for all arms.
        arm: the side.
        block: the ABBA that the launch is of, from 1; number: its place among all launches.
        values: by quantity's name; one that has no value isn't there.
        acceptance: None without speculation.
        engine_version: by the server's own word.
        invalid: why the figures mean nothing, empty where they do.
    """

    case_id: str
    arm: Arm
    block: int
    number: int
    values: dict[str, float] = {}
    acceptance: AcceptanceRecord | None = None
    engine_version: str = ""
    invalid: str = ""


def values_of_launch(measurement: Measurement) -> dict[str, float]:
    """The quantities of a measurement that have a value, by name."""
    replay = measurement.replay
    if replay is None:
        return {}
    kept = ("throughput_tokens_per_s", "ttft_p50_ms")
    values = {name: measurement.values[name] for name in kept if name in measurement.values}
    return {**values, **(_of_steps(replay) if measurement.case.speed else {})}


def _of_steps(replay: Replay) -> MappingProxyType[str, float]:
    """The median time between chunks, which are steps, and the tokens of a chunk."""
    gaps = Histogram()
    for part in replay.rounds:
        gaps.merge(part.gaps)
    chunks = sum(sum(trace.chunk_sizes) for trace in replay.traces)
    if not gaps.size or not chunks:
        return MappingProxyType({})
    tokens = sum(trace.later_tokens for trace in replay.traces)
    return MappingProxyType(
        {"step_p50_ms": gaps.quantile_ns(0.5) / _NS_PER_MS, "tokens_per_step": tokens / chunks}
    )
