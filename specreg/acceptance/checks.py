"""Check a measurement's counts: return, or raise the reason why it is INVALID."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

from specreg.acceptance.record import AcceptanceRecord, Counters, Source, StepCounts
from specreg.acceptance.trace import RequestTrace
from specreg.core.errors import InvalidMeasurementError

_OR_VERSION = ", or try the version that specreg knows best (no --specreg-engine-version)"
_VERSION = f";{_OR_VERSION.removeprefix(', or')}"
_PINNED_OFF_TOKENS = 0.02


def check_requests(traces: Sequence[RequestTrace]) -> None:
    """Check that every request finished, and that its chunks fit its usage.

    Else `REQUEST_FAILED`, `USAGE_MISSING`, `TOKENS_DISAGREE`.
    """
    failed = [one for one in traces if one.error is not None or one.finish_reason is None]
    if failed:
        why = failed[0].error or "the stream ended without a finish reason"
        message = (
            f"{len(failed)} of {len(traces)} requests failed, first prompt"
            f" '{failed[0].prompt_id}': {why}; look at the server's log"
        )
        raise InvalidMeasurementError("REQUEST_FAILED", message)
    for trace in traces:
        if trace.usage_tokens is None:
            message = f"prompt '{trace.prompt_id}': the server sent no usage{_VERSION}"
            raise InvalidMeasurementError("USAGE_MISSING", message)
        if trace.tokens != trace.usage_tokens:
            message = (
                f"prompt '{trace.prompt_id}': its chunks carried {trace.tokens} tokens, the server"
                f" counted {trace.usage_tokens}{_VERSION}"
            )
            raise InvalidMeasurementError("TOKENS_DISAGREE", message)


def check_acceptance(
    record: AcceptanceRecord, *, draft_tokens: int, drafted_tokens: int | None = None
) -> None:
    """Check that a case's counts agree with its settings, else `SPEC_DISABLED`, `SETTINGS_DIFFER`.

    `draft_tokens` are the most drafts of the case that a step can accept (k), `drafted_tokens` all
    that a step drafts; None for k, more where they branch. They are checked as by `check_counts`.
    """
    total = record.total
    told = total
    if record.source is Source.STREAM_CHUNKS:
        # By these alone a drafter that is off looks like one that is never right: D is k for each.
        told = dataclasses.replace(total, proposed=None)
    drafted = told.accepted if told.proposed is None else told.proposed
    if told.steps <= 0 or drafted <= 0:
        message = (
            f"speculation is configured, yet steps, accepted, drafted = {_sad(told)}; look at the"
            " server's log for why the drafter is off"
        )
        raise InvalidMeasurementError("SPEC_DISABLED", message)
    asked = drafted_tokens or draft_tokens
    depth = len(total.position_counts)
    # A histogram may end at the most that was accepted; then what was drafted tells the depth.
    drafts = max(depth, (total.proposed or 0) // total.steps)
    differs = drafts > asked if _drafts_vary(record) else drafts != asked
    if differs or depth > draft_tokens:
        message = (
            f"the server drafts up to {drafts} tokens per step, up to {depth} of them accepted;"
            f" the case asks for {asked}, up to {draft_tokens}; look at the engine's arguments"
        )
        raise InvalidMeasurementError("SETTINGS_DIFFER", message)
    check_counts(total, "all requests", drafted_tokens=asked)
    for prompt in record.prompts:
        check_counts(prompt.counts, f"prompt '{prompt.prompt_id}'", drafted_tokens=asked)


def _drafts_vary(record: AcceptanceRecord) -> bool:
    """Whether steps draft more or fewer tokens, so that the counts don't show how many at most.

    Only of a source whose histogram ends at the most that a step accepted; others show the most.
    """
    if record.source is not Source.SGLANG_REQUEST:
        return False
    counts = [record.total, *(prompt.counts for prompt in record.prompts)]
    rates = {
        (one.proposed or 0) / one.steps for one in counts if one.steps and one.proposed is not None
    }
    return len(rates) > 1 or any(not rate.is_integer() for rate in rates)


def check_pinned(record: AcceptanceRecord, length_tokens: float, in_flight: int) -> None:
    """Check that the acceptance length is the one to keep to, else `NOT_PINNED`.

    Engines draw for each step, or for all that is `in_flight` at once, whether it accepts one draft
    more, so it may be off by three standard errors of that beside 0.02; whole lengths aren't drawn.
    """
    found_tokens, frac = record.total.acceptance_length or 0.0, length_tokens % 1
    error_tokens = math.sqrt(frac * (1 - frac) * in_flight / max(record.total.steps, 1))
    off_tokens = _PINNED_OFF_TOKENS + 3 * error_tokens
    if abs(found_tokens - length_tokens) > off_tokens:
        message = (
            f"the acceptance length is {found_tokens:.3f}, asked for {length_tokens:g} ±"
            f" {off_tokens:.2g}: the engine doesn't keep to it, or doesn't answer as it did before;"
            ' take another version or case, or acceptance = "real"'
        )
        raise InvalidMeasurementError("NOT_PINNED", message)


def check_emitted(
    record: AcceptanceRecord, traces: Sequence[RequestTrace], *, draft_tokens: int
) -> None:
    """Check that steps emitted what was delivered, N ≤ R + A + all steps, else `TOKENS_IMPOSSIBLE`.

    Less is fine: the end of text or the output cap cuts the last step. The counted steps S leave
    out those that drafted nothing, as dynamic speculation has them; each of these emits a token
    too, and comes in a chunk of its own. So where more chunks than counted steps came, there are as
    many steps as chunks, and more where chunks merged. Only for methods that draft in every step:
    others often go without a draft.

    Args:
        record: the counts, of each request where its source tells them.
        traces: the requests; where the record has prompts, one for each in the same order.
        draft_tokens: the most drafts that a step can accept, k.
    """
    rows = [
        (f"prompt '{prompt.prompt_id}'", prompt.counts, [trace])
        for prompt, trace in zip(record.prompts, traces, strict=bool(record.prompts))
    ]
    for whose, counts, requests in (*rows, ("all", record.total, traces)):
        tokens = sum(trace.tokens for trace in requests)
        chunks = sum(trace.later_chunks for trace in requests)
        steps = counts.steps
        if chunks > steps:
            steps = chunks + sum(trace.hidden_steps(draft_tokens) for trace in requests)
        emitted = len(requests) + counts.accepted + steps
        if tokens > emitted:
            message = (
                f"{whose}: {tokens} tokens delivered, its {steps} steps emitted {emitted} at most,"
                f" of which {counts.accepted} are accepted drafts; the server counts fewer drafts"
                " than it accepts, or steps without a draft came in merged chunks: lower the load"
                f"{_OR_VERSION}"
            )
            raise InvalidMeasurementError("TOKENS_IMPOSSIBLE", message)


def check_counters(before: Counters, after: Counters) -> Counters:
    """What the server's counters rose by; `COUNTERS_FELL` where it restarted inside the window."""
    steps = after.steps - before.steps
    counts = after.counts - before.counts if after.counts and before.counts else None
    requests = None
    if after.requests is not None and before.requests is not None:
        requests = after.requests - before.requests
    detail = (counts.accepted, counts.proposed or 0, *counts.position_counts) if counts else ()
    if min(steps, requests or 0, *detail) < 0:
        also = f", steps, accepted, drafted by {_sad(counts)}" if counts else ""
        message = f"steps moved by {steps}{also}; the server restarted inside the window, look at"
        raise InvalidMeasurementError("COUNTERS_FELL", f"{message} its log")
    running = [one.running_requests for one in (before, after) if one.running_requests is not None]
    return Counters(
        steps=steps, counts=counts, requests=requests, running_requests=max(running, default=None)
    )


def check_reconciled(requests: StepCounts, moved: Counters) -> None:
    """Check that the requests add up to what the server's counters rose by, as far as they tell.

    Raises:
        InvalidMeasurementError: `FOREIGN_TRAFFIC` where the counters moved more, else
            `COUNTS_DISAGREE`.
    """
    if moved.steps != requests.steps or moved.counts not in {None, requests}:
        every = f"steps, accepted, drafted {_sad(moved.counts)}" if moved.counts else ""
        message = (
            f"our requests: steps, accepted, drafted {_sad(requests)}; the server's counters:"
            f" {every or f'steps {moved.steps}'}"
        )
        raise _disagreement(message, foreign=moved.steps > requests.steps)


def check_ended(requests: int, moved: Counters) -> None:
    """Check that the requests that ended in the window are ours, and none ran before or after.

    Raises:
        InvalidMeasurementError: `FOREIGN_TRAFFIC` where more ended or one runs, else
            `COUNTS_DISAGREE`.
    """
    if moved.running_requests:
        message = f"requests that run and aren't ours: {moved.running_requests}"
        raise _disagreement(message, foreign=True)
    if moved.requests is not None and moved.requests != requests:
        message = f"our requests: {requests}; the server counts {moved.requests} that ended"
        raise _disagreement(message, foreign=moved.requests > requests)


def _disagreement(message: str, *, foreign: bool) -> InvalidMeasurementError:
    if foreign:
        message += "; something else asks the server, keep it to this run"
    else:
        message += f"; attach to one server, not to a balancer of several{_OR_VERSION}"
    return InvalidMeasurementError("FOREIGN_TRAFFIC" if foreign else "COUNTS_DISAGREE", message)


def check_counts(counts: StepCounts, whose: str, *, drafted_tokens: int | None = None) -> None:
    """Check AL ≤ k + 1, Σ P_i = A, P_i never rising with i and A ≤ D ≤ n·S; so Σ h_j = S.

    `drafted_tokens` are n, all that a step drafts; None for k, more where they branch. An AL beyond
    k + 1 is `LENGTH_IMPOSSIBLE`, all else `COUNTS_INCONSISTENT`.
    """
    positions = (counts.steps, *counts.position_counts)
    most = counts.steps * len(counts.position_counts)
    most_drafts = most if drafted_tokens is None else counts.steps * drafted_tokens
    found = (
        f"{whose}: steps, accepted, drafted = {_sad(counts)} and accepted by position"
        f" {list(counts.position_counts)}"
    )
    if counts.accepted > most:
        message = f"{found}; {counts.steps} steps accept {most} at most{_VERSION}"
        raise InvalidMeasurementError("LENGTH_IMPOSSIBLE", message)
    drafts = most_drafts if counts.proposed is None else counts.proposed
    if (
        min(positions) < 0
        or sum(counts.position_counts) != counts.accepted
        or any(later > earlier for earlier, later in itertools.pairwise(positions))
        or not counts.accepted <= drafts <= most_drafts
    ):
        message = f"{found} contradict one another{_VERSION}"
        raise InvalidMeasurementError("COUNTS_INCONSISTENT", message)


def _sad(counts: StepCounts) -> str:
    proposed = "unknown" if counts.proposed is None else counts.proposed
    return f"{counts.steps}, {counts.accepted}, {proposed}"
