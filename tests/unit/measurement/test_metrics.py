"""The metrics, by worked numbers; what has no value is absent."""

import dataclasses

import pytest

from specreg.core.errors import MatrixError, UnknownNameError
from specreg.matrix.case import Case
from specreg.matrix.schema import Limits
from specreg.measurement.metrics import (
    METRICS,
    Direction,
    Family,
    Metric,
    Replay,
    check_allowed,
    e2e_ms,
    is_good,
    metrics_of,
    output_tokens_per_s,
    requests_per_s,
    speedup_ratio,
    throughput_tokens_per_s,
    tpot_ms,
    ttft_ms,
)
from tests.unit import builders

MS = 10**6
S = 10**9
NOTHING = Replay()
WITH_CONTROL = dataclasses.replace(builders.CASE, control=builders.PLAIN_SPEC)


def replay_of(
    *rounds: tuple[int, int, int], control: tuple[tuple[int, int, int], ...] = ()
) -> Replay:
    """A replay of rounds, each from a start to an end in seconds with some tokens."""
    ours, theirs = (
        tuple(builders.replayed(start * S, end * S, tokens) for start, end, tokens in side)
        for side in (rounds, control)
    )
    return Replay(rounds=ours, control_rounds=theirs)


def test_the_first_token_is_timed_from_the_send() -> None:
    trace = builders.trace(builders.chunk(30 * MS), builders.chunk(90 * MS), sent_ns=5 * MS)
    assert ttft_ms(trace) == 25.0


def test_tpot_divides_by_tokens_not_chunks() -> None:
    chunks = (builders.chunk(10 * MS), builders.chunk(30 * MS, 4), builders.chunk(50 * MS, 4))
    assert tpot_ms(builders.trace(*chunks)) == 40 / 8


def test_tpot_leaves_out_the_tokens_of_the_first_chunk() -> None:
    chunks = (builders.chunk(10 * MS, 5), builders.chunk(50 * MS, 4))
    assert tpot_ms(builders.trace(*chunks)) == 40 / 4


def test_a_request_of_one_chunk_has_no_time_per_token_and_one_without_a_chunk_no_times() -> None:
    assert tpot_ms(builders.trace(builders.chunk(10 * MS, 5))) is None
    assert (ttft_ms(builders.trace()), tpot_ms(builders.trace())) == (None, None)


def test_the_latency_ends_with_the_last_chunk() -> None:
    trace = builders.trace(builders.chunk(30 * MS), builders.chunk(90 * MS), sent_ns=5 * MS)
    assert e2e_ms(trace) == 85.0
    assert e2e_ms(builders.trace()) is None


def test_the_speed_of_the_output_is_what_one_user_sees() -> None:
    chunks = (builders.chunk(10 * MS), builders.chunk(30 * MS, 4), builders.chunk(50 * MS, 4))
    assert output_tokens_per_s(builders.trace(*chunks)) == 8 / 0.040
    assert output_tokens_per_s(builders.trace(builders.chunk(10 * MS, 5))) is None
    at_once = builders.trace(builders.chunk(10 * MS), builders.chunk(10 * MS, 4))
    assert output_tokens_per_s(at_once) is None


# TTFT 10 ms, TPOT 5 ms; and TTFT 30 ms, TPOT 10 ms.
SWIFT = builders.trace(builders.chunk(10 * MS), builders.chunk(30 * MS, 4))
SLOW = builders.trace(builders.chunk(30 * MS), builders.chunk(70 * MS, 4))


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        pytest.param(Limits(), [True, True], id="none"),
        pytest.param(Limits(ttft_ms=30.0, tpot_ms=10.0), [True, True], id="just-kept"),
        pytest.param(Limits(ttft_ms=29.9), [True, False], id="ttft"),
        pytest.param(Limits(tpot_ms=9.9), [True, False], id="tpot"),
        pytest.param(Limits(ttft_ms=29.9, tpot_ms=4.9), [False, False], id="one-of-them-each"),
    ],
)
def test_a_good_request_keeps_both_limits(limits: Limits, good: list[bool]) -> None:
    assert [is_good(trace, limits) for trace in (SWIFT, SLOW)] == good


def test_an_answer_of_one_chunk_keeps_any_time_per_token_and_one_without_a_token_none() -> None:
    assert is_good(builders.trace(builders.chunk(10 * MS, 5)), Limits(tpot_ms=0.001))
    assert not is_good(builders.trace(), Limits())


def test_the_goodput_is_the_median_over_the_rounds_of_the_good_requests_per_second() -> None:
    """Within limits come 2, 1 and 0 requests of rounds of 2, 4 and 1 s."""
    rounds = tuple(
        dataclasses.replace(builders.replayed(0, seconds * S, 1), traces=traces)
        for seconds, traces in ((2, (SWIFT, SWIFT)), (4, (SWIFT, SLOW)), (1, (SLOW, SLOW)))
    )
    goodput = METRICS["goodput_requests_per_s"].function
    replay = dataclasses.replace(NOTHING, rounds=rounds, limits=Limits(ttft_ms=20.0))
    assert goodput(replay) == 1 / 4
    assert goodput(dataclasses.replace(replay, limits=Limits())) == 1.0
    assert requests_per_s(rounds[1], lambda _: True) == 2 / 4
    assert requests_per_s(builders.replayed(S, S, 0), lambda _: True) is None


def test_the_throughput_is_the_median_of_the_rounds() -> None:
    """50, 20 and 60 a second; the pauses, in which the control has its turn, don't count."""
    replay = replay_of((0, 2, 100), (50, 55, 100), (90, 92, 120))
    assert METRICS["throughput_tokens_per_s"].function(replay) == 50


@pytest.mark.parametrize(
    "rounds", [((0, 1, 100), (2, 3, 100), (4, 104, 100)), ((0, 1, 100), (2, 2, 0))]
)
def test_a_stalled_round_or_one_without_a_window_leaves_the_throughput_alone(
    rounds: tuple[tuple[int, int, int], ...],
) -> None:
    assert METRICS["throughput_tokens_per_s"].function(replay_of(*rounds)) == 100


def test_all_requests_of_a_round_share_its_window() -> None:
    one, other = (builders.trace(builders.chunk(at * S, 60), sent_ns=0) for at in (2, 3))
    part = dataclasses.replace(builders.replayed(0, 3 * S, 60), traces=(one, other))
    assert throughput_tokens_per_s(part) == 120 / 3


def test_the_speedup_is_the_median_of_the_rounds() -> None:
    replay = replay_of(
        *((0, 1, 200), (2, 3, 300), (4, 5, 20)),
        control=((1, 2, 100), (3, 4, 100), (5, 6, 100)),
    )
    assert speedup_ratio(replay) == 2.0


def test_a_speedup_compares_rounds_and_not_sums() -> None:
    """A slow minute slows both sides of its round: 2.0 in each, though the sums give 1.8."""
    replay = replay_of((0, 1, 200), (2, 12, 200), control=((1, 2, 100), (12, 32, 200)))
    assert speedup_ratio(replay) == 2.0


def test_a_speedup_without_a_control_or_over_nothing_is_absent() -> None:
    assert speedup_ratio(replay_of((0, 1, 200))) is None
    assert speedup_ratio(replay_of((0, 1, 200), control=((1, 2, 0),))) is None


def test_the_latencies_are_the_medians_of_the_requests_that_have_them() -> None:
    ends = (20, 40, 90)
    traces = tuple(
        builders.trace(builders.chunk(10 * MS), builders.chunk(end * MS, 2)) for end in ends
    )
    part = dataclasses.replace(builders.replayed(0, S, 1), traces=(*traces, builders.trace()))
    replay = dataclasses.replace(NOTHING, rounds=(part,))
    assert METRICS["ttft_p50_ms"].function(replay) == 10.0
    assert METRICS["tpot_p50_ms"].function(replay) == 15.0


def test_the_acceptance_metrics_are_those_of_the_worked_example() -> None:
    replay = dataclasses.replace(
        NOTHING, acceptance=builders.acceptance(builders.counts(8, 0, 6, 6))
    )
    assert METRICS["acceptance_length_tokens"].function(replay) == 2.5
    assert METRICS["acceptance_rate_frac"].function(replay) == 0.5
    positions = [METRICS[f"acceptance_pos{i}_frac"].function(replay) for i in (1, 2, 3, 4)]
    assert positions == [0.6, 0.6, 0.3, None]


@pytest.mark.parametrize("row", METRICS.values(), ids=lambda row: row.name)
def test_a_metric_of_nothing_is_absent_and_not_zero(row: Metric) -> None:
    assert row.function(NOTHING) is None


@pytest.mark.parametrize(
    ("case", "family", "names"),
    [
        pytest.param(builders.PLAIN_CASE, Family.ACCEPTANCE, [], id="none"),
        pytest.param(
            builders.CASE,
            Family.ACCEPTANCE,
            [
                *("acceptance_length_tokens", "acceptance_rate_frac"),
                *(f"acceptance_pos{position}_frac" for position in (1, 2, 3)),
            ],
            id="three-drafts",
        ),
        pytest.param(builders.CASE, Family.SPEEDUP, [], id="no-control"),
        pytest.param(WITH_CONTROL, Family.SPEEDUP, ["speedup_ratio"], id="control"),
        pytest.param(
            builders.PLAIN_CASE, Family.LATENCY, ["ttft_p50_ms", "tpot_p50_ms"], id="latency"
        ),
        pytest.param(
            builders.PLAIN_CASE, Family.THROUGHPUT, ["throughput_tokens_per_s"], id="throughput"
        ),
        pytest.param(
            dataclasses.replace(builders.PLAIN_CASE, limits=Limits(tpot_ms=20.0)),
            Family.THROUGHPUT,
            ["throughput_tokens_per_s", "goodput_requests_per_s"],
            id="limits",
        ),
    ],
)
def test_a_case_has_the_metrics_that_can_have_a_value(
    case: Case, family: Family, names: list[str]
) -> None:
    assert [metric.name for metric in metrics_of(case, family)] == names


def test_a_tolerance_is_one_of_a_metric() -> None:
    check_allowed(dataclasses.replace(builders.CASE, tolerances=(("tpot_p50_ms", 0.2),)), "")
    misspelled = dataclasses.replace(builders.CASE, tolerances=(("tpot_p50", 0.2),))
    with pytest.raises(UnknownNameError) as error:
        check_allowed(misspelled, "cpu.toml, line 7")
    known = "unknown metric in tolerances 'tpot_p50'; did you mean 'tpot_p50_ms'"
    assert str(error.value).startswith(f"cpu.toml, line 7: {known}")


def test_a_tolerance_that_no_loss_could_overstep_is_refused() -> None:
    """A time may become twice as long; no more than all tokens per second can be lost."""
    check_allowed(dataclasses.replace(builders.CASE, tolerances=(("tpot_p50_ms", 1.0),)), "")
    blind = dataclasses.replace(builders.CASE, tolerances=(("throughput_tokens_per_s", 1.0),))
    with pytest.raises(MatrixError) as error:
        check_allowed(blind, "cpu.toml, line 7")
    assert str(error.value) == (
        "cpu.toml, line 7: tolerances.throughput_tokens_per_s = 1, needed less than 1: no loss is"
        " greater than all there is, so it could never fail; lower it"
    )


def test_only_times_and_energy_are_better_when_smaller() -> None:
    smaller = {m.name for m in METRICS.values() if m.direction is Direction.DOWN}
    assert smaller == {name for name in METRICS if name.endswith(("_ms", "_j_per_token"))}


def test_speed_carries_no_tolerance_to_another_machine() -> None:
    for metric in METRICS.values():
        assert (metric.portable_tolerance_frac is None) == metric.by_launch, metric.name
