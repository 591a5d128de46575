"""Describe in a report what the baseline of a case expects."""

from collections.abc import Sequence

from specreg.baselines.comparison import CaseBaselines
from specreg.baselines.schema import load_acceptance
from specreg.measurement.figures import Figures
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, acceptance_value
from specreg.report.document import Expected

_LENGTH = METRICS["acceptance_length_tokens"]


def expected_of(
    case_baselines: CaseBaselines, measurements: Sequence[Measurement]
) -> Expected | None:
    """Return what the baseline of a case expects of the prompts that were measured.

    A baseline also has further prompts, which a run replays only if the case's own prompts can't
    decide. They are left out unless they were measured, so that charts and verdicts compare the
    same prompts. The speed of another kind of machine is left out as well.

    Returns:
        None without a baseline.
    """
    baseline = case_baselines.baseline
    if baseline is None:
        return None
    recorded = load_acceptance(baseline.acceptance)

    # Restrict the recorded acceptance to the prompts that were measured.
    records = [measurement.acceptance for measurement in measurements if measurement.acceptance]
    measured_prompts: set[str] = set()
    if records:
        measured_prompts = {prompt.prompt_id for prompt in records[0].prompts}
    if recorded is not None and recorded.prompts and measured_prompts:
        recorded = recorded.only(measured_prompts)
    marginal_frac: tuple[float, ...] = ()
    by_category: dict[str, float] = {}
    if recorded is not None:
        marginal_frac = recorded.total.marginal_acceptance
        for name, part in recorded.by_category.items():
            length_tokens = acceptance_value(_LENGTH, part)
            if length_tokens is not None:
                by_category[name] = length_tokens

    # Acceptance carries over from other machines, but speed needs a baseline of this one.
    values = {}
    for metric in METRICS.values():
        if not metric.by_launch:
            values[metric.name] = acceptance_value(metric, recorded)
        elif case_baselines.exact is not None:
            values[metric.name] = baseline.expected_value(metric)

    provenance = baseline.provenance
    return Expected(
        environment=baseline.environment.name,
        recorded_on=provenance.recorded_on,
        engine_version=provenance.engine_version,
        driver_version=provenance.driver_version,
        facts=provenance.facts,
        reason=provenance.reason,
        values={name: value for name, value in values.items() if value is not None},
        marginal_frac=marginal_frac,
        by_category_length_tokens=by_category,
    )


def expected_by(figures: Figures, *, environment: str, recorded_on: str, reason: str) -> Expected:
    """Return what was measured elsewhere, such as on side A of a gate, in the form of a baseline.

    Args:
        figures: what was measured there.
        environment: where that was.
        recorded_on: the date.
        reason: what is installed there, or which run it is.
    """
    marginal_frac: tuple[float, ...] = ()
    by_category: dict[str, float] = {}
    if figures.acceptance is not None:
        marginal_frac = figures.acceptance.total.marginal_frac
        for name, part in figures.acceptance.by_category.items():
            if part.acceptance_length_tokens is not None:
                by_category[name] = part.acceptance_length_tokens

    return Expected(
        environment=environment,
        recorded_on=recorded_on,
        engine_version=figures.engine_version,
        reason=reason,
        values={},
        marginal_frac=marginal_frac,
        by_category_length_tokens=by_category,
    )
