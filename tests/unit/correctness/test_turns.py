"""Answers are compared in every turn of a conversation, after the same replies on both sides."""

import dataclasses
from collections.abc import Sequence

import msgspec
import pytest

from specreg.correctness.checks import RunningCase, check_answers
from specreg.correctness.turns import ask_each_turn, turns_of
from specreg.datasets.prompts import Prompt
from specreg.engines.registry import engine_named
from specreg.engines.wire_format import Transcript
from specreg.load.rounds import Round
from specreg.measurement.metrics import Replay
from specreg.verdicts.verdict import Outcome, Verdict
from tests.unit import builders
from tests.unit.builders.http_servers import Answer, Json, answering

SPEC = dataclasses.replace(builders.SPEC, engine="sglang", method="eagle3")
CASE = dataclasses.replace(builders.CASE, server=SPEC)
CHAT = Prompt(id="talk", category="chat", turns=("One?", "Two?", "Three?"))
SHORT = Prompt(id="word", category="chat", turns=("Word?",))
ENCODED = {"One?": 1, "Two?": 2, "Three?": 3, "Word?": 9}


def speaking(*, second: int = 20, text: str | None = "reply") -> Answer:
    """A server whose answer to a turn is ten times its number, and to the second one `second`."""

    def answer(path: str, body: Json) -> Json:
        if path == "/v1/tokenize":
            texts = [message["content"] for message in body["messages"]]
            # The last user's turn, and how much was said before it.
            return {"tokens": [ENCODED[texts[-1]], len(texts), *[7] * texts.count("reply")]}
        candidates = body.get("token_ids_logprob", ())
        scores = [[-1.0 - 3.0 * rank, token, None] for rank, token in enumerate(candidates)]
        meta = {"output_token_ids_logprobs": [scores]} if candidates else {}
        turn = body["input_ids"][0]
        token = second if turn == 2 else 10 * turn
        return {"output_ids": [token], "meta_info": meta, "text": text}

    return answer


def timed(first: Sequence[str], second: Sequence[str]) -> Replay:
    """What was timed of both servers: the digests of each turn."""
    plain = builders.trace(builders.chunk(1))
    rounds = []
    for digests in (first, second):
        traces = tuple(
            msgspec.structs.replace(plain, prompt_id="talk", turn=turn, answer_sha256=digest)
            for turn, digest in enumerate(digests, 1)
        )
        word = msgspec.structs.replace(plain, prompt_id="word", answer_sha256="w")
        rounds.append(Round(traces=(*traces, word), started_ns=0, ended_ns=1))
    return Replay(rounds=(rounds[0],), control_rounds=(rounds[1],))


def judged(answer: Answer, control: Answer, replay: Replay | None = None) -> Verdict:
    with answering(answer) as url, answering(control) as control_url:
        servers = [
            dataclasses.replace(builders.server(at), engine=engine_named("sglang"), spec=SPEC)
            for at in (url, control_url)
        ]
        running = RunningCase(
            case=CASE,
            server=servers[0],
            control=servers[1],
            prompts=[CHAT, SHORT],
            predict_drafts=lambda _: pytest.fail("nothing asks the models"),
            models=("target", None),
            replay=replay,
        )
        return check_answers(running)


def test_a_later_turn_that_differs_is_wrong() -> None:
    """Of the first turns alone all would be equal."""
    verdict = judged(speaking(second=21), speaking())
    assert (verdict.outcome, verdict.value) == (Outcome.WRONG, 0.75)
    assert "prompt 'talk turn 2', token 1: 21 with speculation, 20 without" in verdict.explanation


def test_equal_turns_pass_and_each_turn_is_counted() -> None:
    verdict = judged(speaking(), speaking())
    assert (verdict.outcome, verdict.value) == (Outcome.PASS, 1.0)
    differed = timed(("a", "b", "c"), ("a", "x", "y"))
    verdict = judged(speaking(), speaking(), differed)
    assert verdict.outcome is Outcome.PASS
    assert "100.0% of 4 answers are equal" in verdict.explanation


def test_each_turn_comes_after_the_replies_before_it() -> None:
    texts: list[tuple[int, ...]] = []

    def ask(prompts: Sequence[tuple[int, ...]]) -> list[Transcript]:
        texts.extend(prompts)
        thought = "<think>hm</think>reply"
        return [Transcript(prompt=text, output=(1,), text=thought) for text in prompts]

    with answering(speaking()) as url:
        endpoint = dataclasses.replace(builders.server(url), engine=engine_named("sglang")).endpoint
        turns = ask_each_turn(endpoint, CASE, [CHAT, SHORT], ask)
    assert [turn.name for turn in turns] == ["talk", "word", "talk turn 2", "talk turn 3"]
    assert texts == [(1, 1), (9, 1), (2, 3, 7), (3, 5, 7, 7)]


def test_a_case_may_replay_fewer_turns() -> None:
    assert [turns_of(CASE, prompt) for prompt in (CHAT, SHORT)] == [3, 1]
    assert turns_of(builders.with_request(CASE, turns=2), CHAT) == 2
    ids = Prompt(id="ids", category="chat", token_ids=(1, 2))
    assert turns_of(CASE, ids) == 1


def test_a_reply_without_a_text_has_no_later_turn() -> None:
    with builders.invalid("ANSWER_UNREADABLE", "prompt 'talk' has no text"):
        judged(speaking(text=None), speaking(text=None))
