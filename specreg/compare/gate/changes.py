"""Changes from one side to the other: launches in, an estimate and its error out."""

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from specreg.acceptance.record import PromptAcceptance
from specreg.acceptance.table import CountsTable, counts_table
from specreg.compare.gate.launched import Arm, Launched
from specreg.stats.intervals import FEWEST_PROMPTS, Change, change_of_ratio
from specreg.stats.percentiles import PER_E

_TINY = 1e-12
_ROUNDING_FRAC2 = 1 / (12 * PER_E**2)
_PARAMETERS = 3
"""Of the line below: a level, a side and a drift."""
_LEAST_FREEDOM = 3
"""With fewer degrees of freedom a spread may well look small by chance."""


def change_of_speed(
    launches: Sequence[Launched], other: Arm, name: str, sign: int
) -> Change | None:
    """How the mean logarithm of a quantity differs from side A to another, better being positive.

    Launches that were up at the same time are compared pair by pair: the mean of n differences of
    log y, its error s/√n with their own spread s, and n - 1 degrees of freedom. What a machine does
    meanwhile it does to both.

    Launches one after another: least squares of log y = level + drift · number + change · [other
    side]. In whole blocks of ABBA the drift of a machine that warms up or tires is orthogonal to
    the change, so it moves neither the estimate nor, being accounted for, its error, √(s² (XᵀX)⁻¹).
    The spread s is that of these launches alone, with n - 3 degrees of freedom.

    A median is known no finer than a bucket of its histogram, q wide; that adds q²/12 to the
    variance of each launch, so that no error is 0 by rounding.

    Args:
        launches: of one case, in any order.
        other: the side that A is compared with.
        name: of the quantity.
        sign: 1 where more is better, -1 where less is.

    Returns:
        None with fewer than three degrees of freedom, or where one side has no launch.
    """
    told = [one for one in launches if one.arm in {Arm.A, other} and one.values.get(name, 0.0) > 0]
    logs = {(one.number, one.arm): math.log(one.values[name]) for one in told}
    pairs = [
        sign * (logs[number, other] - log)
        for (number, arm), log in logs.items()
        if arm is Arm.A and (number, other) in logs
    ]
    return _change_of_pairs(pairs) if pairs else _change_in_turn(told, other, name, sign)


def _change_of_pairs(differences: Sequence[float]) -> Change | None:
    count = len(differences)
    if count <= _LEAST_FREEDOM:
        return None
    variance = statistics.variance(differences) + 2 * _ROUNDING_FRAC2
    return _change(statistics.fmean(differences), math.sqrt(variance / count), count - 1)


def _change_in_turn(told: Sequence[Launched], other: Arm, name: str, sign: int) -> Change | None:
    sides = {one.arm for one in told}
    freedom = len(told) - _PARAMETERS
    if len(sides) < 2 or freedom < _LEAST_FREEDOM:  # noqa: PLR2004 - A and the other
        return None
    numbers = np.array([float(one.number) for one in told])
    sided = np.array([float(one.arm is other) for one in told])
    table = np.column_stack((np.ones(len(told)), numbers - numbers.mean(), sided))
    logs = np.log([one.values[name] for one in told])
    found, *_ = np.linalg.lstsq(table, logs, rcond=None)
    left = logs - table @ found
    variance = float(left @ left) / freedom + _ROUNDING_FRAC2
    error = math.sqrt(variance * float(np.linalg.pinv(table.T @ table)[2, 2]))
    return _change(sign * float(found[2]), error, freedom)


def _change(estimate: float, error: float, freedom: int) -> Change:
    return Change(
        estimate_frac=estimate if abs(estimate) > _TINY else 0.0,
        error_frac=error,
        freedom=freedom,
    )


def change_of_acceptance(launches: Sequence[Launched], other: Arm) -> Change | str:
    """The relative change of AL - 1 from side A to another, prompt by prompt.

    A prompt's launches are added up: where greedy answers repeat they tell nothing new, and where
    they don't each launch is another draw of its text.

    Returns:
        A sentence where there is no telling.
    """
    tables = {arm: _counts_of(launches, arm) for arm in (Arm.A, other)}
    tags = {
        (one.acceptance.source, one.acceptance.view)
        for one in launches
        if one.acceptance is not None and one.arm in tables
    }
    if len(tags) > 1:
        said = ", ".join(sorted(" ".join(tag) for tag in tags))
        return f"the sides tell their acceptance differently ({said}), so they can't be compared"
    common = [one for one in tables[Arm.A].prompt_ids if one in set(tables[other].prompt_ids)]
    if len(common) < FEWEST_PROMPTS:
        return (
            f"{len(common)} prompts to compare by, {FEWEST_PROMPTS} are needed; give more"
            " prompts, and an engine whose answers carry their own counts"
        )
    theirs, ours = tables[Arm.A].only(common), tables[other].only(common)
    expected = _ratio(theirs)
    if not expected or not ours.steps.any():
        return "side A accepted nothing, or B took no step: there is no ratio to compare"
    return change_of_ratio((ours.accepted, ours.steps), (theirs.accepted, theirs.steps), expected)


def acceptance_length(launches: Sequence[Launched], arm: Arm) -> float | None:
    """AL of all launches of a side together; None without a step."""
    totals = [one.acceptance.total for one in launches if one.arm is arm and one.acceptance]
    steps = sum(one.steps for one in totals)
    return 1 + sum(one.accepted for one in totals) / steps if steps else None


def geometric_mean(launches: Sequence[Launched], arm: Arm, name: str) -> float | None:
    """Of a quantity's values on a side's launches; None without any."""
    values = [one.values[name] for one in launches if one.arm is arm and name in one.values]
    if not values or min(values) <= 0:
        return None
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def parts_of_output(launches: Sequence[Launched], other: Arm) -> Mapping[str, float] | None:
    """Δ log(throughput) = Δ log(tokens per step) - Δ log(time of a step) + what is left.

    Returns:
        By cause, the logarithm's part, better being positive; None where one isn't known.
    """

    def moved(name: str) -> float | None:
        before, after = geometric_mean(launches, Arm.A, name), geometric_mean(launches, other, name)
        return math.log(after / before) if before and after else None

    output, tokens, step = map(moved, ("throughput_tokens_per_s", "tokens_per_step", "step_p50_ms"))
    if output is None or tokens is None or step is None:
        return None
    return {
        "acceptance": tokens,
        "the cost of a step": -step,
        "prefill and the rest": output - tokens + step,
    }


def _counts_of(launches: Sequence[Launched], arm: Arm) -> CountsTable:
    each: list[PromptAcceptance] = []
    for one in launches:
        if one.arm is arm and one.acceptance is not None:
            each.extend(one.acceptance.prompts)
    return counts_table(each)


def _ratio(table: CountsTable) -> float:
    steps = float(table.steps.sum())
    return float(table.accepted.sum()) / steps if steps else 0.0
