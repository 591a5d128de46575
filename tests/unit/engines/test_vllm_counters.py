"""vLLM's counters, from a recorded page and from pages that lack something."""

import re

import pytest

from specreg.acceptance.record import StepCounts
from specreg.core.errors import InvalidMeasurementError
from specreg.engines.vllm import parse_vllm_counters
from tests.unit import builders

RECORDED = (builders.RECORDINGS / "metrics.txt").read_text()


def test_the_recorded_page_gives_its_counts() -> None:
    assert parse_vllm_counters(RECORDED) == StepCounts(
        steps=88, accepted=125, proposed=264, position_counts=(54, 42, 29)
    )


def test_the_engines_of_data_parallelism_are_added_up() -> None:
    samples = [line for line in RECORDED.splitlines() if line.startswith("vllm:spec_decode")]
    second = "\n".join(line.replace('engine="0"', 'engine="1"') for line in samples)
    assert parse_vllm_counters(f"{RECORDED}{second}\n") == StepCounts(
        steps=176, accepted=250, proposed=528, position_counts=(108, 84, 58)
    )


def test_positions_are_ordered_by_number_and_not_by_text() -> None:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    order = (10, 9, *range(9))
    positions = "".join(f'{name}{{position="{position}"}} {20 - position}\n' for position in order)
    page = positions + "".join(
        f"vllm:spec_decode_num_{name}_total 1\n"
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert parse_vllm_counters(page).position_counts == tuple(range(20, 9, -1))


@pytest.mark.parametrize(
    "name", ["drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"]
)
def test_a_missing_counter_is_named(name: str) -> None:
    full = f"vllm:spec_decode_num_{name}_total"
    page = "\n".join(line for line in RECORDED.splitlines() if full not in line)
    with pytest.raises(InvalidMeasurementError, match=f"looked for {full};") as error:
        parse_vllm_counters(page + "\n")
    assert error.value.reason == "METRICS_MISSING"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "88.5", "-1.0", "1e+300"])
def test_a_number_that_is_no_count_is_named(value: str) -> None:
    name = "vllm:spec_decode_num_drafts_total"
    page = re.sub(rf"({name}{{.*}}) 88.0", rf"\g<1> {value}", RECORDED)
    words = rf"{name} is {re.escape(str(float(value)))}, which is no count; look at /metrics"
    with pytest.raises(InvalidMeasurementError, match=words) as error:
        parse_vllm_counters(page)
    assert error.value.reason == "METRICS_UNREADABLE"


@pytest.mark.parametrize("position", ["all", "-1", "²", "9" * 5_000])
def test_only_a_position_with_a_number_is_one(position: str) -> None:
    page = RECORDED.replace('position="2"', f'position="{position}"')
    assert parse_vllm_counters(page) == StepCounts(
        steps=88, accepted=125, proposed=264, position_counts=(54, 42)
    )


def test_what_the_counters_may_be_called_now_is_named() -> None:
    page = RECORDED.replace("vllm:spec_decode_num_", "vllm:speculation_")
    with pytest.raises(InvalidMeasurementError) as error:
        parse_vllm_counters(page)
    assert str(error.value).endswith(
        "otherwise than vllm:spec_decode_num_…; /metrics has vllm:speculation_drafts_total,"
        " vllm:speculation_draft_tokens_total, vllm:speculation_accepted_tokens_total,"
        " vllm:speculation_accepted_tokens_per_pos_total"
    )


def test_a_page_of_vllm_without_the_counters_means_no_speculation() -> None:
    lines = RECORDED.splitlines()
    page = "\n".join(line for line in lines if "spec_decode" not in line) + "\n"
    assert "vllm:generation_tokens" in page
    with pytest.raises(InvalidMeasurementError, match="it doesn't speculate") as error:
        parse_vllm_counters(page)
    assert error.value.reason == "SPEC_DISABLED"


@pytest.mark.parametrize("page", ["", "sglang:generation_tokens_total 7\n"], ids=["empty", "else"])
def test_a_page_that_is_not_of_vllm_lacks_the_counters(page: str) -> None:
    with pytest.raises(InvalidMeasurementError, match="/metrics has none of them") as error:
        parse_vllm_counters(page)
    assert error.value.reason == "METRICS_MISSING"


def test_a_page_that_is_no_metrics_is_unreadable() -> None:
    with pytest.raises(InvalidMeasurementError, match="not a Prometheus page") as error:
        parse_vllm_counters("<html> {not metrics} </html>\n")
    assert error.value.reason == "METRICS_UNREADABLE"
