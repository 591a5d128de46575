"""vLLM's counters: a Prometheus page in, step counts, or those of requests, out."""

import itertools

from specreg.acceptance.page import count_in, counts_of, position_in, samples_of
from specreg.acceptance.record import StepCounts
from specreg.core.errors import InvalidMeasurementError

_FAMILY = "spec_decode_num_"
_ENDED, _RUNNING = "vllm:request_success_total", "vllm:num_requests_running"
_MOST_NAMED = 4
_WANTED = ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")


def parse_vllm_counters(page: str, prefix: str = "vllm:") -> StepCounts:
    """The counts since the server's start, summed over the engines of data parallelism.

    Args:
        page: of `/metrics`.
        prefix: what the counters' names begin with.

    Raises:
        InvalidMeasurementError: `SPEC_DISABLED`, vLLM's page knows no speculation;
            `METRICS_MISSING`, a counter isn't there; `METRICS_UNREADABLE`.
    """
    totals: dict[str, int] = {}
    positions: dict[int, int] = {}
    for name, labels, count in counts_of(page, prefix + _FAMILY):
        totals[name] = totals.get(name, 0) + count
        position = position_in(labels, "position")
        if position is not None:
            positions[position] = positions.get(position, 0) + count
    if "spec_decode" not in page and f"{prefix}generation_tokens" in page:
        alike = dict.fromkeys(
            one.name
            for one in samples_of(page)
            if "spec" in one.name and not one.name.endswith("_created")
        )
        there = ", ".join(itertools.islice(alike, _MOST_NAMED)) or "none"
        message = (
            "the server counts tokens, and has no speculation counters: it doesn't speculate,"
            f" or its version calls them otherwise than {prefix}{_FAMILY}…; /metrics has {there}"
        )
        raise InvalidMeasurementError("SPEC_DISABLED", message)
    _require_all(totals, prefix + _FAMILY)
    return StepCounts(
        steps=totals["drafts"],
        accepted=totals["accepted_tokens"],
        proposed=totals["draft_tokens"],
        position_counts=tuple(positions[position] for position in sorted(positions)),
    )


def parse_vllm_requests(page: str) -> tuple[int, int]:
    """How many requests have ended since the server's start, and how many run at this moment.

    Of all engines of data parallelism, however a request ended.

    Raises:
        InvalidMeasurementError: `METRICS_MISSING`, the page doesn't say; `METRICS_UNREADABLE`.
    """
    found: dict[str, list[int]] = {_ENDED: [], _RUNNING: []}
    for sample in samples_of(page):
        if sample.name in found:
            found[sample.name].append(count_in(sample))
    missing = [name for name, counts in found.items() if not counts]
    if missing:
        message = (
            f"looked for {', '.join(missing)}, without which requests of others don't show;"
            " is the server newer?"
        )
        raise InvalidMeasurementError("METRICS_MISSING", message)
    return sum(found[_ENDED]), sum(found[_RUNNING])


def _require_all(totals: dict[str, int], family: str) -> None:
    missing = [name for name in _WANTED if name not in totals]
    if missing:
        reason = "METRICS_MISSING"
        there = ", ".join(f"{family}{name}_total" for name in sorted(totals)) or "none of them"
        message = (
            f"looked for {', '.join(f'{family}{name}_total' for name in missing)};"
            f" /metrics has {there}; is the server started without log stats, or newer?"
        )
        raise InvalidMeasurementError(reason, message)
