"""The acceptance that a case should have, beside what was recorded of it: as text."""

from collections.abc import Sequence

from specreg.acceptance.record import StepCounts
from specreg.baselines.comparison import Known, differing_settings, expected_value
from specreg.datasets.prompts import Prompt
from specreg.matrix.case import Case
from specreg.measurement.metrics import METRICS
from specreg.report.tables import NOTHING, format_number


def render_oracle(case: Case, prompts: Sequence[Prompt], steps: StepCounts, known: Known) -> str:
    """Lines of text: the steps, their acceptance, and the baseline's.

    Args:
        case: which.
        prompts: whose first turns were answered.
        steps: of all the answers.
        known: what the baselines know of it.
    """
    baseline = known.baseline
    if baseline is not None and differing_settings(baseline.case, known.settings):
        baseline = None
    length, rate = (
        format_number(expected_value(METRICS[name], baseline) if baseline else None)
        for name in ("acceptance_length_tokens", "acceptance_rate_frac")
    )
    by_position = " ".join(map(format_number, steps.marginal_acceptance)) or NOTHING
    where = baseline.environment.name if baseline else "nothing with these settings"
    has_later_turns = case.turns != 1 and any(len(prompt.turns) > 1 for prompt in prompts)
    later = "; of all turns, not of the first alone: don't compare" if has_later_turns else ""
    rows = (
        f"{case.id}: {len(prompts)} prompts, answered greedily without speculation; by its models",
        f"  S, A, D               {steps.steps}, {steps.accepted}, {steps.proposed}",
        f"  accepted by position  {by_position}",
        f"  acceptance length     {format_number(steps.acceptance_length)}, recorded {length}",
        f"  acceptance rate       {format_number(steps.acceptance_rate)}, recorded {rate}",
        f"recorded: {where}{later if baseline else ''}",
    )
    return "\n".join(rows)
