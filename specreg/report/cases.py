"""What is known of cases beside their runs, as text: expectations and needs."""

import math
from collections.abc import Iterator, Mapping, Sequence

from specreg.baselines.comparison import CaseBaselines, differing_settings, expected_value
from specreg.baselines.estimate import READ_GIB_PER_S, START_S, Estimate, run_s
from specreg.baselines.schema import load_table
from specreg.core.commands import learn_command, specreg_command
from specreg.matrix.case import Case, Tier
from specreg.measurement.metrics import METRICS, Metric, ratio_parts
from specreg.report.tables import NOTHING, format_number, render_rows
from specreg.stats.intervals import (
    FEWEST_PROMPTS,
    Change,
    change_of_launches,
    change_of_ratio,
)
from specreg.telemetry.identity import Gpus
from specreg.verdicts.history import RunRecord
from specreg.verdicts.judge import allowed_frac, first_look, log_to_frac, mde_frac, record_hint

_LAST_OUTCOMES = 7
_S_PER_MIN = 60.0
_DETECTABLE = (
    "detectable: the minimum detectable effect, a loss that is proven nine times out of ten with\n"
    "one launch. Of acceptance that is the worst case: no answer repeats a word of the\n"
    "baseline's. Equal answers leave no doubt."
)

_HOURS = (
    "How hours differ isn't known of this machine: the doubt about speeds is that of launches of\n"
    "one hour. After five identical runs or more: {learn}"
)


def render_explanation(
    case: Case, known: CaseBaselines, history: Sequence[RunRecord], *, width: int
) -> str:
    """What each metric is expected to be, is tolerated and can detect, and the last outcomes.

    The history is that of its runs on this machine, the oldest first.
    """
    rows = []
    for metric in METRICS.values():
        if not metric.applies_to(case):
            continue
        change = _doubt(metric, case, known)
        frac = None if change is None else mde_frac(change, first_look(metric))
        if frac is not None and metric.by_launch:
            frac = -log_to_frac(metric, -frac)
        outcomes = [one.outcomes[metric.name] for one in history if metric.name in one.outcomes]
        cells = (
            format_number(_expected(metric, known)),
            f"{allowed_frac(metric, case, known):.1%}",
            NOTHING if frac is None else f"{frac:.1%}",
            " ".join(outcomes[-_LAST_OUTCOMES:]) or NOTHING,
        )
        rows.append((metric.name, *cells))
    columns = ("metric", "expected", "tolerated", "detectable", "last outcomes")
    table = render_rows(columns, rows, width=width, folded=("last outcomes",))
    parts = ["\n".join(_head(case, known)), table, _DETECTABLE]
    if known.exact is not None and not any(one.between_frac for one in known.spreads.values()):
        parts.append(_HOURS.format(learn=learn_command(known.options)))
    return "\n\n".join(parts)


def _head(case: Case, known: CaseBaselines) -> Iterator[str]:
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


def _expected(metric: Metric, known: CaseBaselines) -> float | None:
    if metric.by_launch or known.exact is not None:
        return expected_value(metric, known.exact) if known.exact else None
    if known.baseline is not None:
        return expected_value(metric, known.baseline)
    return known.published.value(metric.name) if known.published else None


def _doubt(metric: Metric, case: Case, known: CaseBaselines) -> Change | None:
    """What one launch more would leave, or of acceptance a run that shares no answer.

    Both then vary like the baseline's prompts do, which counts their differing difficulty twice.
    """
    if metric.by_launch:
        spread = known.spreads.get(metric.name)
        recorded = known.exact.launch_values(metric) if known.exact else ()
        if spread is None or not recorded:
            return None
        return change_of_launches(recorded[:1], recorded, spread, metric.direction.value)
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


def render_matrix(tier: Tier, estimates: Mapping[str, Estimate], gpus: Gpus, *, width: int) -> str:
    """A row for each case; below it the total, what to prepare, and what doesn't fit the GPUs."""
    on_gpu = tier.needs_gpus > 0
    rows = []
    for case in tier.cases:
        estimate, memory_gib = estimates[case.id], case.needs.memory_gib
        rows.append(
            (
                case.id,
                str(case.needs.gpus) if on_gpu else NOTHING,
                str(math.ceil(memory_gib)) if on_gpu and memory_gib is not None else NOTHING,
                str(case.prompts),
                f"{estimate.case_s / _S_PER_MIN:.1f}",
                estimate.source,
            )
        )
    columns = ("case", "GPUs", "GiB each", "prompts", "minutes", "by")
    table = render_rows(columns, rows, width=width, folded=("by",))
    return "\n".join((table, "", *_notes(tier, estimates, gpus)))


def _notes(tier: Tier, estimates: Mapping[str, Estimate], gpus: Gpus) -> Iterator[str]:
    kind, unit = ("gpu", "minutes of a GPU") if tier.needs_gpus else ("cpu", "minutes")
    total = run_s(tier.cases, estimates, kind) / _S_PER_MIN
    yield f"about {total:.0f} {unit} in all, {START_S[kind]:.0f} s for each server's start"
    datasets = sorted({case.dataset for case in tier.cases} - {"toy"})
    prepared = [name for name in datasets if not name.startswith("random-")]
    if prepared:
        yield "to prepare: " + "; ".join(specreg_command("prepare", name) for name in prepared)
    if any("guess" in estimate.source for estimate in estimates.values()):
        yield f"guess: a step reads all weights at {READ_GIB_PER_S:.0f} GiB/s; no draft is accepted"
    lacking = tier.unmet(gpus.memory_gib)
    if lacking:
        there = ", ".join(f"{math.floor(each)} GiB" for each in gpus.memory_gib)
        why = there or f"no GPU ({gpus.why_none})"
        yield f"{len(lacking)} of {len(tier.cases)} cases don't fit this machine: {why}"
