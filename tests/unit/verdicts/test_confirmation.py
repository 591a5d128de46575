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
from specreg.measurement.measure import Measurement, StoppingRule
from specreg.measurement.metrics import METRICS, Family, Metric, Replay
from specreg.stats.intervals import LEVELS, Look, t_quantile
from specreg.verdicts.confirmation import Confirmation, enough_for
from specreg.verdicts.verdict import Lack, Outcome, Verdict
from tests.unit import builders

SPEED = METRICS["throughput_tokens_per_s"]
TIME = METRICS["tpot_p50_ms"]
LENGTH = METRICS["acceptance_length_tokens"]
USUAL = {SPEED.name: 100.0, TIME.name: 10.0}
GOOD, BAD = builders.counts(2, 2, 2, 4), builders.counts(5, 3, 1, 1)
CASES = tuple(builders.with_concurrency(number) for number in range(1, 6))
ONE, TWO = CASES[:2]

Fresh = Mapping[Case, Sequence[Measurement | Reason]]
"""By case, what comes of each launch more."""


def launch(
    case: Case = ONE, *, speed: float = 100.0, time_ms: float = 10.0, of: StepCounts = GOOD
) -> Measurement:
    """A launch that does as usual but for what is said."""
    length = 1 + of.accepted / of.steps
    values = {SPEED.name: speed, TIME.name: time_ms, LENGTH.name: length}
    return builders.measurement(values, of=of, case=case)


def known(within_frac: float = 0.001) -> CaseBaselines:
    """A baseline of three usual launches, on a machine whose launches differ by so much."""
    usual = builders.baseline(USUAL, USUAL, USUAL, of=GOOD)
    return builders.known(usual, within_frac=within_frac, freedom=20)


Asked = list[tuple[list[Case], int]]


def begin(
    fresh: Fresh | None = None, of: CaseBaselines | None = None, *, softened: bool = False
) -> tuple[Confirmation, Asked]:
    """A confirmation, and what it asks to be measured afresh: what is prepared, and no more."""
    asked: Asked = []

    def measure(cases: Sequence[Case], further: int) -> Mapping[str, Measurement | Reason]:
        asked.append((list(cases), further))
        return {case.id: (fresh or {})[case][further - 1] for case in cases}

    baselines, soft = of or known(), frozenset(METRICS) if softened else frozenset[str]()
    run = Confirmation(known_of=lambda _: baselines, measure_afresh=measure, softened=soft)
    return run, asked


def concluded(run: Confirmation) -> list[Verdict]:
    """All verdicts, after fresh launches and the look at the whole run."""
    run.confirm()
    run.conclude()
    return run.verdicts


USUALLY, FASTER, SLOWER, STALLED, OPEN = (launch(speed=one) for one in (100, 130, 80, 70, 96))
LOST = launch(of=BAD)
FEW = dataclasses.replace(launch(), replay=Replay(acceptance=builders.acceptance(BAD)))
BROKEN = dataclasses.replace(
    launch(),
    replay=None,
    values={},
    invalid=dict.fromkeys(Family, Invalidity("REQUEST_FAILED", "prompt 'a'")),
)
LOST_LAST = (OPEN, OPEN, launch(speed=50))
DIED = Reason(text="the server died, see its log")
NO_LAUNCH_LEFT = "REGRESSED at a look, and no launch was left to confirm it"
TWICE, NOT_TWICE = "seen on two launches, a first launch had", "which a fresh one didn't confirm"
PASS, IMPROVED, REGRESSED = Outcome.PASS, Outcome.IMPROVED, Outcome.REGRESSED
INCONCLUSIVE, INVALID = Outcome.INCONCLUSIVE, Outcome.INVALID


@pytest.mark.parametrize(
    ("metric", "first", "fresh", "within_frac", "outcome", "words"),
    [
        pytest.param(SPEED, USUALLY, (), 0.001, PASS, "", id="as-usual"),
        pytest.param(SPEED, FASTER, (), 0.001, IMPROVED, "", id="faster"),
        pytest.param(LENGTH, launch(), (), 0.001, PASS, "", id="accepts-as-usual"),
        pytest.param(LENGTH, BROKEN, (), 0.001, INVALID, "REQUEST_FAILED", id="broken"),
        pytest.param(LENGTH, FEW, (), 0.001, INCONCLUSIVE, "", id="had-its-extension"),
        pytest.param(SPEED, SLOWER, (SLOWER,), 0.001, REGRESSED, TWICE, id="slower-twice"),
        pytest.param(LENGTH, LOST, (LOST,), 0.001, REGRESSED, TWICE, id="accepts-less-twice"),
        pytest.param(SPEED, STALLED, (FASTER,), 0.001, IMPROVED, NOT_TWICE, id="slower-once"),
        pytest.param(LENGTH, LOST, (launch(),), 0.001, INCONCLUSIVE, NOT_TWICE, id="disagree"),
        pytest.param(SPEED, STALLED, (USUALLY,) * 2, 0.016, PASS, "", id="stall-is-forgotten"),
        pytest.param(SPEED, OPEN, (launch(speed=102),), 0.01, PASS, "", id="pooled"),
        pytest.param(SPEED, OPEN, (OPEN,) * 3, 0.01, INCONCLUSIVE, "", id="three-more-at-most"),
        pytest.param(SPEED, OPEN, (STALLED, USUALLY), 0.01, PASS, NOT_TWICE, id="late-once"),
        pytest.param(SPEED, OPEN, (STALLED, SLOWER), 0.01, REGRESSED, TWICE, id="late-twice"),
        pytest.param(SPEED, OPEN, LOST_LAST, 0.01, INCONCLUSIVE, NO_LAUNCH_LEFT, id="last"),
        pytest.param(SPEED, SLOWER, (DIED,), 0.01, INVALID, str(DIED), id="loss-died"),
        pytest.param(SPEED, OPEN, (DIED,), 0.01, INVALID, str(DIED), id="open-died"),
        pytest.param(SPEED, SLOWER, (BROKEN,), 0.01, INVALID, "REQUEST_FAILED", id="loss-broken"),
        pytest.param(SPEED, OPEN, (BROKEN,), 0.01, INVALID, "REQUEST_FAILED", id="open-broken"),
    ],
)
def test_a_figure_has_the_last_word_of_as_many_launches_as_it_needs(
    metric: Metric,
    first: Measurement,
    fresh: Sequence[Measurement | Reason],
    within_frac: float,
    outcome: Outcome,
    words: str,
) -> None:
    """What looks worse must do so again, alone; an open speed has further launches pooled."""
    run, asked = begin({ONE: fresh}, known(within_frac))
    run.judge(metric, [first])
    (verdict,) = concluded(run)
    assert verdict.outcome is outcome
    assert words in verdict.explanation
    assert asked == [([ONE], number) for number in range(1, len(fresh) + 1)]


def test_all_that_looked_worse_is_measured_afresh_once_and_each_case_once() -> None:
    worse = {case: launch(case, speed=80.0, time_ms=12.0, of=BAD) for case in (ONE, TWO)}
    run, asked = begin({ONE: [launch(ONE, speed=80.0, time_ms=12.0)], TWO: [launch(TWO)]})
    for case, metric in itertools.product((ONE, TWO), (SPEED, TIME, LENGTH)):
        run.judge(metric, [worse[case]])
    assert asked == []
    outcomes = [one.outcome for one in concluded(run)]
    assert asked == [([ONE, TWO], 1)]
    assert outcomes == [REGRESSED, REGRESSED, INCONCLUSIVE, PASS, PASS, INCONCLUSIVE]


def test_each_launch_more_has_its_share_of_the_level() -> None:
    """At that of the first look two would pass; it takes a third."""
    run, asked = begin({ONE: [launch(speed=99.5), launch(speed=98.0)]}, known(0.01))
    run.judge(SPEED, [launch(speed=96.0)])
    (verdict,) = concluded(run)
    estimate, error = math.log(0.96 * 0.995) / 2, 0.01 * math.sqrt(1 / 2 + 1 / 3)
    first, further = (
        math.expm1(estimate - t_quantile(LEVELS[look], 20) * error)
        for look in (Look.LAUNCH, Look.FURTHER_LAUNCH)
    )
    assert further < -0.05 < first
    estimate, error = math.log(0.96 * 0.995 * 0.98) / 3, 0.01 * math.sqrt(1 / 3 + 1 / 3)
    low = math.expm1(estimate - t_quantile(LEVELS[Look.FURTHER_LAUNCH], 20) * error)
    assert (verdict.outcome, verdict.launches) == (PASS, 3)
    assert verdict.comparison.low_frac == pytest.approx(low)
    assert asked == [([ONE], 1), ([ONE], 2)]


def test_what_chance_confirms_among_many_is_no_loss() -> None:
    """Of five that looked worse one did so twice, at p = 0.28 %: a fifth of 1 % is needed."""
    fresh = {case: [launch(case, speed=110.0)] for case in CASES} | {ONE: [launch(ONE, speed=93.1)]}
    for others, outcome in (((), REGRESSED), (CASES[1:], INCONCLUSIVE)):
        run, _ = begin(fresh, known(0.02))
        for case in (*others, ONE):
            run.judge(SPEED, [launch(case, speed=80.0)])
        assert concluded(run)[-1].outcome is outcome


def test_cases_that_all_became_slower_had_a_slow_machine() -> None:
    slow = {case: launch(case, speed=80.0, of=BAD) for case in CASES}
    run, _ = begin({case: [again] for case, again in slow.items()})
    for metric, case in itertools.product((SPEED, LENGTH), CASES[:4]):
        run.judge(metric, [slow[case]])
    run.judge(SPEED, [launch(CASES[4])])
    outcomes = [one.outcome for one in concluded(run)]
    assert outcomes == [INVALID] * 4 + [REGRESSED] * 4 + [PASS]


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
    run.known_of = unreadable
    run.judge(SPEED, [measured])
    (verdict,) = run.verdicts
    assert (verdict.outcome, verdict.explanation) == (outcome, reason)
    assert verdict.lacks == (Lack.FILE if outcome is Outcome.NO_BASELINE else None)


@pytest.mark.parametrize("softened", [False, True], ids=["strict", "softened"])
def test_where_there_is_no_telling_a_test_passes_only_if_told_so(*, softened: bool) -> None:
    fresh = {ONE: [launch(ONE, speed=96.0)] * 3, TWO: [launch(TWO, speed=80.0)]}
    run, _ = begin(fresh, known(0.01), softened=softened)
    run.judge(SPEED, [launch(TWO, speed=80.0)])
    run.judge(SPEED, [launch(speed=96.0)])
    loss, undecided = concluded(run)
    assert (loss.outcome, loss.holds) == (REGRESSED, False)
    assert (undecided.outcome, undecided.holds) == (INCONCLUSIVE, softened)


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
    assert verdict.explanation == "REGRESSED at a look, and the run ended before another"


FIRST = METRICS["acceptance_pos1_frac"]
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


def rule(*metrics: Metric, may_stop_early: bool, recorded: bool = True) -> StoppingRule:
    """Enough for these metrics of the case, against a baseline like SAME."""
    baseline = msgspec.structs.replace(builders.baseline(), acceptance=stored_acceptance(SAME))
    known = builders.known(baseline if recorded else None)
    case = dataclasses.replace(builders.CASE, prompts=10)
    return enough_for(case, metrics, known, may_stop_early=may_stop_early)


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


def test_the_first_metric_that_is_asked_for_decides_early() -> None:
    counts = builders.counts(8, 0, 6, 6)
    lost = dataclasses.replace(counts, position_counts=(10, 10, 10))  # the sum stays 30
    record = builders.acceptance(lost, prompts=10)
    assert not rule(LENGTH, FIRST, may_stop_early=True)(record, Look.EARLY)
    assert rule(FIRST, may_stop_early=True)(record, Look.EARLY)
