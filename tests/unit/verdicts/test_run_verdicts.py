"""The acceptance of a case: what is final at once, and what a fresh launch decides."""

import dataclasses

import msgspec
import pytest

from specreg.acceptance.record import StepCounts
from specreg.baselines.comparison import CaseBaselines
from specreg.core.errors import BaselineError
from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Replay
from specreg.verdicts.references import References
from specreg.verdicts.run_verdicts import Fresh, acceptance_on_launch, confirmed, wants_fresh_launch
from specreg.verdicts.speeds import compare_speed
from specreg.verdicts.verdict import Lack, Outcome, Verdict
from tests.unit import builders
from tests.unit.builders.nights import references, steady_nights

LENGTH = METRICS["acceptance_length_tokens"]
SPEED = METRICS["throughput_tokens_per_s"]
GOOD = builders.counts(2, 2, 2, 4)
BAD = builders.counts(5, 3, 1, 1)
BASELINE = builders.baseline({SPEED.name: 100.0}, of=GOOD)
PASS, REGRESSED = Outcome.PASS, Outcome.REGRESSED
INCONCLUSIVE, INVALID = Outcome.INCONCLUSIVE, Outcome.INVALID


def launch(of: StepCounts = GOOD) -> Measurement:
    """A launch with these counts for each prompt."""
    length = 1 + of.accepted / of.steps
    return builders.measurement({LENGTH.name: length}, of=of)


LOST = launch(BAD)
FEW = dataclasses.replace(launch(), replay=Replay(acceptance=builders.acceptance(BAD)))
BROKEN = dataclasses.replace(
    launch(),
    replay=None,
    values={},
    invalid=dict.fromkeys(Family, Reason(code="REQUEST_FAILED", text="prompt 'a'")),
)
DIED = Reason(text="the server died, see its log")


def judged(first: Measurement, fresh: Fresh = None) -> Verdict:
    compared_with = references(builders.known(BASELINE))
    return confirmed(acceptance_on_launch(LENGTH, first, compared_with), fresh, compared_with)


@pytest.mark.parametrize(
    ("first", "fresh", "outcome", "words"),
    [
        pytest.param(launch(), None, PASS, "", id="as-usual"),
        pytest.param(BROKEN, None, INVALID, "REQUEST_FAILED", id="broken"),
        pytest.param(FEW, None, INCONCLUSIVE, "", id="had-its-extension"),
        pytest.param(LOST, LOST, REGRESSED, "seen on two launches", id="lost-twice"),
        pytest.param(LOST, launch(), INCONCLUSIVE, "which a fresh one didn't", id="lost-once"),
        pytest.param(LOST, DIED, INVALID, str(DIED), id="the-fresh-launch-died"),
        pytest.param(LOST, BROKEN, INVALID, "REQUEST_FAILED", id="the-fresh-launch-is-invalid"),
        pytest.param(
            LOST,
            None,
            INCONCLUSIVE,
            "REGRESSED so far, and the run ended before a further launch",
            id="cut-short",
        ),
    ],
)
def test_acceptance_is_lost_if_two_launches_show_it(
    first: Measurement, fresh: Fresh, outcome: Outcome, words: str
) -> None:
    verdict = judged(first, fresh)
    assert verdict.outcome is outcome
    assert words in verdict.explanation


def test_only_a_loss_wants_a_fresh_launch() -> None:
    compared_with = references(builders.known(BASELINE))
    wants = [
        wants_fresh_launch(acceptance_on_launch(LENGTH, first, compared_with))
        for first in (launch(), LOST, FEW, BROKEN)
    ]
    assert wants == [False, True, False, False]


def lasting_nights() -> References:
    """Ten nights as usual, and then five of a loss of 4 % of AL - 1, which no night proves."""
    usual = {LENGTH.name: 2.8}
    lost = {LENGTH.name: 1 + 1.8 * 0.94}
    records = (
        *steady_nights(usual, 10, spread_frac=0.001),
        *steady_nights(lost, 5, spread_frac=0.001, first=11),
    )
    return references(builders.known(BASELINE), *records)


def test_a_small_loss_of_acceptance_that_lasts_is_named_by_the_nights() -> None:
    verdict = acceptance_on_launch(LENGTH, launch(), lasting_nights())
    assert verdict.nights == 10
    # Tonight is as good as the baseline, so it isn't a night of that loss.
    assert verdict.outcome is PASS
    less = dataclasses.replace(GOOD, accepted=17, position_counts=(8, 6, 3))
    tonight = builders.measurement({LENGTH.name: 2.7}, of=less)
    verdict = acceptance_on_launch(LENGTH, tonight, lasting_nights())
    assert (verdict.outcome, verdict.since) == (REGRESSED, "20261211T030000-1")
    assert not wants_fresh_launch(verdict)


@pytest.mark.parametrize("metric", [LENGTH, SPEED], ids=lambda metric: metric.name)
@pytest.mark.parametrize(
    ("measured", "outcome", "reason"),
    [
        (launch(), Outcome.NO_BASELINE, "baseline 'a.json': not JSON; restore it with git"),
        (BROKEN, INVALID, "REQUEST_FAILED: prompt 'a'"),
    ],
    ids=["valid", "invalid"],
)
def test_a_baseline_that_can_not_be_read_is_none(
    metric: object, measured: Measurement, outcome: Outcome, reason: str
) -> None:
    def unreadable(_: Case) -> CaseBaselines:
        raise BaselineError("baseline 'a.json': not JSON; restore it with git")

    compared_with = References(baselines_of=unreadable, run="20261121T020000")
    verdict = (
        acceptance_on_launch(LENGTH, measured, compared_with)
        if metric is LENGTH
        else compare_speed(SPEED, [measured], compared_with)
    )
    assert isinstance(verdict, Verdict)
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
    recorded = msgspec.structs.replace(BASELINE)
    compared_with = dataclasses.replace(
        references(builders.known(recorded), holds_by_nights=holds_by_nights),
        softened=frozenset({LENGTH.name} if softened else ()),
    )
    first = acceptance_on_launch(LENGTH, LOST, compared_with)
    verdict = confirmed(first, launch(), compared_with)
    assert (verdict.outcome, verdict.holds) == (INCONCLUSIVE, holds)
