"""The figures that docs/explanation/measuring.md names: exact, and null without a value."""

import dataclasses
from typing import Any

import msgspec
import pytest

from specreg.acceptance.record import NO_STEPS, AcceptanceRecord, Source, View
from specreg.acceptance.trace import Reply
from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.load.rounds import Round
from specreg.matrix.case import Case, Limits
from specreg.measurement.figures import (
    AcceptanceFigures,
    AnswerFigures,
    ArmFigures,
    Figures,
    PaceFigures,
    PartFigures,
    SpeedupFigures,
    figures_of,
)
from specreg.measurement.measure import Measurement, values_of
from specreg.measurement.metrics import Replay
from specreg.stats.percentiles import TimeHistogram
from tests.unit import builders

MS = 10**6
S = 10**9
CASE = builders.with_judging(
    dataclasses.replace(builders.CASE, control=builders.PLAIN_SPEC),
    limits=Limits(ttft_ms=20.0, tpot_ms=7.5),
)
# Acceptance lengths of 2.5 and 4.
LONG = builders.counts(8, 0, 6, 6)
SHORT = builders.counts(0, 0, 0, 2)
SWIFT = builders.trace(builders.chunk(10 * MS), builders.chunk(30 * MS, 4))
SLOW = builders.trace(builders.chunk(30 * MS), builders.chunk(70 * MS, 4))
LATE = msgspec.structs.replace(SLOW, planned_ns=-5 * MS)


def spread(*durations_ns: int) -> TimeHistogram:
    histogram = TimeHistogram()
    histogram.add_all(durations_ns)
    return histogram


ROUNDS = (
    Round(
        traces=(SWIFT, SLOW),
        started_ns=0,
        ended_ns=S,
        gaps=spread(20 * MS, 40 * MS),
        lags=spread(1 * MS),
    ),
    Round(traces=(SWIFT, LATE), started_ns=0, ended_ns=2 * S, gaps=spread(60 * MS), lags=spread(3)),
)
CONTROL = Round(traces=(SLOW,), started_ns=0, ended_ns=S)


def record(source: Source = Source.VLLM_REQUEST) -> AcceptanceRecord:
    """Two turns of a chat, the second cut off by two tokens, and one in another category."""
    prompts = (
        builders.prompt_acceptance(LONG),
        dataclasses.replace(builders.prompt_acceptance(SHORT, cut_tokens=2), turn=2),
        dataclasses.replace(builders.prompt_acceptance(SHORT), category="math"),
    )
    return builders.acceptance_of(prompts, source)


def measured(
    acceptance: AcceptanceRecord | None, case: Case = CASE, rounds: tuple[Round, ...] = ROUNDS
) -> Measurement:
    controls = (CONTROL,) if case.control else ()
    replay = Replay(
        rounds=rounds, control_rounds=controls, acceptance=acceptance, limits=case.judging.limits
    )
    measurement = builders.measurement(values_of(case, replay), case=case)
    return dataclasses.replace(measurement, replay=replay)


def as_json(measurement: Measurement) -> dict[str, Any]:
    figures: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(figures_of(measurement, 2)))
    return figures


def test_the_acceptance_of_all_requests_is_there_in_every_form() -> None:
    figures = as_json(measured(record()))
    assert (figures["case_id"], figures["launch"]) == (CASE.id, 2)
    assert (figures["engine_version"], figures["invalid"]) == ("0.32.0", None)
    acceptance = figures["acceptance"]
    assert (acceptance["source"], acceptance["view"]) == ("vllm_request", "verifier")
    assert acceptance["total"] == {
        "requests": 3,
        "steps": 24,
        "accepted": 42,
        "proposed": 72,
        "acceptance_length_tokens": 1 + 42 / 24,
        "macro_acceptance_length_tokens": (2.5 + 4 + 4) / 3,
        "acceptance_rate_frac": 42 / 72,
        "tokens_per_step": (51 - 1 + 9 - 2 - 1 + 9 - 1) / 24,
        "truncated_tokens": 2,
        "histogram": [8, 0, 6, 10],
        "marginal_frac": [16 / 24, 16 / 24, 10 / 24],
        "conditional_frac": [16 / 24, 1.0, 10 / 16],
        "joint_frac": pytest.approx([16 / 24, 16 / 24, 10 / 24]),
        "undrafted_steps": 0,
    }
    assert acceptance["category_acceptance_length_tokens"] == (1 + 36 / 22 + 4) / 2
    by_category = acceptance["by_category"]
    by_turn = acceptance["by_turn"]
    lengths = {name: part["acceptance_length_tokens"] for name, part in by_category.items()}
    assert lengths == {"chat": 1 + 36 / 22, "math": 4.0}
    turns = {turn: (part["requests"], part["truncated_tokens"]) for turn, part in by_turn.items()}
    assert turns == {"1": (2, 0), "2": (1, 2)}


def test_the_timing_is_summarized_over_requests_and_rates_are_all_over_all() -> None:
    timing = as_json(measured(record()))["timing"]
    assert (timing["requests"], timing["good_requests"], timing["tokens"]) == (4, 2, 20)
    assert timing["tokens_per_chunk"] == 4.0
    means = {
        name: (value["count"], pytest.approx(value["mean"]))
        for name, value in timing.items()
        if isinstance(value, dict) and name != "by_category"
    }
    assert means == {
        "ttft_ms": (4, 20.0),
        "e2e_ms": (4, 50.0),
        "tpot_ms": (4, 7.5),
        "step_ms": (3, 40.0),
        "output_tokens_per_s": (4, 150.0),
        "completion_tokens": (4, 5.0),
        "send_delay_ms": (4, 1.25),
        "client_lag_ms": (2, pytest.approx(0.5, abs=1e-4)),
    }
    names = ("throughput_tokens_per_s", "requests_per_s", "goodput_requests_per_s")
    assert [timing[name] for name in names] == [20 / 3, 4 / 3, 2 / 3]
    assert set(timing["ttft_ms"]) == {
        *("count", "mean", "min", "max", "stdev", "p50", "p75", "p90", "p95", "p99")
    }


def test_prompt_tokens_count_if_the_server_reports_all_of_them() -> None:
    spoken = [msgspec.structs.replace(request, prompt_tokens=20) for request in (SWIFT, SLOW)]
    part = dataclasses.replace(ROUNDS[0], traces=tuple(spoken))
    timing = as_json(measured(record(), rounds=(part,)))["timing"]
    assert (timing["prompt_tokens"]["count"], timing["prompt_tokens"]["mean"]) == (2, 20.0)
    assert (timing["throughput_tokens_per_s"], timing["total_tokens_per_s"]) == (10.0, 50.0)
    part = dataclasses.replace(part, traces=(spoken[0], SLOW))
    assert as_json(measured(record(), rounds=(part,)))["timing"]["total_tokens_per_s"] is None


MATHS = msgspec.structs.replace(SLOW, category="math")
"""TPOT 10 ms; SWIFT, of the chat, has 5."""


def test_the_pace_is_given_by_category_beside_two_speedups() -> None:
    part = dataclasses.replace(ROUNDS[0], traces=(SWIFT, MATHS, SWIFT))
    measurement = measured(record(), rounds=(part,))
    figures = as_json(measurement)
    assert figures["judged"] == dict(measurement.values)
    assert (figures["control"]["requests"], figures["control"]["ttft_ms"]["mean"]) == (1, 30.0)
    chat, maths = figures["timing"]["by_category"].values()
    assert list(figures["timing"]["by_category"]) == ["chat", "math"]
    assert (chat["requests"], chat["tokens"], chat["tpot_ms"]["p50"]) == (2, 10, 5.0)
    assert (maths["requests"], maths["output_tokens_per_s"]["p50"]) == (1, 100.0)
    assert figures["control"]["by_category"]["chat"]["tpot_ms"]["p50"] == 10.0
    assert figures["speedup"] == {
        "throughput_ratio": figures["judged"]["speedup_ratio"],
        "round_ratio": figures["speedup"]["round_ratio"],
        "tpot_ratio": 2.0,
        "tpot_ratio_by_category": {"chat": 2.0},  # the control had no maths
    }
    assert figures["speedup"]["round_ratio"]["count"] == 1


def test_what_the_answers_hold_is_counted() -> None:
    thought = msgspec.structs.replace(SWIFT, reply=Reply.UNFINISHED_THOUGHT, answer_sha256="a")
    later = msgspec.structs.replace(thought, turn=2, empty_replies=1, loops=True)
    short = builders.trace(builders.chunk(MS))
    short = msgspec.structs.replace(short, prompt_id="b", reply=Reply.NOTHING, answer_sha256="a")
    none = msgspec.structs.replace(builders.trace(), prompt_id="c", answer_sha256="b")
    answers = {
        "requests": 4,
        "thinking": None,
        "with_thought": 2,
        "unfinished_thoughts": 2,
        "without_text": 1,
        "without_tokens": 1,
        "of_one_token": 1,
        "looping": 1,
        "after_empty_replies": 1,
        "prompts": 3,
        "distinct": 2,
        "other_texts": 0,
        "cut_short": 0,
    }
    part = dataclasses.replace(ROUNDS[0], traces=(thought, later, short, none))
    assert as_json(measured(record(), rounds=(part,)))["answers"] == answers
    unknown = msgspec.structs.replace(none, answer_sha256="")
    part = dataclasses.replace(part, traces=(thought, later, short, unknown))
    assert as_json(measured(record(), rounds=(part,)))["answers"] == answers | {"distinct": None}


@pytest.mark.parametrize(
    ("tokens", "finish_reason", "ignore_eos", "cut_short"),
    [
        (4, "length", False, 1),
        (4, "stop", False, 0),
        (4, "stop", True, 1),
        (8, "length", False, 0),
        (8, "length", True, 0),
    ],
)
def test_an_answer_that_the_server_ended_by_a_limit_of_its_own_is_counted(
    tokens: int, finish_reason: str, *, ignore_eos: bool, cut_short: int
) -> None:
    trace = builders.trace(builders.chunk(MS, tokens=tokens))
    trace = msgspec.structs.replace(trace, finish_reason=finish_reason)
    part = dataclasses.replace(ROUNDS[0], traces=(trace,))
    measurement = measured(record(), rounds=(part,))
    case = builders.with_request(measurement.case, output_cap_tokens=8, ignore_eos=ignore_eos)
    answers = figures_of(dataclasses.replace(measurement, case=case), 1).answers
    assert answers is not None
    assert answers.cut_short == cut_short


@pytest.mark.parametrize(
    ("ids", "text", "others"),
    [("ids", "whole", 0), ("ids", "partial", 1), ("other", "partial", 0), ("", "partial", 0)],
)
def test_a_streamed_text_that_differs_alone_is_counted(ids: str, text: str, others: int) -> None:
    plain = msgspec.structs.replace(SWIFT, ids_sha256="ids" if ids else "", answer_sha256="whole")
    trace = msgspec.structs.replace(plain, ids_sha256=ids, answer_sha256=text)
    rounds, control_rounds = (
        (dataclasses.replace(ROUNDS[0], traces=(one,)),) for one in (trace, plain)
    )
    measurement = measured(record(), rounds=rounds)
    assert measurement.replay is not None
    replay = dataclasses.replace(measurement.replay, control_rounds=control_rounds)
    answers = figures_of(dataclasses.replace(measurement, replay=replay), 1).answers
    assert answers is not None
    assert answers.other_texts == others


def test_thoughts_and_answers_have_an_acceptance_each_by_their_chunks() -> None:
    """Chunks of 4, 4 and 2 tokens in the thought accept 3, 3 and 1; of 1 and 2 in the answer."""
    sizes = {"chunk_sizes": (0, 1, 2, 0, 2), "thought_chunk_sizes": (0, 0, 1, 0, 2)}
    thinking = msgspec.structs.replace(SWIFT, **sizes)
    part = dataclasses.replace(ROUNDS[0], traces=(thinking, thinking))
    acceptance = as_json(measured(record(), rounds=(part,)))["acceptance"]
    by_part = {
        name: (part["steps"], part["accepted"], part["acceptance_length_tokens"])
        for name, part in acceptance["by_part"].items()
    }
    assert by_part == {"thought": (6, 14, 1 + 14 / 6), "answer": (4, 2, 1.5)}
    merged = msgspec.structs.replace(thinking, chunk_sizes=(0, 1, 2, 0, 2, 1))
    for traces in ((SWIFT,), (thinking, merged)):
        part = dataclasses.replace(part, traces=traces)
        assert as_json(measured(record(), rounds=(part,)))["acceptance"]["by_part"] == {}


def test_there_is_no_speedup_without_a_control_or_a_speed() -> None:
    for case in (builders.PLAIN_CASE, builders.with_judging(CASE, speed=False)):
        assert as_json(measured(record(), case))["speedup"] is None
    alone = as_json(measured(None, builders.PLAIN_CASE))
    assert (alone["acceptance"], alone["control"], alone["timing"]["requests"]) == (None, None, 4)


def test_a_sum_gives_no_figures_of_requests() -> None:
    """Counters know all steps and no request: no mean over requests, and no parts."""
    of_sum = dataclasses.replace(record(Source.VLLM_COUNTERS), prompts=())
    acceptance = as_json(measured(of_sum))["acceptance"]
    absent = {name for name, value in acceptance["total"].items() if value is None}
    assert absent == {
        *("requests", "macro_acceptance_length_tokens", "tokens_per_step", "truncated_tokens")
    }
    assert acceptance["category_acceptance_length_tokens"] is None
    assert (acceptance["by_category"], acceptance["by_turn"]) == ({}, {})


def test_figures_that_chunks_do_not_show_are_null() -> None:
    unknown = dataclasses.replace(LONG, proposed=None)
    of_chunks = dataclasses.replace(
        builders.acceptance(unknown, Source.STREAM_CHUNKS), view=View.EMITTED
    )
    total = as_json(measured(of_chunks))["acceptance"]["total"]
    absent = {name for name, value in total.items() if value is None}
    assert absent == {"proposed", "acceptance_rate_frac", "truncated_tokens"}


def test_steps_without_a_draft_count_among_the_tokens_per_step() -> None:
    spec = dataclasses.replace(builders.SPEC, method="ngram", draft=None)
    ngram = dataclasses.replace(CASE, server=spec)
    longer = [
        dataclasses.replace(prompt, completion_tokens=prompt.completion_tokens + 30)
        for prompt in record().prompts
    ]
    of_longer = dataclasses.replace(record(), prompts=tuple(longer))
    total = as_json(measured(of_longer, ngram))["acceptance"]["total"]
    later_tokens = sum(prompt.completion_tokens - 1 for prompt in longer)
    steps = total["steps"] + total["undrafted_steps"]
    assert total["undrafted_steps"] > 0
    assert total["tokens_per_step"] == later_tokens / steps
    assert total["acceptance_length_tokens"] == 1 + 42 / 24


def test_figures_of_nothing_are_null_and_neither_zero_nor_nan() -> None:
    silent = msgspec.structs.replace(builders.trace(), usage_tokens=0)
    empty = Round(traces=(silent,), started_ns=S, ended_ns=S)
    idle = builders.acceptance(NO_STEPS)
    figures = as_json(measured(idle, rounds=(empty,)))
    spreads = {name for name, value in figures["timing"].items() if value is None}
    assert spreads == {
        *("tokens_per_chunk", "ttft_ms", "e2e_ms", "tpot_ms", "step_ms", "output_tokens_per_s"),
        *("throughput_tokens_per_s", "requests_per_s", "goodput_requests_per_s", "client_lag_ms"),
        *("tokens_per_chunk", "prompt_tokens", "total_tokens_per_s"),
    }
    assert figures["speedup"].pop("tpot_ratio_by_category") == {"chat": None}
    assert {*figures["speedup"].values()} == {None}
    assert figures["judged"] == {}
    total = figures["acceptance"]["total"]
    assert total.pop("requests") == 1
    assert all(value in (None, 0, [], [0]) for value in total.values())
    ratios = {name for name, value in total.items() if value is None}
    assert ratios == {
        *("acceptance_length_tokens", "macro_acceptance_length_tokens", "acceptance_rate_frac"),
        "tokens_per_step",
    }


def test_invalid_figures_have_only_their_reason() -> None:
    broken = dataclasses.replace(
        builders.measurement({}),
        replay=None,
        invalid=dict.fromkeys(Family, Reason(code="X", text="y")),
    )
    figures = as_json(broken)
    assert {name: value for name, value in figures.items() if value} == {
        "case_id": builders.CASE.id,
        "launch": 2,
        "engine_version": "0.32.0",
        "invalid": {family: {"code": "X", "text": "y", "remedy": ""} for family in Family},
    }


@pytest.mark.parametrize(
    ("family", "gone"),
    [
        (Family.LATENCY, {"timing", "control", "speedup"}),
        (Family.SPEEDUP, {"control", "speedup"}),
        (Family.POWER, set[str]()),
    ],
)
def test_figures_of_an_invalid_family_alone_are_not_there(family: Family, gone: set[str]) -> None:
    measurement = measured(record())
    figures = as_json(measurement)
    part = as_json(dataclasses.replace(measurement, invalid={family: Reason(code="X", text="y")}))
    assert part["invalid"] == {family: {"code": "X", "text": "y", "remedy": ""}}
    assert {name for name in part if figures[name] and not part[name]} == gone


KINDS = [Figures, AcceptanceFigures, AnswerFigures, PartFigures, ArmFigures, PaceFigures]
ADDED = {"answers", "by_part", "undrafted_steps", "drafts_every_step", "facts"}
ADDED |= {"chunks_split_steps", "other_texts", "cut_short"}
ADDED |= {"thinking", "with_thought"}
"""Figures that reports of earlier versions, which can still be read, don't have."""


@pytest.mark.parametrize("kind", [*KINDS, SpeedupFigures])
def test_a_figure_is_never_left_out(kind: type[msgspec.Struct]) -> None:
    """So that a program can tell "no value" from "of another version"."""
    optional = {field.name for field in msgspec.structs.fields(kind) if not field.required}
    assert optional <= ADDED
    assert not kind.__struct_config__.omit_defaults
