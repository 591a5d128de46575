"""The meter: the traces of a measurement and the server's counters in, its acceptance out.

Sources in order of preference: each answer's own record, the server's counters, the chunks.
"""

from collections.abc import Sequence

from specreg.acceptance.checks import (
    check_acceptance,
    check_counters,
    check_emitted,
    check_ended,
    check_reconciled,
)
from specreg.acceptance.record import (
    NO_STEPS,
    AcceptanceRecord,
    Counters,
    PromptAcceptance,
    Source,
    StepCounts,
    View,
    Weighting,
)
from specreg.acceptance.stream_chunks import counts_of_chunks
from specreg.acceptance.trace import RequestTrace
from specreg.core.errors import InvalidMeasurementError
from specreg.engines.methods import METHODS
from specreg.engines.protocols import Protocol
from specreg.matrix import ServerSpec


def read_acceptance(
    spec: ServerSpec,
    protocol: Protocol,
    traces: Sequence[RequestTrace],
    before: Counters | None,
    after: Counters | None,
) -> AcceptanceRecord | None:
    """The acceptance of all requests between two readings of the counters.

    Args:
        spec: of the server; without speculation there is no acceptance.
        protocol: what the server speaks.
        traces: one at least, all finished.
        before: the server's counters, None where it has none.
        after: the same, afterwards.

    Raises:
        InvalidMeasurementError: a check broke; see `specreg.acceptance`.
    """
    if spec.method == "none":
        return None
    method = METHODS[spec.method]
    moved = check_counters(before, after) if before and after else None
    spoken = [trace for trace in traces if trace.acceptance is not None]
    if protocol.request_source is not None and spoken:
        record = _record(protocol.request_source, View.VERIFIER, traces, _own_counts(traces))
        if moved is not None:
            check_reconciled(record.total, moved)
    elif protocol.counters_source is not None and moved is not None and moved.counts is not None:
        check_ended(len(traces), moved)
        record = AcceptanceRecord(
            source=protocol.counters_source,
            view=View.VERIFIER,
            weighting=Weighting.STEP,
            total=moved.counts,
            prompts=(),
        )
    elif protocol.request_source is not None:
        message = (
            "no answer tells its steps, nor do the counters; is the server as old as it says, and"
            " are its statistics switched on?"
        )
        raise InvalidMeasurementError("ACCEPTANCE_MISSING", message)
    else:
        counts = [
            counts_of_chunks(
                trace,
                draft_tokens=spec.draft_tokens,
                drafts_every_step=method.drafts_every_step,
            )
            for trace in traces
        ]
        record = _record(Source.STREAM_CHUNKS, View.EMITTED, traces, counts)
    check_acceptance(record, draft_tokens=spec.draft_tokens, drafted_tokens=spec.drafted_tokens)
    if method.drafts_every_step:
        check_emitted(record, traces)
    return record.to_depth(spec.draft_tokens)


def _own_counts(traces: Sequence[RequestTrace]) -> list[StepCounts]:
    """What each answer says of itself; an answer of one token had no step to speak of."""
    counts = []
    for trace in traces:
        if trace.acceptance is None and trace.tokens > 1:
            message = f"prompt '{trace.prompt_id}': the server sent no acceptance, to others it did"
            raise InvalidMeasurementError("ACCEPTANCE_MISSING", message)
        counts.append(trace.acceptance or NO_STEPS)
    return counts


def _record(
    source: Source, view: View, traces: Sequence[RequestTrace], counts: Sequence[StepCounts]
) -> AcceptanceRecord:
    return AcceptanceRecord(
        source=source,
        view=view,
        weighting=Weighting.STEP,
        total=sum(counts, NO_STEPS),
        prompts=tuple(
            PromptAcceptance(
                prompt_id=trace.prompt_id,
                category=trace.category,
                turn=trace.turn,
                counts=own,
                completion_tokens=trace.tokens,
            )
            for trace, own in zip(traces, counts, strict=True)
        ),
    )
