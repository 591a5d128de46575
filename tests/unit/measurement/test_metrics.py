"""The metrics, by worked numbers; what has no value is absent."""

import dataclasses
from collections.abc import Sequence

import msgspec
import pytest

from specreg.acceptance.trace import RequestTrace
from specreg.core.errors import MatrixError, UnknownNameError
from specreg.core.families import Family
from specreg.load.rounds import Round
from specreg.matrix.case import Case, Limits
from specreg.measurement import metrics
from specreg.measurement.metrics import METRICS, Replay, check_allowed, metrics_of
from tests.unit import builders

MS = 10**6
S = 10**9
NOTHING = Replay()
WITH_CONTROL = dataclasses.replace(builders.CASE, control=builders.PLAIN_SPEC)


def replay_of(
    *rounds: tuple[int, int, int], control: tuple[tuple[int, int, int], ...] = ()
) -> Replay:
    """A replay of rounds, each from a start to an end in seconds with some tokens."""
    own_rounds, control_rounds = (
        tuple(builders.replayed(start * S, end * S, tokens) for start, end, tokens in side)
        for side in (rounds, control)
    )
    return Replay(rounds=own_rounds, control_rounds=control_rounds)


def test_tpot_divides_by_tokens_not_chunks() -> None:
    """By those after the first chunk."""
    chunks = (builders.chunk(10 * MS, 5), builders.chunk(30 * MS, 4), builders.chunk(50 * MS, 4))
    assert metrics.tpot_ms(builders.trace(*chunks)) == 40 / 8


def test_one_chunk_has_no_time_per_token_and_no_chunk_has_no_times() -> None:
    assert metrics.tpot_ms(builders.trace(builders.chunk(10 * MS, 5))) is None
    assert [
        time_ms(builders.trace()) for time_ms in (metrics.ttft_ms, metrics.tpot_ms, metrics.e2e_ms)
    ] == [None] * 3


def test_the_first_token_and_the_last_chunk_are_timed_from_the_send() -> None:
    trace = builders.trace(builders.chunk(30 * MS), builders.chunk(90 * MS), sent_ns=5 * MS)
    assert (metrics.ttft_ms(trace), metrics.e2e_ms(trace)) == (25.0, 85.0)


def test_the_speed_of_the_output_is_what_one_user_sees() -> None:
    chunks = (builders.chunk(10 * MS), builders.chunk(30 * MS, 4), builders.chunk(50 * MS, 4))
    assert metrics.output_tokens_per_s(builders.trace(*chunks)) == 8 / 0.040
    assert metrics.output_tokens_per_s(builders.trace(builders.chunk(10 * MS, 5))) is None
    at_once = builders.trace(builders.chunk(10 * MS), builders.chunk(10 * MS, 4))
    assert metrics.output_tokens_per_s(at_once) is None
    # Chunks that the network delivers together would show 140,000 tokens/s.
    together = builders.trace(builders.chunk(10 * MS, 1), builders.chunk(10 * MS + 21_000, 3))
    assert metrics.output_tokens_per_s(together) is None


# TTFT 10 ms, TPOT 5 ms; and TTFT 30 ms, TPOT 10 ms.
SWIFT = builders.trace(builders.chunk(10 * MS), builders.chunk(30 * MS, 4))
SLOW = builders.trace(builders.chunk(30 * MS), builders.chunk(70 * MS, 4))


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        (Limits(), [True, True, True]),
        (Limits(ttft_ms=30.0, tpot_ms=10.0), [True, True, True]),
        (Limits(ttft_ms=29.9), [True, False, True]),
        (Limits(tpot_ms=9.9), [True, False, True]),
        (Limits(ttft_ms=29.9, tpot_ms=4.9), [False, False, True]),
    ],
)
def test_a_good_request_keeps_both_limits(limits: Limits, good: list[bool]) -> None:
    """An answer of one chunk keeps any time per token, and one without a token none."""
    at_once = builders.trace(builders.chunk(10 * MS, 5))
    assert [metrics.is_good(trace, limits) for trace in (SWIFT, SLOW, at_once)] == good
    assert not metrics.is_good(builders.trace(), limits)


def test_the_goodput_is_all_good_requests_over_the_time_of_all_rounds() -> None:
    """Within limits come 2, 1 and 0 requests of rounds of 2, 4 and 1 s."""
    rounds = tuple(
        dataclasses.replace(builders.replayed(0, seconds * S, 1), traces=traces)
        for seconds, traces in ((2, (SWIFT, SWIFT)), (4, (SWIFT, SLOW)), (1, (SLOW, SLOW)))
    )
    goodput = METRICS["goodput_requests_per_s"].value_of
    replay = dataclasses.replace(NOTHING, rounds=rounds, limits=Limits(ttft_ms=20.0))
    assert goodput(replay) == 3 / 7
    assert goodput(dataclasses.replace(replay, limits=Limits())) == 6 / 7
    assert metrics.per_s(replay_of((1, 1, 0)), lambda _: 1.0) is None


def throughput(replay: Replay) -> float | None:
    return METRICS["throughput_tokens_per_s"].value_of(replay)


def test_the_throughput_is_all_tokens_over_the_time_of_all_rounds() -> None:
    """The pauses, in which the control has its turn, don't count, nor a round without a window."""
    rounds = ((0, 2, 100), (50, 55, 100), (90, 92, 120), (93, 93, 0))
    assert throughput(replay_of(*rounds)) == 320 / 9


def conversation(sent: float, *turns: tuple[float, float, int]) -> tuple[RequestTrace, ...]:
    """Turns from a first chunk of one token to a last one in seconds, with so many tokens."""
    requests = []
    for number, (first, last, tokens) in enumerate(turns, start=1):
        chunks = builders.chunk(round(first * S)), builders.chunk(round(last * S), tokens - 1)
        trace = builders.trace(*chunks, sent_ns=round(sent * S))
        requests.append(msgspec.structs.replace(trace, turn=number))
        sent = last
    return tuple(requests)


def a_round_of(*conversations: tuple[RequestTrace, ...]) -> Round:
    """A round from 0 s to the last chunk."""
    traces = tuple(trace for conversation_traces in conversations for trace in conversation_traces)
    return Round(traces=traces, started_ns=0, ended_ns=max(trace.last_ns or 0 for trace in traces))


def test_what_comes_while_fewer_are_in_flight_does_not_count_in_a_closed_loop() -> None:
    """Two at once; at 4 s the first of the last two ends, of the other a half has come by then."""
    first = conversation(0, (1, 2, 11))
    second = conversation(0, (1, 4, 31))
    last = conversation(2, (3, 5, 21))
    part = a_round_of(first, second, last)
    assert metrics.full_until_ns(part, 2) == 4 * S
    assert throughput(Replay(rounds=(part,), concurrency=2)) == (11 + 31 + 1 + 10) / 4
    assert throughput(Replay(rounds=(part,))) == (11 + 31 + 21) / 5, "a rate has no such end"


def test_a_conversation_is_in_flight_until_its_last_turn_ends() -> None:
    """The first turn of the longer one ends after the last one began, which drains nothing."""
    long = conversation(0, (1, 3, 21), (4, 6, 21))
    short = conversation(0, (1, 2, 11))
    last = conversation(2, (3, 5, 21))
    part = a_round_of(long, short, last)
    assert metrics.full_until_ns(part, 2) == 5 * S
    assert throughput(Replay(rounds=(part,), concurrency=2)) == (21 + 1 + 10 + 11 + 21) / 5
    one_at_a_time = a_round_of(conversation(0, (1, 2, 11)), conversation(2, (3, 5, 21)))
    assert throughput(Replay(rounds=(one_at_a_time,), concurrency=1)) == 32 / 5


def looped(places: int, seconds: Sequence[float], begin: float = 0.0) -> Round:
    """Answers of such lengths at 10 tokens/s, as many at once as there are places."""
    free = [begin] * places
    seconds_found = []
    for duration_s in seconds:
        slot = free.index(min(free))
        seconds_found += [
            conversation(free[slot], (free[slot], free[slot] + duration_s, round(10 * duration_s)))
        ]
        free[slot] += duration_s
    part = a_round_of(*seconds_found)
    return dataclasses.replace(part, started_ns=round(begin * S))


def test_turns_have_the_throughput_of_an_uninterrupted_loop_within_two_percent() -> None:
    """Four in flight, answers of 1 to 7 s; sixteen to a turn, whose drains would take a fifth."""
    seconds = [1 + 6 * (number * 0.618 % 1) for number in range(1600)]
    loop = throughput(Replay(rounds=(looped(4, seconds),), concurrency=4))
    turns = tuple(looped(4, seconds[first : first + 16]) for first in range(0, 1600, 16))
    assert loop == pytest.approx(40, rel=0.002)
    assert throughput(Replay(rounds=turns, concurrency=4)) == pytest.approx(loop, rel=0.02)
    drained = throughput(Replay(rounds=turns))
    assert drained is not None
    assert drained < 0.9 * 40


def test_the_speedup_is_one_throughput_over_the_other_and_absent_over_nothing() -> None:
    replay = replay_of(
        *((0, 1, 200), (2, 3, 300), (4, 5, 20)), control=((1, 2, 100), (3, 4, 100), (5, 6, 100))
    )
    assert metrics.speedup_ratio(replay) == 520 / 300
    assert metrics.round_ratios(replay) == (2.0, 3.0, 0.2)
    assert metrics.speedup_ratio(replay_of((0, 1, 200))) is None
    assert metrics.speedup_ratio(replay_of((0, 1, 200), control=((1, 2, 0),))) is None


def test_the_latencies_are_the_medians_of_the_requests_that_have_them() -> None:
    ends = (20, 40, 90)
    traces = tuple(
        builders.trace(builders.chunk(10 * MS), builders.chunk(end * MS, 2)) for end in ends
    )
    part = dataclasses.replace(builders.replayed(0, S, 1), traces=(*traces, builders.trace()))
    replay = dataclasses.replace(NOTHING, rounds=(part,))
    assert METRICS["ttft_p50_ms"].value_of(replay) == 10.0
    assert METRICS["tpot_p50_ms"].value_of(replay) == 15.0


def test_the_acceptance_metrics_are_those_of_the_worked_example() -> None:
    replay = dataclasses.replace(
        NOTHING, acceptance=builders.acceptance(builders.counts(8, 0, 6, 6))
    )
    assert METRICS["acceptance_length_tokens"].value_of(replay) == 2.5
    assert METRICS["acceptance_rate_frac"].value_of(replay) == 0.5
    positions = [METRICS[f"acceptance_pos{i}_frac"].value_of(replay) for i in (1, 2, 3, 4)]
    assert positions == [0.6, 0.6, 0.3, None]


def test_a_metric_of_nothing_is_absent_and_not_zero() -> None:
    assert {row.value_of(NOTHING) for row in METRICS.values()} == {None}


OF_DRAFTS = [
    *("acceptance_length_tokens", "acceptance_rate_frac"),
    *(f"acceptance_pos{position}_frac" for position in range(1, 17)),
]


@pytest.mark.parametrize(
    ("case", "family", "names"),
    [
        (builders.PLAIN_CASE, Family.ACCEPTANCE, []),
        (builders.CASE, Family.ACCEPTANCE, OF_DRAFTS[: 2 + 3]),
        (builders.on_server(draft_tokens=24), Family.ACCEPTANCE, OF_DRAFTS),  # as many as there are
        (builders.CASE, Family.SPEEDUP, []),
        (WITH_CONTROL, Family.SPEEDUP, ["speedup_ratio"]),
        (builders.PLAIN_CASE, Family.LATENCY, ["ttft_p50_ms", "tpot_p50_ms"]),
        (builders.PLAIN_CASE, Family.THROUGHPUT, ["throughput_tokens_per_s"]),
        (
            builders.with_judging(builders.PLAIN_CASE, limits=Limits(tpot_ms=20.0)),
            Family.THROUGHPUT,
            ["throughput_tokens_per_s", "goodput_requests_per_s"],
        ),
    ],
)
def test_a_case_has_the_metrics_that_can_have_a_value(
    case: Case, family: Family, names: list[str]
) -> None:
    assert [metric.name for metric in metrics_of(case, family) if not metric.counters] == names


def test_a_tolerance_that_no_loss_could_overstep_is_refused() -> None:
    """A time may become twice as long; no more than all tokens per second can be lost."""
    check_allowed(builders.with_judging(builders.CASE, tolerances=(("tpot_p50_ms", 1.0),)), "")
    blind = builders.with_judging(builders.CASE, tolerances=(("throughput_tokens_per_s", 1.0),))
    with pytest.raises(MatrixError) as error:
        check_allowed(blind, "cpu.toml, line 7")
    assert str(error.value) == (
        "cpu.toml, line 7: tolerances.throughput_tokens_per_s = 1, needed less than 1: no loss is"
        " greater than all there is, so it could never fail; lower it"
    )


def test_a_pinned_case_has_its_speeds_judged_and_its_acceptance_shown() -> None:
    pinned = builders.on_server(pinned_length_tokens=2.5)
    assert metrics_of(pinned, Family.ACCEPTANCE) == ()
    assert METRICS["acceptance_length_tokens"].applies_to(pinned)
    assert metrics_of(pinned, Family.LATENCY) == metrics_of(builders.CASE, Family.LATENCY)


def test_what_is_only_shown_is_a_metric_that_is_not_judged_and_has_no_tolerance() -> None:
    shown = builders.with_judging(builders.CASE, shown=("ttft_p50_ms",))
    check_allowed(shown, "")
    judged = {metric.name for metric in metrics_of(shown, Family.LATENCY)}
    assert "tpot_p50_ms" in judged
    assert "ttft_p50_ms" not in judged
    with pytest.raises(UnknownNameError, match="line 7: unknown metric in shown 'ttft'; known: "):
        check_allowed(builders.with_judging(builders.CASE, shown=("ttft",)), "cpu.toml, line 7")
    both = builders.with_judging(shown, tolerances=(("ttft_p50_ms", 0.2),))
    with pytest.raises(MatrixError, match="line 7: 'ttft_p50_ms' is shown and has a tolerance"):
        check_allowed(both, "cpu.toml, line 7")


def test_only_times_and_energy_are_better_when_smaller() -> None:
    # What an engine counts may be better when smaller, whatever its unit.
    metrics = [metric for metric in METRICS.values() if not metric.counters]
    smaller = {metric.name for metric in metrics if metric.sign < 0}
    assert smaller == {m.name for m in metrics if m.name.endswith(("_ms", "_j_per_token"))}


def test_speed_carries_no_tolerance_to_another_machine() -> None:
    for metric in METRICS.values():
        assert (metric.portable_tolerance_frac is None) == metric.by_launch, metric.name
