"""Ten nights of real vLLM on a CPU, replayed as they were, and with losses planted in them."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import pytest

from specreg.baselines.schema import load_baseline
from specreg.judging.nights import CPU
from specreg.judging.rules import NightFinding
from specreg.judging.samples import Figure, Sample
from specreg.judging.verdicts import NightJudge
from specreg.matrix.tier import load_tier
from specreg.measurement.metrics import METRICS
from specreg.verdicts.detection import speed_loss
from specreg.verdicts.history import load_history
from specreg.verdicts.night_samples import samples_of
from tests.unit import builders
from tests.unit.verdicts.test_night_samples import LATER

RECORDING = builders.ROOT / "fixtures/recordings/cpu"
CASES = {case.id: case for case in load_tier(builders.ROOT / "fixtures/matrix", "cpu").cases}
SLOWER = "vllm-eagle3-tiny-toy-c4"
LOSSES = {NightFinding.LOST, NightFinding.ENGINE_LOST}
Nights = Sequence[Sequence[Sample]]


@pytest.fixture(scope="module")
def nights() -> Nights:
    """The samples of each night, the oldest first; the first one recorded the baselines."""
    history = load_history(RECORDING / "history.jsonl", LATER)
    by_start: dict[float, list[Sample]] = {}
    for path in sorted((RECORDING / "baselines").glob("*.json")):
        baseline = load_baseline(path)
        assert baseline is not None
        records = history.of(path.stem)
        for sample in samples_of(path.stem, baseline.case.engine, baseline, records):
            by_start.setdefault(sample.began_s, []).append(sample)
    return [by_start[start] for start in sorted(by_start)]


def tolerated(figure: Figure) -> float:
    metric = METRICS[figure.metric]
    return speed_loss(metric, metric.allowed_frac(CASES[figure.case]))


def findings(nights: Nights, last: int) -> Mapping[Figure, NightFinding]:
    """What is found on one of the nights."""
    earlier = [sample for night in nights[:last] for sample in night]
    judge = NightJudge(earlier, nights[last], tolerated, CPU)
    return {verdict.figure: verdict.finding for verdict in judge.judge(nights[last])}


def slower(nights: Nights, first: int, loss_frac: float, cases: Collection[str]) -> Nights:
    """The same nights, in which some cases lose a share of their speed from one night on."""
    lost = math.log(1 - loss_frac)
    return [
        [
            dataclasses.replace(sample, logs=tuple(log + lost for log in sample.logs))
            if number >= first and sample.case in cases
            else sample
            for sample in night
        ]
        for number, night in enumerate(nights)
    ]


def test_no_night_is_red(nights: Nights) -> None:
    assert len(nights) == 11
    for number in range(1, 11):
        found = findings(nights, number)
        assert len(found) == 6
        assert set(found.values()) <= {NightFinding.KEPT, NightFinding.UNDECIDED}


@pytest.mark.parametrize(
    ("first", "loss_frac", "found_on"), [(1, 0.3, 5), (2, 0.2, 4), (5, 0.2, 6), (9, 0.2, 10)]
)
def test_a_case_that_becomes_slower_is_lost_and_stays_so(
    nights: Nights, first: int, loss_frac: float, found_on: int
) -> None:
    """By one launch a night. Against the recorded night alone, nothing is proven soon."""
    planted = slower(nights, first, loss_frac, {SLOWER})
    for number in range(first, 11):
        found = findings(planted, number)
        lost = {figure.case for figure, finding in found.items() if finding in LOSSES}
        assert lost == ({SLOWER} if number >= found_on else set())
        kept = {figure.case for figure, finding in found.items() if finding is NightFinding.KEPT}
        assert SLOWER not in kept


@pytest.mark.parametrize("loss_frac", [0.1, 0.2, 0.3])
def test_what_all_cases_lose_with_the_same_software_is_the_machines(
    nights: Nights, loss_frac: float
) -> None:
    planted = slower(nights, 5, loss_frac, CASES)
    for number in range(5, 11):
        found = set(findings(planted, number).values())
        assert not LOSSES & found
        assert (found == {NightFinding.MACHINE_SLOW}) is (loss_frac == 0.3)
