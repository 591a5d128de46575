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
from tests.unit.builders.histories import LATER

RECORDING = builders.ROOT / "fixtures/recordings/cpu"
CASES = {case.id: case for case in load_tier(builders.ROOT / "fixtures/matrix", "cpu").cases}
SLOWER = "vllm-eagle3-tiny-toy-c4"
LAST = 10
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


def tolerance_of(figure: Figure) -> float:
    metric = METRICS[figure.metric]
    return speed_loss(metric, metric.allowed_frac(CASES[figure.case]))


def judge_night(nights: Nights, number: int) -> Mapping[str, NightFinding]:
    """Return the finding on each case on one of the nights."""
    earlier = [sample for night in nights[:number] for sample in night]
    judge = NightJudge(earlier, nights[number], tolerance_of, CPU)
    return {verdict.figure.case: verdict.finding for verdict in judge.judge(nights[number])}


def with_loss(nights: Nights, first: int, loss_frac: float, cases: Collection[str]) -> Nights:
    """Return the nights with some cases slower from one night on."""
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
    assert len(nights) == 1 + LAST
    for number in range(1, 1 + LAST):
        findings = judge_night(nights, number)
        assert len(findings) == 6
        assert set(findings.values()) <= {NightFinding.KEPT, NightFinding.UNDECIDED}


@pytest.mark.parametrize(
    ("first", "loss_frac", "named_by"),
    [(1, 0.15, 5), (1, 0.2, 4), (1, 0.3, 3), (2, 0.2, 4), (5, 0.2, 6), (9, 0.2, 10)],
)
def test_a_case_that_becomes_slower_is_lost_and_stays_so(
    nights: Nights, first: int, loss_frac: float, named_by: int
) -> None:
    """By one launch a night. Against the recorded night alone, nothing is proven soon."""
    planted = with_loss(nights, first, loss_frac, {SLOWER})
    for number in range(first, 1 + LAST):
        findings = judge_night(planted, number)
        named = {case for case, finding in findings.items() if finding is NightFinding.LOST}
        assert named <= {SLOWER}
        assert findings[SLOWER] is not NightFinding.KEPT
        assert SLOWER in named or number < named_by


@pytest.mark.parametrize("loss_frac", [0.15, 0.2, 0.3])
def test_what_all_cases_lose_with_the_same_software_makes_no_case_lost(
    nights: Nights, loss_frac: float
) -> None:
    planted = with_loss(nights, 5, loss_frac, CASES)
    for number in range(5, 1 + LAST):
        findings = set(judge_night(planted, number).values())
        assert findings <= {NightFinding.UNDECIDED, NightFinding.MACHINE_SLOW}
    assert loss_frac < 0.3 or findings == {NightFinding.MACHINE_SLOW}
