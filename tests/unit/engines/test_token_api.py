"""Token APIs: what is asked in token ids, and what real servers answered."""

import json

import pytest

from specreg.acceptance.record import StepCounts
from specreg.core.errors import InvalidMeasurementError
from specreg.engines.registry import ENGINES
from specreg.engines.sglang import SglangTokenApi
from specreg.engines.token_api import TokenApi, Wanted
from specreg.engines.vllm import VllmTokenApi
from specreg.engines.wire_format import Ask, Form, Message, Role
from tests.unit import builders

VLLM, SGLANG = VllmTokenApi(), SglangTokenApi()
APIS: dict[str, TokenApi] = {
    name: engine.token_api for name, engine in ENGINES.items() if engine.token_api
}
SGLANG_RECORDINGS = builders.ROOT / "fixtures/recordings/sglang/0.5.23"
CHAT = Ask(
    model="toy",
    messages=(Message(Role.USER, "Hello."),),
    output_cap_tokens=8,
    temperature=0.0,
    chat_template_args=(("enable_thinking", False),),
)
TEXT = Ask(
    model="toy",
    form=Form.COMPLETIONS,
    messages=(Message(Role.USER, "Once"),),
    output_cap_tokens=8,
    temperature=0.0,
)
GREEDY = Wanted(output_cap_tokens=3)
DRAWN = Wanted(output_cap_tokens=3, temperature=0.7, ignore_eos=True, seed=11)


def vllm_scores(*candidates: int) -> tuple[float, ...]:
    """Of a page whose likeliest are 5, then 6, then 7."""
    top = {"token_id:5": -0.1, "token_id:6": -2.5, "token_id:7": -9.0}
    page = {"choices": [{"logprobs": {"top_logprobs": [top]}}]}
    return VLLM.score("toy", [1], candidates).parse(json.dumps(page).encode())


def sglang_page(*scores: tuple[float, int, None]) -> bytes:
    """An answer with the log-probabilities of its one token's candidates."""
    meta = {"output_token_ids_logprobs": [scores]} if scores else {}
    return json.dumps({"output_ids": [5], "meta_info": meta}).encode()


def test_an_engine_with_ids_has_the_token_api_of_its_name() -> None:
    assert sorted(APIS) == ["reference", "sglang", "vllm"]


def test_vllm_tells_its_steps_as_recorded() -> None:
    """[9, 3, 2, 0]: S 14, A 3 + 2 · 2 = 7, D 42."""
    recorded = (builders.RECORDINGS / "completion.json").read_bytes()
    asked_for_ids = recorded.replace(b'"token_ids":null', b'"token_ids":[310,0]')

    found = VLLM.complete("toy", [1, 2], GREEDY).parse(asked_for_ids)

    assert found.counts == StepCounts(steps=14, accepted=7, proposed=42, position_counts=(5, 2, 0))
    assert (found.prompt, found.output) == ((1, 2), (310, 0))


def test_sglang_tells_ids_and_steps_as_recorded() -> None:
    """[9, 3, 2]: the same steps; the histogram ends at the most that one accepted."""
    found = SGLANG.complete("toy", [1, 2], GREEDY).parse(
        (SGLANG_RECORDINGS / "generate.json").read_bytes()
    )

    assert found.counts == StepCounts(steps=14, accepted=7, proposed=42, position_counts=(5, 2))
    assert (found.prompt, len(found.output), found.output[-1]) == ((1, 2), 22, 0)


def test_vllm_learns_the_ids_of_a_chat_and_of_a_text() -> None:
    chat, text = VLLM.encode(CHAT), VLLM.encode(TEXT)

    assert (chat.path, text.path) == ("/v1/chat/completions", "/v1/completions")
    assert chat.body["chat_template_kwargs"] == {"enable_thinking": False}
    assert text.body["prompt"] == "Once"
    assert VLLM.encode(TEXT).parse(b'{"choices": [{}], "prompt_token_ids": [1, 2]}') == (1, 2)
    assert VLLM.encode(TEXT).parse(b'{"choices": [{"prompt_token_ids": [3, 4]}]}') == (3, 4)


def test_sglang_learns_the_ids_of_a_chat_and_of_a_text() -> None:
    chat, text = SGLANG.encode(CHAT), SGLANG.encode(TEXT)

    assert (chat.path, text.path) == ("/v1/tokenize", "/v1/tokenize")
    assert chat.body["chat_template_kwargs"] == {"enable_thinking": False}
    assert text.body == {"model": "toy", "prompt": "Once"}
    assert SGLANG.encode(TEXT).parse(b'{"tokens": [1, 2]}') == (1, 2)


def test_what_is_wanted_is_asked_for() -> None:
    vllm, sglang = VLLM.complete("toy", [1, 2], DRAWN), SGLANG.complete("toy", [1, 2], DRAWN)

    asked = {"prompt": [1, 2], "max_tokens": 3, "temperature": 0.7, "ignore_eos": True, "seed": 11}
    assert asked.items() <= vllm.body.items()
    assert sglang.body == {
        "input_ids": [1, 2],
        "sampling_params": {
            "max_new_tokens": 3,
            "temperature": 0.7,
            "ignore_eos": True,
            "sampling_seed": 11,
        },
    }


def test_a_greedy_answer_asks_for_no_seed() -> None:
    greedy = Wanted(output_cap_tokens=3)
    assert "seed" not in VLLM.complete("toy", [1], greedy).body
    assert "sampling_seed" not in str(SGLANG.complete("toy", [1], greedy).body)


def test_vllm_scores_by_id_in_the_order_asked() -> None:
    assert vllm_scores(6, 5) == (-2.5, -0.1)


def test_vllm_scores_as_recorded() -> None:
    """It says token 87; 0 isn't among the twenty, the least likely of which is 10."""
    recorded = (builders.RECORDINGS / "scores.json").read_bytes()

    found = VLLM.score("toy", [1], (761, 87, 0)).parse(recorded)

    assert found == pytest.approx((-7.6507, -0.0015, -12.1253), abs=1e-4)


def test_a_candidate_that_is_not_among_vllms_likeliest_is_no_likelier_than_the_last() -> None:
    assert vllm_scores(5, 99) == (-0.1, -9.0)


def test_sglang_scores_by_id_in_the_order_asked() -> None:
    page = sglang_page((-0.1, 5, None), (-2.5, 6, None))
    assert SGLANG.score("toy", [1], (6, 5)).parse(page) == (-2.5, -0.1)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b'{"choices": [{}]}', id="vllm-none"),
        pytest.param(b'{"choices": [{"logprobs": {"top_logprobs": []}}]}', id="vllm-of-no-token"),
        pytest.param(b'{"choices": [{"logprobs": {"top_logprobs": [{}]}}]}', id="vllm-of-nothing"),
    ],
)
def test_no_scores_are_never_equal_scores(answer: bytes) -> None:
    """Two candidates of 0 nats each would be called rounding."""
    with pytest.raises(InvalidMeasurementError, match="log-probabilities") as error:
        VLLM.score("toy", [1], (5, 6)).parse(answer)
    assert error.value.reason == "ANSWER_UNREADABLE"


@pytest.mark.parametrize(
    ("answer", "token"),
    [
        pytest.param(sglang_page(), 5, id="none"),
        pytest.param(sglang_page((-0.1, 5, None)), 6, id="one-of-two"),
    ],
)
def test_a_candidate_that_sglang_does_not_score_is_named(answer: bytes, token: int) -> None:
    with pytest.raises(InvalidMeasurementError, match=f"of token {token}") as error:
        SGLANG.score("toy", [1], (5, 6)).parse(answer)
    assert error.value.reason == "ANSWER_UNREADABLE"


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b'{"choices": []}', b"\xff"])
@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_what_nobody_can_read_is_no_answer(api: TokenApi, answer: bytes) -> None:
    for parse in (
        lambda: api.encode(TEXT).parse(answer),
        lambda: api.complete("toy", [1], GREEDY).parse(answer),
        lambda: api.score("toy", [1], [1]).parse(answer),
    ):
        with pytest.raises(InvalidMeasurementError) as error:
            parse()
        assert error.value.reason == "ANSWER_UNREADABLE"


def test_a_prompt_without_ids_is_no_prompt() -> None:
    """As of a server that knows no `return_token_ids`: nothing would be asked then."""
    with pytest.raises(InvalidMeasurementError, match="prompt_token_ids") as error:
        VLLM.encode(TEXT).parse(b'{"choices": [{"prompt_token_ids": null}]}')
    assert error.value.reason == "ANSWER_UNREADABLE"


@pytest.mark.parametrize("choice", ["{}", '{"token_ids": null}'])
def test_an_answer_without_ids_is_no_empty_answer(choice: str) -> None:
    """Two that are empty would be called equal."""
    with pytest.raises(InvalidMeasurementError, match="no token_ids") as error:
        VLLM.complete("toy", [1], GREEDY).parse(f'{{"choices": [{choice}]}}'.encode())
    assert error.value.reason == "ANSWER_UNREADABLE"


def test_two_candidates_that_nobody_scored_are_no_tie() -> None:
    page = (
        b'{"choices": [{"token_ids": [7], "logprobs":'
        b' {"top_logprobs": [{"token_id:7": -0.1, "token_id:8": -3.0}]}}]}'
    )

    assert VLLM.score("toy", [1], (7, 5)).parse(page) == (-0.1, -3.0)
    with pytest.raises(InvalidMeasurementError, match="none of the candidates"):
        VLLM.score("toy", [1], (5, 6)).parse(page)
