"""Correctness checks, on servers whose answers are written down by hand."""

import dataclasses
import functools
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import pytest

from specreg.core.errors import InvalidMeasurementError
from specreg.core.reasons import Reason
from specreg.correctness.checks import (
    LOSSLESS,
    ORACLE,
    SAMPLING,
    RunningCase,
    check_answers,
    check_sampling,
    check_steps,
    checks_of,
    were_equal,
)
from specreg.correctness.oracle_client import PredictDrafts
from specreg.datasets.prompts import Prompt
from specreg.engines.pytorch.question import OracleAnswer, Question
from specreg.engines.registry import engine_named
from specreg.load.rounds import Round
from specreg.matrix.case import Case
from specreg.measurement.metrics import Replay
from specreg.verdicts.verdict import Outcome, Verdict
from tests.unit import builders
from tests.unit.builders.http_servers import Answer, Json, answering

SPEC = dataclasses.replace(builders.SPEC, engine="sglang", method="eagle3", draft_tokens=3)
CASE = dataclasses.replace(builders.CASE, server=SPEC)
ONE, OTHER = (
    Prompt(id=name, category="any", token_ids=(1, 2, number))
    for number, name in enumerate(("one", "other"))
)


def told(*histogram: int) -> Json:
    """By SGLang, of three drafts per step; its histogram ends at the most that one accepted."""
    return {
        "spec_num_correct_drafts": sum(tokens * steps for tokens, steps in enumerate(histogram)),
        "spec_num_proposed_drafts": 3 * sum(histogram),
        "spec_correct_drafts_histogram": histogram,
    }


def predicts(*, accepted: int = 1, gap_nats: float = 0.0) -> PredictDrafts:
    """Models that get as many drafts right everywhere, and would have said what was said or not."""

    def predict_drafts(question: Question) -> OracleAnswer:
        texts = question.texts
        return OracleAnswer(
            accepted=tuple((accepted,) * len(text.ids) for text in texts),
            gaps_nats=(gap_nats,) * len(texts),
        )

    return predict_drafts


def says(output: Sequence[int], meta: Json | None = None) -> Answer:
    """The same to each request."""
    return lambda _, __: {"output_ids": output, "meta_info": meta or {}}


def judged(
    check: Callable[[RunningCase], Verdict],
    answer: Answer,
    control_answer: Answer | None = None,
    *prompts: Prompt,
    case: Case = CASE,
    predict_drafts: PredictDrafts | None = None,
    replay: Replay | None = None,
) -> Verdict:
    """What a check says of a server, and of the one beside it."""
    engine = engine_named(case.server.engine)
    with answering(answer) as url, answering(control_answer or answer) as beside_url:
        server, control = (
            dataclasses.replace(builders.server(at), engine=engine, spec=case.server)
            for at in (url, beside_url)
        )
        return check(
            RunningCase(
                case=case,
                server=server,
                control=control if control_answer else None,
                prompts=prompts or [ONE],
                predict_drafts=predict_drafts or predicts(),
                models=("target", "head"),
                replay=replay,
            )
        )


def never(_: str, __: Json) -> Json:
    """For a server that must not be asked."""
    raise AssertionError


def by_prompt(with_it: Sequence[int], plain: Sequence[int], gap_nats: float = 0.0) -> Answer:
    """Answers by the prompt; where scores are asked for, the first is so much likelier."""

    def answer(_: str, body: Json) -> Json:
        candidates = body.get("token_ids_logprob", ())
        scores = [[-1.0 - gap_nats * rank, token, None] for rank, token in enumerate(candidates)]
        meta = {"output_token_ids_logprobs": [scores]} if candidates else {}
        return {"output_ids": plain if body["input_ids"][2] else with_it, "meta_info": meta}

    return answer


ROUNDED = "differences that rounding explains (up to 0.25 nats): 1"
APART = "prompt 'other', token 2: 8 with speculation, 7 without speculation, 0.26 nats apart"


@pytest.mark.parametrize(
    ("with_it", "gap_nats", "outcome", "words"),
    [
        pytest.param([6, 7], 0.0, Outcome.PASS, "", id="equal"),
        pytest.param([6, 8], 0.0, Outcome.PASS, ROUNDED, id="equally likely"),
        pytest.param([6, 8], 0.25, Outcome.PASS, ROUNDED, id="at the bound"),
        pytest.param([6, 8], 0.26, Outcome.WRONG, APART, id="beyond"),
        pytest.param([6, 8], -0.25, Outcome.PASS, ROUNDED, id="likelier at the bound"),
        pytest.param([6, 8], -0.26, Outcome.WRONG, APART, id="likelier beyond"),
    ],
)
def test_another_token_is_wrong_beyond_rounding(
    with_it: Sequence[int], gap_nats: float, outcome: Outcome, words: str
) -> None:
    """A token that the target finds likelier than its own choice is no excuse either."""
    control = by_prompt([4, 5], [6, 7], gap_nats)
    verdict = judged(check_answers, by_prompt([4, 5], with_it), control, ONE, OTHER)
    assert (verdict.metric, verdict.outcome) == (LOSSLESS, outcome)
    assert (verdict.value, verdict.comparison.expected) == ((0.5, 1.0) if words else (1.0, None))
    plain_share = "of those without speculation, 100.0% are the same at another batch size"
    equal = f"50.0% of 2 answers are equal; {plain_share}"
    assert verdict.explanation == (f"{equal}; {words}" if words else "")
    assert verdict.fails == (outcome is Outcome.WRONG)


def timed(with_it: Mapping[str, str], without: Mapping[str, str]) -> Replay:
    """What was timed of both servers: by prompt, the digits of its answer's text."""
    plain = builders.trace(builders.chunk(1))
    own_times, control_times = (
        tuple(
            msgspec.structs.replace(plain, prompt_id=name, answer_sha256=digits)
            for name, digits in side.items()
        )
        for side in (with_it, without)
    )
    new_round = functools.partial(Round, started_ns=0, ended_ns=1)
    return Replay(
        rounds=(new_round(traces=own_times),), control_rounds=(new_round(traces=control_times),)
    )


def test_answers_that_were_equal_when_timed_are_not_generated_again() -> None:
    replay = timed({"one": "a", "other": "b"}, {"one": "a", "other": "b"})
    verdict = judged(check_answers, never, never, ONE, OTHER, replay=replay)
    assert (verdict.outcome, verdict.value, verdict.explanation) == (Outcome.PASS, 1.0, "")


@pytest.mark.parametrize(
    ("with_it", "value", "outcome"), [(8, 0.5, Outcome.WRONG), (7, 1.0, Outcome.PASS)]
)
def test_only_answers_that_differed_when_timed_are_generated_again(
    with_it: int, value: float, outcome: Outcome
) -> None:
    asked_again: list[int] = []

    def answer(path: str, body: Json) -> Json | bytes | int:
        asked_again.append(body["input_ids"][2])
        return by_prompt([4], [6, with_it])(path, body)

    replay = timed({"one": "a", "other": "b"}, {"one": "a", "other": "c"})
    control = by_prompt([4], [6, 7], 1.0)
    verdict = judged(check_answers, answer, control, ONE, OTHER, replay=replay)
    assert asked_again == [1], "the other prompt alone"
    assert (verdict.outcome, verdict.value) == (outcome, value)
    assert "of 2 answers are equal (the 1 that weren't equal in the timed" in verdict.explanation


@pytest.mark.parametrize(
    ("with_it", "without"),
    [({"one": ""}, {"one": ""}), ({"one": "a"}, {}), ({}, {})],
    ids=["no digits", "no control", "nothing"],
)
def test_prompts_that_were_not_timed_on_both_servers_are_sent_again(
    with_it: Mapping[str, str], without: Mapping[str, str]
) -> None:
    assert not were_equal(timed(with_it, without), ONE)
    assert not were_equal(None, ONE)


@pytest.mark.parametrize(("at_once", "again"), [(1, 2), (2, 1)])
def test_where_answers_part_the_control_answers_again_at_another_batch_size(
    at_once: int, again: int
) -> None:
    """And otherwise: that is the honest rate. Its two answers come together, or one by one."""
    numbers = itertools.count()
    together = threading.Barrier(2, timeout=10)
    there: list[int] = []
    most = [0, 0]

    def control(path: str, body: Json) -> Json | bytes | int:
        if "token_ids_logprob" in body:
            return by_prompt([4], [4])(path, body)
        first = (number := next(numbers)) < 2
        there.append(number)
        most[not first] = max(most[not first], len(there))
        if (at_once if first else again) == 2:
            together.wait()
        time.sleep(0.05)
        there.remove(number)
        return {"output_ids": [4 if first else 5], "meta_info": {}}

    case = builders.with_concurrency(at_once, CASE)
    verdict = judged(check_answers, says([6]), control, ONE, OTHER, case=case)
    assert most == [at_once, again]
    assert (verdict.value, verdict.comparison.expected) == (0.0, 0.0)


def test_the_control_answers_once_for_all_cases_with_equal_requests() -> None:
    control_questions: list[int] = []

    def control(path: str, body: Json) -> Json | bytes | int:
        control_questions.append(body["sampling_params"]["max_new_tokens"])
        return says([4])(path, body)

    def check(running: RunningCase) -> Verdict:
        for cap_tokens in (20, 21, 20):
            case = builders.with_request(CASE, output_cap_tokens=cap_tokens)
            verdict = check_answers(dataclasses.replace(running, case=case))
        return verdict

    assert judged(check, says([4]), control).value == 1.0
    assert control_questions == [20, 21]


def draws(chances: Sequence[float], seeds: list[int]) -> Answer:
    """Three tokens, drawn by the request's own seed."""

    def answer(_: str, body: Json) -> Json:
        sampling = body["sampling_params"]
        assert (sampling["max_new_tokens"], sampling["temperature"]) == (3, 0.7)
        seeds.append(sampling["sampling_seed"])
        random = np.random.default_rng(sampling["sampling_seed"])
        drawn = random.choice(len(chances), 3, p=chances)
        return {"output_ids": drawn.tolist(), "meta_info": {}}

    return answer


@pytest.mark.parametrize(
    ("chances", "outcome"),
    [((0.5, 0.3, 0.2), Outcome.PASS), ((0.3, 0.3, 0.4), Outcome.WRONG)],
    ids=["alike", "otherwise"],
)
def test_draws_of_another_distribution_are_wrong(
    chances: tuple[float, ...], outcome: Outcome
) -> None:
    """250 of each server, no two of which share a seed."""
    own_draws: list[int] = []
    control_draws: list[int] = []
    drawn = draws((0.5, 0.3, 0.2), control_draws)
    case = builders.with_request(CASE, temperature=0.7)
    verdict = judged(check_sampling, draws(chances, own_draws), drawn, case=case)
    assert (sorted(own_draws), sorted(control_draws)) == (list(range(250)), list(range(250, 500)))
    assert (verdict.metric, verdict.outcome) == (SAMPLING, outcome)
    is_wrong = outcome is Outcome.WRONG
    chance = verdict.value or 0.0
    assert (chance < 0.001) == is_wrong
    assert verdict.has_code("draws_differ") == is_wrong


ANSWERED = says([4, 5, 6, 7, 8], told(0, 2))
"""Both steps accepted one."""
FEWER_DRAFTS = says([4, 5, 6, 7, 8], told(0, 2) | {"spec_num_proposed_drafts": 4})


def test_steps_that_differ_from_the_models_steps_are_wrong_and_named() -> None:
    verdict = judged(check_steps, ANSWERED, predict_drafts=predicts(accepted=3))
    assert (verdict.outcome, verdict.value, verdict.comparison.expected) == (
        Outcome.WRONG,
        2.0,
        4.0,
    )
    differences = (
        "1 of 1 answers took other steps than their text and models give:"
        " 'one' S 2, A 2 (2, 0, 0), D 6 instead of S 1, A 3 (1, 1, 1), D 3;"
        " the engine's drafter or verifier is wrong"
    )
    assert verdict.reason == Reason.of("steps_differ", differences=differences)
    assert verdict.by_position_frac == ((1.0, 1.0), (0.0, 1.0), (0.0, 1.0))
    assert verdict.fails


@pytest.mark.parametrize(("method", "normed"), [("mtp", True), ("eagle3", False)])
def test_sglang_passes_an_mtp_layer_the_state_after_the_norm(method: str, *, normed: bool) -> None:
    questions: list[Question] = []

    def predict_drafts(question: Question) -> OracleAnswer:
        questions.append(question)
        return predicts()(question)

    case = dataclasses.replace(CASE, server=dataclasses.replace(SPEC, method=method))
    judged(check_steps, ANSWERED, case=case, predict_drafts=predict_drafts)
    assert [question.normed for question in questions] == [normed]


@pytest.mark.parametrize(
    ("answer", "predict_drafts", "change_frac", "words"),
    [
        (says([*range(401)], told(1, 199)), predicts(), -1 / 200, ""),
        (says([*range(401)], told(3, 197)), predicts(), -3 / 200, "'one' S 200, A 197 ("),
        (says([*range(401)], told(0, 100)), predicts(), 0.0, "'one' S 100, A 100 ("),
        (FEWER_DRAFTS, predicts(), 0.0, "D 4 instead of S 2, A 2 (2, 0, 0), D 6"),
        (ANSWERED, predicts(accepted=0), 1.0, "instead of S 4, A 0 (0, 0, 0), D 12"),
        (ANSWERED, predicts(gap_nats=0.25), 0.0, ""),
        (ANSWERED, predicts(gap_nats=0.26), 0.0, "less likely than another: 'one' by 0.26 nats"),
    ],
    ids=[
        *("within 1 %", "beyond", "half the steps", "fewer drafts", "nothing to accept"),
        *("tokens as likely", "less likely"),
    ],
)
def test_steps_and_drafts_may_differ_by_one_percent_and_by_rounding(
    answer: Answer, predict_drafts: PredictDrafts, change_frac: float, words: str
) -> None:
    """Of 401 tokens, 200 steps, each of which accepts one draft by the models."""
    verdict = judged(check_steps, answer, predict_drafts=predict_drafts)
    assert verdict.outcome is (Outcome.WRONG if words else Outcome.PASS)
    assert verdict.comparison.change_frac == pytest.approx(change_frac)
    assert words in verdict.explanation
    assert ("verifier is wrong" in verdict.explanation) == verdict.fails == bool(words)


LONG = says([*range(SPEC.max_model_len_tokens - 5)], told(0, 2))
UNDRAFTED = {
    "choices": [{"token_ids": [4]}],
    "metrics": {"speculative_decoding": {"acceptance_histogram": [0] * 4, "num_draft_tokens": 0}},
}


@pytest.mark.parametrize(
    ("engine", "answer", "reason"),
    [
        ("sglang", says([4, 5, 6]), "ACCEPTANCE_MISSING: the answers report no steps"),
        ("sglang", LONG, "CONTEXT_FULL: '.*': a prompt and its answer have 1022 tokens and"),
        ("vllm", lambda _, __: UNDRAFTED, "NOTHING_DRAFTED: "),
    ],
    ids=["no-steps", "no-room", "no-drafts"],
)
def test_answers_that_the_oracle_cannot_check_are_invalid(
    engine: str, answer: Answer, reason: str
) -> None:
    case = dataclasses.replace(CASE, server=dataclasses.replace(SPEC, engine=engine))
    with pytest.raises(InvalidMeasurementError, match=f"^{reason}"):
        judged(check_steps, answer, case=case)


def test_the_control_continues_the_answers_for_the_oracle() -> None:
    """As many tokens as a step drafts, whatever the model says."""
    bodies: list[Json] = []

    def control(_: str, body: Json) -> Json:
        bodies.append(body)
        return {"output_ids": [9, 9, 9], "meta_info": {}}

    judged(check_steps, ANSWERED, control)
    (body,) = bodies
    assert body["input_ids"] == [1, 2, 0, 4, 5, 6, 7, 8]
    assert body["sampling_params"]["max_new_tokens"] == 3
    assert body["sampling_params"]["ignore_eos"]


def case_of(engine: str, method: str, *, temperature: float = 0.0, control: bool = True) -> Case:
    """A case, beside a server without speculation or alone."""
    case = builders.on_server(engine=engine, method=method)
    control_spec = case.server if control else None
    return builders.with_request(
        dataclasses.replace(case, control=control_spec), temperature=temperature
    )


@pytest.mark.parametrize(
    ("case", "checks"),
    [
        pytest.param(case_of("vllm", "eagle3"), {LOSSLESS, ORACLE}, id="greedy"),
        pytest.param(case_of("vllm", "eagle3", control=False), {ORACLE}, id="alone"),
        pytest.param(case_of("vllm", "eagle3", temperature=1), {SAMPLING}, id="drawn"),
        pytest.param(case_of("vllm", "eagle3", temperature=1, control=False), set(), id="neither"),
        pytest.param(case_of("vllm", "none"), set(), id="no speculation"),
        pytest.param(case_of("vllm", "suffix"), {LOSSLESS}, id="a method without an oracle"),
        pytest.param(case_of("sglang", "ngram"), {LOSSLESS}, id="a drafter that learns"),
        pytest.param(case_of("sglang", "eagle3_tree"), {LOSSLESS, ORACLE}, id="a tree"),
        pytest.param(case_of("reference", "ngram"), {LOSSLESS, ORACLE}, id="reference"),
        pytest.param(case_of("triton", "eagle3"), set(), id="an engine without ids"),
        pytest.param(builders.on_server(pinned_length_tokens=2.5), set(), id="pinned"),
    ],
)
def test_what_is_checked_depends_on_the_case(case: Case, checks: set[str]) -> None:
    assert {proof.name for proof in checks_of(case, with_torch=True)} == checks
    assert {proof.name for proof in checks_of(case, with_torch=False)} == checks - {ORACLE}
