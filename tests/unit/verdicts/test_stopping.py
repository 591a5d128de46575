"""When a case is measured enough to judge its acceptance."""

import dataclasses

import msgspec
import pytest

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.schema import stored_acceptance
from specreg.measurement.arm import StoppingRule
from specreg.measurement.metrics import METRICS, Metric
from specreg.stats.intervals import Look
from specreg.verdicts.stopping import enough_for
from tests.unit import builders

LENGTH = METRICS["acceptance_length_tokens"]
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
