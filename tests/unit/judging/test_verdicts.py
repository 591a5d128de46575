"""From samples in any order to a verdict on each figure of the last night."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from specreg.judging.nights import GPU
from specreg.judging.rules import Finding
from specreg.judging.samples import Sample
from specreg.judging.verdicts import NightJudge, SpeedVerdict

DAY_S = 86_400.0
ONE = ("engine", "vllm 1")
CASES = 8
Change = Callable[[int, int], float]
"""Returns the change of a case on a night, given both numbers."""


def nights(
    count: int,
    change: Change = lambda _case, _night: 0.0,
    *,
    machine: str = "gpu-1",
    seed: int = 1,
    software: Callable[[int], str] = lambda _night: "vllm 1",
) -> list[Sample]:
    """Draw the recording and some nights of a few cases, with spreads of 1 %."""
    drawn = np.random.default_rng(seed)
    samples = []
    for night in range(count + 1):
        common = drawn.normal(0, 0.01)
        for case in range(CASES):
            level = math.log(1000 + case) + common + change(case, night)
            launches = 3 if night == 0 else 2
            logs = tuple(level + drawn.normal(0, 0.01) for _ in range(launches))
            samples.append(
                Sample(
                    case=f"case-{case}",
                    engine="vllm",
                    machine=machine,
                    metric="throughput",
                    began_s=night * DAY_S,
                    logs=logs,
                    planned=launches,
                    software=(("engine", software(night)),),
                    starts_level=night == 0,
                )
            )
    return samples


def judged(samples: list[Sample]) -> dict[str, SpeedVerdict]:
    """Judge the last night with a tolerance of 5 %, by the case's id."""
    last_s = max(sample.began_s for sample in samples)
    earlier = [sample for sample in samples if sample.began_s < last_s]
    tonight = [sample for sample in samples if sample.began_s == last_s]
    judge = NightJudge(earlier, tonight, lambda _figure: 0.05, GPU)
    return {verdict.figure.case: verdict for verdict in judge.judge(tonight)}


def findings(samples: list[Sample]) -> set[Finding]:
    return {verdict.finding for verdict in judged(samples).values()}


def test_unchanged_nights_keep_their_level() -> None:
    assert findings(nights(10)) == {Finding.KEPT}


def test_a_slower_case_is_named_with_its_first_night() -> None:
    verdicts = judged(nights(10, lambda case, night: -0.12 * (case == 3 and night >= 7)))
    lost = [case for case, verdict in verdicts.items() if verdict.finding is Finding.LOST]
    assert lost == ["case-3"]
    assert verdicts["case-3"].since_s == 7 * DAY_S


def test_no_verdict_depends_on_the_order_of_samples_or_cases() -> None:
    samples = nights(10, lambda case, night: 0.15 * (case < 2) - 0.1 * (case == 5 and night > 6))
    by_case = sorted(samples, key=lambda sample: sample.case, reverse=True)
    assert repr(judged(by_case)) == repr(judged(samples))


def test_a_slow_machine_is_named_once_and_blames_no_case() -> None:
    verdicts = judged(nights(12, lambda _case, night: -0.3 * (night >= 10)))
    assert {verdict.finding for verdict in verdicts.values()} == {Finding.MACHINE_SLOW}
    assert verdicts["case-0"].since_s == 10 * DAY_S
    assert verdicts["case-0"].software == ((ONE,), (ONE,))
    assert verdicts["case-0"].lasted == 3


def test_a_change_of_software_on_the_first_slow_night_is_said() -> None:
    verdicts = judged(
        nights(
            12,
            lambda _case, night: -0.3 * (night >= 10),
            software=lambda night: f"vllm {1 + (night >= 10)}",
        )
    )
    assert verdicts["case-0"].software == ((ONE,), (("engine", "vllm 2"),))


def test_a_loss_of_all_that_is_within_the_tolerance_of_nothing_never_passes() -> None:
    verdicts = judged(nights(9, lambda _case, night: -0.1 * (night >= 9)))
    assert Finding.KEPT not in {verdict.finding for verdict in verdicts.values()}


def test_a_figure_without_a_recorded_level_is_not_recorded() -> None:
    samples = [
        sample for sample in nights(6) if not (sample.case == "case-0" and sample.began_s == 0)
    ]
    assert judged(samples)["case-0"].finding is Finding.NOT_RECORDED


def test_the_change_is_that_between_tonight_and_the_level_beside_it() -> None:
    samples = nights(10)
    verdict = judged(samples)["case-2"]
    tonight = [sample for sample in samples if sample.case == "case-2"][-1]
    change = sum(tonight.logs) / len(tonight.logs) - verdict.level
    assert change == pytest.approx(verdict.evidence.own + verdict.evidence.shared)


def test_cases_of_one_engine_that_lose_together_are_named_beside_the_other_engine() -> None:
    samples = []
    for engine, loss in (("vllm", -0.12), ("sglang", 0.0)):
        losses = [loss * (night >= 8) for night in range(12)]
        for sample in nights(11, lambda _case, night, losses=losses: losses[night]):  # type: ignore[misc]
            case = f"{engine}-{sample.case}"
            samples.append(dataclasses.replace(sample, case=case, engine=engine))
    by_engine = {verdict.figure.engine: verdict.finding for verdict in judged(samples).values()}
    assert by_engine == {"vllm": Finding.ENGINE_LOST, "sglang": Finding.KEPT}
