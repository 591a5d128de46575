"""What a launch left: a measurement in, the figures that a comparison needs out."""

import dataclasses
import math
import operator
import statistics
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from specreg.acceptance.record import AcceptanceRecord
from specreg.matrix.case import Case
from specreg.measurement.measure import values_of
from specreg.measurement.metrics import Replay
from specreg.stats.percentiles import Histogram

_NS_PER_MS = 10**6
_POLISHED = ("throughput_tokens_per_s", "ttft_p50_ms", "step_p50_ms")


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
        block: the ABBA that the launch is of, from 1.
        number: its place among all launches; those that were up at the same time share it.
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


def versions_of(launches: Iterable[Launched], arm: Arm) -> tuple[str, ...]:
    """What the servers of a side said that they are, each once; of A2 too where it is A's."""
    told = (one.engine_version for one in launches if (one.arm is Arm.B) == (arm is Arm.B))
    return tuple(sorted(set(filter(None, told))))


def values_beside(
    sides: Mapping[Arm, tuple[Case, Replay]],
) -> Mapping[Arm, dict[str, float]]:
    """The quantities of launches whose rounds alternated, by arm.

    A machine's bad seconds hit one side's round and not the other's, and a mean keeps them. So a
    side's value is that of the typical round times how it typically differs from the others in the
    same round: log y = median of the rounds' means + median of its differences from them, the
    first sweep of Tukey's median polish (Exploratory Data Analysis, 1977, chapter 11). What happens
    in fewer than half of the rounds doesn't count.

    Args:
        sides: of each its case and what was replayed, the same prompts in each round.
    """
    values = {arm: values_of_launch(*side) for arm, side in sides.items()}
    if len(sides) == 1:
        return values
    by_round = {
        arm: [
            values_of_launch(case, dataclasses.replace(replay, rounds=(part,)))
            for part in replay.rounds
        ]
        for arm, (case, replay) in sides.items()
    }
    for name in _POLISHED:
        logs = [
            [math.log(each[name]) for each in rounds]
            for rounds in zip(*by_round.values(), strict=True)
            if all(each.get(name, 0.0) > 0 for each in rounds)
        ]
        if not logs:
            continue
        levels = [statistics.fmean(row) for row in logs]
        for arm, column in zip(by_round, zip(*logs, strict=True), strict=True):
            apart = statistics.median(map(operator.sub, column, levels))
            values[arm][name] = math.exp(statistics.median(levels) + apart)
    return values


def values_of_launch(case: Case, replay: Replay) -> dict[str, float]:
    """The quantities of what was replayed that have a value, by name."""
    kept = ("throughput_tokens_per_s", "ttft_p50_ms")
    values = values_of(case, replay)
    told = {name: values[name] for name in kept if name in values}
    return {**told, **(_of_steps(replay) if case.speed else {})}


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
