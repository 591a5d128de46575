"""From samples in any order to a verdict on each figure of the last night."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from specreg.judging.nights import GPU
from specreg.judging.rules import NightFinding
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


def findings(samples: list[Sample]) -> set[NightFinding]:
    return {verdict.finding for verdict in judged(samples).values()}


def test_unchanged_nights_keep_their_level() -> None:
    assert findings(nights(10)) == {NightFinding.KEPT}


def test_a_slower_case_is_named_with_its_first_night() -> None:
    verdicts = judged(nights(10, lambda case, night: -0.12 * (case == 3 and night >= 7)))
    lost = [case for case, verdict in verdicts.items() if verdict.finding is NightFinding.LOST]
    assert lost == ["case-3"]
    assert verdicts["case-3"].since_s == 7 * DAY_S


def test_no_verdict_depends_on_the_order_of_samples_or_cases() -> None:
    samples = nights(10, lambda case, night: 0.15 * (case < 2) - 0.1 * (case == 5 and night > 6))
    by_case = sorted(samples, key=lambda sample: sample.case, reverse=True)
    assert repr(judged(by_case)) == repr(judged(samples))


def test_a_slow_machine_is_named_once_and_blames_no_case() -> None:
    verdicts = judged(nights(12, lambda _case, night: -0.3 * (night >= 10)))
    assert {verdict.finding for verdict in verdicts.values()} == {NightFinding.MACHINE_SLOW}
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
    assert NightFinding.KEPT not in {verdict.finding for verdict in verdicts.values()}


def test_a_figure_without_a_recorded_level_is_not_recorded() -> None:
    samples = [
        sample for sample in nights(6) if not (sample.case == "case-0" and sample.began_s == 0)
    ]
    assert judged(samples)["case-0"].finding is NightFinding.NOT_RECORDED


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
    assert by_engine == {"vllm": NightFinding.ENGINE_LOST, "sglang": NightFinding.KEPT}


def test_a_machine_that_loses_for_good_stays_red_and_one_that_is_back_does_not() -> None:
    slow = [nights(last, lambda _case, night: -0.16 * (night >= 10)) for last in (13, 18, 28)]
    assert [findings(samples) for samples in slow] == [{NightFinding.MACHINE_SLOW}] * 3

    back = nights(20, lambda _case, night: -0.16 * (10 <= night < 20))

    assert NightFinding.MACHINE_SLOW not in findings(back)


def test_a_machine_that_loses_a_little_every_night_is_found() -> None:
    assert findings(nights(16, lambda _case, night: -0.02 * night)) == {NightFinding.MACHINE_SLOW}


def test_a_few_cases_of_many_are_not_blamed_for_what_the_machine_lost_tonight() -> None:
    earlier = nights(12)
    tonight = nights(13, lambda _case, night: -0.08 * (night == 13), seed=2)
    few = [
        sample
        for sample in tonight
        if sample.began_s == 13 * DAY_S and sample.case in {"case-0", "case-1", "case-2"}
    ]
    assert NightFinding.LOST not in findings([*earlier, *few])


def test_a_few_cases_do_not_say_that_a_machine_is_still_slow() -> None:
    slow = nights(14, lambda _case, night: -0.16 * (night >= 10))
    few = [
        sample
        for sample in slow
        if sample.began_s < 14 * DAY_S or sample.case in {"case-0", "case-1", "case-2"}
    ]
    assert NightFinding.MACHINE_SLOW not in findings(few)
    assert findings(slow) == {NightFinding.MACHINE_SLOW}


def test_a_recording_starts_a_slow_machine_anew() -> None:
    slow = nights(14, lambda _case, night: -0.16 * (night >= 10))
    recorded = [
        dataclasses.replace(
            sample, starts_level=sample.starts_level or sample.began_s == 14 * DAY_S
        )
        for sample in slow
    ]
    assert NightFinding.MACHINE_SLOW not in findings(recorded)


def test_what_is_measured_tonight_for_the_first_time_changes_no_earlier_verdict() -> None:
    samples = nights(12, lambda case, night: -0.055 * (case == 3 and night >= 8))
    further = [
        dataclasses.replace(sample, case=f"further-{number}", starts_level=True)
        for sample in samples
        if sample.began_s == 12 * DAY_S
        for number in range(100)
    ]
    before = judged(samples)["case-3"]

    assert judged([*samples, *further])["case-3"].evidence.state == before.evidence.state == -1


def test_runs_of_other_cases_make_no_loss_older() -> None:
    """Such as those of a developer, who runs one case again and again."""
    samples = nights(20, lambda case, night: -0.08 * (case == 3 and night >= 11))
    others = [
        dataclasses.replace(sample, began_s=sample.began_s + number)
        for sample in samples
        if sample.case == "case-1" and sample.began_s < 20 * DAY_S
        for number in range(1, 20)
    ]

    verdict = judged([*samples, *others])["case-3"]

    assert verdict.finding is NightFinding.LOST
    assert verdict.lasted <= 11


def test_a_figure_is_the_same_if_its_engine_has_another_name() -> None:
    renamed = [
        dataclasses.replace(sample, engine="vllm-v1") if sample.began_s > 5 * DAY_S else sample
        for sample in nights(10)
    ]
    assert findings(renamed) == {NightFinding.KEPT}


def test_a_night_without_any_figure_has_no_verdict() -> None:
    assert NightJudge([], [], lambda _figure: 0.05, GPU).judge([]) == []
