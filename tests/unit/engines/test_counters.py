"""The engines' counters, from recorded pages and from pages that lack something."""

import re
from collections.abc import Mapping
from typing import ClassVar

import pytest

from specreg.acceptance.record import NO_STEPS, Counters, StepCounts
from specreg.engines.registry import ENGINES
from specreg.engines.vllm import VllmWireFormat
from tests.unit import builders

SPECULATION = "vllm:spec_decode_num_"
VLLM_PAGE = (builders.RECORDINGS / "metrics.txt").read_text()
VLLM_COUNTS = StepCounts(steps=88, accepted=125, proposed=264, position_counts=(54, 42, 29))
SGLANG_PAGE = (builders.ROOT / "fixtures/recordings/sglang/0.5.23/metrics.txt").read_text()
TRTLLM_PAGE = """
trtllm_spec_decode_drafted_tokens_total{token_position="0",worker="0"} 10
trtllm_spec_decode_drafted_tokens_total{token_position="0",worker="1"} 20
trtllm_spec_decode_drafted_tokens_total{token_position="1",worker="0"} 10
trtllm_spec_decode_drafted_tokens_total{token_position="1",worker="1"} 20
trtllm_spec_decode_drafted_tokens_total{token_position="2",worker="0"} 10
trtllm_spec_decode_drafted_tokens_total{token_position="2",worker="1"} 20
trtllm_spec_decode_accepted_tokens_total{token_position="0",worker="0"} 10
trtllm_spec_decode_accepted_tokens_total{token_position="0",worker="1"} 20
trtllm_spec_decode_accepted_tokens_total{token_position="1",worker="1"} 20
trtllm_spec_decode_accepted_tokens_total{token_position="2",worker="1"} 10
trtllm_request_success_total{finished_reason="stop",worker="0"} 1
trtllm_request_success_total{finished_reason="length",worker="1"} 1
trtllm_spec_decode_drafted_tokens_created{token_position="0"} 999
trtllm_iteration_num_accepted_draft_tokens{worker="0"} 999
"""
"""Text of TensorRT-LLM's own test of examples/llm-api/measure_dspark_acceptance_disagg.py, 2026;
there it has the acceptance length 3.0. No running server was recorded."""
TRTLLM_ENDED = 'trtllm_request_success_total{finished_reason="length"} 7.0\n'


def read(engine: str, page: str) -> Counters:
    """What an engine's page says."""
    return ENGINES[engine].wire_format.parse_counters(page)


VLLM_COUNTERS = Counters(steps=88, counts=VLLM_COUNTS, requests=7, running_requests=0)
TRTLLM_COUNTS = StepCounts(steps=30, accepted=60, proposed=90, position_counts=(30, 20, 10))


@pytest.mark.parametrize(
    ("engine", "page", "counters"),
    [
        ("vllm", VLLM_PAGE, VLLM_COUNTERS),
        ("sglang", SGLANG_PAGE, Counters(steps=96)),
        ("tensorrt_llm", TRTLLM_PAGE, Counters(steps=30, counts=TRTLLM_COUNTS, requests=2)),
        ("tensorrt_llm", TRTLLM_ENDED, Counters(steps=0, counts=NO_STEPS, requests=7)),
    ],
    ids=["vllm", "sglang", "tensorrt_llm", "tensorrt_llm-without-drafts"],
)
def test_a_page_says_what_its_server_did(engine: str, page: str, counters: Counters) -> None:
    assert read(engine, page) == counters


class _FurtherWireFormat(VllmWireFormat):
    further_counters: ClassVar[Mapping[str, str]] = {"queue_s": "queue_seconds_sum", "lost": "lost"}


FURTHER = _FurtherWireFormat()


def test_further_counters_are_read_with_those_of_the_speculation() -> None:
    counters = FURTHER.parse_counters(f'{VLLM_PAGE}queue_seconds_sum{{engine="0"}} 0.25\n')
    assert counters.further == {"queue_s": 0.25}
    assert (counters.counts, counters.requests) == (VLLM_COUNTS, 7)


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf"])
def test_a_further_counter_that_is_no_amount_is_left_out_alone(value: str) -> None:
    counters = FURTHER.parse_counters(f"{VLLM_PAGE}queue_seconds_sum {value}\nlost 3\n")
    assert counters.further == {"lost": 3}
    assert counters.counts == VLLM_COUNTS


def test_a_server_without_speculation_has_its_further_counters_too() -> None:
    page = 'queue_seconds_sum{engine="0"} 0.25\nvllm:request_success_total{engine="0"} 7\n'
    counters = FURTHER.parse_counters(page, speculates=False)
    assert (counters.further, counters.requests) == ({"queue_s": 0.25}, 7)


def test_a_further_counter_of_several_ranks_counts_once() -> None:
    ranks = "".join(
        f'queue_seconds_sum{{tp_rank="{rank}"}} 0.25\n'
        f'vllm:request_success_total{{tp_rank="{rank}",finished_reason="stop"}} 7\n'
        for rank in range(2)
    )
    one = FURTHER.parse_counters(ranks, speculates=False).of_one_copy
    assert (one.further, one.requests) == ({"queue_s": 0.25}, 7)


def test_the_engines_of_data_parallelism_are_added_up() -> None:
    lines = [line for line in VLLM_PAGE.splitlines() if "spec_decode" in line and line[0] != "#"]
    second = "\n".join(line.replace('engine="0"', 'engine="1"') for line in lines)
    assert read("vllm", f"{VLLM_PAGE}{second}\n").counts == VLLM_COUNTS + VLLM_COUNTS


@pytest.mark.parametrize("engine", ["vllm", "tensorrt_llm"])
def test_positions_are_ordered_by_number_and_not_by_text(engine: str) -> None:
    order = (10, 9, *range(9))
    if engine == "vllm":
        name = f"{SPECULATION}accepted_tokens_per_pos_total"
        page = "".join(f'{name}{{position="{position}"}} {20 - position}\n' for position in order)
        page += VLLM_PAGE.replace("accepted_tokens_per_pos_total", "else_total")
    else:
        page = TRTLLM_ENDED + "".join(
            f"trtllm_spec_decode_{kind}_tokens_total"
            f'{{token_position="{position}"}} {20 - position}\n'
            for kind in ("accepted", "drafted")
            for position in order
        )
    counts = read(engine, page).counts
    assert counts is not None
    assert counts.position_counts == tuple(range(20, 9, -1))


@pytest.mark.parametrize("position", ["all", "-1", "²", "9" * 3_900])
def test_only_a_label_with_a_number_is_a_position(position: str) -> None:
    counts = read("vllm", VLLM_PAGE.replace('position="2"', f'position="{position}"')).counts
    assert counts is not None
    assert counts.position_counts == (54, 42)


@pytest.mark.parametrize(
    ("engine", "page", "name", "words"),
    [
        *(
            (
                "vllm",
                VLLM_PAGE,
                f"{SPECULATION}{kind}_total",
                "/metrics has vllm:.* --disable-log-stats",
            )
            for kind in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
        ),
        ("vllm", VLLM_PAGE, "vllm:request_success_total", "foreign requests can't be noticed"),
        ("vllm", VLLM_PAGE, "vllm:num_requests_running", "foreign requests can't be noticed"),
        (
            "sglang",
            SGLANG_PAGE,
            "sglang:spec_verify_calls_total",
            "start the server with --enable-metrics",
        ),
        ("tensorrt_llm", TRTLLM_PAGE, "trtllm_request_success_total", "return_perf_metrics: true"),
    ],
)
def test_a_missing_counter_is_named(engine: str, page: str, name: str, words: str) -> None:
    with builders.invalid("COUNTER_MISSING", f"looked for {name}.*{words}"):
        read(engine, re.sub(rf"{name}\b", "vllm:else", page))


def test_a_page_of_vllm_without_the_counters_means_no_speculation() -> None:
    page = VLLM_PAGE.replace(SPECULATION, "vllm:speculation_")
    with builders.invalid("DRAFTS_UNCOUNTED") as error:
        read("vllm", page)
    assert "than vllm:spec_decode_num_…; /metrics has vllm:speculation_" in str(error.value)
    with builders.invalid("DRAFTS_UNCOUNTED", "/metrics has no similar ones"):
        read("vllm", VLLM_PAGE.replace(SPECULATION, "vllm:other_"))


@pytest.mark.parametrize("value", ["NaN", "+Inf", "88.5", "-1.0", "1e+300"])
@pytest.mark.parametrize(
    ("engine", "page", "name", "path"),
    [
        ("vllm", VLLM_PAGE, f"{SPECULATION}drafts_total", "/metrics"),
        ("sglang", SGLANG_PAGE, "sglang:spec_verify_calls_total", "/metrics"),
        ("tensorrt_llm", TRTLLM_ENDED, "trtllm_request_success_total", "/prometheus/metrics"),
    ],
)
def test_a_number_that_is_no_count_is_named(
    engine: str, page: str, name: str, path: str, value: str
) -> None:
    words = rf"{name} is {re.escape(str(float(value)))}, which is no count; look at {path}"
    with builders.invalid("METRICS_UNREADABLE", words):
        read(engine, re.sub(rf"({name}{{.*}}) [\d.]+", rf"\g<1> {value}", page))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
@pytest.mark.parametrize(
    ("page", "words"),
    [
        ('a{b="' + '\\"' * 1_900_000 + '"} 1\n', "3,800,0.. characters in a line, and 4,096"),
        (
            "".join(f'a{{b="{number}"}} 1\n' for number in range(100_000)),
            "100,001 lines, and 60,000",
        ),
        ("#\n" * 1_000_000, "1,000,001 lines, and 60,000 are read at most"),
        ("# HELP a\n" * 1_000_000, "9,000,000 characters, and 4,194,304 are read at most"),
    ],
    ids=["quotes", "label-sets", "comments", "long"],
)
def test_a_page_that_would_take_minutes_is_refused(engine: str, page: str, words: str) -> None:
    with builders.invalid("METRICS_UNREADABLE", rf"/metrics has {words}"):
        read(engine, page)


def test_a_page_of_sixty_four_engines_is_read() -> None:
    lines = [line for line in VLLM_PAGE.splitlines() if line[0] != "#"]
    engines = [f'engine="{number}"' for number in range(64)]
    page = "\n".join(line.replace('engine="0"', engine) for engine in engines for line in lines)
    assert read("vllm", f"{page}\n").steps == 64 * 88


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
def test_a_page_without_metrics_is_unreadable(engine: str) -> None:
    with builders.invalid("METRICS_UNREADABLE", "not a Prometheus page"):
        read(engine, "<html> {not metrics} </html>\n")
    with builders.invalid("COUNTER_MISSING"):
        read(engine, "")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
@pytest.mark.parametrize(
    "sample",
    [
        "a 1 1" + "0" * 400,
        "a 1 1" + "0" * 4000,
        'a{b="1"} 1 2 9' + "9" * 400,
        "a\t1\t-1" + "0" * 400,
    ],
    ids=["time", "more-digits-than-python-reads", "further-words", "tabs"],
)
def test_a_number_of_hundreds_of_digits_is_unreadable(engine: str, sample: str) -> None:
    """The library divides a time by 1000, which no float holds."""
    with builders.invalid("METRICS_UNREADABLE", "not a Prometheus page"):
        read(engine, f"{sample}\n")


@pytest.mark.parametrize(
    ("version", "requests"),
    [("0.26.0", 7), ("0.27.1", 6), ("0.29.0", 6), ("0.31.0", 6), ("0.32.0", 6), ("0.33.0", 7)],
)
def test_the_requests_that_ended_are_counted_whatever_for(version: str, requests: int) -> None:
    """The recorder's probe before, and its questions that are answered after; none runs on."""
    folder = builders.ROOT / "fixtures/recordings/vllm" / version
    pages = [(folder / name).read_text() for name in ("metrics_before.txt", "metrics.txt")]
    before, after = (read("vllm", page) for page in pages)
    assert (before.requests, after.requests) == (1, 1 + requests)
    assert (before.running_requests, after.running_requests) == (0, 0)
    aborted = 'finished_reason="abort",model_name="tiny-target"}'
    page = pages[1].replace(f"{aborted} 0.0", f"{aborted} 2.0")
    running = 'vllm:num_requests_running{engine="0",model_name="tiny-target"}'
    busy = read("vllm", page.replace(f"{running} 0.0", f"{running} 1.0"))
    assert (busy.requests, busy.running_requests) == (requests + 3, 1)


def test_an_engine_without_counters_is_not_read_as_zero() -> None:
    assert ENGINES["triton"].wire_format.counters_path is None
    with builders.invalid("COUNTER_MISSING"):
        read("triton", "")
