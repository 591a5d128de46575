"""Transcribing: answers in token ids, in the order asked, as many at once as is said."""

import threading
import time

import pytest

from specreg.core.address import Address
from specreg.core.errors import HungError, InvalidMeasurementError, UnsupportedError
from specreg.core.reasons import Reason
from specreg.datasets.prompts import Prompt
from specreg.engines.wire_format import AnswerSettings, Endpoint, Form, Transcript
from specreg.load.token_client import complete, encode_prompts, score, token_api_of
from tests.unit import builders
from tests.unit.builders.http_servers import Json, answering

TWO = AnswerSettings(output_cap_tokens=2)
PROMPTS = (
    Prompt(id="text", category="any", turns=("Hello.", "Go on.")),
    Prompt(id="ids", category="any", token_ids=(7, 8, 9)),
)


def at(url: str, protocol: str = "sglang") -> Endpoint:
    """What answers there, in ids: SGLang's are the plainest."""
    return Endpoint(address=Address(url), model="toy", engine=protocol)


def echoes(_: str, body: Json) -> Json:
    """Each answer is what was asked, and its cap."""
    cap = body["sampling_params"]["max_new_tokens"]
    return {"output_ids": [*body["input_ids"], cap], "meta_info": {}}


def test_answers_come_in_the_order_of_the_texts_with_their_own_settings() -> None:
    """The first is answered last."""
    released = threading.Semaphore(0)

    def answer(path: str, body: Json) -> Json:
        if body["input_ids"] == [1]:
            assert all(released.acquire(timeout=10) for _ in range(2))
        else:
            released.release()
        return echoes(path, body)

    wanted = [AnswerSettings(output_cap_tokens=cap) for cap in (10, 20, 30)]
    with answering(answer) as url:
        answers = complete(at(url), [(1,), (2,), (3,)], wanted, in_flight=3)

    assert answers == tuple(Transcript(prompt=(n,), output=(n, 10 * n)) for n in (1, 2, 3))


@pytest.mark.parametrize("at_once", [1, 3])
def test_no_more_texts_are_in_flight_than_the_argument_says(at_once: int) -> None:
    """Each waits until so many are there: fewer would wait in vain."""
    together = threading.Barrier(at_once, timeout=10)
    free = threading.Semaphore(at_once)

    def answer(path: str, body: Json) -> Json:
        assert free.acquire(blocking=False)
        together.wait()
        time.sleep(0.05)
        free.release()
        return echoes(path, body)

    with answering(answer) as url:
        answers = complete(at(url), [(n,) for n in range(6)], [TWO] * 6, in_flight=at_once)

    assert [answer.output for answer in answers] == [(n, 2) for n in range(6)]


@pytest.mark.parametrize("form", Form)
def test_a_prompt_is_encoded_by_the_server_and_ids_stay_as_they_are(form: Form) -> None:
    """Of a conversation, the first turn."""
    requests: list[tuple[str, Json]] = []

    def answer(path: str, body: Json) -> Json:
        requests.append((path, body))
        return {"tokens": [5, 6]}

    case = builders.with_request(
        builders.CASE, form=form, chat_template_args=(("enable_thinking", False),)
    )
    with answering(answer) as url:
        encoded = encode_prompts(at(url), case, PROMPTS)

    assert encoded == ((5, 6), (7, 8, 9))
    ((path, body),) = requests
    assert path == "/v1/tokenize"
    if form is Form.CHAT:
        assert body["messages"] == [{"role": "user", "content": "Hello."}]
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
    else:
        assert body == {"model": "toy", "prompt": "Hello."}


def test_candidates_are_scored_in_their_order_one_text_at_a_time() -> None:
    """Another batch size might choose another rounding."""
    free = threading.Semaphore(1)

    def answer(_: str, body: Json) -> Json:
        assert free.acquire(blocking=False)
        time.sleep(0.05)
        free.release()
        tokens = sorted(body["token_ids_logprob"])
        scores = [[-0.5 * token, token, None] for token in tokens]
        return {"output_ids": [1], "meta_info": {"output_token_ids_logprobs": [scores]}}

    with answering(answer) as url:
        candidate_scores = score(at(url), [((1, 2), (4, 3)), ((1,), (6,))])

    assert candidate_scores == ((-2.0, -1.5), (-3.0,))


def test_one_refusal_spoils_all_answers_and_is_quoted() -> None:
    """A check of the others would be none of the case."""

    def answer(path: str, body: Json) -> Json | int:
        return 503 if body["input_ids"] == [2] else echoes(path, body)

    with answering(answer) as url, pytest.raises(InvalidMeasurementError) as caught:
        complete(at(url), [(1,), (2,)], [TWO] * 2, in_flight=2)
    words = f'{{"refused":"{"x" * 287}…'
    answer_of_503 = f"HTTP 503 from /generate: {words}"
    assert caught.value.reason == Reason.of("HTTP_ERROR", answer=answer_of_503)


def test_a_server_that_is_gone_is_named_with_where_to_look() -> None:
    with answering(echoes) as url:
        pass
    words = "/generate: ConnectError, .*; look at the server's log$"
    with builders.invalid("HTTP_ERROR", words):
        complete(at(url), [(1,)], [TWO], in_flight=1)


def test_a_protocol_without_ids_is_named_with_those_that_have_them() -> None:
    with pytest.raises(UnsupportedError) as caught:
        token_api_of(at("http://nowhere", "triton"))

    assert str(caught.value) == (
        "engine 'triton': its answers have no token ids, so they can't be compared token by token;"
        " use an engine that has them: reference, sglang, vllm"
    )


@pytest.mark.parametrize(
    ("slow_id", "error"),
    [(1, "HUNG: no token came for 0.5 s"), (2, "HTTP_ERROR: ")],
    ids=["nothing", "others"],
)
def test_a_server_that_answers_nothing_hangs(slow_id: int, error: str) -> None:
    """One that answers others meanwhile doesn't."""
    done = threading.Event()
    texts = [(1,)] if slow_id == 1 else [(2,), *((n,) for n in range(3, 6))]

    def answer(path: str, body: Json) -> Json:
        if body["input_ids"][0] == slow_id:
            done.wait(5)
        return echoes(path, body)

    with answering(answer) as url:
        try:
            with pytest.raises(InvalidMeasurementError) as caught:
                complete(at(url), texts, [TWO] * len(texts), in_flight=2, within_s=0.5)
        finally:
            done.set()
    assert str(caught.value).startswith(error)
    assert isinstance(caught.value, HungError) == (slow_id == 1)
