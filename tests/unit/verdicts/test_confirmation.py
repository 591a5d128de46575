"""The confirmation: final at once, or after a second look on a fresh launch."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import pytest

from specreg.acceptance.record import StepCounts
from specreg.baselines.comparison import CaseBaselines
from specreg.core.errors import BaselineError
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric, Replay
from specreg.measurement.validity import all_invalid
from specreg.stats.alpha_spending import Look
from specreg.stats.intervals import Spread, t_quantile
from specreg.verdicts.confirmation import Confirmation
from specreg.verdicts.judge import Outcome, Verdict
from tests.unit import builders

SPEED = METRICS["throughput_tokens_per_s"]
TIME = METRICS["tpot_p50_ms"]
LENGTH = METRICS["acceptance_length_tokens"]
USUAL = {SPEED.name: 100.0, TIME.name: 10.0}
GOOD, BAD = builders.counts(2, 2, 2, 4), builders.counts(5, 3, 1, 1)
CASES = tuple(builders.with_concurrency(number) for number in range(1, 6))
ONE, TWO = CASES[:2]

Fresh = Mapping[Case, Sequence[Measurement | str]]
"""By case, what comes of each launch more."""


def launch(
    case: Case = ONE, *, speed: float = 100.0, time_ms: float = 10.0, of: StepCounts = GOOD
) -> Measurement:
    """A launch that does as usual but for what is said."""
    length = 1 + of.accepted / of.steps
    values = {SPEED.name: speed, TIME.name: time_ms, LENGTH.name: length}
    return builders.measurement(values, of=of, case=case)


def known(within_frac: float = 0.001, *, control: bool = False) -> CaseBaselines:
    """A baseline of three usual launches, on a machine whose launches differ by so much."""
    spread = Spread(within_frac=within_frac, between_frac=0.0, freedom=20)
    return CaseBaselines(
        environment=builders.ENVIRONMENT,
        settings=builders.SETTINGS,
        exact=builders.baseline(USUAL, USUAL, USUAL, of=GOOD),
        control=builders.baseline({SPEED.name: 100.0}) if control else None,
        spreads={SPEED.name: spread, TIME.name: spread},
    )


class Run:
    """A confirmation, and what it asked to be measured afresh."""

    def __init__(
        self, fresh: Fresh | None = None, of: CaseBaselines | None = None, *, softened: bool = False
    ) -> None:
        self.asked: list[tuple[list[Case], int]] = []
        self.fresh = fresh or {}
        of = of or known()
        self.confirmation = Confirmation(
            known_of=lambda _: of,
            measure_afresh=self.measure,
            softened=frozenset(METRICS) if softened else frozenset(),
        )

    def measure(self, cases: Sequence[Case], further: int) -> Mapping[str, Measurement | str]:
        """Hands out what is prepared, and no launch more than that."""
        self.asked.append((list(cases), further))
        return {case.id: self.fresh[case][further - 1] for case in cases}

    def look(self, metric: Metric, *launches: Measurement) -> Verdict:
        """The verdict as it looks at first."""
        self.confirmation.judge(metric, launches)
        return self.confirmation.verdicts[-1]

    def conclude(self) -> list[Verdict]:
        """All verdicts, after fresh launches and the look at the whole run."""
        self.confirmation.confirm()
        self.confirmation.conclude()
        return self.confirmation.verdicts

    def judge(self, metric: Metric, *launches: Measurement) -> Verdict:
        """The last word on what is judged after all else."""
        self.confirmation.judge(metric, launches)
        return self.conclude()[-1]


@pytest.mark.parametrize(
    ("metric", "measured", "outcome"),
    [
        pytest.param(SPEED, launch(), Outcome.PASS, id="as-usual"),
        pytest.param(SPEED, launch(speed=120.0), Outcome.IMPROVED, id="faster"),
        pytest.param(LENGTH, launch(), Outcome.PASS, id="accepts-as-usual"),
        pytest.param(LENGTH, dataclasses.replace(launch(), values={}), Outcome.INVALID, id="none"),
    ],
)
def test_what_is_no_loss_is_final_at_once(
    metric: Metric, measured: Measurement, outcome: Outcome
) -> None:
    run = Run()
    verdict = run.look(metric, measured)
    assert verdict.outcome is outcome
    assert run.conclude() == [verdict]
    assert run.asked == []


def test_acceptance_that_nobody_can_tell_has_had_its_second_look() -> None:
    """The extension came within its own launch; the same greedy prompts would add nothing."""
    four = dataclasses.replace(
        launch(), replay=Replay(rounds=(), control_rounds=(), acceptance=builders.acceptance(BAD))
    )
    run = Run()
    assert run.judge(LENGTH, four).outcome is Outcome.INCONCLUSIVE
    assert run.asked == []


@pytest.mark.parametrize(
    ("metric", "worse"),
    [
        pytest.param(SPEED, launch(speed=80.0), id="slower"),
        pytest.param(TIME, launch(time_ms=12.0), id="longer"),
        pytest.param(LENGTH, launch(of=BAD), id="accepts-less"),
    ],
)
def test_a_loss_is_one_when_a_fresh_launch_repeats_it(metric: Metric, worse: Measurement) -> None:
    run = Run({ONE: [worse]})
    verdict = run.judge(metric, worse)
    assert verdict.outcome is Outcome.REGRESSED
    assert f"seen on two launches, a first launch had {worse.values[metric.name]:.4g}" in (
        verdict.reason
    )
    assert run.confirmation.verdicts == [verdict]


def test_acceptance_that_a_fresh_launch_does_not_repeat_is_not_told() -> None:
    """Nothing else on the machine changes what is accepted, so it isn't green; nor once more."""
    run = Run({ONE: [launch()]})
    verdict = run.judge(LENGTH, launch(of=BAD))
    assert (verdict.outcome, verdict.fails) == (Outcome.INCONCLUSIVE, True)
    assert verdict.value == pytest.approx(2.8)
    assert verdict.reason == "a first launch had 1.8, which a fresh one didn't confirm"
    assert run.asked == [([ONE], 1)]


def test_all_that_looked_worse_is_measured_afresh_once_and_each_case_once() -> None:
    worse = {case: launch(case, speed=80.0, time_ms=12.0, of=BAD) for case in (ONE, TWO)}
    run = Run({ONE: [launch(ONE, speed=80.0, time_ms=12.0)], TWO: [launch(TWO)]})
    judged = [(metric, case) for case in (ONE, TWO) for metric in (SPEED, TIME, LENGTH)]
    for metric, case in judged:
        run.look(metric, worse[case])
    assert run.asked == []
    found = run.conclude()
    assert run.asked == [([ONE, TWO], 1)]
    regressed, passed, disagrees = Outcome.REGRESSED, Outcome.PASS, Outcome.INCONCLUSIVE
    assert [one.outcome for one in found] == [
        *(regressed, regressed, disagrees),
        *(passed, passed, disagrees),
    ]


def test_a_group_that_is_confirmed_asks_for_nothing_again() -> None:
    run = Run({ONE: [launch(speed=80.0)], TWO: [launch(TWO, speed=80.0)]})
    for case in (ONE, TWO):
        run.look(SPEED, launch(case, speed=80.0))
        run.confirmation.confirm()
    assert run.asked == [([ONE], 1), ([TWO], 1)]
    assert [one.outcome for one in run.conclude()] == [Outcome.REGRESSED] * 2


def test_a_speed_that_nobody_can_tell_is_pooled_with_a_fresh_launch() -> None:
    """4 % less where launches differ by 1 %: nobody can tell. With 102 beside it, it holds."""
    run = Run({ONE: [launch(speed=102.0)]}, known(0.01))
    verdict = run.judge(SPEED, launch(speed=96.0))
    assert run.asked == [([ONE], 1)]
    assert (verdict.outcome, verdict.launches) == (Outcome.PASS, 2)
    assert verdict.value == pytest.approx((96 * 102) ** 0.5)


def test_each_launch_more_has_its_share_of_the_level() -> None:
    """At that of the first look two would pass; it takes a third."""
    run = Run({ONE: [launch(speed=99.5), launch(speed=98.0)]}, known(0.01))
    verdict = run.judge(SPEED, launch(speed=96.0))
    estimate, error = math.log(0.96 * 0.995) / 2, 0.01 * math.sqrt(1 / 2 + 1 / 3)
    first, further = (
        math.expm1(estimate - t_quantile(look.value, 20) * error)
        for look in (Look.LAUNCH, Look.FURTHER_LAUNCH)
    )
    assert further < -0.05 < first
    estimate, error = math.log(0.96 * 0.995 * 0.98) / 3, 0.01 * math.sqrt(1 / 3 + 1 / 3)
    low = math.expm1(estimate - t_quantile(Look.FURTHER_LAUNCH.value, 20) * error)
    assert (verdict.outcome, verdict.launches) == (Outcome.PASS, 3)
    assert verdict.low_frac == pytest.approx(low)
    assert run.asked == [([ONE], 1), ([ONE], 2)]


def test_only_what_is_still_undecided_is_measured_again() -> None:
    fresh = {ONE: [launch(ONE, speed=96.0)] * 3, TWO: [launch(TWO, speed=102.0)]}
    run = Run(fresh, known(0.01))
    for case in (ONE, TWO):
        run.look(SPEED, launch(case, speed=96.0))
    found = [(one.case_id, one.outcome) for one in run.conclude()]
    assert run.asked == [([ONE, TWO], 1), ([ONE], 2), ([ONE], 3)]
    assert found == [(ONE.id, Outcome.INCONCLUSIVE), (TWO.id, Outcome.PASS)]


def test_a_launch_that_was_picked_for_its_loss_is_forgotten() -> None:
    """A stall in the first launch, and healthy ones after it that can't tell alone."""
    run = Run({ONE: [launch(), launch(), launch()]}, known(0.016))
    verdict = run.judge(SPEED, launch(speed=70.0))
    assert (verdict.outcome, verdict.launches) == (Outcome.PASS, 2)
    assert verdict.value == pytest.approx(100.0)


def test_a_loss_that_no_launch_is_left_to_repeat_is_not_told() -> None:
    fresh = [launch(speed=96.0), launch(speed=96.0), launch(speed=50.0)]
    verdict = Run({ONE: fresh}, known(0.01)).judge(SPEED, launch(speed=96.0))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason == "REGRESSED at a look, and no launch was left to confirm it"


def test_what_chance_confirms_among_many_is_no_loss() -> None:
    """Of five that looked worse one did so twice, at p = 0.28 %: a fifth of 1 % is needed."""
    fresh = {case: [launch(case, speed=110.0)] for case in CASES} | {ONE: [launch(ONE, speed=93.1)]}
    alone, among = Run(fresh, known(0.02)), Run(fresh, known(0.02))
    for case in CASES[1:]:
        among.look(SPEED, launch(case, speed=80.0))
    first = launch(ONE, speed=80.0)
    assert alone.judge(SPEED, first).outcome is Outcome.REGRESSED
    assert among.judge(SPEED, first).outcome is Outcome.INCONCLUSIVE


def test_cases_that_all_became_slower_had_a_slow_machine() -> None:
    slow = {case: launch(case, speed=80.0, of=BAD) for case in CASES}
    run = Run({case: [again] for case, again in slow.items()})
    for metric in (SPEED, LENGTH):
        for case in CASES[:4]:
            run.look(metric, slow[case])
    run.look(SPEED, launch(CASES[4]))
    outcomes = [(one.metric, one.outcome) for one in run.conclude()]
    assert outcomes == [
        *[(SPEED.name, Outcome.INVALID)] * 4,
        *[(LENGTH.name, Outcome.REGRESSED)] * 4,
        (SPEED.name, Outcome.PASS),
    ]


@pytest.mark.parametrize(
    ("tokens", "outcome"), [(80, Outcome.INVALID), (100, Outcome.REGRESSED)], ids=["too", "not"]
)
def test_a_control_that_became_slower_too_had_a_slow_machine(tokens: int, outcome: Outcome) -> None:
    second = builders.replayed(0, 10**9, tokens)
    worse = launch(speed=80.0)
    assert worse.replay is not None
    beside = dataclasses.replace(
        worse, replay=dataclasses.replace(worse.replay, control_rounds=(second,))
    )
    run = Run({ONE: [beside]}, known(control=True))
    run.look(SPEED, beside)
    run.confirmation.confirm()  # its test is told then, before the run has ended
    assert run.confirmation.verdicts[-1].outcome is outcome
    assert run.conclude()[-1].outcome is outcome


def test_a_loss_that_a_fresh_launch_does_not_repeat_is_what_that_says() -> None:
    """By the fresh launch alone: with the first one it would be worse still."""
    verdict = Run({ONE: [launch(speed=130.0)]}).judge(SPEED, launch(speed=70.0))
    assert (verdict.outcome, verdict.launches) == (Outcome.IMPROVED, 1)
    assert verdict.value == pytest.approx(130.0)
    assert verdict.reason.endswith("a first launch had 70, which a fresh one didn't confirm")


@pytest.mark.parametrize(
    ("last", "outcome"), [(100.0, Outcome.PASS), (80.0, Outcome.REGRESSED)], ids=["once", "twice"]
)
def test_a_loss_that_several_launches_show_together_must_be_repeated(
    last: float, outcome: Outcome
) -> None:
    """One further launch stalls: the next one alone says what the verdict is."""
    run = Run({ONE: [launch(speed=70.0), launch(speed=last)]}, known(0.01))
    verdict = run.judge(SPEED, launch(speed=96.0))
    assert run.asked == [([ONE], 1), ([ONE], 2)]
    assert (verdict.outcome, verdict.launches) == (outcome, 1)


BROKEN = dataclasses.replace(
    launch(), replay=None, values={}, invalid=all_invalid("REQUEST_FAILED: prompt 'a'")
)


@pytest.mark.parametrize("speed", [80.0, 96.0], ids=["loss", "no-telling"])
@pytest.mark.parametrize(
    ("fresh", "reason"),
    [
        ("the server died, see its log", "no further launch: the server died, see its log"),
        (BROKEN, "REQUEST_FAILED: prompt 'a'"),
    ],
    ids=["died", "broken"],
)
def test_a_fresh_launch_that_measured_nothing_leaves_no_verdict(
    speed: float, fresh: Measurement | str, reason: str
) -> None:
    verdict = Run({ONE: [fresh]}, known(0.01)).judge(SPEED, launch(speed=speed))
    assert (verdict.outcome, verdict.fails) == (Outcome.INVALID, True)
    assert verdict.reason.endswith(reason)


@pytest.mark.parametrize(
    ("measured", "outcome", "reason"),
    [
        (launch(), Outcome.NO_BASELINE, "baseline 'a.json': not JSON; restore it with git"),
        (BROKEN, Outcome.INVALID, "REQUEST_FAILED: prompt 'a'"),
    ],
    ids=["valid", "invalid"],
)
def test_a_baseline_that_can_not_be_read_is_none(
    measured: Measurement, outcome: Outcome, reason: str
) -> None:
    def unreadable(_: Case) -> CaseBaselines:
        raise BaselineError("baseline 'a.json': not JSON; restore it with git")

    confirmation = Confirmation(known_of=unreadable, measure_afresh=Run().measure)
    confirmation.judge(SPEED, [measured])
    (verdict,) = confirmation.verdicts
    assert (verdict.outcome, verdict.reason) == (outcome, reason)


@pytest.mark.parametrize("softened", [False, True], ids=["strict", "softened"])
def test_where_there_is_no_telling_a_test_passes_only_if_told_so(*, softened: bool) -> None:
    fresh = {ONE: [launch(ONE, speed=96.0)] * 3, TWO: [launch(TWO, speed=80.0)]}
    run = Run(fresh, known(0.01), softened=softened)
    run.look(SPEED, launch(TWO, speed=80.0))
    run.look(SPEED, launch(speed=96.0))
    loss, undecided = run.conclude()
    assert (loss.outcome, loss.holds) == (Outcome.REGRESSED, False)
    assert (undecided.outcome, undecided.holds) == (Outcome.INCONCLUSIVE, softened)


def test_a_run_that_is_cut_off_in_its_second_looks_leaves_nothing_unconfirmed() -> None:
    def interrupted(cases: Sequence[Case], further: int) -> Mapping[str, Measurement | str]:
        del cases, further
        raise KeyboardInterrupt

    confirmation = Confirmation(known_of=lambda _: known(), measure_afresh=interrupted)
    confirmation.judge(SPEED, [launch(speed=80.0)])
    with pytest.raises(KeyboardInterrupt):
        confirmation.confirm()
    confirmation.conclude()
    (verdict,) = confirmation.verdicts
    assert (verdict.outcome, verdict.value) == (Outcome.INCONCLUSIVE, 80.0)
    assert verdict.reason == "REGRESSED at a look, and the run ended before another"
