"""The checks of a measurement's counts: silent, or an error with the reason it is INVALID."""

import itertools
from collections.abc import Iterable

from specreg.acceptance.record import AcceptanceRecord, StepCounts
from specreg.errors import InvalidMeasurementError
from specreg.trace import RequestTrace


def check_requests(traces: Iterable[RequestTrace]) -> None:
    """Every request finished, with a usage that its chunks don't contradict.

    Raises:
        InvalidMeasurementError: `REQUEST_FAILED`, `USAGE_MISSING`, `TOKENS_DISAGREE`.
    """
    for trace in traces:
        if trace.error is not None or trace.finish_reason is None:
            why = trace.error or "the stream ended without a finish reason"
            raise InvalidMeasurementError("REQUEST_FAILED", f"prompt '{trace.prompt_id}': {why}")
        if trace.usage_tokens is None:
            message = f"prompt '{trace.prompt_id}': the server sent no usage"
            raise InvalidMeasurementError("USAGE_MISSING", message)
        seen = sum(chunk.tokens for chunk in trace.chunks)
        if seen != trace.usage_tokens:
            message = (
                f"prompt '{trace.prompt_id}': its chunks carried {seen} tokens,"
                f" the server counted {trace.usage_tokens}"
            )
            raise InvalidMeasurementError("TOKENS_DISAGREE", message)


def check_acceptance(record: AcceptanceRecord, *, draft_tokens: int) -> None:
    """The counts of a case that speculates hang together.

    Args:
        record: what was read.
        draft_tokens: how many tokens the case drafts per step (k).

    Raises:
        InvalidMeasurementError: `SPEC_DISABLED`, `SETTINGS_DIFFER`, `COUNTS_INCONSISTENT`.
    """
    total = record.total
    if total.steps <= 0 or total.proposed <= 0:
        message = f"speculation is configured, yet S = {total.steps} and D = {total.proposed}"
        raise InvalidMeasurementError("SPEC_DISABLED", message)
    if len(total.position_counts) != draft_tokens:
        message = (
            f"the server drafts up to {len(total.position_counts)} tokens per step,"
            f" the case asks for {draft_tokens}; look at the engine's arguments"
        )
        raise InvalidMeasurementError("SETTINGS_DIFFER", message)
    check_counts(total, "all requests")
    for prompt in record.prompts:
        check_counts(prompt.counts, f"prompt '{prompt.prompt_id}'")


def check_emitted(record: AcceptanceRecord) -> None:
    """No request delivered more than its steps emitted: N ≤ 1 + Σ (a + 1).

    Less is fine: the end of text or the output cap cuts the last step. Only for methods that draft
    in every step: S leaves out the steps without a draft, and such a step emits a token too.

    Raises:
        InvalidMeasurementError: `TOKENS_IMPOSSIBLE`, more was delivered than the steps emitted.
    """
    for prompt in record.prompts:
        emitted = 1 + prompt.counts.accepted + prompt.counts.steps
        if prompt.completion_tokens > emitted:
            message = (
                f"prompt '{prompt.prompt_id}': {prompt.completion_tokens} tokens delivered,"
                f" its steps emitted {emitted}"
            )
            raise InvalidMeasurementError("TOKENS_IMPOSSIBLE", message)


def check_counters(before: StepCounts, after: StepCounts) -> StepCounts:
    """What the server's counters moved by in the window.

    Raises:
        InvalidMeasurementError: `COUNTERS_FELL`, the server restarted inside the window.
    """
    moved = after - before
    if min(moved.steps, moved.accepted, moved.proposed, *moved.position_counts) < 0:
        message = f"S, A, D moved by {_sad(moved)}; the server restarted inside the window"
        raise InvalidMeasurementError("COUNTERS_FELL", message)
    return moved


def check_reconciled(requests: StepCounts, counters: StepCounts) -> None:
    """The sum over the requests is what the server's counters moved by.

    Raises:
        InvalidMeasurementError: `FOREIGN_TRAFFIC` when the counters moved more, else
            `COUNTS_DISAGREE`.
    """
    if requests == counters:
        return
    reason = "FOREIGN_TRAFFIC" if counters.steps > requests.steps else "COUNTS_DISAGREE"
    message = f"S, A, D of our requests {_sad(requests)}, of the server's counters {_sad(counters)}"
    raise InvalidMeasurementError(reason, message)


def check_counts(counts: StepCounts, whose: str) -> None:
    """Σ P_i = A, P_i never rises with i and A ≤ D ≤ k·S; so AL ≤ k + 1 and Σ h_j = S.

    Raises:
        InvalidMeasurementError: `COUNTS_INCONSISTENT`; `whose` they are is part of the message.
    """
    positions = (counts.steps, *counts.position_counts)
    if (
        min(positions) < 0
        or sum(counts.position_counts) != counts.accepted
        or any(later > earlier for earlier, later in itertools.pairwise(positions))
        or not counts.accepted <= counts.proposed <= counts.steps * len(counts.position_counts)
    ):
        message = (
            f"{whose}: S, A, D = {_sad(counts)} and accepted by position"
            f" {list(counts.position_counts)} contradict one another"
        )
        raise InvalidMeasurementError("COUNTS_INCONSISTENT", message)


def _sad(counts: StepCounts) -> str:
    return f"{counts.steps}, {counts.accepted}, {counts.proposed}"
