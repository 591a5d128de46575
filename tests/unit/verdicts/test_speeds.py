"""The speeds of a run, judged by the nights of their machine once everything is measured."""

import dataclasses
from typing import Any

import msgspec
import pytest

from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Replay
from specreg.verdicts.history import History, baseline_sha256, settings_sha256
from specreg.verdicts.references import References
from specreg.verdicts.speeds import Speed, SpeedJudge, compare_speed
from specreg.verdicts.verdict import Lack, Outcome, Verdict
from tests.unit import builders
from tests.unit.builders.nights import judge_speed, judge_speeds, references, steady_nights

SPEED = METRICS["throughput_tokens_per_s"]
TIME = METRICS["tpot_p50_ms"]
TTFT = METRICS["ttft_p50_ms"]
GOODPUT = METRICS["goodput_requests_per_s"]
USUAL = {SPEED.name: 100.0, TIME.name: 10.0}
BASELINE = builders.baseline(USUAL, USUAL, USUAL)
KNOWN = builders.known(BASELINE)
CASES = tuple(builders.with_concurrency(number) for number in range(1, 9))
IDS = tuple(case.id for case in CASES)
PASS, IMPROVED, REGRESSED = Outcome.PASS, Outcome.IMPROVED, Outcome.REGRESSED
INCONCLUSIVE, INVALID = Outcome.INCONCLUSIVE, Outcome.INVALID


def launch(
    speed: float = 100.0, *, case: Case = builders.CASE, time_ms: float = 10.0
) -> Measurement:
    return builders.measurement({SPEED.name: speed, TIME.name: time_ms}, case=case)


def after(nights: int, **options: Any) -> References:  # noqa: ANN401 - of `references`
    """The baseline and some steady nights."""
    return references(KNOWN, *steady_nights(USUAL, nights), **options)


def whole_machine(nights: int, **options: Any) -> References:  # noqa: ANN401 - of `steady_nights`
    """Eight cases that share their nights."""
    records = [
        record for case_id in IDS for record in steady_nights(USUAL, nights, case_id=case_id)
    ]
    return references(KNOWN, *records, case_ids=IDS, **options)


@pytest.mark.parametrize(
    ("speeds", "outcome"),
    [
        pytest.param((100.0,), PASS, id="as-usual"),
        pytest.param((96.0,), INCONCLUSIVE, id="close-to-the-tolerance"),
        pytest.param((80.0,), INCONCLUSIVE, id="lost-on-one-launch"),
        pytest.param((80.0, 80.0), REGRESSED, id="lost-on-two-launches"),
        pytest.param((130.0,), IMPROVED, id="gained"),
    ],
)
def test_a_speed_is_lost_only_if_two_launches_or_several_nights_show_it(
    speeds: tuple[float, ...], outcome: Outcome
) -> None:
    verdict = judge_speed(SPEED, [launch(speed) for speed in speeds], after(20))
    assert verdict.outcome is outcome
    assert (verdict.launches, verdict.nights) == (len(speeds), 20)


def test_the_change_follows_from_the_two_values_beside_it() -> None:
    for metric, measured in ((SPEED, launch(93.0)), (TIME, launch(time_ms=10.8))):
        verdict = judge_speed(metric, [measured], after(6))
        assert verdict.value is not None
        assert verdict.comparison.expected is not None
        change_frac = metric.sign * (verdict.value / verdict.comparison.expected - 1)
        assert verdict.comparison.change_frac == pytest.approx(change_frac)


def test_a_loss_that_lasts_is_named_with_its_first_night_and_the_engine_of_that_night() -> None:
    slower = steady_nights(
        {SPEED.name: 88.0}, 4, spread_frac=0.003, first=11, engine_version="0.33.0"
    )
    before = steady_nights(USUAL, 10)
    tonight = dataclasses.replace(launch(88.0), engine_version="0.33.0")
    verdict = judge_speed(SPEED, [tonight], references(KNOWN, *before, *slower))
    assert (verdict.outcome, verdict.since) == (REGRESSED, "20261211T030000")
    assert verdict.has_code("LASTING")
    assert "since the night of 2026-12-11, over 5 nights" in verdict.explanation
    assert "the engine went from 0.32.0 to 0.33.0 on that night" in verdict.explanation


def test_a_proven_loss_stays_red_on_the_next_night_though_that_proves_nothing_alone() -> None:
    slower = steady_nights({SPEED.name: 90.0}, 6, first=11)
    verdict = judge_speed(
        SPEED, [launch(94.0)], references(KNOWN, *steady_nights(USUAL, 10), *slower)
    )
    assert verdict.outcome is REGRESSED


def test_a_recording_with_a_reason_ends_a_loss() -> None:
    slower = steady_nights({SPEED.name: 88.0}, 6, first=11)
    accepted = msgspec.structs.replace(
        slower[4], recorded=True, accepted=True, baseline_sha256=baseline_sha256(BASELINE)
    )
    records = (*steady_nights(USUAL, 10), *slower[:4], accepted, slower[5])
    verdict = judge_speed(SPEED, [launch(88.0)], references(KNOWN, *records))
    assert not verdict.fails or verdict.outcome is INCONCLUSIVE
    assert verdict.comparison.change_frac == pytest.approx(0.0, abs=0.01)


def test_a_baseline_recorded_each_night_without_a_reason_hides_no_slow_loss() -> None:
    records = [
        msgspec.structs.replace(
            record,
            values={SPEED.name: 100 * 0.99**night},
            recorded=True,
            baseline_sha256=baseline_sha256(BASELINE),
        )
        for night, record in enumerate(steady_nights(USUAL, 15))
    ]
    assert judge_speed(SPEED, [launch(100 * 0.99**15)], references(KNOWN, *records)).outcome is (
        REGRESSED
    )


def test_a_recording_of_other_metrics_leaves_the_baseline_as_the_first_night() -> None:
    """A baseline holds all speeds, and the run that recorded it only those of selected tests."""
    recording = msgspec.structs.replace(
        steady_nights({TIME.name: 10.0}, 1)[0],
        recorded=True,
        baseline_sha256=baseline_sha256(BASELINE),
    )
    verdict = judge_speed(SPEED, [launch(40.0)] * 2, references(KNOWN, recording))
    assert verdict.outcome is REGRESSED


def test_what_all_cases_share_is_subtracted_and_said() -> None:
    launches = [[launch(97.0, case=case)] for case in CASES]
    verdicts = judge_speeds([SPEED], launches, whole_machine(20))
    assert {verdict.outcome for verdict in verdicts} == {PASS}
    for verdict in verdicts:
        assert verdict.comparison.common_frac == pytest.approx(-0.03, abs=0.005)
        assert verdict.comparison.change_frac == pytest.approx(0.0, abs=0.005)


def test_a_machine_that_is_slower_fails_no_case_for_it() -> None:
    """The packages, models and settings are those of the nights before."""
    launches = [[launch(60.0, case=case)] * 2 for case in CASES]
    verdicts = judge_speeds([SPEED], launches, whole_machine(20))
    assert {verdict.outcome for verdict in verdicts} == {INVALID}
    assert all(verdict.has_code("MACHINE_MOVED") for verdict in verdicts)


def test_a_driver_that_changed_on_the_first_slow_night_is_said() -> None:
    before = [
        msgspec.structs.replace(record, software={"driver": "570.1"})
        for case_id in IDS
        for record in steady_nights(USUAL, 12, case_id=case_id)
    ]
    compared_with = dataclasses.replace(
        references(KNOWN, *before, case_ids=IDS), driver_version="580.2"
    )
    launches = [[launch(60.0, case=case)] * 2 for case in CASES]
    verdict, *_ = judge_speeds([SPEED], launches, compared_with)
    assert verdict.has_code("MACHINE_MOVED")
    assert "the driver went from 570.1 to 580.2 on that night" in verdict.explanation


def test_a_case_that_loses_beside_the_others_is_the_only_one_that_is_red() -> None:
    launches = [[launch(80.0 if case is CASES[2] else 100.0, case=case)] * 2 for case in CASES]
    verdicts = judge_speeds([SPEED], launches, whole_machine(20))
    red = [verdict.case_id for verdict in verdicts if verdict.outcome is REGRESSED]
    assert red == [CASES[2].id]


def beside_control(speed: int, control: int) -> Measurement:
    """A launch on which a case and its control had these speeds."""
    replay = Replay(
        rounds=(builders.replayed(0, 10**9, speed),),
        control_rounds=(builders.replayed(0, 10**9, control),),
    )
    return dataclasses.replace(launch(float(speed)), replay=replay)


@pytest.mark.parametrize(
    ("speed", "control", "outcome"),
    [
        pytest.param(70, 100, REGRESSED, id="the-case-alone"),
        pytest.param(50, 50, INVALID, id="both"),
        pytest.param(97, 97, PASS, id="both-a-little"),
    ],
)
def test_with_few_cases_the_control_shows_what_the_machine_does(
    speed: int, control: int, outcome: Outcome
) -> None:
    of_control = builders.baseline(USUAL, USUAL, USUAL)
    known = builders.known(BASELINE, control=of_control)
    nights = [
        msgspec.structs.replace(record, control_values={SPEED.name: [100.0]})
        for record in steady_nights(USUAL, 12)
    ]
    verdict = judge_speed(SPEED, [beside_control(speed, control)] * 2, references(known, *nights))
    assert verdict.outcome is outcome
    assert verdict.has_code("MACHINE_MOVED") == (outcome is INVALID)


def test_a_night_without_its_control_is_judged_as_if_nothing_were_shared() -> None:
    """With a control, nights that differ by 5 % would be far off."""
    on_gpu = msgspec.structs.replace(
        BASELINE, environment=msgspec.structs.replace(BASELINE.environment, kind="gpu")
    )
    compared_with = references(builders.known(on_gpu, control=on_gpu))
    beside = judge_speed(SPEED, [beside_control(84, 100)] * 2, compared_with)
    assert beside.outcome is REGRESSED
    assert judge_speed(SPEED, [launch(84.0)] * 2, compared_with).outcome is INCONCLUSIVE


def test_an_engine_whose_cases_lose_beside_those_of_another_one_is_named() -> None:
    others = [
        dataclasses.replace(case, server=dataclasses.replace(case.server, engine="sglang"))
        for case in CASES
    ]
    ids = [case.id for case in (*CASES, *others)]
    records = [
        msgspec.structs.replace(record, engine=case.server.engine)
        for case in (*CASES, *others)
        for record in steady_nights(USUAL, 12, case_id=case.id)
    ]
    slower = [
        msgspec.structs.replace(record, engine="vllm")
        for case in CASES
        for record in steady_nights({SPEED.name: 88.0}, 4, case_id=case.id, first=13)
    ]
    usual = [
        msgspec.structs.replace(record, engine="sglang")
        for case in others
        for record in steady_nights(USUAL, 4, case_id=case.id, first=13)
    ]
    launches = [[launch(88.0, case=case)] for case in CASES]
    launches += [[launch(case=case)] for case in others]
    compared_with = references(KNOWN, *records, *slower, *usual, case_ids=ids)
    settings = dataclasses.replace(BASELINE.case, engine="sglang")
    of_others = msgspec.structs.replace(BASELINE, case=settings)
    baselines = {**compared_with.baselines, **{case.id: of_others for case in others}}
    records_of_others = {
        case.id: tuple(
            msgspec.structs.replace(record, settings_sha256=settings_sha256(settings))
            for record in compared_with.history.of(case.id)
        )
        for case in others
    }
    history = History({**compared_with.history.by_case, **records_of_others})
    known_of_others = dataclasses.replace(builders.known(of_others), settings=settings)
    compared_with = dataclasses.replace(
        compared_with,
        baselines=baselines,
        history=history,
        baselines_of=lambda case: KNOWN if case in CASES else known_of_others,
    )
    verdicts = judge_speeds([SPEED], launches, compared_with)
    by_case = {verdict.case_id: verdict for verdict in verdicts}
    assert by_case[CASES[0].id].outcome is REGRESSED
    assert by_case[CASES[0].id].has_code("ENGINE_ALONE_SLOWER")
    assert by_case[others[0].id].outcome is PASS


def test_another_machine_of_the_run_tells_nothing_of_tonight() -> None:
    here, *_ = IDS
    compared_with = dataclasses.replace(
        whole_machine(20), machine_of=lambda case_id: "here" if case_id == here else "there"
    )
    launches = [[launch(70.0, case=case)] * 2 for case in CASES]
    by_case = {
        verdict.case_id: verdict.outcome
        for verdict in judge_speeds([SPEED], launches, compared_with)
    }
    assert by_case[here] is REGRESSED
    assert {by_case[case_id] for case_id in IDS[1:]} == {INVALID}


def test_a_machine_that_was_seen_before_is_judged_by_its_own_nights() -> None:
    """The other machine of its kind is 8 % faster."""
    own = [
        msgspec.structs.replace(record, machine="slow")
        for record in steady_nights({SPEED.name: 92.0}, 10)
    ]
    accepted = msgspec.structs.replace(
        own[0], recorded=True, accepted=True, baseline_sha256=baseline_sha256(BASELINE)
    )
    of_other = [
        msgspec.structs.replace(record, machine="fast")
        for record in steady_nights(USUAL, 10, first=12)
    ]
    compared_with = references(KNOWN, accepted, *own[1:], *of_other)
    compared_with = dataclasses.replace(compared_with, machine_of=lambda _: "slow")
    verdict = judge_speed(SPEED, [launch(92.0)], compared_with)
    assert verdict.comparison.change_frac == pytest.approx(0.0, abs=0.01)
    assert verdict.nights == 9


def test_what_one_night_leaves_undecided_passes_if_nights_would_tell() -> None:
    verdict = judge_speed(SPEED, [launch(96.0)], after(6, holds_by_nights=True))
    assert (verdict.outcome, verdict.holds) == (INCONCLUSIVE, True)
    assert verdict.needed_nights
    assert "this run is the 7th" in verdict.explanation


def test_what_no_number_of_nights_would_tell_fails() -> None:
    noisy = builders.baseline({SPEED.name: 1.0}, {SPEED.name: 1e4}, {SPEED.name: 100.0})
    compared_with = references(builders.known(noisy), holds_by_nights=True)
    verdict = judge_speed(SPEED, [launch()], compared_with)
    assert (verdict.outcome, verdict.needed_nights, verdict.holds) == (INCONCLUSIVE, 0, False)


def test_a_metric_that_no_night_has_recorded_is_not_red() -> None:
    baseline = builders.baseline({GOODPUT.name: 0.0, SPEED.name: 100.0})
    measured = builders.measurement({GOODPUT.name: 4.0})
    verdict = judge_speed(GOODPUT, [measured], references(builders.known(baseline)))
    assert (verdict.outcome, verdict.lacks) == (Outcome.NOT_COMPARABLE, Lack.BASELINE)
    assert not verdict.fails


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        pytest.param((0.0,), INCONCLUSIVE, id="on-one-launch"),
        pytest.param((0.0, 0.0), REGRESSED, id="on-two"),
        pytest.param((0.0, 5.0), INCONCLUSIVE, id="on-one-of-two"),
    ],
)
def test_a_goodput_of_nothing_is_lost_if_two_launches_show_it(
    values: tuple[float, ...], outcome: Outcome
) -> None:
    baseline = builders.baseline({GOODPUT.name: 5.0}, {GOODPUT.name: 5.1})
    launches = [builders.measurement({GOODPUT.name: value}) for value in values]
    verdict = judge_speed(GOODPUT, launches, references(builders.known(baseline)))
    assert (verdict.outcome, verdict.comparison.change_frac) == (outcome, -1.0)


def speeds_of(
    launches: list[Measurement], compared_with: References, failure: Reason | None = None
) -> list[Speed]:
    speeds = []
    for metric in (SPEED, TIME):
        comparison = compare_speed(metric, launches, compared_with)
        assert not isinstance(comparison, Verdict)
        speeds.append(Speed(metric=metric, comparison=comparison, failure=failure))
    return speeds


@pytest.mark.parametrize(
    ("launches", "wanted"),
    [
        pytest.param([launch()], False, id="as-usual"),
        pytest.param([launch(96.0)], False, id="within-the-tolerance"),
        pytest.param([launch(80.0)], True, id="looks-lost"),
        pytest.param([launch(80.0)] * 2, False, id="proven"),
        pytest.param([launch(80.0), launch(104.0)], True, id="launches-disagree"),
    ],
)
def test_a_further_launch_is_wanted_where_a_speed_looks_lost(
    launches: list[Measurement], *, wanted: bool
) -> None:
    compared_with = after(20)
    speeds = speeds_of(launches, compared_with)
    cases = SpeedJudge(speeds, compared_with).wanted(speeds)
    assert cases == ([builders.CASE] if wanted else [])


def test_no_further_launch_is_wanted_after_one_has_failed() -> None:
    compared_with = after(20)
    speeds = speeds_of([launch(80.0)], compared_with, Reason(text="the server died"))
    judge = SpeedJudge(speeds, compared_with)
    assert judge.wanted(speeds) == []
    verdict, _ = judge.judge(speeds)
    assert verdict.outcome is INVALID
    assert "and a further launch failed: the server died" in verdict.explanation


def test_an_invalid_launch_is_left_out_unless_it_is_the_last_one() -> None:
    broken = dataclasses.replace(
        launch(), values={}, invalid={Family.THROUGHPUT: Reason(code="THROTTLED", text="92 °C")}
    )
    assert judge_speed(SPEED, [broken, launch()], after(20)).outcome is PASS
    assert judge_speed(SPEED, [launch(), broken], after(20)).outcome is INVALID


def test_verdicts_do_not_depend_on_the_order_of_the_cases() -> None:
    levels = [100.0, 92.0, 80.0, 115.0, 100.0, 96.0, 101.0, 99.0]
    launches = [[launch(level, case=case)] * 2 for level, case in zip(levels, CASES, strict=True)]
    forwards = judge_speeds([SPEED, TIME], launches, whole_machine(9))
    backwards = judge_speeds([SPEED, TIME], launches[::-1], whole_machine(9))
    assert {verdict.figure: verdict for verdict in forwards} == {
        verdict.figure: verdict for verdict in backwards
    }
