"""What launches can tell of a speed, and what a verdict makes of what was said beforehand."""

import dataclasses

import msgspec
import pytest

from specreg.baselines.comparison import compare
from specreg.baselines.schema import Baseline, Detectable
from specreg.measurement.metrics import METRICS
from specreg.stats.alpha_spending import Look
from specreg.stats.intervals import Spread
from specreg.verdicts.detection import detectable, detects_against
from specreg.verdicts.judge import Outcome, judge
from tests.unit import builders

SPEED, TIME = METRICS["throughput_tokens_per_s"], METRICS["tpot_p50_ms"]


@pytest.mark.parametrize(
    ("within_frac", "between_frac", "recorded", "decides", "launches"),
    [
        pytest.param(0.005, 0.0, 3, True, 1, id="one-tells"),
        pytest.param(0.01, 0.0, 6, True, 2, id="two-tell"),
        pytest.param(0.015, 0.0, 9, False, 5, id="five-tell"),
        pytest.param(0.05, 0.0, 3, False, 0, id="none-tells"),
        pytest.param(0.005, 0.02, 3, False, 0, id="runs-differ"),
    ],
)
def test_how_many_launches_tell_follows_from_how_they_spread(
    within_frac: float, between_frac: float, recorded: int, *, decides: bool, launches: int
) -> None:
    spread = Spread(within_frac=within_frac, between_frac=between_frac, freedom=16)
    found = detectable(SPEED, 0.05, recorded, spread)
    assert (found.decides, found.launches, found.tolerance_frac) == (decides, launches, 0.05)
    assert (found.mde_frac <= 0.05) == decides


def test_each_speed_of_a_baseline_that_has_a_spread_is_told_of() -> None:
    row = {SPEED.name: 100.0, TIME.name: 10.0, "of_another_version": 1.0}
    spreads = {name: Spread(within_frac=0.01, between_frac=0.0, freedom=9) for name in row}
    del spreads[TIME.name]
    case = dataclasses.replace(builders.CASE, tolerances=((SPEED.name, 0.2),))
    found = detects_against(builders.baseline(row, row), case, spreads)
    assert found == {SPEED.name: detectable(SPEED, 0.2, 2, spreads[SPEED.name])}


def told(launches: int, tolerance_frac: float = 0.05, *, decides: bool = False) -> Baseline:
    """A baseline that says what a run can tell of the throughput."""
    detects = Detectable(
        decides=decides, mde_frac=0.148, tolerance_frac=tolerance_frac, launches=launches
    )
    baseline = builders.baseline({SPEED.name: 100.0}, {SPEED.name: 100.0})
    return msgspec.structs.replace(baseline, detects={SPEED.name: detects})


UNDECIDABLE, INCONCLUSIVE = Outcome.UNDECIDABLE, Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("speed", "launches", "baseline", "outcome"),
    [
        pytest.param(100.0, 1, told(0), UNDECIDABLE, id="said-so"),
        pytest.param(100.0, 3, told(4), UNDECIDABLE, id="too-few-launches"),
        pytest.param(100.0, 4, told(4), INCONCLUSIVE, id="enough-launches"),
        pytest.param(100.0, 1, told(1, decides=True), INCONCLUSIVE, id="said-otherwise"),
        pytest.param(100.0, 1, told(0, 0.04), INCONCLUSIVE, id="said-so-of-less"),
        pytest.param(100.0, 1, told(0, 0.06), UNDECIDABLE, id="said-so-of-more"),
        pytest.param(70.0, 1, told(0), Outcome.REGRESSED, id="a-loss-is-red"),
        pytest.param(130.0, 1, told(0), Outcome.IMPROVED, id="a-gain"),
    ],
)
def test_what_a_baseline_said_beforehand_excuses_no_loss_and_only_doubt(
    speed: float, launches: int, baseline: Baseline, outcome: Outcome
) -> None:
    measured = [builders.measurement({SPEED.name: speed})] * launches
    known = builders.known(baseline, within_frac=0.03 if speed == 100 else 0.02)
    verdict = judge(SPEED, compare(measured, known), Look.LAUNCH)
    assert verdict.outcome is outcome


def test_an_undecidable_figure_says_the_bound_that_was_reached() -> None:
    known = builders.known(told(9), within_frac=0.03)
    verdict = judge(SPEED, compare([builders.measurement({SPEED.name: 100.0})], known), Look.LAUNCH)
    assert verdict.reason == (
        "this machine can't tell 5.0% with 4 launches, which detect 14.8%, 9 launches would; it"
        " is no more than 10.5% worse"
    )
    assert (verdict.needed_launches, verdict.fails, verdict.holds) == (9, False, False)
