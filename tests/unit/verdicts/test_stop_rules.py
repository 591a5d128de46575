"""When a case has been measured enough: a plain loss stops it early, doubt makes it go on."""

import dataclasses
from collections.abc import Sequence

import msgspec
import pytest

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.comparison import CaseBaselines
from specreg.baselines.schema import stored_acceptance
from specreg.measurement.measure import Enough
from specreg.measurement.metrics import METRICS
from specreg.stats.alpha_spending import Look
from specreg.verdicts.confirmation import enough_for
from tests.unit import builders

LENGTH = METRICS["acceptance_length_tokens"]
FIRST = METRICS["acceptance_pos1_frac"]
SAME = builders.acceptance(builders.counts(8, 0, 6, 6), prompts=10)
WORSE = builders.acceptance(builders.counts(14, 0, 3, 3), prompts=10)


def mixed(*several: AcceptanceRecord) -> AcceptanceRecord:
    """One prompt of each in turn: they disagree, so there is no telling."""
    prompts = [
        dataclasses.replace(several[number % len(several)].prompts[0], prompt_id=f"chat-{number}")
        for number in range(10)
    ]
    return builders.acceptance_of(prompts)


DOUBT = mixed(SAME, WORSE, builders.acceptance(builders.counts(2, 0, 9, 9)))
SUM = dataclasses.replace(DOUBT, prompts=())


def rule(
    *, may_stop_early: bool, metrics: Sequence[str] = (LENGTH.name,), recorded: bool = True
) -> Enough:
    """Enough for these metrics of the case, against a baseline like SAME."""
    baseline = msgspec.structs.replace(builders.baseline(), acceptance=stored_acceptance(SAME))
    known = CaseBaselines(
        environment=builders.ENVIRONMENT,
        settings=builders.SETTINGS,
        exact=baseline if recorded else None,
        spreads={},
    )
    case = dataclasses.replace(builders.CASE, prompts=10)
    found = [METRICS[name] for name in metrics]
    return enough_for(case, found, known, may_stop_early=may_stop_early)


@pytest.mark.parametrize(
    ("acceptance", "look", "may_stop_early", "enough"),
    [
        pytest.param(WORSE, Look.EARLY, True, True, id="a-plain-loss"),
        pytest.param(WORSE, Look.EARLY, False, False, id="a-loss-where-speed-is-asked-too"),
        pytest.param(SAME, Look.EARLY, True, False, id="no-loss-so-far"),
        pytest.param(DOUBT, Look.EARLY, True, False, id="doubt"),
        pytest.param(WORSE, Look.FULL, False, True, id="all-of-a-loss"),
        pytest.param(SAME, Look.FULL, False, True, id="all-of-no-loss"),
        pytest.param(DOUBT, Look.FULL, False, False, id="all-of-doubt"),
        pytest.param(SUM, Look.FULL, False, True, id="a-sum-alone-tells-nothing-more"),
        pytest.param(SUM, Look.EARLY, True, False, id="a-sum-alone-early"),
    ],
)
def test_a_plain_loss_stops_early_and_doubt_goes_on(
    acceptance: AcceptanceRecord, look: Look, *, may_stop_early: bool, enough: bool
) -> None:
    assert rule(may_stop_early=may_stop_early)(acceptance, look) is enough


def test_the_first_metric_that_is_asked_for_decides_early() -> None:
    both = rule(may_stop_early=True, metrics=(LENGTH.name, FIRST.name))
    counts = builders.counts(8, 0, 6, 6)
    lost = dataclasses.replace(counts, position_counts=(10, 10, 10))  # the sum stays 30
    record = builders.acceptance(lost, prompts=10)
    assert not both(record, Look.EARLY)
    assert rule(may_stop_early=True, metrics=(FIRST.name,))(record, Look.EARLY)


def test_more_prompts_do_not_help_where_nothing_is_known() -> None:
    nothing = rule(may_stop_early=True, recorded=False)
    assert nothing(SAME, Look.FULL)
    assert not nothing(SAME, Look.EARLY)
