"""About how long a case takes, worked out by hand."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from specreg.baselines.estimate import (
    START_S,
    Estimate,
    Estimates,
    estimates_of,
    run_min,
    turns_of,
    within_budget,
)
from specreg.baselines.schema import Baseline, baseline_path, record_baseline
from specreg.baselines.store import BaselineStore
from specreg.core.errors import SpecregError
from specreg.engines.settings import Parallel
from specreg.matrix.case import Case, Sizes, Tier
from specreg.matrix.schema import Arrivals, Load
from specreg.telemetry.identity import Environment, Gpus
from tests.unit import builders

H200 = builders.gpus("NVIDIA H200", memory_gib=141, bandwidth_gib_per_s=4000.0)
NO_GPUS = builders.gpus()
ON_GPU = Environment(kind="gpu", gpus=("NVIDIA H200",), gpu_memory_gb=151)
SIZES = Sizes(target_gib=16.0, draft_gib=2.0, token_kib=128.0)
PLAIN_SIZES = dataclasses.replace(SIZES, draft_gib=0.0)

PLAIN = dataclasses.replace(builders.PLAIN_CASE, prompts=20, rounds=4)
CASE = dataclasses.replace(builders.CASE, control=PLAIN.server, prompts=20, rounds=4)


def tier(*cases: Case, needs_gpus: int = 0) -> Tier:
    """A tier of some cases."""
    return Tier(name="cpu", needs_gpus=needs_gpus, cases=cases)


def record(folder: Path, case: Case, baseline: Baseline) -> None:
    """Writes a baseline of a case."""
    record_baseline(baseline_path(folder, baseline.environment.name, case.id), baseline)


def store(folder: Path, environment: Environment = builders.ENVIRONMENT) -> BaselineStore:
    """The baselines of a machine."""
    return BaselineStore(folder=folder, environment=environment)


def estimate(folder: Path, case: Case = CASE) -> Estimate | None:
    """Of a case on this machine, which has no GPU."""
    return estimates_of(tier(case), store(folder), NO_GPUS, builders.ROOT)[case.id]


def speed(tokens_per_s: float) -> dict[str, float]:
    """What a launch recorded."""
    return {"throughput_tokens_per_s": tokens_per_s}


def test_what_was_recorded_is_tokens_of_an_answer_over_their_speed(tmp_path: Path) -> None:
    """Each answer of the case has 1 + 6 + 4 tokens, at 50, 110 or 500 per second: 0.1 s each."""
    of = builders.counts(1, 1, 1, 1)
    record(tmp_path, CASE, builders.baseline(speed(50.0), speed(110.0), speed(500.0), of=of))
    record(tmp_path, PLAIN, builders.baseline(speed(40.0)))
    found = estimate(tmp_path)
    assert found is not None
    assert found.own_s == pytest.approx(0.1)
    assert found.beside_s == 20 / 40  # its baseline says no tokens, so they are as many as may be
    assert (found.fixed_s, found.extra_prompts, found.source) == (0.0, 7 * 2, "recorded")


def test_each_turn_of_a_conversation_has_an_answer(tmp_path: Path) -> None:
    of = builders.counts(1, 1, 1, 1)
    baseline = builders.baseline(speed(110.0), of=of)
    assert baseline.acceptance is not None
    answers = tuple(
        msgspec.structs.replace(one, turn=turn)
        for one in baseline.acceptance.prompts
        for turn in (1, 2)
    )
    twice = msgspec.structs.replace(baseline.acceptance, prompts=answers)
    alone = dataclasses.replace(CASE, control=None)
    record(tmp_path, alone, msgspec.structs.replace(baseline, acceptance=twice))
    found = estimate(tmp_path, alone)
    assert found is not None
    assert found.own_s == pytest.approx(0.2)
    assert found.beside_s == 0.0


def test_another_machine_of_the_kind_is_better_than_nothing(tmp_path: Path) -> None:
    other = builders.OTHER_ENVIRONMENT
    record(tmp_path, CASE, builders.baseline(speed(100.0), environment=other))
    record(tmp_path, PLAIN, builders.baseline(speed(100.0)))
    found = estimate(tmp_path)
    assert found is not None
    assert found.source == f"recorded on {other.name} and recorded"


def test_without_a_speed_there_is_no_telling(tmp_path: Path) -> None:
    record(tmp_path, CASE, builders.baseline(speed(100.0)))
    assert estimate(tmp_path) is None  # nothing is known of its control
    record(tmp_path, PLAIN, builders.baseline({"tpot_p50_ms": 1.0}))
    assert estimate(tmp_path) is None


def guessed(folder: Path, case: Case, gpus: Gpus = H200) -> Estimate:
    """The guess of a case for a GPU."""
    found = estimates_of(tier(case, needs_gpus=1), store(folder, ON_GPU), gpus, builders.ROOT)[
        case.id
    ]
    assert found is not None
    return found


def sized(case: Case, sizes: Sizes) -> Case:
    """The case with what its models take."""
    return dataclasses.replace(case, server=dataclasses.replace(case.server, sizes=sizes))


def test_a_guess_reads_all_weights_at_half_the_bandwidth(tmp_path: Path) -> None:
    """16 GiB at 2000 GiB/s are 8 ms a step; 20 of them for two requests at once are 80 ms each.

    Of 16 GiB are 8.6e9 parameters; on each of 1004 tokens they do 2 operations, 86 ms in all.
    """
    found = guessed(tmp_path, sized(PLAIN, PLAIN_SIZES))
    assert found.own_s == pytest.approx(0.080 + 0.0862, abs=1e-4)
    assert found.source == "guess"


def test_where_no_gpu_is_a_guess_is_of_an_h100(tmp_path: Path) -> None:
    case = sized(PLAIN, PLAIN_SIZES)
    slower = guessed(tmp_path, case, NO_GPUS).own_s - 0.0862
    assert slower == pytest.approx(0.080 * 4000 / 3120, rel=0.01)


def test_nobody_guesses_at_a_draft_of_unknown_size(tmp_path: Path) -> None:
    case = sized(CASE, dataclasses.replace(SIZES, draft_gib=None))
    gpus = estimates_of(tier(case, needs_gpus=1), store(tmp_path, ON_GPU), H200, builders.ROOT)
    assert gpus == {case.id: None}


def test_a_case_is_measured_beside_its_control_and_then_proved() -> None:
    """Eight prompts and ten to warm up, on both; eight more on its own."""
    one = Estimate(own_s=1.0, beside_s=2.0, fixed_s=0.0, extra_prompts=10, source="guess")
    assert one.case_s(8) == 3 * 18 + 8
    assert dataclasses.replace(one, fixed_s=100.0).case_s(8) == 100 + 3 * 10 + 8
    assert dataclasses.replace(one, power_s=60.0).case_s(8) == one.case_s(8) + 60


def test_a_rate_takes_its_time_and_a_duration_too(tmp_path: Path) -> None:
    load = Load(arrivals=Arrivals.POISSON, requests_per_s=0.5, duration_s=30.0)
    case = dataclasses.replace(PLAIN, load=load)
    record(tmp_path, case, builders.baseline(speed(100.0)))
    found = estimate(tmp_path, case)
    assert found is not None
    assert (found.own_s, found.fixed_s) == (2.0, 4 * 30.0)


ESTIMATES: Estimates = {
    CASE.id: Estimate(own_s=1.0, beside_s=2.0, fixed_s=0.0, extra_prompts=10, source="guess"),
    PLAIN.id: Estimate(own_s=2.0, beside_s=0.0, fixed_s=0.0, extra_prompts=10, source="guess"),
}
BOTH = (PLAIN, CASE)
PLAIN_S = 2 * 30 + 2 * 20
CASE_S = 3 * 30 + 20


def test_a_run_starts_each_server_once_and_counts_each_gpu() -> None:
    whole = run_min(BOTH, ESTIMATES, "cpu")
    assert whole == pytest.approx((2 * START_S["cpu"] + PLAIN_S + CASE_S) / 60)
    assert run_min(BOTH, ESTIMATES, "cpu", launches=3) == pytest.approx(3 * whole)
    wide = dataclasses.replace(CASE.server, parallel=Parallel(tensor=4))
    over_four = dataclasses.replace(CASE, server=wide, control=None)
    assert run_min([over_four], ESTIMATES, "gpu") == pytest.approx(
        4 * (START_S["gpu"] + CASE_S) / 60
    )


def budgeted(budget_min: float, *cases: Case) -> list[int]:
    """How many prompts a budget leaves each case."""
    left = within_budget(cases, ESTIMATES, "cpu", budget_min=budget_min)
    return [case.prompts for case in left]


def test_a_budget_lowers_the_prompts_of_each_case_evenly() -> None:
    longer = dataclasses.replace(CASE, prompts=40)
    fewer = [PLAIN.replaying(10), longer.replaying(20)]
    assert budgeted(run_min(fewer, ESTIMATES, "cpu"), PLAIN, longer) == [10, 20]


def test_a_budget_leaves_a_prompt_to_each_round() -> None:
    least = [PLAIN.replaying(4), CASE.replaying(4)]
    assert budgeted(run_min(least, ESTIMATES, "cpu"), *BOTH) == [4, 4]


def test_a_budget_that_nothing_fits_into_says_the_least() -> None:
    least = run_min([PLAIN.replaying(4), CASE.replaying(4)], ESTIMATES, "cpu")
    with pytest.raises(SpecregError, match=rf"min 1\.5: the run takes about {least:.1f} at least"):
        budgeted(1.5, *BOTH)


def test_a_budget_takes_an_estimate_of_each_case() -> None:
    with pytest.raises(SpecregError, match=f"nothing tells how long {CASE.id} takes"):
        within_budget(BOTH, {**ESTIMATES, CASE.id: None}, "cpu", budget_min=1000)


def test_the_turns_are_those_of_the_prompts_or_as_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECREG_DATA", str(tmp_path))
    published = dataclasses.replace(CASE, dataset="mt-bench")
    assert turns_of(builders.ROOT, CASE) == 1.0
    assert turns_of(builders.ROOT, published) == 2.0
    assert turns_of(builders.ROOT, dataclasses.replace(published, turns=1)) == 1.0
    assert turns_of(builders.ROOT, dataclasses.replace(CASE, dataset="gsm8k")) == 1.0
