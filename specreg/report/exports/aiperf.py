"""aiperf: a record for each request, and the spreads of a case, in the files of its 0.13.

`profile_export.jsonl` and `profile_export_aiperf.json`. The moments of requests are exact to one
another; that the first was sent when the run began is an assumption.
"""

import json
from collections.abc import Iterator, Mapping

from specreg.acceptance.record import StepCounts
from specreg.acceptance.trace import RequestTrace
from specreg.measurement.figures import ArmFigures
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import e2e_ms, tpot_ms, ttft_ms
from specreg.report.document import CaseReport, Report, began_at
from specreg.report.exports._measured import NS_PER_S, Measured
from specreg.stats.percentiles import Summary

_SUMMARIES = {
    "time_to_first_token": ("ttft_ms", "ms"),
    "request_latency": ("e2e_ms", "ms"),
    "inter_token_latency": ("tpot_ms", "ms"),
    "output_token_throughput_per_user": ("output_tokens_per_s", "tokens/sec/user"),
    "output_sequence_length": ("completion_tokens", "tokens"),
}
_RATES = {
    "output_token_throughput": ("throughput_tokens_per_s", "tokens/sec"),
    "request_throughput": ("requests_per_s", "requests/sec"),
}


def export(report: Report, measured: Measured) -> Mapping[str, str]:
    """A folder for each case that was measured; records for those that the journal has."""
    files: dict[str, str] = {}
    for case in report.cases:
        folder = f"aiperf/{case.case_id}"
        if case.figures and case.figures.timing:
            summary = _aggregate(case.figures.timing)
            files[f"{folder}/profile_export_aiperf.json"] = json.dumps(summary, indent=1) + "\n"
        found = measured.get(case.case_id)
        if found is not None and found.replay is not None:
            lines = map(json.dumps, _records(report, case, found))
            files[f"{folder}/profile_export.jsonl"] = "".join(f"{line}\n" for line in lines)
    return files


def _aggregate(timing: ArmFigures) -> Mapping[str, object]:
    found: dict[str, object] = {
        "request_count": {"unit": "requests", "avg": float(timing.requests)},
    }
    for name, (field, unit) in _SUMMARIES.items():
        summary: Summary | None = getattr(timing, field)
        if summary is not None:
            found[name] = {
                "unit": unit,
                "avg": summary.mean,
                "std": summary.stdev,
                "count": summary.count,
                **{key: getattr(summary, key) for key in ("min", "max", "p50", "p75", "p90")},
                **{key: getattr(summary, key) for key in ("p95", "p99")},
            }
    for name, (field, unit) in _RATES.items():
        rate: Summary | None = getattr(timing, field)
        if rate is not None:
            found[name] = {"unit": unit, "avg": rate.mean}
    return found


def _records(
    report: Report, case: CaseReport, measurement: Measurement
) -> Iterator[Mapping[str, object]]:
    traces = measurement.replay.traces if measurement.replay else ()
    moment = began_at(report.run.run)
    began_ns = int(moment.timestamp()) * NS_PER_S if moment else 0
    shift_ns = began_ns - min((trace.sent_ns for trace in traces), default=0)
    known = measurement.acceptance.prompts if measurement.acceptance else ()
    counts = {(prompt.prompt_id, prompt.turn): prompt.counts for prompt in known}
    sessions: dict[str, int] = {}
    for trace in traces:
        ended_ns = trace.last_ns or trace.sent_ns
        steps = counts.get((trace.prompt_id, trace.turn))
        yield {
            "metadata": {
                "session_num": sessions.setdefault(trace.prompt_id, len(sessions)),
                "conversation_id": trace.prompt_id,
                "turn_index": trace.turn - 1,
                "credit_issued_ns": trace.planned_ns + shift_ns,
                "request_start_ns": trace.sent_ns + shift_ns,
                "request_end_ns": ended_ns + shift_ns,
                "worker_id": "specreg",
                "record_processor_id": "specreg",
                "benchmark_phase": "profiling",
            },
            "metrics": dict(_metrics(trace, steps)),
            "spec_decode_acceptance": _acceptance(case, trace, steps),
            "error": None,
        }


def _metrics(
    trace: RequestTrace, steps: StepCounts | None
) -> Iterator[tuple[str, Mapping[str, object]]]:
    for name, value, unit in (
        ("time_to_first_token", ttft_ms(trace), "ms"),
        ("request_latency", e2e_ms(trace), "ms"),
        ("inter_token_latency", tpot_ms(trace), "ms"),
        ("output_sequence_length", trace.tokens, "tokens"),
        ("spec_decode_acceptance_length", steps and steps.acceptance_length, "ratio"),
        ("spec_decode_draft_acceptance_rate", steps and _percent(steps.acceptance_rate), "%"),
        ("spec_decode_steps", steps and steps.steps, "count"),
        ("spec_decode_accepted_draft_tokens", steps and steps.accepted, "tokens"),
        ("spec_decode_draft_tokens", steps and steps.proposed, "tokens"),
    ):
        if value is not None:
            yield name, {"value": value, "unit": unit}


def _acceptance(
    case: CaseReport, trace: RequestTrace, steps: StepCounts | None
) -> Mapping[str, object] | None:
    """Its engine-neutral record; None without steps, or where nobody knows what was drafted."""
    if steps is None or not steps.steps or not steps.proposed:
        return None
    return {
        "engine": case.engine,
        "mean_acceptance_length": steps.acceptance_length,
        "draft_acceptance_rate": steps.acceptance_rate,
        "acceptance_histogram": {str(j): n for j, n in enumerate(steps.histogram) if n},
        "num_accepted_draft_tokens": steps.accepted,
        "num_draft_tokens": steps.proposed,
        "num_spec_steps": steps.steps,
        "num_spec_tokens": case.settings.draft_tokens if case.settings else None,
        "completion_tokens": trace.tokens,
    }


def _percent(rate: float | None) -> float | None:
    return None if rate is None else 100 * rate
