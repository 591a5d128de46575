"""Check a measurement's counts.

Each check returns if the counts are right, and else raises the reason why the measurement is
INVALID.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

from specreg.acceptance.record import NO_STEPS, AcceptanceRecord, Counters, Source, StepCounts
from specreg.acceptance.trace import RequestTrace
from specreg.core.errors import InvalidMeasurementError

_ALLOWED_PINNED_ERROR_TOKENS = 0.02
"""How far an acceptance length may be from the pinned one, apart from chance."""
_STANDARD_ERRORS = 3
"""How many standard errors of chance are allowed in addition."""


def check_requests(traces: Sequence[RequestTrace]) -> None:
    """Check that every request finished, and that its chunks carried as many tokens as its usage.

    Raises:
        InvalidMeasurementError: `REQUEST_FAILED`, `USAGE_MISSING`, `TOKEN_IDS_MISSING` or
            `TOKENS_DISAGREE`.
    """
    failed_traces = [
        trace for trace in traces if trace.error is not None or trace.finish_reason is None
    ]
    if failed_traces:
        first_failed = failed_traces[0]
        raise InvalidMeasurementError(
            "REQUEST_FAILED",
            failed=len(failed_traces),
            requests=len(traces),
            prompt=first_failed.prompt_id,
            error=first_failed.error or "the stream ended without a finish reason",
        )

    for trace in traces:
        if trace.usage_tokens is None:
            raise InvalidMeasurementError("USAGE_MISSING", prompt=trace.prompt_id)
        if trace.usage_tokens and not trace.tokens:
            raise InvalidMeasurementError(
                "TOKEN_IDS_MISSING", prompt=trace.prompt_id, usage_tokens=trace.usage_tokens
            )
        if trace.tokens != trace.usage_tokens:
            raise InvalidMeasurementError(
                "TOKENS_DISAGREE",
                prompt=trace.prompt_id,
                tokens=trace.tokens,
                usage_tokens=trace.usage_tokens,
            )


def check_acceptance(
    record: AcceptanceRecord, *, draft_tokens: int, drafted_tokens: int | None = None
) -> None:
    """Check that a case's counts agree with its settings and with one another.

    Args:
        record: the counts of the measurement.
        draft_tokens: the most drafts of the case that a step can accept, k.
        drafted_tokens: all tokens that a step drafts, more than k where drafts branch; None for k.

    Raises:
        InvalidMeasurementError: `SPEC_DISABLED` or `CHUNKS_OF_ONE` if nothing was drafted,
            `SETTINGS_DIFFER` if the server drafts another number of tokens, or a code of
            `check_counts`.
    """
    _check_drafting(record)
    expected_drafts = drafted_tokens or draft_tokens
    total = record.total
    depth = len(total.position_counts)

    # A histogram may end at the most drafts that one step accepted. The drafts that were proposed
    # then show how many a step drafts. `_check_drafting` has made sure that there are steps.
    drafts_per_step = (total.proposed or 0) // total.steps
    drafts = max(depth, drafts_per_step)
    drafts_differ = drafts != expected_drafts

    # If the number of drafts varies from step to step, its maximum may not show, so only a larger
    # number than expected is an error.
    if _drafts_vary(record):
        drafts_differ = drafts > expected_drafts
    if drafts_differ or depth > draft_tokens:
        raise InvalidMeasurementError(
            "SETTINGS_DIFFER",
            drafted=drafts,
            accepted=depth,
            expected=expected_drafts,
            expected_accepted=draft_tokens,
        )

    check_counts(total, "all requests", drafted_tokens=expected_drafts)
    for prompt in record.prompts:
        subject = f"prompt '{prompt.prompt_id}'"
        check_counts(prompt.counts, subject, drafted_tokens=expected_drafts)


def _check_drafting(record: AcceptanceRecord) -> None:
    """Check that the server drafted at all; else raise `SPEC_DISABLED` or `CHUNKS_OF_ONE`."""
    counts = record.total
    if record.source is Source.STREAM_CHUNKS:
        # D is assumed to be k per step here, whether the server drafts or not. A drafter that is
        # off looks like one that is never right, so only accepted drafts prove that it is on.
        counts = dataclasses.replace(counts, proposed=None)

    drafts = counts.proposed
    if drafts is None:
        drafts = counts.accepted
    if counts.steps <= 0 or drafts <= 0:
        if record.source is Source.STREAM_CHUNKS:
            raise InvalidMeasurementError("CHUNKS_OF_ONE")
        raise InvalidMeasurementError("SPEC_DISABLED", counts=_listed(counts))


def _drafts_vary(record: AcceptanceRecord) -> bool:
    """Return whether the number of drafts may vary from step to step without its maximum showing.

    The histogram of an answer of SGLang ends at the most drafts that a step accepted. The counts of
    all other sources show the most that a step drafts.
    """
    if record.source is not Source.SGLANG_REQUEST:
        return False
    if record.total.proposed is None:
        return True

    # If all steps draft equally many tokens, each ratio of drafts to steps is that whole number.
    counts_of_all = [record.total, *(prompt.counts for prompt in record.prompts)]
    drafts_per_step = {
        counts.proposed / counts.steps
        for counts in counts_of_all
        if counts.steps and counts.proposed is not None
    }

    is_whole = all(drafts.is_integer() for drafts in drafts_per_step)
    return len(drafts_per_step) > 1 or not is_whole


def check_pinned_length(record: AcceptanceRecord, length_tokens: float, in_flight: int) -> None:
    """Check that the acceptance length is the pinned one; else raise `NOT_PINNED`.

    An engine pins a fractional length by chance: it draws whether a step accepts one draft more.
    The length may therefore differ by three standard errors of that draw, plus 0.02 tokens. Whole
    lengths need no draw.

    Args:
        record: the counts of the measurement.
        length_tokens: the acceptance length that the case pins.
        in_flight: the number of requests in flight, which may share one draw.
    """
    measured_tokens = record.total.acceptance_length or 0.0
    extra_draft_frac = length_tokens % 1
    variance_of_draw = extra_draft_frac * (1 - extra_draft_frac)

    # The requests of a batch may share a draw (SGLang), so there are fewer draws than steps.
    variance = variance_of_draw * in_flight / max(record.total.steps, 1)
    standard_error = math.sqrt(variance)
    allowed_tokens = _ALLOWED_PINNED_ERROR_TOKENS + _STANDARD_ERRORS * standard_error
    if abs(measured_tokens - length_tokens) > allowed_tokens:
        raise InvalidMeasurementError(
            "NOT_PINNED",
            length_tokens=measured_tokens,
            pinned_tokens=length_tokens,
            allowed_tokens=allowed_tokens,
        )


def check_emitted(
    record: AcceptanceRecord, traces: Sequence[RequestTrace], *, draft_tokens: int
) -> None:
    """Check that the steps can have emitted the tokens that were delivered: N ≤ R + A + all steps.

    Here N counts the delivered tokens, and R the requests, each of which gets one token from its
    prefill. Fewer delivered tokens are fine, because the end of the text or the output cap cuts off
    the last step. The counted steps S don't include a step that drafted nothing. Such a step emits
    a token as well, in a chunk of its own. If there are more chunks than counted steps, there are
    as many steps as chunks, and more if chunks were merged.

    The check is only for cases that draft in nearly every step. If many steps go without a draft, a
    busy server may merge their chunks.

    Args:
        record: the counts of the measurement, with those of each request if its source has them.
        traces: the requests; if the record has prompts, one for each, in the same order.
        draft_tokens: the most drafts that a step can accept, k.

    Raises:
        InvalidMeasurementError: `TOKENS_IMPOSSIBLE`.
    """
    if record.prompts:
        for prompt, trace in zip(record.prompts, traces, strict=True):
            _check_emitted(f"prompt '{prompt.prompt_id}'", prompt.counts, [trace], draft_tokens)
    _check_emitted("all requests", record.total, traces, draft_tokens)


def _check_emitted(
    subject: str, counts: StepCounts, traces: Sequence[RequestTrace], draft_tokens: int
) -> None:
    tokens = sum(trace.tokens for trace in traces)
    chunks = sum(trace.later_chunks for trace in traces)
    steps = counts.steps
    if chunks > steps:
        steps = chunks + sum(trace.hidden_steps(draft_tokens) for trace in traces)

    # The prefill emits the first token of each request.
    most_tokens = len(traces) + counts.accepted + steps
    if tokens > most_tokens:
        raise InvalidMeasurementError(
            "TOKENS_IMPOSSIBLE",
            subject=subject,
            tokens=tokens,
            steps=steps,
            most_tokens=most_tokens,
            accepted=counts.accepted,
        )


def check_delivered(
    counts: StepCounts, traces: Sequence[RequestTrace], *, draft_tokens: int
) -> None:
    """Check that what the steps emitted was delivered: A + S ≤ N - R, but for the ends of answers.

    The end of a text or the output cap cuts off the drafts of the last step. An engine that
    schedules ahead may count one step more.

    Args:
        counts: the counts of all requests.
        draft_tokens: the most drafts that a step can accept, k.

    Raises:
        InvalidMeasurementError: `STEPS_UNDELIVERED`.
    """
    emitted = counts.accepted + counts.steps
    later_tokens = sum(max(trace.tokens - 1, 0) for trace in traces)
    most_lost_tokens = len(traces) * (2 * draft_tokens + 1)
    if emitted > later_tokens + most_lost_tokens:
        raise InvalidMeasurementError(
            "STEPS_UNDELIVERED", emitted_tokens=emitted, later_tokens=later_tokens
        )


def check_counters(before: Counters, after: Counters) -> Counters:
    """Return by how much the server's counters rose between two moments.

    Raises:
        InvalidMeasurementError: `COUNTERS_FELL` if the server restarted in between.
    """
    steps = after.steps - before.steps
    counts = None
    if after.counts and before.counts:
        counts = after.counts - before.counts
    requests = None
    if after.requests is not None and before.requests is not None:
        requests = after.requests - before.requests

    # A server may leave a counter out until it counts something.
    further = {
        name: after.further.get(name, 0.0) - before.further.get(name, 0.0)
        for name in {**before.further, **after.further}
    }

    # A counter never falls, unless the server was restarted and counts from 0 again.
    differences = [steps, requests or 0, *further.values()]
    changes_text = f"steps changed by {steps}"
    if counts:
        differences += [counts.accepted, counts.proposed or 0, *counts.position_counts]
        changes_text = f"steps, accepted, drafted changed by {_listed(counts)}"
    if requests is not None:
        changes_text += f", requests by {requests}"
    for name, rise in further.items():
        changes_text += f", {name} by {rise:g}"
    if min(differences) < 0:
        raise InvalidMeasurementError("COUNTERS_FELL", changes=changes_text)

    # A request that runs at either end may be one that somebody else sent.
    at_ends = (before.running_requests, after.running_requests)
    known = [running for running in at_ends if running is not None]
    return Counters(
        steps=steps,
        counts=counts,
        requests=requests,
        running_requests=max(known, default=None),
        further=further,
        copies=after.copies,
    )


def count_once(rise: Counters, *, requests: int, steps: int | None = None) -> Counters:
    """Return the rise of one copy of the counters, if every copy counted the run's own requests.

    Otherwise the series of the counters belong to several copies of the model, which share the
    requests, so that their sum counts.

    Args:
        rise: by how much the server's counters rose.
        requests: the number of requests of the run.
        steps: the number of their steps; None if only the counters know it.
    """
    one_copy = rise.of_one_copy
    is_own = one_copy.steps == steps if rise.requests is None else one_copy.requests == requests
    return one_copy if is_own else rise


def check_reconciled(requests: StepCounts, rise: Counters, *, ended: int | None = None) -> None:
    """Check that the requests add up to the rise of the server's counters, as far as it is known.

    Args:
        requests: the counts of all requests of the run, added up.
        rise: by how much the server's counters rose.
        ended: the number of requests of the run; None if it isn't known.

    Raises:
        InvalidMeasurementError: `STEPS_REPEATED` or `STEPS_UNREPORTED` if the server counted more
            steps of the run's own requests, `FOREIGN_TRAFFIC` if it counted others, else
            `COUNTS_DISAGREE`.
    """
    if rise.steps == requests.steps and rise.counts in {None, requests}:
        return
    ours = f"steps, accepted, drafted {_listed(requests)}"
    counted = f"steps {rise.steps}"
    if rise.counts:
        counted = f"steps, accepted, drafted {_listed(rise.counts)}"
    times = rise.steps // max(requests.steps, 1)
    if times > 1 and rise.counts == sum([requests] * times, NO_STEPS):
        raise InvalidMeasurementError("STEPS_REPEATED", ours=ours, counted=counted, times=times)
    if rise.steps > requests.steps and rise.requests is not None and rise.requests == ended:
        raise InvalidMeasurementError("STEPS_UNREPORTED", ours=ours, counted=counted)
    if rise.steps > requests.steps:
        raise InvalidMeasurementError("FOREIGN_TRAFFIC", ours=ours, counted=counted)
    raise InvalidMeasurementError("COUNTS_DISAGREE", ours=ours, counted=counted)


def check_ended(requests: int, rise: Counters) -> None:
    """Check that only requests of the run ended between two moments, and that none runs at either.

    Args:
        requests: the number of requests of the run.
        rise: by how much the server's counters rose.

    Raises:
        InvalidMeasurementError: `FOREIGN_TRAFFIC` if more requests ended or any is running, else
            `COUNTS_DISAGREE`.
    """
    if rise.running_requests:
        counted = f"{rise.running_requests} running"
        raise InvalidMeasurementError("FOREIGN_TRAFFIC", ours="none running", counted=counted)
    if rise.requests is None or rise.requests == requests:
        return
    ours = f"{requests} ended"
    counted = f"{rise.requests} ended"
    if rise.requests > requests:
        raise InvalidMeasurementError("FOREIGN_TRAFFIC", ours=ours, counted=counted)
    raise InvalidMeasurementError("COUNTS_DISAGREE", ours=ours, counted=counted)


def check_counts(counts: StepCounts, subject: str, *, drafted_tokens: int | None = None) -> None:
    """Check AL ≤ k + 1, Σ P_i = A, A ≤ D ≤ n·S, and S ≥ P_1 ≥ P_2 ≥ … ≥ 0.

    It follows that the steps with exactly 0, 1, 2, … accepted drafts add up to S. Here k is the
    number of entries of `position_counts`.

    Args:
        counts: the counts to check.
        subject: whose counts they are, for the message.
        drafted_tokens: all tokens that a step drafts, n, more than k where drafts branch; None for
            k.

    Raises:
        InvalidMeasurementError: `LENGTH_IMPOSSIBLE` if AL is above k + 1, `COUNTS_INCONSISTENT` if
            anything else is wrong.
    """
    most_accepted = counts.steps * len(counts.position_counts)
    positions = list(counts.position_counts)
    if counts.accepted > most_accepted:
        raise InvalidMeasurementError(
            "LENGTH_IMPOSSIBLE",
            subject=subject,
            counts=_listed(counts),
            positions=positions,
            steps=counts.steps,
            most=most_accepted,
        )

    most_drafts = most_accepted
    if drafted_tokens is not None:
        most_drafts = counts.steps * drafted_tokens

    # If D is unknown, A still must not exceed n·S.
    drafts = counts.proposed
    if drafts is None:
        drafts = most_drafts

    # All steps, then those that accepted one draft or more, two or more, and so on. No number may
    # exceed the one before it.
    steps_by_depth = (counts.steps, *counts.position_counts)
    never_rises = all(earlier >= later for earlier, later in itertools.pairwise(steps_by_depth))
    adds_up = sum(counts.position_counts) == counts.accepted
    drafts_fit = counts.accepted <= drafts <= most_drafts
    if min(steps_by_depth) < 0 or not (never_rises and adds_up and drafts_fit):
        raise InvalidMeasurementError(
            "COUNTS_INCONSISTENT", subject=subject, counts=_listed(counts), positions=positions
        )


def _listed(counts: StepCounts) -> str:
    """List steps, accepted and drafted tokens (S, A, D) for a message."""
    proposed = "unknown" if counts.proposed is None else counts.proposed
    return f"{counts.steps}, {counts.accepted}, {proposed}"
