"""Recorded nights become samples, and are judged by the fold as they should be."""

import msgspec
import pytest

from specreg.baselines.schema import Baseline, load_baseline
from specreg.judging.nights import GPU
from specreg.judging.rules import NightFinding
from specreg.judging.samples import Sample
from specreg.judging.verdicts import NightJudge
from specreg.verdicts.history import RunRecord, began_s, load_history
from specreg.verdicts.night_samples import samples_of
from tests.unit import builders
from tests.unit.builders.histories import LATER

CASE = "vllm-eagle3-wide-8b-toy-c16"
RECORDS = load_history(builders.ROOT / "fixtures/recordings/h200/history.jsonl", LATER).of(CASE)
PLANTED_RUN = 4
"""The run in which each step took 12 ms more."""


def h200_baseline() -> Baseline:
    baseline = load_baseline(builders.ROOT / f"baselines/h200-141gb-x1/{CASE}.json")
    assert baseline is not None
    return baseline


def h200_samples(records: tuple[RunRecord, ...] = RECORDS) -> list[Sample]:
    return samples_of(CASE, "vllm", h200_baseline(), records)


def findings_after(runs: int) -> dict[str, NightFinding]:
    """Judge the last of some of the recorded runs, by metric."""
    samples = h200_samples(RECORDS[:runs])
    last_s = began_s(RECORDS[runs - 1].run)
    tonight = [sample for sample in samples if sample.began_s == last_s]
    earlier = [sample for sample in samples if sample.began_s < last_s]
    judge = NightJudge(earlier, tonight, lambda _figure: 0.05, GPU)
    return {verdict.figure.metric: verdict.finding for verdict in judge.judge(tonight)}


@pytest.mark.parametrize("runs", range(2, len(RECORDS) + 1))
def test_only_the_planted_night_of_the_h200_is_lost(runs: int) -> None:
    lost = {
        metric for metric, finding in findings_after(runs).items() if finding is NightFinding.LOST
    }
    is_planted = runs == PLANTED_RUN + 1
    assert ("throughput_tokens_per_s" in lost) is is_planted
    assert ("speedup_ratio" in lost) is is_planted
    assert bool(lost) is is_planted


def test_the_first_night_starts_the_level_and_all_its_launches_were_planned() -> None:
    throughput = [sample for sample in h200_samples() if sample.metric == "throughput_tokens_per_s"]
    # The baseline was written anew since the run that recorded it, so both are nights.
    assert [sample.starts_level for sample in throughput] == [True] + [False] * 6
    assert [sample.planned for sample in throughput] == [3, 3, 1, 1, 1, 1, 1]
    assert [len(sample.logs) for sample in throughput] == [3, 3, 1, 1, 1, 3, 1]


def test_without_the_run_that_recorded_it_the_baseline_is_the_first_night() -> None:
    samples = [
        sample for sample in h200_samples(RECORDS[1:]) if sample.metric == "throughput_tokens_per_s"
    ]
    assert len(samples) == len(RECORDS)
    assert samples[0].starts_level
    assert samples[0].logs == h200_samples()[0].logs


def test_a_level_that_was_accepted_leaves_out_the_nights_before_it() -> None:
    accepted = msgspec.structs.replace(RECORDS[3], recorded=True, accepted=True)
    records = (*RECORDS[:3], accepted, *RECORDS[4:])
    began = {sample.began_s for sample in h200_samples(records)}
    assert min(began) == began_s(RECORDS[3].run)


def test_runs_with_other_settings_and_spoiled_figures_are_left_out() -> None:
    spoiled = msgspec.structs.replace(
        RECORDS[1], outcomes={**RECORDS[1].outcomes, "throughput_tokens_per_s": "WRONG"}
    )
    other = msgspec.structs.replace(RECORDS[2], settings_sha256="other")
    samples = h200_samples((spoiled, other))
    metrics = [sample.metric for sample in samples if not sample.starts_level]
    assert "throughput_tokens_per_s" not in metrics
    assert "ttft_p50_ms" in metrics
    assert len(metrics) == len(set(metrics))


def test_a_night_on_which_the_whole_machine_was_slow_is_used() -> None:
    slow = msgspec.structs.replace(
        RECORDS[1], outcomes=dict.fromkeys(RECORDS[1].outcomes, "INVALID")
    )
    assert len(h200_samples((slow,))) == len(h200_samples((RECORDS[1],)))


def test_machines_of_one_kind_are_told_apart() -> None:
    other = msgspec.structs.replace(RECORDS[3], machine="gpu-2")
    assert {sample.machine for sample in h200_samples((*RECORDS[:3], other))} == {"", "gpu-2"}


def test_a_run_without_a_date_in_its_name_began_never() -> None:
    assert began_s("20261127T002235-2343") == pytest.approx(1795738955)
    assert began_s("my-run") == float("inf")


def test_a_baseline_that_says_no_date_is_older_than_all_runs() -> None:
    baseline = h200_baseline()
    provenance = msgspec.structs.replace(baseline.provenance, recorded_on="simulated")
    undated = msgspec.structs.replace(baseline, provenance=provenance)
    samples = samples_of(CASE, "vllm", undated, RECORDS[1:])
    assert min(sample.began_s for sample in samples) == float("-inf")
