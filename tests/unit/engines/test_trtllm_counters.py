"""TensorRT-LLM's counters, from a page of its own tests and from pages that lack something."""

import re

import pytest

from specreg.acceptance.record import NO_STEPS, Counters, StepCounts
from specreg.core.errors import InvalidMeasurementError
from specreg.engines.tensorrt_llm import parse_trtllm_counters

PAGE = """
# TYPE trtllm_spec_decode_drafted_tokens counter
trtllm_spec_decode_drafted_tokens_total{token_position="0",worker="0"} 10
trtllm_spec_decode_drafted_tokens_total{token_position="0",worker="1"} 20
trtllm_spec_decode_drafted_tokens_total{token_position="1",worker="0"} 10
trtllm_spec_decode_drafted_tokens_total{token_position="1",worker="1"} 20
trtllm_spec_decode_drafted_tokens_total{token_position="2",worker="0"} 10
trtllm_spec_decode_drafted_tokens_total{token_position="2",worker="1"} 20
# TYPE trtllm_spec_decode_accepted_tokens counter
trtllm_spec_decode_accepted_tokens_total{token_position="0",worker="0"} 10
trtllm_spec_decode_accepted_tokens_total{token_position="0",worker="1"} 20
trtllm_spec_decode_accepted_tokens_total{token_position="1",worker="1"} 20
trtllm_spec_decode_accepted_tokens_total{token_position="2",worker="1"} 10
# TYPE trtllm_request_success counter
trtllm_request_success_total{finished_reason="stop",worker="0"} 1
trtllm_request_success_total{finished_reason="length",worker="1"} 1
trtllm_spec_decode_drafted_tokens_created{token_position="0"} 999
trtllm_iteration_num_accepted_draft_tokens{worker="0"} 999
"""
"""Text of TensorRT-LLM's own test of examples/llm-api/measure_dspark_acceptance_disagg.py, 2026;
there it has the acceptance length 3.0. No running server was recorded."""


def test_the_page_has_the_acceptance_length_that_its_authors_find() -> None:
    counters = parse_trtllm_counters(PAGE)
    counts = counters.counts
    assert counts is not None
    assert (counters.steps, counters.requests) == (30, 2)
    assert counts == StepCounts(steps=30, accepted=60, proposed=90, position_counts=(30, 20, 10))
    assert counts.acceptance_length == 3.0


def test_a_position_where_nothing_was_accepted_counts_none() -> None:
    """Text of the same test; its acceptance length there is 1.0, its rate 0."""
    counts = parse_trtllm_counters("""
trtllm_spec_decode_drafted_tokens_total{token_position="0"} 5
trtllm_spec_decode_drafted_tokens_total{token_position="1"} 5
trtllm_request_success_total{finished_reason="stop"} 1
""").counts
    assert counts is not None
    assert counts == StepCounts(steps=5, accepted=0, proposed=10, position_counts=(0, 0))
    assert (counts.acceptance_length, counts.acceptance_rate) == (1.0, 0.0)


def test_positions_are_ordered_by_number_and_not_by_text() -> None:
    page = "".join(
        f'trtllm_spec_decode_{what}_tokens_total{{token_position="{position}"}} {20 - position}\n'
        for what in ("accepted", "drafted")
        for position in (10, 9, *range(9))
    )
    counts = parse_trtllm_counters(f"{page}trtllm_request_success_total 1\n").counts
    assert counts is not None
    assert counts.position_counts == tuple(range(20, 9, -1))


@pytest.mark.parametrize("position", ["999999999999", "²"])
def test_a_position_that_none_can_be_is_left_out(position: str) -> None:
    page = f'trtllm_spec_decode_drafted_tokens_total{{token_position="{position}"}} 1.0\n'
    counts = parse_trtllm_counters(f"{page}trtllm_request_success_total 1\n").counts
    assert counts == NO_STEPS


def test_requests_without_drafts_are_no_steps() -> None:
    page = 'trtllm_request_success_total{finished_reason="length"} 7.0\n'
    assert parse_trtllm_counters(page) == Counters(steps=0, counts=NO_STEPS, requests=7)


def test_a_server_that_counts_no_requests_is_told_what_to_switch_on() -> None:
    with pytest.raises(InvalidMeasurementError, match="return_perf_metrics: true") as error:
        parse_trtllm_counters("trtllm_kv_cache_hit_rate 0.5\n")
    assert error.value.reason == "METRICS_MISSING"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1.5"])
def test_a_number_that_is_no_count_is_named(value: str) -> None:
    page = f'trtllm_spec_decode_drafted_tokens_total{{token_position="0"}} {value}\n'
    words = rf"is {re.escape(str(float(value)))}, which is no count; look at /prometheus/metrics"
    with pytest.raises(InvalidMeasurementError, match=words) as error:
        parse_trtllm_counters(page)
    assert error.value.reason == "METRICS_UNREADABLE"


def test_what_is_no_page_is_named() -> None:
    with pytest.raises(InvalidMeasurementError, match="/prometheus/metrics is not a Prometheus"):
        parse_trtllm_counters("<html>{")
