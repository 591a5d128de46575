"""Render a run as Prometheus gauges, for the text files that the node exporter collects."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from specreg.core.values import readable_values
from specreg.report.document import Report, began_at, last_verdicts

_RUN_LABELS = ("tier", "environment")
_CASE_LABELS = ("engine", "method", "models", "dataset")
_VERDICT_LABELS = (*_RUN_LABELS, "case_id", *_CASE_LABELS, "metric")


def render_metrics(
    report: Report, render: Callable[[CollectorRegistry], bytes] = generate_latest
) -> str:
    """Render gauges for a run's verdicts, its exit status and its start.

    Args:
        report: the report of the run.
        render: renders a registry: `generate_latest` of the Prometheus format or of OpenMetrics.
    """
    registry = CollectorRegistry()
    report = readable_values(report)
    run_labels = {"tier": report.run.tier, "environment": report.run.environment}
    _add_verdicts(registry, report, run_labels)
    status = Gauge(
        "specreg_exit_status",
        "The exit status of the run: 0, 1, 10 or 11, or one of pytest's own.",
        _RUN_LABELS,
        registry=registry,
    )
    status.labels(**run_labels).set(report.run.exit_status)
    began = began_at(report.run.run)
    if began is not None:
        started = Gauge(
            "specreg_started_timestamp_seconds",
            "When the run began.",
            _RUN_LABELS,
            registry=registry,
        )
        started.labels(**run_labels).set(began.timestamp())

    return render(registry).decode()


def _add_verdicts(
    registry: CollectorRegistry, report: Report, run_labels: Mapping[str, str]
) -> None:
    """Add gauges for the verdicts of `last_verdicts`. Values that a verdict lacks are left out."""

    def gauge(name: str, description: str, *more_labels: str) -> Gauge:
        labels = (*_VERDICT_LABELS, *more_labels)
        return Gauge(f"specreg_{name}", description, labels, registry=registry)

    values = gauge("value", "The measured value, in the unit of the metric.")
    expected_values = gauge("expected", "The value of the baseline, or of side A of a gate.")
    changes = gauge(
        "change_ratio", "The change from the expected value; better, or more power, is positive."
    )
    outcomes = gauge("verdict", "1 for the outcome of a verdict.", "outcome")
    cases = {case.case_id: case for case in report.cases}
    for verdict in last_verdicts(report.run.verdicts):
        case = cases.get(verdict.case_id)
        # If the report has no such case, these labels are empty.
        case_labels = {name: getattr(case, name, "") for name in _CASE_LABELS}
        names = {"case_id": verdict.case_id, "metric": verdict.metric}
        labels = {**run_labels, **names, **case_labels}
        outcomes.labels(**labels, outcome=str(verdict.outcome)).set(1)
        figures = (
            (values, verdict.value),
            (expected_values, verdict.comparison.expected),
            (changes, verdict.comparison.change_frac),
        )
        for figure_gauge, figure in figures:
            if figure is not None:
                figure_gauge.labels(**labels).set(figure)
