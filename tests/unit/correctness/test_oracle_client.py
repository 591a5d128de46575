"""Which cases the oracle can say something of."""

import dataclasses
import itertools

import pytest

from specreg.core.errors import InvalidMeasurementError
from specreg.correctness.oracle_client import check_context, has_oracle
from specreg.engines.methods import METHODS
from specreg.engines.registry import ENGINES
from specreg.engines.token_api import Transcript
from specreg.matrix.case import Case
from tests.unit import builders


def case_of(engine: str, method: str, temperature: float = 0.0) -> Case:
    spec = dataclasses.replace(builders.SPEC, engine=engine, method=method)
    return dataclasses.replace(builders.CASE, server=spec, temperature=temperature)


def test_it_knows_the_pairs_that_were_held_against_an_engine_and_no_others() -> None:
    pairs = itertools.product(ENGINES, METHODS)
    assert {pair for pair in pairs if has_oracle(case_of(*pair))} == {
        ("reference", "draft_model"),
        ("reference", "ngram"),
        ("sglang", "draft_model"),
        ("sglang", "eagle3"),
        ("triton", "draft_model"),  # vLLM in another server
        ("triton", "eagle3"),
        ("triton", "ngram"),
        ("vllm", "draft_model"),
        ("vllm", "eagle3"),
        ("vllm", "ngram"),
    }


def test_an_answer_whose_last_drafts_do_not_fit_into_the_context_is_no_measurement() -> None:
    case = case_of("vllm", "eagle3")
    spec = case.server
    room = spec.max_model_len_tokens - spec.draft_tokens
    fits = Transcript(prompt=(1,) * 10, output=(2,) * (room - 10))
    check_context(case, [fits])
    longer = dataclasses.replace(fits, output=(*fits.output, 2))
    with pytest.raises(InvalidMeasurementError, match="lower output_cap_tokens or raise") as error:
        check_context(case, [fits, longer])
    assert error.value.reason == "CONTEXT_FULL"
    assert f"is {room + 1} tokens, and its last step drafts {spec.draft_tokens}," in str(
        error.value
    )
