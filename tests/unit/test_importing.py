"""What other tools wrote: told by its content, worked out from counts, refused when it can't be."""

import dataclasses
import json
from typing import Any

import pytest

from specreg.errors import BaselineError
from specreg.importing import ImportAbout, parse_import
from specreg.published import Published

ABOUT = ImportAbout(
    method="eagle3",
    target="some/target",
    draft="some/draft",
    dataset="mt-bench",
    draft_tokens=3,
    temperature=0.0,
    conditions="80 first turns, at most 256 tokens",
)

# The keys of vLLM 0.32's `vllm/benchmarks/serve.py`, cut down; the counts are the first worked
# example of DEFINITIONS.md: steps by accepted drafts [39, 1, 0, 3].
BENCH_SERVE = {
    "date": "20261010-101010",
    "backend": "openai-chat",
    "model_id": "some/target",
    "tokenizer_id": "some/target",
    "num_prompts": 80,
    "request_rate": "inf",
    "completed": 80,
    "mean_ttft_ms": 12.5,
    "spec_decode_acceptance_rate": 10 / 129 * 100,
    "spec_decode_acceptance_length": 1 + 10 / 43,
    "spec_decode_num_drafts": 43,
    "spec_decode_draft_tokens": 129,
    "spec_decode_accepted_tokens": 10,
    "spec_decode_per_position_acceptance_rates": [4 / 43, 3 / 43, 3 / 43],
}

# What `AcceptanceRate._process_lengths` of specdec_bench (NVIDIA/Model-Optimizer, commit
# 037a9f69) makes of the lengths in its own test, `tests/test_speculation_profile.py`; its
# `Metric.write` puts each run into a list.
SPECDEC_RUN = {
    "Request_AL": {"0": {"0": 2.5467}},
    "Average_AL": 2.54671,
    "Acceptance_Length_Histogram": {"1": 8611, "2": 7814, "3": 5337, "4": 8891},
    "Conditional_Acceptance_Rate": {"1": 1.0, "2": 0.719081, "3": 0.645495, "4": 0.624895},
    "Joint_Acceptance_Rate": {"1": 1.0, "2": 0.719081, "3": 0.464163, "4": 0.290053},
}

# The metrics of aiperf's own test of two requests, `TestPooledHistogram`, in the shape of its
# docs/reference/json-export-schema.md (ai-dynamo/aiperf).
AIPERF = {
    "schema_version": "1.4",
    "aiperf_version": "0.13.0",
    "request_throughput": {"unit": "requests/sec", "avg": 1.45},
    "spec_decode_token_weighted_acceptance_length": {"unit": "ratio", "avg": 1 + 20 / 11},
    "spec_decode_overall_draft_acceptance_rate": {"unit": "%", "avg": 20 / 44 * 100},
    "total_spec_decode_steps": {"unit": "count", "avg": 11.0},
    "total_draft_tokens": {"unit": "tokens", "avg": 44.0},
    "pooled_spec_decode_acceptance_histogram": {"0": 2, "1": 3, "2": 2, "3": 3, "4": 1},
}

# An entry of `baselines` in vLLM's RFC 28135 (github.com/vllm-project/vllm/issues/28135).
EXPECTATION = {"expected": 2.6, "tolerance_pct": 5}


def read(found: object, **about: Any) -> Published:  # noqa: ANN401 - any field
    content = json.dumps(found).encode()
    return parse_import(content, "some.json", dataclasses.replace(ABOUT, **about))


def without(found: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in keys}


def test_the_file_of_vllm_bench_serve_is_read_by_its_counts() -> None:
    found = read(BENCH_SERVE)
    assert found.acceptance_length_tokens == pytest.approx(1.23256, abs=1e-5)
    assert found.acceptance_rate_frac == pytest.approx(0.07752, abs=1e-5)
    assert found.position_frac == pytest.approx((4 / 43, 3 / 43, 3 / 43))
    assert found.tolerance_frac is None


def test_what_the_file_does_not_know_is_told() -> None:
    found = read(BENCH_SERVE)
    told = dataclasses.asdict(ABOUT)
    assert {name: getattr(found, name) for name in told} == told
    assert found.source == "some.json, written by vllm bench serve"
    assert found.schema_version == 1


def test_a_step_of_specdec_bench_has_the_targets_own_token_in_it() -> None:
    found = read([SPECDEC_RUN])
    assert found.acceptance_length_tokens == pytest.approx(2.4733, abs=1e-3)
    assert found.position_frac == pytest.approx((0.719081, 0.464163, 0.290053), abs=1e-5)
    assert found.acceptance_rate_frac is None


def test_a_length_that_never_happened_is_missing_from_the_histogram() -> None:
    lengths = {"1": 40, "2": 30, "4": 30}
    found = read([{**SPECDEC_RUN, "Acceptance_Length_Histogram": lengths}], draft_tokens=4)
    assert found.acceptance_length_tokens == pytest.approx(2.2)
    assert found.position_frac == pytest.approx((0.6, 0.3, 0.3, 0.0))


def test_the_mean_over_requests_of_specdec_bench_is_not_taken_for_the_length() -> None:
    with pytest.raises(BaselineError, match=r"`Acceptance_Length_Histogram`.*; take an"):
        read([without(SPECDEC_RUN, "Acceptance_Length_Histogram")])


def test_several_runs_in_one_file_are_not_mixed() -> None:
    with pytest.raises(BaselineError, match="got 2 entries; leave that of the run you mean"):
        read([SPECDEC_RUN, SPECDEC_RUN])


def test_the_export_of_aiperf_is_read_by_its_histogram() -> None:
    found = read(AIPERF, draft_tokens=4)
    assert found.acceptance_length_tokens == pytest.approx(1 + 20 / 11)
    assert found.acceptance_rate_frac == pytest.approx(20 / 44)
    assert found.position_frac == pytest.approx((9 / 11, 6 / 11, 4 / 11, 1 / 11))


def test_an_aiperf_without_the_drafted_tokens_says_no_rate() -> None:
    found = read(without(AIPERF, "total_draft_tokens"), draft_tokens=4)
    assert found.acceptance_rate_frac is None
    assert found.acceptance_length_tokens == pytest.approx(1 + 20 / 11)


def test_an_expectation_is_a_length_with_its_tolerance() -> None:
    found = read(EXPECTATION)
    assert found.acceptance_length_tokens == 2.6
    assert found.tolerance_frac == 0.05
    assert found.acceptance_rate_frac is None
    assert found.position_frac == ()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(
            {key: value for key, value in BENCH_SERVE.items() if "spec_decode" not in key},
            "vllm bench serve, without the acceptance needed: Object missing required field"
            " `spec_decode_num_drafts`; run it on a server that speculates",
            id="vllm-bench-serve",
        ),
        pytest.param(
            without(AIPERF, "pooled_spec_decode_acceptance_histogram"),
            "aiperf, without the acceptance needed: Object missing required field"
            " `pooled_spec_decode_acceptance_histogram`; start vLLM with"
            " --per-request-spec-decode-metrics summary",
            id="aiperf",
        ),
        pytest.param(
            {"expected": 2.6},
            "an expectation, without the acceptance needed: Object missing required field"
            ' `tolerance_pct`; write {"expected": 2.6, "tolerance_pct": 5}',
            id="expectation",
        ),
    ],
)
def test_a_file_without_acceptance_says_what_it_lacks(found: object, words: str) -> None:
    with pytest.raises(BaselineError) as error:
        read(found)
    assert str(error.value).startswith(f"import 'some.json': {words}")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(
            b'{"accept_length": 2.6}', "its keys are accept_length; give a file of", id="?"
        ),
        pytest.param(b"{}", "its keys are none; give a file of vllm bench serve", id="empty"),
        pytest.param(b"[]", "needed one object, got 0 entries", id="no-run"),
        pytest.param(b"2.6", "needed one object, got 1 entries", id="a-number"),
        pytest.param(b'{"expected": 2.6,', "give a whole JSON file", id="cut-off"),
        pytest.param(b"", "give a whole JSON file", id="nothing"),
        pytest.param(b'{"expected": "\xff"}', "give a whole JSON file", id="no-text"),
        pytest.param(b'{"expected": NaN, "tolerance_pct": 5}', "NaN and Infinity", id="nan"),
        pytest.param(b'{"expected": Infinity, "tolerance_pct": 5}', "NaN and", id="infinity"),
    ],
)
def test_a_file_of_no_known_form_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(BaselineError) as error:
        parse_import(content, "some.json", ABOUT)
    assert str(error.value).startswith("import 'some.json': ")
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(
            BENCH_SERVE | {"spec_decode_acceptance_rate": 10 / 129},
            "spec_decode_acceptance_rate is 0.07751937984496124, by the counts it is 7.752",
            id="share-for-percent",
        ),
        pytest.param(
            BENCH_SERVE | {"spec_decode_per_position_acceptance_rates": [9.3, 7.0, 7.0]},
            "COUNTS_INCONSISTENT",
            id="percent-for-share",
        ),
        pytest.param(
            BENCH_SERVE | {"spec_decode_acceptance_length": 10 / 43},
            "spec_decode_acceptance_length is 0.23",
            id="length-without-the-targets-token",
        ),
        pytest.param(
            BENCH_SERVE | {"spec_decode_accepted_tokens": 130}, "LENGTH_IMPOSSIBLE", id="too-many"
        ),
        pytest.param(
            BENCH_SERVE | {"spec_decode_num_drafts": 0}, "SPEC_DISABLED: 0 steps", id="no-steps"
        ),
        pytest.param(AIPERF, "SETTINGS_DIFFER: 4 positions, needed 3; see whether", id="another-k"),
        pytest.param(
            [SPECDEC_RUN | {"Acceptance_Length_Histogram": {"1": 5, "7": 1}}],
            "SETTINGS_DIFFER: 6 positions, needed 3",
            id="merged-chunks",
        ),
        pytest.param(
            [SPECDEC_RUN | {"Acceptance_Length_Histogram": {}}], "SPEC_DISABLED", id="no-histogram"
        ),
        pytest.param(
            [SPECDEC_RUN | {"Acceptance_Length_Histogram": {"1": 5, "2": -1}}],
            "COUNTS_INCONSISTENT",
            id="negative",
        ),
        pytest.param(
            [SPECDEC_RUN | {"Acceptance_Length_Histogram": {"one": 5}}],
            "Expected `int`",
            id="words",
        ),
        pytest.param(
            {"expected": 0.73, "tolerance_pct": 10},
            "acceptance_length_tokens = 0.73, needed 1 to 4; write",
            id="rate-for-length",
        ),
        pytest.param(
            {"expected": 4.5, "tolerance_pct": 5}, "= 4.5, needed 1 to 4", id="beyond-the-draft"
        ),
        pytest.param(
            {"expected": 2.6, "tolerance_pct": 0.05},
            "tolerance_pct is 0.05, needed percent, 1 or more",
            id="share-for-tolerance",
        ),
        pytest.param(
            {"expected": 2.6, "tolerance_pct": 500}, "tolerance_frac = 5.0", id="wide-tolerance"
        ),
        pytest.param({"expected": "2.6", "tolerance_pct": 5}, "Expected `float`", id="text"),
    ],
)
def test_figures_that_cannot_be_are_refused(found: object, words: str) -> None:
    with pytest.raises(BaselineError) as error:
        read(found)
    assert str(error.value).startswith("import 'some.json': ")
    assert words in str(error.value)
    assert "; " in str(error.value)


def test_aiperfs_histogram_must_not_contradict_its_drafted_tokens() -> None:
    drafted = {"unit": "tokens", "avg": 19.0}
    with pytest.raises(BaselineError, match="COUNTS_INCONSISTENT"):
        read(AIPERF | {"total_draft_tokens": drafted}, draft_tokens=4)
