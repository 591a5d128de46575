import math
import statistics

import numpy as np
import pytest

from specreg.acceptance.record import AcceptanceRecord, Source, View
from specreg.compare.gate.changes import (
    acceptance_length,
    change_of_acceptance,
    change_of_speed,
    geometric_mean,
    parts_of_output,
)
from specreg.compare.gate.launched import Arm, Launched
from tests.unit import builders

ORDER = (Arm.A, Arm.B, Arm.B, Arm.A)
NAME = "throughput_tokens_per_s"
ROUNDING = 0.005 / math.sqrt(12)
"""The standard deviation of what lies anywhere in a bucket, 1/200 wide as a logarithm."""


def launches(of: dict[Arm, float], blocks: int = 2, **drift: float) -> list[Launched]:
    """ABBA ABBA, each launch at its side's value, times a drift from launch to launch."""
    return [
        Launched(
            case_id="case",
            arm=arm,
            block=1 + place // 4,
            number=place + 1,
            values={NAME: of[arm] * math.exp(drift.get("drift", 0.0) * place)},
        )
        for place, arm in enumerate(ORDER * blocks)
    ]


def beside(*pairs: tuple[float, float]) -> list[Launched]:
    """Launches of A and B, two at a time."""
    return [
        Launched(case_id="case", arm=arm, block=1, number=number, values={NAME: value})
        for number, pair in enumerate(pairs, start=1)
        for arm, value in zip((Arm.A, Arm.B), pair, strict=True)
    ]


def with_counts(arm: Arm, record: AcceptanceRecord, number: int = 1) -> Launched:
    return Launched(case_id="case", arm=arm, block=1, number=number, acceptance=record)


def test_a_speed_changes_by_the_difference_of_its_logarithms() -> None:
    change = change_of_speed(launches({Arm.A: 100.0, Arm.B: 95.0}), Arm.B, NAME, 1)
    assert change is not None
    assert change.estimate_frac == pytest.approx(math.log(0.95))
    assert change.error_frac == pytest.approx(ROUNDING * math.sqrt(1 / 4 + 1 / 4))
    assert change.freedom == 5  # eight launches; level, drift and side are estimated


def test_less_is_better_where_the_sign_says_so() -> None:
    change = change_of_speed(launches({Arm.A: 100.0, Arm.B: 95.0}), Arm.B, NAME, -1)
    assert change is not None
    assert change.estimate_frac == pytest.approx(-math.log(0.95))


def test_a_steady_drift_is_no_change_and_no_error() -> None:
    change = change_of_speed(launches({Arm.A: 100.0, Arm.B: 100.0}, drift=0.05), Arm.B, NAME, 1)
    assert change is not None
    assert change.estimate_frac == 0
    assert change.error_frac == pytest.approx(ROUNDING * math.sqrt(1 / 4 + 1 / 4), rel=0.05)


def test_the_error_is_that_of_two_means_where_nothing_drifts() -> None:
    """s √(1/n + 1/m), with the spread that is left and n + m - 3 degrees of freedom."""
    random = np.random.default_rng(1)
    errors, estimates = [], []
    for _ in range(400):
        noisy = [
            Launched(
                case_id="case",
                arm=one.arm,
                block=one.block,
                number=one.number,
                values={NAME: math.exp(random.normal(0, 0.01))},
            )
            for one in launches({Arm.A: 1.0, Arm.B: 1.0})
        ]
        change = change_of_speed(noisy, Arm.B, NAME, 1)
        assert change is not None
        errors.append(change.error_frac**2)
        estimates.append(change.estimate_frac)
    expected = 0.01**2 * (1 / 4 + 1 / 4)
    assert statistics.fmean(errors) == pytest.approx(expected, rel=0.1)
    assert statistics.pvariance(estimates) == pytest.approx(expected, rel=0.2)


def test_what_the_machine_does_to_launches_that_are_up_together_is_no_change() -> None:
    some = beside((100.0, 95.0), (50.0, 47.5), (80.0, 76.0), (10.0, 9.5))
    change = change_of_speed(some, Arm.B, NAME, 1)
    assert change is not None
    assert change.estimate_frac == pytest.approx(math.log(0.95))
    assert change.error_frac == pytest.approx(ROUNDING * math.sqrt(2 / 4))
    assert change.freedom == 3


def test_the_error_of_pairs_is_that_of_their_mean_difference() -> None:
    """Differences of log 1.1, twice log 1, and log 0.9: a mean, and s/√4."""
    some = beside((1.0, 1.1), (2.0, 2.0), (3.0, 3.0), (10.0, 9.0))
    change = change_of_speed(some, Arm.B, NAME, -1)
    assert change is not None
    assert change.estimate_frac == pytest.approx(-(0.0953102 - 0.1053605) / 4, rel=1e-5)
    # s² of 0.0953102, 0, 0 and -0.1053605 about -0.0025126, by hand.
    assert change.error_frac == pytest.approx(
        math.sqrt((0.00671982 + 2 * ROUNDING**2) / 4), rel=1e-4
    )


def test_a_launch_whose_pair_is_missing_is_left_out() -> None:
    some = beside((1.0, 1.1), (2.0, 2.2), (3.0, 3.3), (4.0, 4.4), (5.0, 9.0))
    change = change_of_speed(some[:-1], Arm.B, NAME, 1)
    assert change is not None
    assert change.freedom == 3
    assert change.estimate_frac == pytest.approx(math.log(1.1))
    assert change_of_speed(some[:7], Arm.B, NAME, 1) is None


def test_one_block_or_one_side_alone_tell_nothing() -> None:
    some = launches({Arm.A: 1.0, Arm.B: 1.0})
    assert change_of_speed(some[:5], Arm.B, NAME, 1) is None
    assert change_of_speed([one for one in some if one.arm is Arm.A], Arm.B, NAME, 1) is None


def test_acceptance_is_compared_prompt_by_prompt() -> None:
    before = builders.acceptance(builders.counts(0, 0, 10), prompts=6)
    after = builders.acceptance(builders.counts(0, 1, 9), prompts=6)
    change = change_of_acceptance([with_counts(Arm.A, before), with_counts(Arm.B, after)], Arm.B)
    assert not isinstance(change, str)
    assert change.estimate_frac == pytest.approx(19 / 20 - 1)


def test_launches_of_a_side_are_added_up() -> None:
    one = builders.acceptance(builders.counts(0, 0, 10), prompts=6)
    other = builders.acceptance(builders.counts(10, 0, 0), prompts=6)
    arms = [with_counts(Arm.A, one), with_counts(Arm.B, one), with_counts(Arm.B, other, 2)]
    change = change_of_acceptance(arms, Arm.B)
    assert not isinstance(change, str)
    assert change.estimate_frac == pytest.approx(-0.5)
    assert acceptance_length(arms, Arm.B) == 2.0


def test_acceptance_of_few_prompts_isnt_compared() -> None:
    record = builders.acceptance(builders.counts(0, 0, 10), prompts=4)
    said = change_of_acceptance([with_counts(Arm.A, record), with_counts(Arm.B, record)], Arm.B)
    assert said == (
        "4 prompts to compare by, 5 are needed; give more prompts, and an engine whose answers"
        " carry their own counts"
    )


def test_acceptance_from_different_sources_isnt_compared() -> None:
    counts = builders.counts(0, 0, 10)
    counted = builders.acceptance(counts, Source.VLLM_COUNTERS, prompts=6)
    told = builders.acceptance(counts, prompts=6)
    said = change_of_acceptance([with_counts(Arm.A, counted), with_counts(Arm.B, told)], Arm.B)
    assert isinstance(said, str)
    assert f"{Source.VLLM_COUNTERS} {View.VERIFIER}" in said


def test_output_is_split_into_what_it_is_made_of() -> None:
    def launched(arm: Arm, tokens: float, step_ms: float, rest: float) -> Launched:
        values = {"tokens_per_step": tokens, "step_p50_ms": step_ms, NAME: rest * tokens / step_ms}
        return Launched(case_id="case", arm=arm, block=1, number=1, values=values)

    both = [launched(Arm.A, 2.0, 10.0, 1.0), launched(Arm.B, 1.8, 11.0, 0.99)]
    parts = parts_of_output(both, Arm.B)
    assert parts is not None
    assert parts["acceptance"] == pytest.approx(math.log(0.9))
    assert parts["the cost of a step"] == pytest.approx(-math.log(1.1))
    assert parts["prefill and the rest"] == pytest.approx(math.log(0.99))
    a, b = geometric_mean(both, Arm.A, NAME), geometric_mean(both, Arm.B, NAME)
    assert a is not None
    assert b is not None
    assert sum(parts.values()) == pytest.approx(math.log(b / a))


def test_output_without_its_parts_isnt_split() -> None:
    assert parts_of_output(launches({Arm.A: 1.0, Arm.B: 1.0}), Arm.B) is None
