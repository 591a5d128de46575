"""When a case is measured enough, and what is final at once or after a fresh launch."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Never

import msgspec
import pytest

from specreg.acceptance.record import AcceptanceRecord, StepCounts
from specreg.baselines.comparison import CaseBaselines
from specreg.baselines.schema import stored_acceptance
from specreg.core.errors import BaselineError
from specreg.core.reasons import Invalidity, Reason
from specreg.matrix.case import Case
from specreg.measurement.arm import StoppingRule
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Family, Metric, Replay
from specreg.stats.intervals import Look
from specreg.verdicts.confirmation import Confirmation, enough_for
from specreg.verdicts.history import History, RunRecord, settings_sha256
from specreg.verdicts.nights import MachineNights
from specreg.verdicts.verdict import MACHINE_MOVED, Lack, Outcome, Verdict
from tests.unit import builders

SPEED = METRICS["throughput_tokens_per_s"]
TIME = METRICS["tpot_p50_ms"]
LENGTH = METRICS["acceptance_length_tokens"]
USUAL = {SPEED.name: 100.0, TIME.name: 10.0}
GOOD = builders.counts(2, 2, 2, 4)
BAD = builders.counts(5, 3, 1, 1)
CASES = tuple(builders.with_concurrency(number) for number in range(1, 6))
ONE = CASES[0]
TWO = CASES[1]

Fresh = Mapping[Case, Sequence[Measurement | Reason]]
"""By case, what comes of each launch more."""


def launch(
    case: Case = ONE, *, speed: float = 100.0, time_ms: float = 10.0, of: StepCounts = GOOD
) -> Measurement:
    """A launch that does as usual but for what is said."""
    length = 1 + of.accepted / of.steps
    values = {SPEED.name: speed, TIME.name: time_ms, LENGTH.name: length}
    return builders.measurement(values, of=of, case=case)


NIGHTS = 20
USUAL_BASELINE = builders.baseline(USUAL, USUAL, USUAL, of=GOOD)


def steady_nights(case: Case) -> tuple[RunRecord, ...]:
    """Runs before tonight that hardly differed."""
    return tuple(
        RunRecord(
            run=f"202612{night:02}",
            case_id=case.id,
            settings_sha256=settings_sha256(builders.SETTINGS),
            engine_version="0.32.0",
            draft_sha256="",
            values={name: value * math.exp(0.003 * (-1) ** night) for name, value in USUAL.items()},
            outcomes=dict.fromkeys(USUAL, "PASS"),
        )
        for night in range(1, NIGHTS + 1)
    )


Asked = list[tuple[list[Case], int]]


def begin(
    fresh: Fresh | None = None,
    *,
    softened: bool = False,
    holds_by_nights: bool = False,
    nights: bool = True,
) -> tuple[Confirmation, Asked]:
    """A confirmation, and what it asks to be measured afresh: what is prepared, and no more."""
    asked: Asked = []

    def measure(cases: Sequence[Case], further: int) -> Mapping[str, Measurement | Reason]:
        asked.append((list(cases), further))
        return {case.id: (fresh or {})[case][further - 1] for case in cases}

    by_case = {case.id: steady_nights(case) for case in CASES} if nights else {}
    run = Confirmation(
        baselines_of=lambda _: builders.known(
            USUAL_BASELINE, control=USUAL_BASELINE, within_frac=0.001, freedom=20
        ),
        measure_afresh=measure,
        nights=MachineNights(
            baselines={case.id: USUAL_BASELINE for case in CASES}, history=History(by_case)
        ),
        softened=frozenset(METRICS) if softened else frozenset[str](),
        holds_by_nights=holds_by_nights,
    )
    return run, asked


def concluded(run: Confirmation) -> tuple[Verdict, ...]:
    """All verdicts, after fresh launches and the look at the whole run."""
    run.confirm()
    run.conclude()
    return run.verdicts


USUALLY = launch()
FASTER = launch(speed=130)
SLOWER = launch(speed=80)
STALLED = launch(speed=70)
WITHIN = launch(speed=96)
BEYOND = launch(speed=94.5)
LOST = launch(of=BAD)
FEW = dataclasses.replace(launch(), replay=Replay(acceptance=builders.acceptance(BAD)))
BROKEN = dataclasses.replace(
    launch(),
    replay=None,
    values={},
    invalid=dict.fromkeys(Family, Invalidity("REQUEST_FAILED", "prompt 'a'")),
)
DIED = Reason(text="the server died, see its log")
TWICE = "seen on two launches, a first launch had"
NOT_TWICE = "which a fresh one didn't confirm"
PASS = Outcome.PASS
IMPROVED = Outcome.IMPROVED
REGRESSED = Outcome.REGRESSED
INCONCLUSIVE = Outcome.INCONCLUSIVE
INVALID = Outcome.INVALID


@pytest.mark.parametrize(
    ("metric", "first", "fresh", "outcome", "words"),
    [
        pytest.param(SPEED, USUALLY, (), PASS, "", id="as-usual"),
        pytest.param(SPEED, FASTER, (), IMPROVED, "", id="faster"),
        pytest.param(LENGTH, launch(), (), PASS, "", id="accepts-as-usual"),
        pytest.param(LENGTH, BROKEN, (), INVALID, "REQUEST_FAILED", id="broken"),
        pytest.param(LENGTH, FEW, (), INCONCLUSIVE, "", id="had-its-extension"),
        pytest.param(SPEED, SLOWER, (SLOWER,), REGRESSED, "worse on 2 of 2", id="slower-twice"),
        pytest.param(LENGTH, LOST, (LOST,), REGRESSED, TWICE, id="accepts-less-twice"),
        pytest.param(LENGTH, LOST, (launch(),), INCONCLUSIVE, NOT_TWICE, id="disagree"),
        pytest.param(
            SPEED,
            STALLED,
            (FASTER,),
            INCONCLUSIVE,
            "1 of 2 launches",
            id="a-stall-is-not-forgotten",
        ),
        pytest.param(
            SPEED,
            SLOWER,
            (USUALLY,) * 3,
            INCONCLUSIVE,
            "worse on 1 of 4 launches",
            id="slow-in-one-of-four",
        ),
        pytest.param(SPEED, WITHIN, (), INCONCLUSIVE, "", id="doubt-within-the-tolerance"),
        pytest.param(SPEED, BEYOND, (USUALLY,), INCONCLUSIVE, "on 1 of 2", id="slow-once"),
        pytest.param(SPEED, BEYOND, (BEYOND,), REGRESSED, "worse on 2 of 2", id="slow-twice"),
        pytest.param(SPEED, SLOWER, (DIED,), INVALID, str(DIED), id="loss-died"),
        pytest.param(SPEED, BEYOND, (DIED,), INVALID, str(DIED), id="open-died"),
        pytest.param(SPEED, SLOWER, (BROKEN,), INVALID, "REQUEST_FAILED", id="loss-broken"),
        pytest.param(SPEED, BEYOND, (BROKEN,), INVALID, "REQUEST_FAILED", id="open-broken"),
    ],
)
def test_a_figure_has_the_last_word_of_as_many_launches_as_it_needs(
    metric: Metric,
    first: Measurement,
    fresh: Sequence[Measurement | Reason],
    outcome: Outcome,
    words: str,
) -> None:
    """Launches go where something looks lost; a speed is judged by all of them together."""
    run, asked = begin({ONE: fresh})
    run.judge(metric, [first])
    (verdict,) = concluded(run)
    assert verdict.outcome is outcome
    assert words in verdict.explanation
    assert asked == [([ONE], number) for number in range(1, len(fresh) + 1)]


@pytest.mark.parametrize(
    ("planned", "fresh", "outcome"),
    [
        pytest.param([3.0], [0.0, 0.0, 0.0], INCONCLUSIVE, id="on-fresh-launches"),
        pytest.param([5.0, 0.0], [5.0, 5.0, 5.0], INCONCLUSIVE, id="on-a-planned-launch"),
        pytest.param([0.0], [0.0], REGRESSED, id="on-all-launches"),
    ],
)
def test_a_goodput_that_is_0_on_some_launches_is_judged_over_all_of_them(
    planned: Sequence[float], fresh: Sequence[float], outcome: Outcome
) -> None:
    """A goodput of 0 has no logarithm, and an earlier look with one must not stand in for it."""
    goodput = METRICS["goodput_requests_per_s"]
    baseline = builders.baseline(*({goodput.name: value} for value in (4.9, 5.0, 5.1)))
    further = iter(fresh)
    run, _ = begin()
    run.baselines_of = lambda _: builders.known(baseline, within_frac=0.001, freedom=20)
    run.measure_afresh = lambda cases, _number: {
        case.id: builders.measurement({goodput.name: next(further)}, case=case) for case in cases
    }
    run.nights = MachineNights(baselines={ONE.id: baseline})
    run.judge(goodput, [builders.measurement({goodput.name: value}, case=ONE) for value in planned])
    (verdict,) = concluded(run)
    assert verdict.outcome is outcome
    assert verdict.comparison.change_frac == -1.0


def test_all_that_looked_worse_is_measured_afresh_once_and_each_case_once() -> None:
    worse = {case: launch(case, speed=80.0, time_ms=12.0, of=BAD) for case in (ONE, TWO)}
    run, asked = begin(
        {ONE: [launch(ONE, speed=80.0, time_ms=12.0)], TWO: [launch(TWO, speed=80.0, time_ms=12.0)]}
    )
    for case, metric in itertools.product((ONE, TWO), (SPEED, TIME, LENGTH)):
        run.judge(metric, [worse[case]])
    assert asked == []
    outcomes = [verdict.outcome for verdict in concluded(run)]
    assert asked == [([ONE, TWO], 1)]
    assert outcomes == [REGRESSED, REGRESSED, INCONCLUSIVE] * 2


def test_no_launch_decides_a_doubt_in_a_case_of_which_a_loss_is_proven() -> None:
    """On an H200, doubt about TTFT took two launches more, four minutes, of a case at -61 %."""
    slow_once = [launch(speed=60.0, time_ms=12.0), launch(speed=60.0, time_ms=10.0)]
    run, asked = begin({ONE: slow_once[1:]})
    for metric in (SPEED, TIME):
        run.judge(metric, slow_once[:1])
    speed, _ = concluded(run)
    assert speed.outcome is REGRESSED
    assert asked == [([ONE], 1)]


def beside_control(speed: int) -> Measurement:
    """A launch on which the server and its control had the same speed."""
    replayed = builders.replayed(0, 10**9, speed)
    replay = Replay(rounds=(replayed,), control_rounds=(replayed,))
    return dataclasses.replace(launch(speed=float(speed)), replay=replay)


@pytest.mark.parametrize(
    ("fresh", "outcome", "remark"),
    [
        pytest.param((70,), REGRESSED, "worse on 2 of 2 launches", id="slow-twice"),
        pytest.param((100,) * 3, INCONCLUSIVE, "worse on 1 of 4 launches", id="slow-once"),
    ],
)
def test_a_loss_that_the_control_shares_must_show_on_two_launches_too(
    fresh: Sequence[int], outcome: Outcome, remark: str
) -> None:
    run, _ = begin({ONE: [beside_control(speed) for speed in fresh]})
    run.judge(SPEED, [beside_control(70)])
    (verdict,) = concluded(run)
    assert (verdict.outcome, verdict.has_code(MACHINE_MOVED)) == (outcome, outcome is REGRESSED)
    assert remark in verdict.explanation


def test_what_all_cases_do_alike_is_known_when_the_run_is_over() -> None:
    """Five cases are 40 % slower alike, and twenty nights tell that the machine never was."""
    slow = {case: launch(case, speed=60.0) for case in CASES}
    run, _ = begin({case: [again] for case, again in slow.items()})
    for case in CASES:
        run.judge(SPEED, [slow[case]])
        run.confirm()
    run.conclude()
    assert {verdict.outcome for verdict in run.verdicts} == {REGRESSED}


def test_one_launch_that_looks_lost_only_beside_the_others_proves_nothing() -> None:
    """All other cases are 12 % faster, which is known after the case has been measured."""
    launches = {case: launch(case, speed=112.0) for case in CASES}
    launches[ONE] = launch(ONE, speed=97.0)
    run, asked = begin(holds_by_nights=True)
    for case in CASES:
        run.judge(SPEED, [launches[case]])
        run.confirm()
    run.conclude()
    early = run.verdicts[0]
    assert asked == []
    assert (early.outcome, early.launches, early.holds) == (INCONCLUSIVE, 1, True)


def test_a_loss_that_all_cases_share_in_the_end_is_not_the_early_case_s() -> None:
    """The machine is 30 % slower in this hour; the first case was judged before that was known."""
    launches = {case: launch(case, speed=70.0) for case in CASES}
    run, _ = begin({case: [measured] * 3 for case, measured in launches.items()})
    for case in CASES:
        run.judge(SPEED, [launches[case]])
        run.confirm()
    run.conclude()
    codes = {verdict.has_code(MACHINE_MOVED) for verdict in run.verdicts}
    assert codes == {True}


@pytest.mark.parametrize("metric", [SPEED, TIME])
def test_a_change_can_be_recomputed_from_the_two_values_beside_it(metric: Metric) -> None:
    """All cases are 4 % slower tonight, which is subtracted; one of them is slower still."""
    launches = {case: launch(case, speed=96.0, time_ms=10.4) for case in CASES}
    launches[ONE] = launch(ONE, speed=95.0, time_ms=10.6)
    run, _ = begin()
    for case in CASES:
        run.judge(metric, [launches[case]])
    run.conclude()
    for verdict in run.verdicts:
        comparison = verdict.comparison
        assert verdict.value is not None
        assert comparison.expected is not None
        change_frac = verdict.value / comparison.expected - 1
        assert change_frac == pytest.approx(metric.sign * (comparison.change_frac or 0.0))


def test_an_early_case_of_a_run_of_many_waits_for_the_others() -> None:
    """The first cases have nobody to be compared with; the end of the run tells."""
    launches = {case: launch(case, speed=100.0) for case in CASES}
    launches[ONE] = launch(ONE, speed=70.0)
    run, _ = begin({case: [measured] * 3 for case, measured in launches.items()})
    run.nights.cases = len(CASES)
    for case in CASES:
        run.judge(SPEED, [launches[case]])
        run.confirm()
    early = run.verdicts[0]
    assert (early.outcome, early.holds) == (INCONCLUSIVE, False)
    assert "the other cases of the run will tell" in early.explanation
    run.conclude()
    assert [verdict.outcome for verdict in run.verdicts] == [REGRESSED, *[PASS] * 4]


def test_a_case_that_is_slower_than_all_others_is_lost_on_a_slow_night() -> None:
    """All cases are 4 % slower; one of them is 30 % slower, and it alone is red."""
    launches = {case: launch(case, speed=96.0) for case in CASES}
    launches[ONE] = launch(ONE, speed=70.0)
    run, _ = begin({case: [measured] * 3 for case, measured in launches.items()})
    for case in reversed(CASES):
        run.judge(SPEED, [launches[case]])
        run.confirm()
    run.conclude()
    assert [verdict.case_id for verdict in run.verdicts if verdict.outcome is REGRESSED] == [ONE.id]


@pytest.mark.parametrize(
    ("measured", "outcome", "reason"),
    [
        (launch(), Outcome.NO_BASELINE, "baseline 'a.json': not JSON; restore it with git"),
        (BROKEN, INVALID, "REQUEST_FAILED: prompt 'a'"),
    ],
    ids=["valid", "invalid"],
)
def test_a_baseline_that_can_not_be_read_is_none(
    measured: Measurement, outcome: Outcome, reason: str
) -> None:
    def unreadable(_: Case) -> CaseBaselines:
        raise BaselineError("baseline 'a.json': not JSON; restore it with git")

    run, _ = begin()
    run.baselines_of = unreadable
    run.judge(SPEED, [measured])
    (verdict,) = run.verdicts
    assert (verdict.outcome, verdict.explanation) == (outcome, reason)
    assert verdict.lacks == (Lack.FILE if outcome is Outcome.NO_BASELINE else None)


@pytest.mark.parametrize(
    ("softened", "holds_by_nights", "holds"),
    [
        pytest.param(False, False, False, id="strict"),
        pytest.param(True, False, True, id="softened"),
        pytest.param(False, True, True, id="nights-will-tell"),
    ],
)
def test_what_can_not_be_told_fails_where_nobody_will_tell_it(
    *, softened: bool, holds_by_nights: bool, holds: bool
) -> None:
    fresh = {TWO: [launch(TWO, speed=80.0)]}
    run, _ = begin(fresh, softened=softened, holds_by_nights=holds_by_nights)
    run.judge(SPEED, [launch(TWO, speed=80.0)])
    run.judge(SPEED, [WITHIN])
    loss, undecided = concluded(run)
    assert (loss.outcome, loss.holds) == (REGRESSED, False)
    assert (undecided.outcome, undecided.holds) == (INCONCLUSIVE, holds)


def test_on_the_first_night_nobody_knows_how_nights_differ() -> None:
    """A loss that would be plain after twenty nights may be the hour's."""
    run, _ = begin({ONE: [SLOWER] * 3}, nights=False, holds_by_nights=True)
    run.judge(SPEED, [SLOWER])
    (verdict,) = concluded(run)
    assert (verdict.outcome, verdict.holds) == (INCONCLUSIVE, True)
    assert "nights would tell, and this run is the 1st" in verdict.explanation


def test_a_run_that_is_cut_off_in_its_second_looks_leaves_nothing_unconfirmed() -> None:
    def interrupted(*_: object) -> Never:
        raise KeyboardInterrupt

    run, _ = begin()
    run.measure_afresh = interrupted
    run.judge(SPEED, [launch(speed=80.0)])
    with pytest.raises(KeyboardInterrupt):
        run.confirm()
    run.conclude()
    (verdict,) = run.verdicts
    assert (verdict.outcome, verdict.value) == (INCONCLUSIVE, 80.0)
    assert verdict.explanation == "REGRESSED so far, and the run ended before a further launch"


SAME = builders.acceptance(builders.counts(8, 0, 6, 6), prompts=10)
LESS = builders.acceptance(builders.counts(14, 0, 3, 3), prompts=10)


def mixed(*several: AcceptanceRecord) -> AcceptanceRecord:
    """One prompt of each in turn: they disagree, so there is no telling."""
    prompts = [
        dataclasses.replace(several[number % len(several)].prompts[0], prompt_id=f"chat-{number}")
        for number in range(10)
    ]
    return builders.acceptance_of(prompts)


DOUBT = mixed(SAME, LESS, builders.acceptance(builders.counts(2, 0, 9, 9)))
SUM = dataclasses.replace(DOUBT, prompts=())


def rule(metric: Metric, *, may_stop_early: bool, recorded: bool = True) -> StoppingRule:
    """Enough for a metric of the case, against a baseline like SAME."""
    baseline = msgspec.structs.replace(builders.baseline(), acceptance=stored_acceptance(SAME))
    known = builders.known(baseline if recorded else None)
    case = builders.with_request(builders.CASE, prompts=10)
    return enough_for(case, metric, known, may_stop_early=may_stop_early, cases=1)


@pytest.mark.parametrize(
    ("acceptance", "look", "may_stop_early", "enough"),
    [
        pytest.param(LESS, Look.EARLY, True, True, id="a-plain-loss"),
        pytest.param(LESS, Look.EARLY, False, False, id="a-loss-where-speed-is-asked-too"),
        pytest.param(SAME, Look.EARLY, True, False, id="no-loss-so-far"),
        pytest.param(DOUBT, Look.EARLY, True, False, id="doubt"),
        pytest.param(LESS, Look.FULL, False, True, id="all-of-a-loss"),
        pytest.param(SAME, Look.FULL, False, True, id="all-of-no-loss"),
        pytest.param(DOUBT, Look.FULL, False, False, id="all-of-doubt"),
        pytest.param(SUM, Look.FULL, False, True, id="a-sum-alone-tells-nothing-more"),
        pytest.param(SUM, Look.EARLY, True, False, id="a-sum-alone-early"),
    ],
)
def test_a_plain_loss_stops_early_and_doubt_goes_on(
    acceptance: AcceptanceRecord, look: Look, *, may_stop_early: bool, enough: bool
) -> None:
    assert rule(LENGTH, may_stop_early=may_stop_early)(acceptance, look) is enough
    unknown = rule(LENGTH, may_stop_early=may_stop_early, recorded=False)
    assert unknown(acceptance, look) is (look is Look.FULL), "more prompts tell nothing more"
