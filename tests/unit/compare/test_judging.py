"""The truth table of a metric, and what an answer makes of them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from specreg.acceptance.record import RoundAcceptance, Source, StepCounts
from specreg.compare.judging import Decision, GateAnswer, Rules, decide, is_settled, judge_pair
from specreg.compare.pairs import COMPARED, CONTROL, Group, Pair, Side
from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.measurement.metrics import ACCEPTANCE_LENGTH, GATE_METRICS, STEP, THROUGHPUT, Metric
from specreg.runs.ledger import ArmLaunch
from specreg.verdicts.status import exit_status
from specreg.verdicts.verdict import Comparison, Outcome, Verdict
from tests.bench.gate import CASES, World, simulated_decision
from tests.unit import builders
from tests.unit.builders.gates import PAIR, accepted, decision_of, failed, launch, launches

RULES = Rules(launches=8, figures=3)


CONTROL_MISSING = "UNCHECKED: side A is still to be measured against itself"


def judge(
    some: Sequence[ArmLaunch],
    rules: Rules = RULES,
    metric: str = THROUGHPUT,
    sides: tuple[Side, Side] = COMPARED,
) -> Verdict:
    return {verdict.metric: verdict for verdict in judge_pair(PAIR, some, rules, sides)}[metric]


def answer(some: Sequence[ArmLaunch], *answers: Verdict) -> Decision:
    return decide([PAIR], some, RULES, answers)


def answers(outcome: Outcome, reason: str = "token 4", equal_frac: float = 1.0) -> Verdict:
    return Verdict(
        case_id=PAIR.id,
        metric="lossless_frac",
        outcome=outcome,
        reason=Reason(text=reason),
        value=equal_frac,
    )


@pytest.mark.parametrize(
    ("change_frac", "outcome"),
    [
        (0.0, Outcome.PASS),
        (-0.01, Outcome.PASS),
        (-0.1, Outcome.REGRESSED),
        (0.1, Outcome.IMPROVED),
        (-0.0295, Outcome.INCONCLUSIVE),  # close to the tolerance
    ],
)
def test_the_outcome_looks_at_the_whole_interval(change_frac: float, outcome: Outcome) -> None:
    verdict = judge(launches(change_frac))
    assert verdict.outcome is outcome
    assert verdict.comparison.change_frac == pytest.approx(change_frac, abs=0.002)
    assert verdict.value == pytest.approx(100 * (1 + change_frac), rel=0.01)
    assert verdict.comparison.expected == pytest.approx(100, rel=0.01)


def test_a_side_without_a_valid_launch_says_what_spoilt_its_last_one() -> None:
    behind = Reason(code="CLIENT_BEHIND", text="the client woke 8.4 ms late")
    measured = launch(Side.A, 1)
    assert measured.measurement is not None
    spoilt = dataclasses.replace(measured.measurement, invalid={Family.THROUGHPUT: behind})
    both = [dataclasses.replace(measured, measurement=spoilt), launch(Side.B, 1)]
    verdict = judge(both)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason == Reason.of("no_valid_launch", side=Side.A, invalid=behind)
    died = Reason.of("no_valid_launch", side=Side.B, invalid="it died")
    assert judge([launch(Side.A, 1), failed(Side.B, 1)]).reason == died
    assert judge([launch(Side.A, 1)]).reason == Reason.of("not_launched", side=Side.B)


def test_what_slows_both_sides_equally_is_neither_change_nor_noise() -> None:
    """A machine that is half as fast for some launches."""
    some = [
        launch(side, number, tokens_per_s=100.0 / (1 + number % 2))
        for number in range(1, 9)
        for side in (Side.A, Side.B)
    ]
    verdict = judge(some)
    assert (verdict.outcome, verdict.comparison.change_frac) == (Outcome.PASS, 0.0)


def test_looks_come_when_the_number_of_launches_has_doubled() -> None:
    assert Rules(launches=16, figures=1).looks == (1, 2, 4, 8, 16)
    assert Rules(launches=12, figures=1).looks == (1, 2, 4, 8, 12)
    assert Rules(launches=1, figures=1).looks == (1,)


@pytest.mark.parametrize(
    ("metric", "first_level", "last_level"),
    [(THROUGHPUT, 0.01 / 256, 0.0075), (ACCEPTANCE_LENGTH, 0.005 + 0.005 / 256, 0.00375)],
)
def test_the_looks_share_one_level(metric: str, first_level: float, last_level: float) -> None:
    """The last look at a speed has most of it; at acceptance the first, which knows nearly all."""
    rules = Rules(launches=16, figures=4)
    levels = [rules.level_after(look, GATE_METRICS[metric]) for look in rules.looks]
    assert math.fsum(levels) == pytest.approx(0.01)
    assert (levels[0], levels[-1]) == pytest.approx((first_level, last_level))


def launches_of_three(count: int, noise: float = 0.2) -> list[ArmLaunch]:
    """Launches of three pairs, of which the first loses 10 %."""
    other_pairs = [dataclasses.replace(PAIR, a=builders.with_concurrency(n)) for n in (3, 4)]
    some = [
        dataclasses.replace(launch, case_id=pair.id)
        for pair in (PAIR, *other_pairs)
        for launch in launches(-0.1 if pair is PAIR else 0.0, noise=noise, count=count)
    ]
    return sorted(some, key=lambda launch: launch.number)


def test_other_pairs_tell_how_launches_differ() -> None:
    """Two launches of three pairs have three degrees of freedom; two of one decide no speed."""
    some = launches_of_three(2)
    assert judge(some).comparison.low_frac is not None
    alone = judge([launch for launch in some if launch.case_id == PAIR.id])
    assert (alone.outcome, alone.comparison.low_frac) == (Outcome.INCONCLUSIVE, None)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_than_four_launches_are_never_called_enough_for_a_speed(count: int) -> None:
    for noise in (0.2, 2.0):
        verdict = judge(launches_of_three(count, noise))
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert (verdict.needed_launches or 0) >= 4


@pytest.mark.parametrize(("count", "outcome"), [(2, Outcome.INCONCLUSIVE), (4, Outcome.REGRESSED)])
def test_a_loss_must_show_in_a_pairs_own_launches(count: int, outcome: Outcome) -> None:
    """By the spread of quieter pairs, a noisier one would seem to have lost something."""
    verdict = judge(launches_of_three(count))
    assert verdict.outcome is outcome
    assert (verdict.needed_launches == 4) is (outcome is Outcome.INCONCLUSIVE)


def test_what_a_look_has_decided_stays_decided() -> None:
    later = [
        dataclasses.replace(launch, number=launch.number + 8) for launch in launches(-0.5, count=2)
    ]
    verdict = judge([*launches(0.0), *later], Rules(launches=10, figures=3))
    assert verdict.outcome is Outcome.PASS
    assert verdict.launches < 10


def test_a_loss_must_stand_among_all_figures() -> None:
    some = launches(-0.1, noise=2, count=4)
    assert judge(some, Rules(launches=4, figures=1)).outcome is Outcome.REGRESSED
    assert judge(some, Rules(launches=4, figures=10_000)).outcome is Outcome.INCONCLUSIVE


def test_the_predicted_number_of_launches_decides() -> None:
    """With the same spread and estimate; and with far fewer there would be none."""
    rules = Rules(launches=40, figures=3)
    verdict = judge(launches(0.0, noise=5, count=4), rules)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.needed_launches is not None
    assert verdict.needed_launches > 4
    enough = judge(launches(0.0, noise=5, count=2 * verdict.needed_launches), rules)
    assert enough.outcome is Outcome.PASS
    assert enough.launches > verdict.needed_launches * 0.5


LESS = [launch(Side.A, 1), launch(Side.B, 1, acceptance=accepted(4, 3, 2, 1))]
FEW = [launch(side, 1, acceptance=accepted().only({"chat-0", "chat-1"})) for side in COMPARED]
ONE_FAILED = [failed(Side.B, 1), *launches()[2:], launch(Side.A, 1)]
DEAD = [launch(Side.A, 1), failed(Side.B, 1), launch(Side.A, 2), failed(Side.B, 2)]
EACH_FAILED = [failed(Side.A, 1), failed(Side.B, 2)]


@pytest.mark.parametrize(
    ("some", "metric", "outcome", "reason"),
    [
        pytest.param(launches(count=1), ACCEPTANCE_LENGTH, Outcome.PASS, "", id="accepts-alike"),
        pytest.param(LESS, ACCEPTANCE_LENGTH, Outcome.REGRESSED, "", id="accepts-less"),
        pytest.param(FEW, ACCEPTANCE_LENGTH, Outcome.INVALID, "2 shared prompts, 5 are", id="few"),
        pytest.param(DEAD, THROUGHPUT, Outcome.INVALID, "side B: it died", id="fails-twice"),
        pytest.param(ONE_FAILED, THROUGHPUT, Outcome.PASS, "", id="fails-once"),
        pytest.param(
            EACH_FAILED, THROUGHPUT, Outcome.INCONCLUSIVE, "side A has no", id="each-fails"
        ),
        pytest.param(
            EACH_FAILED, ACCEPTANCE_LENGTH, Outcome.INCONCLUSIVE, "side A has no", id="too"
        ),
    ],
)
def test_few_prompts_and_failed_launches_have_their_reason(
    some: Sequence[ArmLaunch], metric: str, outcome: Outcome, reason: str
) -> None:
    verdict = judge(some, metric=metric)
    assert verdict.outcome is outcome
    assert verdict.explanation.startswith(reason)


def test_a_later_launch_changes_no_look_that_was_made() -> None:
    """A first launch failed; made up for after the eighth, it counts there."""
    some = [launch for launch in launches(noise=0.5, count=16) if launch.number != 1]
    late = [launch(side, 1, tokens_per_s=50.0 + 50 * (side is Side.A)) for side in (Side.A, Side.B)]
    rules = Rules(launches=16, figures=3)
    first = judge(some, rules)
    again = judge([*some, *late], rules)
    assert first.outcome is Outcome.PASS
    assert (again.comparison.low_frac, again.launches) == (
        first.comparison.low_frac,
        first.launches,
    )


def test_a_tolerance_may_be_another() -> None:
    rules = Rules(launches=8, figures=3, tolerances={THROUGHPUT: 0.2})
    assert judge(launches(-0.1), rules).outcome is Outcome.PASS


class _QueuePair(Pair):
    """A pair that is compared by a counter, which its servers lack."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (Metric(name="queue_ms", family=Family.LATENCY, counters=("queue_s",)),)


def test_a_metric_whose_counter_a_server_lacks_leaves_the_answer_alone() -> None:
    pair = _QueuePair(a=PAIR.a, b=PAIR.b)
    (verdict,) = judge_pair(pair, launches(count=4), RULES)
    assert verdict.outcome is Outcome.NOT_COMPARABLE


def test_a_metric_that_does_not_decide_is_only_measured() -> None:
    pair = Pair(a=PAIR.a, b=builders.on_server(draft_tokens=5))
    some = [dataclasses.replace(launch, case_id=pair.id) for launch in launches(-0.1)]
    by_metric = {verdict.metric: verdict for verdict in judge_pair(pair, some, RULES)}
    assert by_metric[THROUGHPUT].outcome is Outcome.REGRESSED
    assert (by_metric[STEP].outcome, by_metric[STEP].explanation) == (Outcome.MEASURED, "")
    assert by_metric[STEP].comparison.change_frac == 0.0


def test_a_metric_that_does_not_decide_has_all_launches() -> None:
    """A gate of four launches that goes on to eight shows the time of a step over all eight."""
    further = [
        launch(side, number, tokens_per_s=100.0 if side is Side.A else 110.0, step_ms=5.0)
        for number in range(5, 9)
        for side in COMPARED
    ]
    some = [*launches(0.1, count=4), *further]
    by_metric = {verdict.metric: verdict for verdict in judge_pair(PAIR, some, RULES)}
    assert (by_metric[THROUGHPUT].outcome, by_metric[THROUGHPUT].launches) == (Outcome.IMPROVED, 4)
    assert by_metric[STEP].launches == 8
    assert by_metric[STEP].value == pytest.approx(math.sqrt(50), rel=0.01)


def test_an_upgrade_needs_every_metric_proven_and_one_loss_refuses_it() -> None:
    assert answer(launches()).answer is GateAnswer.UPGRADE
    lost = answer([*launches(-0.1), *launches(sides=CONTROL, count=1)])
    assert lost.answer is GateAnswer.DONT
    message = f"{PAIR.id} is worse because of prefill and the rest: throughput_tokens_per_s -10.0%"
    assert lost.reasons == (message,)
    assert [exit_status(decision.verdicts) for decision in (answer(launches()), lost)] == [0, 1]


def test_an_undecided_gate_is_no_upgrade() -> None:
    decision = answer(launches(noise=10))
    assert decision.answer is GateAnswer.UNDECIDED
    assert exit_status(decision.verdicts) == 10
    assert decision.needed_launches > RULES.launches
    (bound,) = (reason for reason in decision.reasons if "throughput" in reason)
    low = judge(launches(noise=10)).comparison.low_frac
    assert low is not None
    message = f"throughput is worse by {-low:.1%} at most ({PAIR.id})"
    assert bound == message
    assert answer([]).answer is GateAnswer.UNDECIDED


def test_changed_answers_are_no_upgrade_however_fast() -> None:
    assert answer(launches(0.1), answers(Outcome.PASS)).answer is GateAnswer.UPGRADE
    assert answer(launches(), answers(Outcome.NOT_COMPARABLE)).answer is GateAnswer.UPGRADE
    wrong = answer(launches(0.1), answers(Outcome.WRONG))
    assert (wrong.answer, wrong.reasons) == (GateAnswer.DONT, (f"{PAIR.id}: token 4",))
    unknown = answer(launches(0.1), answers(Outcome.INVALID))
    assert unknown.answer is GateAnswer.UNDECIDED
    assert unknown.unclear == (f"{PAIR.id}: token 4 (lossless_frac)",)


def test_answers_of_which_few_are_equal_pass_with_a_remark() -> None:
    message = "0.0% of 5 answers are equal; 5 part where B holds both tokens within 0.25 nats"
    decision = answer(launches(), answers(Outcome.PASS, message, 0.0))
    assert (decision.answer, decision.reasons) == (GateAnswer.UPGRADE, (f"{PAIR.id}: {message}",))
    assert answer(launches(), answers(Outcome.PASS, message, 0.8)).reasons == ()


def outcome_of_output(decision: Decision) -> tuple[GateAnswer, Outcome, str]:
    """The answer, and what it says of throughput."""
    (output,) = (verdict for verdict in decision.verdicts if verdict.metric == THROUGHPUT)
    return decision.answer, output.outcome, output.explanation


def test_a_side_that_differs_from_itself_as_much_blames_the_machine() -> None:
    decision = answer([*launches(-0.1), *launches(-0.1, sides=CONTROL, count=2)])
    word, outcome, reason = outcome_of_output(decision)
    assert (word, outcome) == (GateAnswer.UNDECIDED, Outcome.INVALID)
    assert reason.startswith("MACHINE_MOVED: side A differs from itself by -10.")
    assert {verdict.outcome for verdict in decision.control} == {Outcome.MEASURED}
    assert {verdict.metric: verdict.comparison.change_frac for verdict in decision.control}[
        THROUGHPUT
    ] == pytest.approx(-0.1, abs=0.01)


def test_a_loss_of_speed_waits_until_a_is_measured_against_itself() -> None:
    decision = answer(launches(-0.1))
    assert outcome_of_output(decision) == (
        GateAnswer.UNDECIDED,
        Outcome.INCONCLUSIVE,
        CONTROL_MISSING,
    )
    wrong = answer(launches(-0.1), answers(Outcome.WRONG))
    assert outcome_of_output(wrong) == (GateAnswer.DONT, Outcome.REGRESSED, CONTROL_MISSING)


def launched(change_frac: float, moved_frac: float = 0.0) -> list[str]:
    """What a gate of one pair launches, of which B is slower, and A2 too."""
    shown: list[str] = []

    def launch_sides(_: Group, number: int, sides: tuple[Side, Side]) -> list[ArmLaunch]:
        shown.append(f"{number} {' '.join(sides)}")
        slower = change_frac if sides is COMPARED else moved_frac
        every = launches(slower, noise=0.5, sides=sides)
        return [launch for launch in every if launch.number == number]

    decision_of([(PAIR,)], RULES, launch_sides)
    return shown


def test_a_is_launched_beside_itself_only_once_b_is_slower() -> None:
    four = [f"{number} A B" for number in range(1, 5)]
    assert launched(0.0) == four
    assert launched(-0.1) == [*four, "1 A1 A2"]
    assert launched(-0.1, -0.1) == [*four, *(f"{n} A1 A2" for n in range(1, 5))]


def test_a_loss_of_output_names_the_part_that_was_lost() -> None:
    some = launches(-0.09, noise=0.0, step_ms=11.0)
    verdict = judge(some)
    assert verdict.outcome is Outcome.REGRESSED
    assert verdict.cause is not None
    assert verdict.cause.parts[0][0] == "the cost of a step"
    (reason,) = answer([*some, *launches(sides=CONTROL, count=1)]).reasons
    assert reason.startswith(f"{PAIR.id} is worse because of the cost of a step: ")
    assert THROUGHPUT in reason


def test_a_lost_first_token_does_not_hide_what_lost_the_output() -> None:
    """A prompt takes a step too, so slower steps cost time until the first token."""
    some = launches(-0.09, noise=0.0, step_ms=11.0, ttft_ms=26.0)
    (reason,) = answer([*some, *launches(sides=CONTROL, count=1)]).reasons
    assert reason.startswith(f"{PAIR.id} is worse because of the cost of a step, prefill: ")


def test_how_chunks_are_cut_is_no_part_of_a_lost_output() -> None:
    """The engine counts as many tokens per step on both sides."""
    merged = judge(launches(-0.09, noise=0.0, step_ms=11.0, tokens_per_step=1.9))
    assert merged.cause is not None
    assert dict(merged.cause.parts)["acceptance"] == 0.0
    of_tokens = dataclasses.replace(accepted(), chunks_split_steps=True)
    split = judge(launches(-0.09, noise=0.0, step_ms=1.0, acceptance=of_tokens))
    assert (split.outcome, split.cause) == (Outcome.REGRESSED, None)


def test_a_lost_pair_is_settled_once_all_has_an_interval() -> None:
    lost = Verdict(case_id=PAIR.id, metric=STEP, outcome=Outcome.REGRESSED)
    open_yet = Verdict(case_id=PAIR.id, metric=THROUGHPUT, outcome=Outcome.INCONCLUSIVE)
    settled_verdict = dataclasses.replace(open_yet, comparison=Comparison(low_frac=-0.1))

    def settled(*verdicts: Verdict) -> bool:
        return is_settled((PAIR,), Decision(answer=GateAnswer.UNDECIDED, verdicts=verdicts))

    assert not settled(lost, open_yet)
    assert settled(lost, settled_verdict)
    assert not settled(settled_verdict)
    assert settled(settled_verdict, answers(Outcome.WRONG))
    assert not settled(settled_verdict, dataclasses.replace(lost, case_id="another"))


def test_two_drafts_need_only_an_interval_if_acceptance_stays_open() -> None:
    other_draft = dataclasses.replace(PAIR.b.server, draft="other/head")
    drafts = Pair(a=PAIR.a, b=dataclasses.replace(PAIR.b, server=other_draft))
    stuck = Verdict(
        case_id=drafts.id,
        metric=ACCEPTANCE_LENGTH,
        outcome=Outcome.INCONCLUSIVE,
        comparison=Comparison(low_frac=-0.03),
        needed_launches=0,
    )
    speed = Verdict(case_id=drafts.id, metric=THROUGHPUT, outcome=Outcome.INCONCLUSIVE)
    known_speed = dataclasses.replace(speed, comparison=Comparison(low_frac=-0.1))

    def settled(pair: Pair, *verdicts: Verdict) -> bool:
        return is_settled((pair,), Decision(answer=GateAnswer.UNDECIDED, verdicts=verdicts))

    assert not settled(drafts, stuck, speed)
    assert settled(drafts, stuck, known_speed)
    assert not settled(PAIR, stuck, known_speed)


def test_a_loss_that_the_machine_caused_settles_no_other_metric() -> None:
    """Steps take longer on B and on A2 alike; throughput is noisy, and still open then."""
    numbers: list[int] = []

    def launch_sides(_: Group, number: int, sides: tuple[Side, Side]) -> list[ArmLaunch]:
        if sides is COMPARED:
            numbers.append(number)
        return [
            launch(
                side,
                number,
                step_ms=11.0 if side is sides[1] else 10.0,
                tokens_per_s=100 * math.exp(0.1 * (-1) ** (number + (side is sides[1]))),
            )
            for side in sides
        ]

    decision_of([(PAIR,)], RULES, launch_sides)
    assert numbers == [*range(1, 9)]


@pytest.mark.parametrize("together", [True, False], ids=["together", "in turn"])
def test_equal_sides_may_be_exchanged(*, together: bool) -> None:
    for seed in range(5):
        world = World(random=np.random.default_rng(seed))
        assert simulated_decision(world, together=together).answer is GateAnswer.UPGRADE


@pytest.mark.parametrize(
    ("planted", "cause", "cases"),
    [
        ({"acceptance_frac": 0.05}, "acceptance", CASES),
        ({"step_frac": 0.06}, "the cost of a step", 1),
        ({"prefill_frac": 0.12}, "prefill", CASES),
    ],
    ids=["acceptance", "step", "prefill"],
)
def test_a_loss_is_found_and_called_what_it_is(
    planted: dict[str, Any], cause: str, cases: int
) -> None:
    """The gate ends with the first proven loss; a plain one shows in all cases by then."""
    world = World(random=np.random.default_rng(1), **planted)
    decision = simulated_decision(world)
    assert decision.answer is GateAnswer.DONT
    assert len(decision.reasons) == cases
    assert all(f" is worse because of {cause}" in reason for reason in decision.reasons)


def test_a_machine_that_moves_is_blamed_on_no_side() -> None:
    world = World(random=np.random.default_rng(1), moved_frac=0.1)
    decision = simulated_decision(world)
    assert decision.answer is GateAnswer.UNDECIDED
    assert any("MACHINE_MOVED" in reason for reason in decision.unclear)
    worse = World(random=np.random.default_rng(1), machine_spread_frac=0.1)
    assert simulated_decision(worse, together=True).answer is GateAnswer.UPGRADE


def test_looping_answers_of_side_b_hide_no_loss_of_the_others() -> None:
    """Eight answers became four times as long, and the others accept 17 % fewer drafts a step."""
    usual = builders.counts(3, 30)
    lost = builders.counts(9, 27)
    looping = builders.counts(0, 0, 1, 63)

    def launched(side: Side, *of_prompts: StepCounts) -> ArmLaunch:
        prompts = [
            builders.prompt_acceptance(counts.to_depth(3), prompt_id=f"chat-{number}")
            for number, counts in enumerate(of_prompts)
        ]
        return launch(side, 1, acceptance=builders.acceptance_of(prompts))

    sides = [launched(Side.A, *[usual] * 40), launched(Side.B, *[looping] * 8, *[lost] * 32)]
    verdict = judge(sides, metric=ACCEPTANCE_LENGTH)
    assert verdict.outcome is Outcome.REGRESSED
    assert "8 of 40 prompts gave answers of another length" in verdict.explanation


@pytest.mark.parametrize(
    ("of_b", "outcome"),
    [
        pytest.param((2, 3, 4, 1), Outcome.PASS, id="alike"),
        pytest.param((4, 3, 2, 1), Outcome.REGRESSED, id="worse"),
    ],
)
def test_acceptance_by_counters_is_compared_with_acceptance_by_request(
    of_b: tuple[int, ...], outcome: Outcome
) -> None:
    """As vLLM 0.27 and 0.29; the counters were read between the turns, of single prompts."""
    by_request = accepted()
    rounds = tuple(
        RoundAcceptance(
            prompt_ids=(prompt.prompt_id,),
            counts=prompt.counts,
            completion_tokens=prompt.completion_tokens,
            requests=1,
        )
        for prompt in by_request.prompts
    )
    by_counters = dataclasses.replace(
        by_request, source=Source.VLLM_COUNTERS, prompts=(), rounds=rounds
    )
    sides = [
        launch(Side.A, 1, acceptance=by_counters),
        launch(Side.B, 1, acceptance=accepted(*of_b)),
    ]
    assert judge(sides, metric=ACCEPTANCE_LENGTH).outcome is outcome
