"""The acceptance that a case should have, beside what was recorded of it: as text."""

from specreg.acceptance.record import StepCounts
from specreg.comparison import Known, differing_settings, expected_value
from specreg.matrix import Case
from specreg.metrics import METRICS
from specreg.report.terminal import NOTHING, format_number


def render_oracle(case: Case, prompts: int, steps: StepCounts, known: Known) -> str:
    """Lines of text: the steps, their acceptance, and the baseline's.

    Args:
        case: which.
        prompts: how many were answered.
        steps: of all of them.
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
    rows = (
        f"{case.id}: {prompts} prompts, answered greedily without speculation; by its models",
        f"  S, A, D               {steps.steps}, {steps.accepted}, {steps.proposed}",
        f"  accepted by position  {by_position}",
        f"  acceptance length     {format_number(steps.acceptance_length)}, recorded {length}",
        f"  acceptance rate       {format_number(steps.acceptance_rate)}, recorded {rate}",
        f"recorded: {where}",
    )
    return "\n".join(rows)
