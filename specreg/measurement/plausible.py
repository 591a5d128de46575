"""Check that the contents of a ledger are possible.

A ledger may come from another machine. The calculations rely on moments in the right order and on
possible counts, so both are checked before anything is calculated.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec

from specreg.acceptance.record import AcceptanceRecord, StepCounts
from specreg.core.readable import is_plain
from specreg.load.chat_client import FinishedRequest
from specreg.stats.percentiles import PER_E, TimeHistogram
from specreg.telemetry.power_record import PowerRecord

_MAX_COUNT = 2**53
"""The largest count that a float holds exactly."""
_LAST_MOMENT_NS = 2**62
"""The latest moment that a ledger may contain, about 146 years."""
_MAX_BUCKET = math.ceil(PER_E * math.log(_LAST_MOMENT_NS))
"""The bucket of a histogram for the longest duration."""
_MAX_NUMBER = 1e30
"""The largest number in a ledger. Its square is still finite."""
_MAX_CHUNK_TOKENS = 2**24
"""The most tokens of a chunk."""
_MAX_POSITIONS = 1024
"""The most draft positions of a step."""


def check_request(finished: FinishedRequest) -> None:
    """Check that the record of a request is possible.

    Raises:
        msgspec.ValidationError: its moments aren't in order, or it has an impossible count or name.
    """
    trace = finished.trace

    # Check the names.
    for name in (trace.prompt_id, trace.category, trace.finish_reason or ""):
        if not is_plain(name):
            raise msgspec.ValidationError(
                f"a request has the name {name!a}, which is no plain text"
            )

    # Check the counts. Turns are numbered from 1.
    chunk_tokens = [chunk.tokens for chunk in finished.chunks]
    counts = [
        finished.conversation_index,
        trace.first_chunk_tokens,
        *trace.chunk_sizes,
        *trace.thought_chunk_sizes,
        trace.usage_tokens or 0,
        trace.prompt_tokens or 0,
        trace.turn - 1,
        trace.empty_replies,
        *chunk_tokens,
    ]
    _check_counts(counts, "a request")
    if len(trace.chunk_sizes) > _MAX_CHUNK_TOKENS:
        raise msgspec.ValidationError(f"a chunk of {len(trace.chunk_sizes)} tokens")
    if trace.acceptance is not None:
        _check_steps(trace.acceptance)

    # Check the moments.
    answer_ns = [
        moment_ns for moment_ns in (trace.first_ns, trace.last_ns) if moment_ns is not None
    ]
    chunks_ns = [chunk.at_ns for chunk in finished.chunks]

    _check_order((0, trace.planned_ns, _LAST_MOMENT_NS))
    _check_order((0, trace.sent_ns, *answer_ns, _LAST_MOMENT_NS))
    _check_order((0, *chunks_ns, _LAST_MOMENT_NS))
    has_tokens = trace.first_chunk_tokens or any(trace.chunk_sizes[1:])
    if trace.last_ns is not None and (trace.first_ns is None or not has_tokens):
        raise msgspec.ValidationError("a request has the time of a last token, and no token")


def check_lags(lags: TimeHistogram) -> None:
    """Check that a histogram of durations is possible.

    Raises:
        msgspec.ValidationError: it has impossible counts, buckets or sums.
    """
    _check_counts(lags.counts.values(), "lags")
    _check_order((0, lags.min_ns, lags.max_ns, _LAST_MOMENT_NS))
    has_empty_buckets = not all(lags.counts.values())
    buckets_fit = all(0 <= bucket <= _MAX_BUCKET for bucket in lags.counts)
    total_fits = 0 <= lags.total_ns <= _MAX_NUMBER
    total2_fits = 0 <= lags.total_ns2 <= _MAX_NUMBER**2
    if has_empty_buckets or not (buckets_fit and total_fits and total2_fits):
        raise msgspec.ValidationError("an impossible histogram of durations")


def check_record(record: AcceptanceRecord) -> None:
    """Check the counts of an acceptance record.

    Raises:
        msgspec.ValidationError: a count is impossible.
    """
    _check_steps(record.total)
    _check_counts((record.later_tokens or 0,), "all requests")

    for prompt in record.prompts:
        _check_steps(prompt.counts)
        counts = (prompt.completion_tokens, prompt.turn - 1)
        _check_counts(counts, "a prompt")

    for round_acceptance in record.rounds:
        _check_steps(round_acceptance.counts)
        tokens_and_requests = (round_acceptance.completion_tokens, round_acceptance.requests)
        _check_counts(tokens_and_requests, "a round")


def check_power(power: PowerRecord) -> None:
    """Check the numbers of a power record.

    Raises:
        msgspec.ValidationError: a number is too large to calculate with.
    """
    check_numbers(msgspec.to_builtins(power))


def check_numbers(value: object) -> None:
    """Check that all numbers in a JSON value are finite and not too large to calculate with.

    Raises:
        msgspec.ValidationError: a number is too large, or isn't finite.
    """
    if isinstance(value, Mapping):
        for part in value.values():
            check_numbers(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            check_numbers(part)
    # The comparison is False for NaN too.
    elif isinstance(value, (int, float)) and not -_MAX_NUMBER <= value <= _MAX_NUMBER:
        raise msgspec.ValidationError("a number that is too large to calculate with")


def _check_steps(counts: StepCounts) -> None:
    """Check that counts of steps are possible.

    They may contradict each other. This isn't an error of the ledger: the figure is then INVALID.
    """
    if len(counts.position_counts) > _MAX_POSITIONS:
        raise msgspec.ValidationError(f"{len(counts.position_counts)} positions of drafts")
    numbers = (counts.steps, counts.accepted, counts.proposed or 0, *counts.position_counts)
    _check_counts(numbers, "steps")


def _check_counts(counts: Iterable[int], subject: str) -> None:
    # A ledger may have a million requests, so this uses the fast loops of `min` and `max`.
    numbers = tuple(counts)
    if numbers and not 0 <= min(numbers) <= max(numbers) <= _MAX_COUNT:
        raise msgspec.ValidationError(f"a count of {subject} that can't be")


def _check_order(moments_ns: Iterable[int]) -> None:
    moments = list(moments_ns)
    if moments != sorted(moments):
        raise msgspec.ValidationError("moments that aren't in order")
