"""Render a run as what aiperf 0.13 writes: a record of each request, and a summary of each case.

The times between the requests of a case are exact. The first request of each case is assumed to be
sent at the beginning of the run, so the times of different cases can't be compared.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from specreg.acceptance.record import StepCounts
from specreg.acceptance.trace import RequestTrace
from specreg.core.names import MAX_CASE_CHARACTERS, check_spelling
from specreg.core.values import readable_values
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import e2e_ms, tpot_ms, ttft_ms
from specreg.report.document import CaseReport, Report, began_at

_NS_PER_S = 10**9
_SUMMARY_VERSION = "1.4"
"""The version of aiperf's summary."""


def render_aiperf(report: Report, measured: Mapping[str, Measurement]) -> Mapping[str, str]:
    """Return aiperf's records and summary of each case, by the paths of their files.

    With both files, `aiperf plot` takes the folder of a case for a run.

    Args:
        report: the report of the run.
        measured: the measurement of each case on the launch that the report shows, by the case's
            id.

    Raises:
        SpecregError: a case's id can't be the name of a folder.
    """
    began_ns = 0
    began = began_at(report.run.run)
    if began is not None:
        began_ns = int(began.timestamp()) * _NS_PER_S
    cases = [case for case in report.cases if case.case_id in measured]

    # An id becomes the name of a folder, and the report may come from another machine.
    for case in cases:
        check_spelling("case", case.case_id, MAX_CASE_CHARACTERS)
    files = {}
    for case in cases:
        records = _records_of(case, measured[case.case_id], began_ns)
        lines = [f"{json.dumps(readable_values(record))}\n" for record in records]
        files[f"aiperf/{case.case_id}/profile_export.jsonl"] = "".join(lines)
        summary = json.dumps(readable_values(_summary_of(case)))
        files[f"aiperf/{case.case_id}/profile_export_aiperf.json"] = f"{summary}\n"

    return files


def _summary_of(case: CaseReport) -> Mapping[str, object]:
    """Return aiperf's summary of a case, without unknown metrics."""
    load: dict[str, object] = {"name": "profiling"}
    if case.settings is not None:
        load["concurrency"] = case.settings.concurrency
    summary: dict[str, object] = {
        "schema_version": _SUMMARY_VERSION,
        # aiperf plot compares "models"; those of a report differ in their method.
        "input_config": {"models": {"items": [{"name": case.method}]}, "phases": [load]},
    }
    timing = case.figures.timing if case.figures is not None else None
    if timing is None:
        return summary
    spreads = {
        "time_to_first_token": (timing.ttft_ms, "ms"),
        "inter_token_latency": (timing.tpot_ms, "ms"),
        "request_latency": (timing.e2e_ms, "ms"),
        "output_token_throughput_per_user": (timing.output_tokens_per_s, "tokens/sec/user"),
    }
    for name, (spread, unit) in spreads.items():
        if spread is not None:
            fields = msgspec.to_builtins(spread)
            fields["avg"] = fields.pop("mean")
            fields["std"] = fields.pop("stdev")
            summary[name] = {"unit": unit, **fields}

    averages = {
        "output_token_throughput": (timing.throughput_tokens_per_s, "tokens/sec"),
        "request_throughput": (timing.requests_per_s, "requests/sec"),
        "request_count": (timing.requests, "requests"),
    }
    for name, (average, unit) in averages.items():
        if average is not None:
            summary[name] = {"unit": unit, "avg": average}
    return summary


def _records_of(
    case: CaseReport, measurement: Measurement, began_ns: int
) -> Iterator[Mapping[str, object]]:
    """Yield the record of each request: round by round, in the order of the prompts and turns."""
    if measurement.replay is None:
        return

    # The clock of the traces is monotonic. Shift it so that the first request of the case begins
    # the run.
    traces = measurement.replay.traces
    shift_ns = began_ns - min((trace.sent_ns for trace in traces), default=0)
    counts_by_turn: dict[tuple[str, int], list[StepCounts]] = {}
    if measurement.acceptance is not None:
        for prompt in measurement.acceptance.prompts:
            counts_of_turn = counts_by_turn.setdefault((prompt.prompt_id, prompt.turn), [])
            counts_of_turn.append(prompt.counts)

    # A prompt may be replayed several times. Each replay is a session of its own. The n-th replay
    # of a turn gets the n-th of the counts of that turn.
    replays = Counter[tuple[str, int]]()
    session_numbers: dict[tuple[str, int], int] = {}
    for trace in traces:
        turn_key = (trace.prompt_id, trace.turn)
        replay_number = replays[turn_key]
        replays[turn_key] += 1
        acceptance = None
        counts = counts_by_turn.get(turn_key, [])
        if replay_number < len(counts):
            acceptance = _acceptance(case, trace, counts[replay_number])
        session_key = (trace.prompt_id, replay_number)
        session = session_numbers.setdefault(session_key, len(session_numbers))
        yield {
            "metadata": _metadata(trace, session, shift_ns),
            "metrics": _metrics(trace),
            "spec_decode_acceptance": acceptance,
            "error": None,
        }


def _metadata(trace: RequestTrace, session: int, shift_ns: int) -> Mapping[str, object]:
    """Return aiperf's metadata of a request.

    Args:
        session: the number of its session.
        shift_ns: the difference between the time since the epoch and the clock of the trace.
    """
    # A request without a token ended, as far as is known, when it was sent.
    ended_ns = trace.last_ns or trace.sent_ns
    return {
        "session_num": session,
        "conversation_id": trace.prompt_id,
        "turn_index": trace.turn - 1,
        "credit_issued_ns": trace.planned_ns + shift_ns,
        "request_start_ns": trace.sent_ns + shift_ns,
        "request_end_ns": ended_ns + shift_ns,
        "worker_id": "specreg",
        "record_processor_id": "specreg",
        "benchmark_phase": "profiling",
    }


def _metrics(trace: RequestTrace) -> Mapping[str, Mapping[str, object]]:
    """Return aiperf's metrics of a request, without unknown ones."""
    metrics = {
        "time_to_first_token": (ttft_ms(trace), "ms"),
        "request_latency": (e2e_ms(trace), "ms"),
        "inter_token_latency": (tpot_ms(trace), "ms"),
        "input_sequence_length": (trace.prompt_tokens, "tokens"),
        "output_sequence_length": (trace.tokens, "tokens"),
    }
    return {
        name: {"value": value, "unit": unit}
        for name, (value, unit) in metrics.items()
        if value is not None
    }


def _acceptance(
    case: CaseReport, trace: RequestTrace, counts: StepCounts
) -> Mapping[str, object] | None:
    """Return aiperf's acceptance of a request.

    Returns:
        None if nothing was drafted, or if it isn't known how much was drafted.
    """
    if not counts.steps or not counts.proposed:
        return None
    draft_tokens = None
    if case.settings is not None:
        draft_tokens = case.settings.draft_tokens

    # The keys of an object in JSON are texts.
    histogram = {}
    for accepted, steps in enumerate(counts.histogram):
        if steps:
            histogram[str(accepted)] = steps
    return {
        "engine": case.engine,
        "mean_acceptance_length": counts.acceptance_length,
        "draft_acceptance_rate": counts.acceptance_rate,
        "acceptance_histogram": histogram,
        "num_accepted_draft_tokens": counts.accepted,
        "num_draft_tokens": counts.proposed,
        "num_spec_steps": counts.steps,
        "num_spec_tokens": draft_tokens,
        "completion_tokens": trace.tokens,
    }
