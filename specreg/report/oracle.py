"""The acceptance that a case should have, beside what was recorded of it: as text."""

from specreg.acceptance.record import StepCounts
from specreg.comparison import Known, expected_value
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
    recorded = [
        expected_value(METRICS[name], known.baseline) if known.baseline else None
        for name in ("acceptance_length_tokens", "acceptance_rate_frac")
    ]
    length, rate = map(format_number, recorded)
    by_position = " ".join(map(format_number, steps.marginal_acceptance)) or NOTHING
    where = known.baseline.environment.name if known.baseline else "nowhere"
    rows = (
        f"{case.id}: {prompts} prompts, answered greedily without speculation; by its models",
        f"  S, A, D               {steps.steps}, {steps.accepted}, {steps.proposed}",
        f"  accepted by position  {by_position}",
        f"  acceptance length     {format_number(steps.acceptance_length)}, recorded {length}",
        f"  acceptance rate       {format_number(steps.acceptance_rate)}, recorded {rate}",
        f"recorded on {where}",
    )
    return "\n".join(rows)
