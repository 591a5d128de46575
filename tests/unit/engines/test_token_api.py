"""Token APIs: what is asked in token ids, and what real servers answered."""

import json

import pytest

from specreg.acceptance.record import StepCounts
from specreg.engines.registry import ENGINES
from specreg.engines.sglang import SglangTokenApi
from specreg.engines.token_api import TokenApi, Wanted
from specreg.engines.vllm import VllmTokenApi
from specreg.engines.wire_format import Ask, Form, Message
from tests.unit import builders

VLLM, SGLANG = VllmTokenApi(), SglangTokenApi()
APIS: dict[str, TokenApi] = {
    name: engine.token_api for name, engine in ENGINES.items() if engine.token_api
}
HELLO = (Message("user", "Hello."),)
CHAT = Ask(
    model="toy",
    messages=HELLO,
    output_cap_tokens=8,
    temperature=0.0,
    chat_template_args=(("enable_thinking", False),),
)
TEXT = Ask(model="toy", form=Form.COMPLETIONS, messages=HELLO, output_cap_tokens=8, temperature=0.0)
GREEDY = Wanted(output_cap_tokens=3)
DRAWN = Wanted(output_cap_tokens=3, temperature=0.7, ignore_eos=True, seed=11)


def vllm_page(**scores: float) -> bytes:
    """An answer with the likeliest tokens, `t5` being token 5."""
    top = {f"token_id:{token[1:]}": score for token, score in scores.items()}
    return json.dumps({"choices": [{"logprobs": {"top_logprobs": [top]}}]}).encode()


def sglang_page(*scores: tuple[float, int, None]) -> bytes:
    """An answer with the log-probabilities of its one token's candidates."""
    meta = {"output_token_ids_logprobs": [scores]} if scores else {}
    return json.dumps({"output_ids": [5], "meta_info": meta}).encode()


def test_an_engine_with_ids_has_the_token_api_of_its_name() -> None:
    assert sorted(APIS) == ["reference", "sglang", "vllm"]


def test_answers_tell_their_ids_and_steps_as_recorded() -> None:
    """[9, 3, 2, 0]: S 14, A 3 + 2 · 2 = 7, D 42; SGLang's ends at the most that a step accepted."""
    recorded = (builders.RECORDINGS / "completion.json").read_bytes()
    asked_for_ids = recorded.replace(b'"token_ids":null', b'"token_ids":[310,0]')
    vllm = VLLM.complete("toy", [1, 2], GREEDY).parse(asked_for_ids)
    assert vllm.counts == StepCounts(steps=14, accepted=7, proposed=42, position_counts=(5, 2, 0))
    assert (vllm.prompt, vllm.output) == ((1, 2), (310, 0))

    recorded = (builders.ROOT / "fixtures/recordings/sglang/0.5.23/generate.json").read_bytes()
    sglang = SGLANG.complete("toy", [1, 2], GREEDY).parse(recorded)
    assert sglang.counts == StepCounts(steps=14, accepted=7, proposed=42, position_counts=(5, 2))
    assert (sglang.prompt, len(sglang.output), sglang.output[-1]) == ((1, 2), 22, 0)


@pytest.mark.parametrize(
    ("api", "ask", "path", "answer"),
    [
        (VLLM, CHAT, "/v1/chat/completions", b'{"choices": [{}], "prompt_token_ids": [1, 2]}'),
        (VLLM, TEXT, "/v1/completions", b'{"choices": [{"prompt_token_ids": [1, 2]}]}'),
        *((SGLANG, ask, "/v1/tokenize", b'{"tokens": [1, 2]}') for ask in (CHAT, TEXT)),
    ],
    ids=["vllm-chat", "vllm-text", "sglang-chat", "sglang-text"],
)
def test_the_ids_of_a_chat_and_of_a_text_are_asked_for(
    api: TokenApi, ask: Ask, path: str, answer: bytes
) -> None:
    call = api.encode(ask)
    assert (call.path, call.parse(answer)) == (path, (1, 2))
    assert ask.openai_prompt.items() <= call.body.items()


def test_what_is_wanted_is_asked_for() -> None:
    vllm, sglang = VLLM.complete("toy", [1, 2], DRAWN), SGLANG.complete("toy", [1, 2], DRAWN)
    asked = {"prompt": [1, 2], "max_tokens": 3, "temperature": 0.7, "ignore_eos": True, "seed": 11}
    assert asked.items() <= vllm.body.items()
    sampling = {"max_new_tokens": 3, "temperature": 0.7, "ignore_eos": True, "sampling_seed": 11}
    assert sglang.body == {"input_ids": [1, 2], "sampling_params": sampling}
    for api in (VLLM, SGLANG):
        assert "seed" not in str(api.complete("toy", [1], GREEDY).body)


@pytest.mark.parametrize(
    ("api", "page", "candidates", "scores"),
    [
        pytest.param(VLLM, vllm_page(t5=-0.1, t6=-2.5), (6, 5), (-2.5, -0.1), id="vllm"),
        pytest.param(
            VLLM, vllm_page(t5=-0.1, t6=-2.5, t7=-9.0), (5, 99), (-0.1, -9.0), id="vllm-unlikely"
        ),
        pytest.param(
            # It says token 87; 0 isn't among the twenty, the least likely of which is 10.
            VLLM,
            (builders.RECORDINGS / "scores.json").read_bytes(),
            (761, 87, 0),
            (-7.6507, -0.0015, -12.1253),
            id="vllm-recorded",
        ),
        pytest.param(
            *(SGLANG, sglang_page((-0.1, 5, None), (-2.5, 6, None)), (6, 5), (-2.5, -0.1)),
            id="sglang",
        ),
    ],
)
def test_candidates_are_scored_by_id_in_the_order_asked(
    api: TokenApi, page: bytes, candidates: tuple[int, ...], scores: tuple[float, ...]
) -> None:
    found = api.score("toy", [1], candidates).parse(page)
    assert found == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(
    ("api", "page", "words"),
    [
        (VLLM, b'{"choices": [{}]}', "no log-probabilities"),
        (VLLM, b'{"choices": [{"logprobs": {"top_logprobs": []}}]}', "no log-probabilities"),
        (VLLM, vllm_page(), "no log-probabilities"),
        # Two that are as likely as the last one would be called rounding.
        (VLLM, vllm_page(t7=-0.1, t8=-3.0), "none of the candidates"),
        (SGLANG, sglang_page(), "of token 5"),
        (SGLANG, sglang_page((-0.1, 5, None)), "of token 6"),
    ],
)
def test_no_scores_are_never_equal_scores(api: TokenApi, page: bytes, words: str) -> None:
    with builders.invalid("ANSWER_UNREADABLE", words):
        api.score("toy", [1], (5, 6)).parse(page)


@pytest.mark.parametrize(
    "answer",
    [
        *(b"<html>", b"{}", b'{"choices": []}', b"\xff"),
        # As of a server that knows no `return_token_ids`: two without ids would be called equal.
        b'{"choices": [{"prompt_token_ids": null}]}',
        b'{"choices": [{"token_ids": null}]}',
    ],
)
@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_an_answer_without_ids_is_no_empty_answer(api: TokenApi, answer: bytes) -> None:
    for call in (api.encode(TEXT), api.complete("toy", [1], GREEDY), api.score("toy", [1], (1,))):
        with builders.invalid("ANSWER_UNREADABLE"):
            call.parse(answer)
