"""Drawn answers of real vLLM have the steps that their own text and models give.

A draft that isn't drawn itself is accepted exactly if the text goes on with it, at any temperature.
That the text is drawn as the target draws is what `sampling_frac` checks in the tier `cpu_sampled`.
Starts two real servers: two minutes. `nox -s contract` runs it.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import pytest

from specreg.acceptance.record import NO_STEPS
from specreg.correctness.oracle_client import predict_drafts, walk_answers
from specreg.engines.wire_format import AnswerSettings, Transcript
from specreg.load.token_client import complete, encode_prompts
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.servers.server import Server
from tests.contract.engines import case_of, start
from tests.unit import builders

PROMPTS = 20
# A top-k without a top-p ends the server of this build, "EngineCore encountered an issue".
SAMPLINGS = {
    "temperature 0.6 with cuts": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    "temperature 1": {"temperature": 1.0},
}


def drawn_answers(
    case: Case, server: Server, sampling: Mapping[str, float]
) -> Sequence[Transcript]:
    """Answers to the first prompts of a case, each drawn by a seed of its own."""
    prompts = load_case_prompts(builders.ROOT, case)[:PROMPTS]
    texts = encode_prompts(server.endpoint, case, prompts)
    greedy = AnswerSettings(output_cap_tokens=case.request.output_cap_tokens, ignore_eos=True)
    requests = [
        dataclasses.replace(greedy, seed=seed, **sampling)  # type: ignore[arg-type]
        for seed in range(len(texts))
    ]
    return complete(server.endpoint, texts, requests, in_flight=case.in_flight)


@pytest.fixture(scope="module", params=["draft_model", "eagle3"])
def served_case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Case, Server]]:
    """A case of the tier `cpu_sampled`, and its server."""
    case = case_of("cpu_sampled", f"vllm-{request.param}-sampled-toy-c4")
    with start(case, tmp_path_factory.mktemp("sampled")) as server:
        yield case, server


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_drawn_answers_have_the_steps_of_their_text_and_models(
    sampling: Mapping[str, float], served_case: tuple[Case, Server]
) -> None:
    case, server = served_case
    answers = drawn_answers(case, server, sampling)
    counted = [answer.counts or NO_STEPS for answer in answers]
    models = (case.server.target, case.server.draft)

    expected, _ = walk_answers(
        case,
        answers,
        server.endpoint,
        models,
        functools.partial(predict_drafts, on_gpu=False, show=print),
    )

    # The last step of an answer may accept drafts beyond its end, which nobody sees.
    assert [counts.steps for counts in counted] == [counts.steps for counts in expected]
    assert [counts.proposed for counts in counted] == [counts.proposed for counts in expected]
    for counts, expected_counts in zip(counted, expected, strict=True):
        assert abs(counts.accepted - expected_counts.accepted) <= case.server.draft_tokens
    assert sum(counts.accepted for counts in counted) > 0
    # Other seeds draw other answers: these were drawn.
    greedy = drawn_answers(case, server, {"temperature": 0.0})
    assert [answer.output for answer in greedy] != [answer.output for answer in answers]
