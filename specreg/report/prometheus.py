"""What a run measured as Prometheus reads it, in a file or through a push gateway."""

from collections.abc import Mapping
from http.client import HTTPException

from prometheus_client import CollectorRegistry, Gauge, generate_latest, push_to_gateway

from specreg.core.errors import ReportError
from specreg.report.document import Report, began_at

_LABELS = ("tier", "environment", "case_id", "engine", "method", "models", "dataset", "metric")
_JOB = "specreg"


def render_metrics(report: Report) -> str:
    """The text form, for a file that the node exporter collects."""
    return generate_latest(_registry(report)).decode()


def push_metrics(report: Report, gateway: str) -> None:
    """Sends them to a push gateway, in place of those of the last run of the tier there.

    Raises:
        ReportError: nobody takes them.
    """
    key = {"tier": report.run.tier, "environment": report.run.environment}
    try:
        push_to_gateway(gateway, job=_JOB, registry=_registry(report), grouping_key=key)
    except (OSError, ValueError, HTTPException) as error:
        message = f"push gateway '{gateway}': {error}; give the URL of one that runs"
        raise ReportError(message) from error


def _registry(report: Report) -> CollectorRegistry:
    registry = CollectorRegistry()

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"specreg_{name}", text, labels, registry=registry)

    value = gauge("value", "What was measured, in the unit of the metric.", *_LABELS)
    expected = gauge("expected", "What the baseline holds.", *_LABELS)
    change = gauge("change_ratio", "Change against the baseline; better is positive.", *_LABELS)
    verdict = gauge("verdict", "1 for the outcome of a verdict.", *_LABELS, "outcome")
    for one in report.run.verdicts:
        labels = {**_labels(report, one.case_id), "metric": one.metric}
        verdict.labels(**labels, outcome=str(one.outcome)).set(1)
        for metric, number in (
            (value, one.value),
            (expected, one.expected),
            (change, one.change_frac),
        ):
            if number is not None:
                metric.labels(**labels).set(number)
    whole = ("tier", "environment")
    run = {"tier": report.run.tier, "environment": report.run.environment}
    status = gauge("exit_status", "Of the run: 0, 1, 10 or 11, or one of pytest's own.", *whole)
    status.labels(**run).set(report.run.exit_status)
    moment = began_at(report.run.run)
    if moment is not None:
        began = gauge("started_timestamp_seconds", "When the run began.", *whole)
        began.labels(**run).set(moment.timestamp())
    return registry


def _labels(report: Report, case_id: str) -> Mapping[str, str]:
    case = next((one for one in report.cases if one.case_id == case_id), None)
    return {
        "tier": report.run.tier,
        "environment": report.run.environment,
        "case_id": case_id,
        "engine": case.engine if case else "",
        "method": case.method if case else "",
        "models": case.models if case else "",
        "dataset": case.dataset if case else "",
    }
