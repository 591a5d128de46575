"""Counts of an n-gram drafter by vLLM's two model runners: what they say, and how they compare.

Of 40 steps 10 find a match, which has three drafts, of which one is accepted. Model runner V1
counts the 10 steps, V2 all 40, each with three drafts.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specreg.acceptance.record import AcceptanceRecord, CountedSteps, PromptAcceptance, StepCounts
from specreg.baselines.comparison import CountingDifference, compare, counting_difference
from specreg.baselines.record import RecordingNotes, record_measurements
from specreg.baselines.schema import Baseline, load_acceptance, load_baseline, stored_acceptance
from specreg.baselines.store import BaselineStore
from specreg.compare.judging import Rules, judge_pair
from specreg.compare.pairs import Pair, Side
from specreg.core.families import Family
from specreg.engines.launch_facts import LaunchFacts
from specreg.engines.registry import ENGINES
from specreg.measurement.arm import counted_steps
from specreg.measurement.measure import Measurement, combine_with_control
from specreg.measurement.metrics import METRICS, Replay
from specreg.runs.ledger import MeasuredLaunch
from specreg.stats.intervals import Look
from specreg.verdicts.judge import judge_acceptance
from specreg.verdicts.verdict import Outcome, Verdict
from tests.unit import builders

LENGTH = METRICS["acceptance_length_tokens"]
RATE = METRICS["acceptance_rate_frac"]
FIRST = METRICS["acceptance_pos1_frac"]
SECOND = METRICS["acceptance_pos2_frac"]
CASE = builders.on_server(method="ngram", draft=None)
BY_V1 = builders.counts(0, 10, 0, 0)
BY_V2 = builders.counts(30, 10, 0, 0)
ANSWER_TOKENS = 1 + 40 + 10


def record_of(runner: str, accepted_steps: int = 10) -> AcceptanceRecord:
    """Six prompts as a runner counts them, with so many of 40 steps that accept a draft."""
    is_padded = runner == "v2"
    missed = 40 - accepted_steps
    undrafted = 0 if is_padded else missed
    counts = builders.counts(missed - undrafted, accepted_steps, 0, 0)
    prompts = [
        PromptAcceptance(
            prompt_id=f"chat-{number}",
            category="chat",
            counts=counts,
            completion_tokens=1 + 40 + accepted_steps,
        )
        for number in range(6)
    ]
    record = builders.acceptance_of(prompts)
    counted = CountedSteps.ALL if is_padded else CountedSteps.DRAFTED
    return dataclasses.replace(record, counted=counted)


def measured(runner: str, accepted_steps: int = 10) -> Measurement:
    """What a server by a runner did, with the values that it has by its own counts."""
    record = record_of(runner, accepted_steps)
    length = record.total.acceptance_length or 0.0
    rate = record.total.acceptance_rate or 0.0
    values = {LENGTH.name: length, RATE.name: rate, FIRST.name: rate * 3}
    measurement = builders.measurement(values, of=record, case=CASE)
    return dataclasses.replace(measurement, facts=LaunchFacts(model_runner=runner))


def recorded(folder: Path, launch: Measurement) -> Baseline:
    """The baseline of a launch, as it comes back from disk."""
    store = BaselineStore(folder=folder, environment=builders.ENVIRONMENT)
    notes = RecordingNotes(reason="first")
    path = record_measurements([launch], builders.SETTINGS, store, notes).path
    baseline = load_baseline(path)
    assert baseline is not None
    return baseline


def recorded_by(runner: str) -> AcceptanceRecord:
    """What an H200 counted for 20 answers that are equal by both runners."""
    path = builders.ROOT / "fixtures/recordings/vllm/0.33.0/ngram_by_runner.json"
    answers = json.loads(path.read_text())[runner]
    prompts = [
        PromptAcceptance(
            prompt_id=f"toy-{number}",
            category="toy",
            counts=StepCounts.from_histogram(
                answer["acceptance_histogram"], answer["num_draft_tokens"]
            ),
            completion_tokens=answer["completion_tokens"],
        )
        for number, answer in enumerate(answers)
    ]
    return builders.acceptance_of(prompts)


def verdicts(folder: Path, before: str, runner: str, accepted_steps: int = 10) -> Sequence[Verdict]:
    """The verdicts on length, rate and first position against a baseline of another runner."""
    known = builders.known(recorded(folder, measured(before)))
    comparison = compare([measured(runner, accepted_steps)], known)
    return [judge_acceptance(metric, comparison, Look.FULL) for metric in (LENGTH, RATE, FIRST)]


def test_the_same_steps_have_other_lengths_by_each_runners_own_counts() -> None:
    assert (BY_V1.acceptance_length, BY_V2.acceptance_length) == (2.0, 1.25)
    assert (BY_V1.acceptance_rate, BY_V2.acceptance_rate) == (10 / 30, 10 / 120)


def test_over_all_steps_both_runners_have_the_same_counts() -> None:
    by_v1 = record_of("v1").over_all_steps
    by_v2 = record_of("v2").over_all_steps
    assert by_v1.total == by_v2.total
    assert (by_v1.total.steps, by_v1.total.accepted, by_v1.total.proposed) == (240, 60, None)
    assert by_v1.prompts == by_v2.prompts


def test_on_a_real_gpu_both_runners_have_the_same_steps_over_all_steps() -> None:
    by_v1 = recorded_by("v1")
    by_v2 = recorded_by("v2")
    assert (by_v1.total.steps, by_v2.total.steps) == (244, 920)
    assert by_v1.total.acceptance_length == pytest.approx(2.016, abs=0.001)
    assert by_v2.total.acceptance_length == pytest.approx(1.274, abs=0.001)
    over_all_steps = [record.over_all_steps.total for record in (by_v1, by_v2)]
    assert [counts.steps for counts in over_all_steps] == [920, 920]
    # V2 also counts four padded drafts behind the end of an answer, which weren't delivered.
    assert [record.total.accepted for record in (by_v1, by_v2)] == [248, 252]
    assert [counts.accepted for counts in over_all_steps] == [248, 248]


def test_steps_that_nobody_counted_are_as_many_as_the_answer_needs() -> None:
    prompt = record_of("v1").prompts[0]
    assert prompt.completion_tokens == ANSWER_TOKENS
    assert prompt.over_all_steps.counts.steps == 40


@pytest.mark.parametrize(("before", "runner"), [("v1", "v2"), ("v2", "v1")])
def test_another_runner_alone_is_neither_a_loss_nor_a_gain(
    tmp_path: Path, before: str, runner: str
) -> None:
    length, rate, first = verdicts(tmp_path, before, runner)
    assert (length.outcome, length.value, length.comparison.expected) == (Outcome.PASS, 1.25, 1.25)
    assert length.explanation.startswith(f"model runner {before} -> {runner}: one counts the steps")
    for verdict in (rate, first):
        assert verdict.outcome is Outcome.NOT_COMPARABLE
        assert f"model runner {before} -> {runner}" in verdict.explanation


def test_a_loss_is_found_although_the_runner_changed(tmp_path: Path) -> None:
    length, _, _ = verdicts(tmp_path, "v1", "v2", accepted_steps=7)
    assert (length.outcome, length.value) == (Outcome.REGRESSED, 1 + 7 / 40)


def test_the_same_runner_is_judged_by_its_own_counts(tmp_path: Path) -> None:
    for runner, length_tokens in (("v1", 2.0), ("v2", 1.25)):
        length, rate, _ = verdicts(tmp_path / runner, runner, runner)
        assert (length.value, length.outcome) == (length_tokens, Outcome.PASS)
        assert rate.outcome is Outcome.PASS


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_the_kind_of_counted_steps_is_read_back_from_disk(runner: str) -> None:
    record = record_of(runner)
    loaded = load_acceptance(stored_acceptance(record))
    assert loaded is not None
    assert loaded.counted is record.counted
    assert loaded.over_all_steps.prompts == record.over_all_steps.prompts


def test_a_gate_between_two_runners_compares_all_steps() -> None:
    alone = dataclasses.replace(CASE, control=None)
    pair = Pair(a=alone, b=alone)
    launches = [
        MeasuredLaunch(case_id=pair.id, arm=side, number=1, measurement=measured(runner))
        for side, runner in ((Side.A, "v1"), (Side.B, "v2"))
    ]
    rules = Rules(launches=1, figures=1)
    (length,) = (
        verdict for verdict in judge_pair(pair, launches, rules) if verdict.metric == LENGTH.name
    )
    assert (length.outcome, length.value, length.comparison.expected) == (Outcome.PASS, 1.25, 1.25)


@pytest.mark.parametrize(
    ("changes", "runner", "by", "counted"),
    [
        ({"method": "ngram"}, "v1", BY_V1, CountedSteps.DRAFTED),
        ({"method": "ngram"}, "v2", BY_V2, CountedSteps.ALL),
        ({"method": "suffix"}, "v1", BY_V1, CountedSteps.DRAFTED),
        ({"method": "eagle3"}, "v2", BY_V2, CountedSteps.DRAFTED),
        ({"method": "ngram"}, "", BY_V2, CountedSteps.ALL),  # as a server that others started
    ],
)
def test_which_steps_are_counted_follows_from_the_runner(
    changes: dict[str, Any], runner: str, by: object, counted: CountedSteps
) -> None:
    spec = dataclasses.replace(builders.SPEC, **changes)
    record = record_of("v2" if by is BY_V2 else "v1")
    assert counted_steps(spec, record, runner) is counted


def test_an_unknown_runner_counts_only_the_steps_that_drafted() -> None:
    spec = dataclasses.replace(builders.SPEC, method="ngram")
    assert counted_steps(spec, record_of("v1"), "") is CountedSteps.DRAFTED


@pytest.mark.parametrize(
    ("method", "runner", "drafts"),
    [("ngram", "v1", False), ("ngram", "v2", True), ("suffix", "v1", False), ("mtp", "v2", True)],
)
def test_vllms_second_runner_pads_lookups_that_find_nothing(
    method: str, runner: str, *, drafts: bool
) -> None:
    for engine in ("vllm", "triton"):
        assert ENGINES[engine].drafts_every_step(method, runner) is drafts


@pytest.mark.parametrize(
    ("of_case", "of_control", "is_judged"),
    [("v1", "v2", False), ("v2", "v2", True), ("", "v2", True)],
)
def test_a_speedup_is_judged_beside_a_control_of_the_same_runner(
    of_case: str, of_control: str, *, is_judged: bool
) -> None:
    case = dataclasses.replace(measured("v1"), facts=LaunchFacts(model_runner=of_case))
    control = builders.measurement({}, case=builders.PLAIN_CASE)
    control = dataclasses.replace(control, facts=LaunchFacts(model_runner=of_control))
    combined = combine_with_control(case, control)
    assert (Family.SPEEDUP not in combined.invalid) is is_judged
    if not is_judged:
        words = (
            "has model runner v1, and its control v2, so a speedup would include their difference"
        )
        assert words in str(combined.invalid[Family.SPEEDUP])
        assert Family.ACCEPTANCE not in combined.invalid


def answers(counts: StepCounts, tokens: int) -> AcceptanceRecord:
    """Eight prompts whose answers have these counts, and so many tokens."""
    prompts = [
        PromptAcceptance(
            prompt_id=f"chat-{number}", category="chat", counts=counts, completion_tokens=tokens
        )
        for number in range(8)
    ]
    return builders.acceptance_of(prompts)


OF_VERIFIER = answers(builders.counts(0, 0, 10, 0), 1 + 28)
"""Ten steps accept two drafts each; the end of the answer cuts the two of the last one off."""
OF_CLIENT = answers(builders.counts(1, 0, 9, 0), 1 + 28)
"""The same by an engine that doesn't count them."""


def measured_as(record: AcceptanceRecord) -> Measurement:
    """What a launch with EAGLE-3 did, by its own counts."""
    values = {
        metric.name: metric.value_of(Replay(acceptance=record)) or 0.0
        for metric in (LENGTH, RATE, SECOND)
    }
    return builders.measurement(values, of=record, case=builders.CASE)


@pytest.mark.parametrize(
    ("before", "now"), [(OF_VERIFIER, OF_CLIENT), (OF_CLIENT, OF_VERIFIER)], ids=["less", "more"]
)
def test_drafts_that_are_counted_differently_are_neither_a_loss_nor_a_gain(
    tmp_path: Path, before: AcceptanceRecord, now: AcceptanceRecord
) -> None:
    """The answers have the same tokens and steps, so no drafter got worse or better."""
    known = builders.known(recorded(tmp_path, measured_as(before)))
    comparison = compare([measured_as(now)], known)
    assert comparison.counting_difference is CountingDifference.DRAFTS
    length = judge_acceptance(LENGTH, comparison, Look.FULL)
    assert (length.outcome, length.value, length.comparison.expected) == (Outcome.PASS, 2.8, 2.8)
    assert "the engine counts drafts differently, or the answers ended" in length.explanation
    for metric in (RATE, SECOND):
        assert judge_acceptance(metric, comparison, Look.FULL).outcome is Outcome.NOT_COMPARABLE


def test_answers_that_took_more_steps_are_a_loss_however_they_are_counted(tmp_path: Path) -> None:
    known = builders.known(recorded(tmp_path, measured_as(OF_VERIFIER)))
    for counts in (builders.counts(7, 0, 7, 0), builders.counts(8, 0, 6, 0)):
        comparison = compare([measured_as(answers(counts, 1 + 28))], known)
        assert comparison.counting_difference is None
        assert judge_acceptance(LENGTH, comparison, Look.FULL).outcome is Outcome.REGRESSED


def test_an_answer_that_took_other_steps_by_chance_hides_no_other_counting() -> None:
    """On a GPU, the order of additions may change a token, and with it the steps of an answer."""
    other_steps = answers(builders.counts(2, 0, 9, 0), 1 + 28).prompts[0]
    now = builders.acceptance_of([other_steps, *OF_CLIENT.prompts[1:]])
    assert counting_difference([now], [OF_VERIFIER]) is CountingDifference.DRAFTS


def test_sides_that_draft_other_numbers_of_tokens_may_count_alike() -> None:
    of_two = answers(builders.counts(0, 0, 10), 1 + 28)
    assert len(of_two.total.position_counts) < len(OF_VERIFIER.total.position_counts)
    assert counting_difference([of_two], [OF_VERIFIER]) is None


def test_a_drafter_that_got_worse_counts_no_drafts_differently() -> None:
    """Most answers took more steps; the last step of one accepted less, which no answer shows."""
    worse = answers(builders.counts(7, 0, 7, 0), 1 + 28).prompts
    now = builders.acceptance_of([*worse[:7], OF_CLIENT.prompts[7]])
    assert counting_difference([now], [OF_VERIFIER]) is None


def test_other_answers_show_nothing_about_counting() -> None:
    shorter = answers(builders.counts(1, 0, 9, 0), 1 + 27)
    assert counting_difference([shorter], [OF_VERIFIER]) is None


def test_other_numbers_of_undrafted_steps_are_no_other_counting() -> None:
    """With n-gram, as many steps that drafted may accept more, and leave fewer others."""
    more = answers(builders.counts(0, 2, 8, 0), 1 + 60)
    fewer = answers(builders.counts(0, 8, 2, 0), 1 + 60)
    assert counting_difference([more], [fewer]) is None


def test_a_gate_between_engines_that_count_drafts_differently_compares_all_steps() -> None:
    alone = dataclasses.replace(CASE, control=None)
    pair = Pair(a=alone, b=alone)
    launches = [
        MeasuredLaunch(case_id=pair.id, arm=side, number=1, measurement=measured_as(record))
        for side, record in ((Side.A, OF_VERIFIER), (Side.B, OF_CLIENT))
    ]
    rules = Rules(launches=1, figures=1)
    (length,) = (
        verdict for verdict in judge_pair(pair, launches, rules) if verdict.metric == LENGTH.name
    )
    assert (length.outcome, length.value, length.comparison.expected) == (Outcome.PASS, 2.8, 2.8)
