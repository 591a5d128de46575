"""What is expected of a case, where that comes from, and its minimum detectable effect: as text."""

import math
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from specreg.baselines.comparison import Known, differing_settings, expected_value
from specreg.baselines.schema import load_table
from specreg.core.commands import learn_command
from specreg.matrix.case import Case
from specreg.measurement.metrics import METRICS, Metric, ratio_parts
from specreg.report.tables import NOTHING, format_number, render_table
from specreg.stats.intervals import (
    FEWEST_PROMPTS,
    Change,
    Spread,
    change_of_launches,
    change_of_ratio,
)
from specreg.verdicts.history import RunRecord
from specreg.verdicts.judge import first_look, log_to_frac, mde_frac, record_hint, tolerance_frac

_LAST = 7


def render_explanation(case: Case, known: Known, lived: Sequence[RunRecord], *, width: int) -> str:
    """Expectation, tolerance and minimum detectable effect of each metric, and the last outcomes.

    Args:
        case: which.
        known: what the baselines know of it.
        lived: its history on this machine, the oldest first.
        width: columns of the text.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("metric")
    for name in ("expected", "tolerance", "detectable"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last outcomes", overflow="fold")
    for metric in METRICS.values():
        if metric.applies_to(case):
            table.add_row(*map(Text, _row(metric, case, known, lived)))
    parts = ["\n".join(_head(case, known)), render_table(table, width, color=False), _DETECTABLE]
    if known.exact is not None and not any(one.between_frac for one in known.spreads.values()):
        parts.append(_HOURS.format(learn=learn_command(known.options)))
    return "\n\n".join(parts)


_DETECTABLE = (
    "detectable: the minimum detectable effect, a loss that is proven nine times out of ten with\n"
    "one launch. Of acceptance that is the worst case: no answer repeats a word of the\n"
    "baseline's. Equal answers leave no doubt."
)

_HOURS = (
    "How hours differ isn't known of this machine: the doubt about speeds is that of launches of\n"
    "one hour. After five identical runs or more: {learn}"
)


def _head(case: Case, known: Known) -> Iterator[str]:
    yield f"{case.id} on {known.environment.name}"
    yield (
        f"{case.prompts} prompts of {case.dataset}, {case.load.id}, up to"
        f" {case.output_cap_tokens} tokens each, temperature {case.temperature:g}"
    )
    baseline = known.baseline
    if baseline is not None:
        by = baseline.provenance
        whose = "" if known.exact else f" on {baseline.environment.name}; acceptance only"
        prompts = len({one.id for one in baseline.acceptance.prompts}) if baseline.acceptance else 0
        yield (
            f"expected: what was recorded on {by.recorded_on}{whose}, with {case.server.engine}"
            f" {by.engine_version}, {prompts or 'no'} prompts of acceptance and"
            f" {len(baseline.launches)} launches: {by.reason}"
        )
        differing = differing_settings(baseline.case, known.settings)
        if differing:
            hint = record_hint(case.id, known)
            yield f"it doesn't apply, the settings differ: {differing}; {hint}"
    elif known.published is not None:
        yield f"expected: published by {known.published.source}; {known.published.conditions}"
    else:
        yield f"nothing is expected: {record_hint(case.id, known)}"


def _row(metric: Metric, case: Case, known: Known, lived: Sequence[RunRecord]) -> tuple[str, ...]:
    change = _one_launch(metric, known) if metric.by_launch else _one_run(metric, case, known)
    frac = None if change is None else mde_frac(change, first_look(metric))
    if frac is not None and metric.by_launch:
        frac = -log_to_frac(metric, -frac)
    outcomes = [one.outcomes[metric.name] for one in lived if metric.name in one.outcomes]
    return (
        metric.name,
        format_number(_expected(metric, known)),
        f"{tolerance_frac(metric, case, known):.1%}",
        NOTHING if frac is None else f"{frac:.1%}",
        " ".join(outcomes[-_LAST:]) or NOTHING,
    )


def _expected(metric: Metric, known: Known) -> float | None:
    if known.exact is not None or (known.baseline is not None and not metric.by_launch):
        return expected_value(metric, known.baseline) if known.baseline else None
    return known.published.value(metric.name) if known.published and not metric.by_launch else None


def _one_launch(metric: Metric, known: Known) -> Change | None:
    """The doubt that one launch more would leave."""
    spread: Spread | None = known.spreads.get(metric.name)
    recorded = known.exact.launch_values(metric) if known.exact else ()
    if spread is None or not recorded:
        return None
    return change_of_launches(recorded[:1], recorded, spread, metric.direction.value)


def _one_run(metric: Metric, case: Case, known: Known) -> Change | None:
    """The doubt that a run would leave whose answers share nothing with the baseline's.

    Both then vary like the baseline's prompts do, which counts their differing difficulty twice.
    """
    stored = known.baseline.acceptance if known.baseline else None
    if stored is None:
        return None
    table = load_table(stored)
    if len(table.prompt_ids) < FEWEST_PROMPTS:
        return None
    parts = ratio_parts(metric, table.only(table.prompt_ids[: case.prompts]))
    if parts is None or not parts[0].any():
        return None
    alone = change_of_ratio(parts, None, float(parts[0].sum() / parts[1].sum()))
    return Change(
        estimate_frac=0.0, error_frac=math.sqrt(2) * alone.error_frac, freedom=alone.freedom
    )
