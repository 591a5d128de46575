"""TensorRT-LLM's speculation counters: a Prometheus page in, step counts out.

Read in its source and tests (tensorrt_llm/metrics/collector.py, test_spec_dec_stats_pairing.py),
never seen running. When a request has ended, each position adds the steps in which a token was
drafted there, and those in which it was accepted, as the verifier had it. So the drafts of the
first position are the steps that drafted, S, and the sums over the positions are D and A;
NVIDIA's own examples/llm-api/measure_dspark_acceptance_disagg.py reckons likewise. It counts
between `[DONE]` and the end of the answer's body, which our client awaits (openai_server.py).
"""

from collections import Counter

from specreg.acceptance.page import counts_of, position_in
from specreg.acceptance.record import Counters, StepCounts
from specreg.core.errors import InvalidMeasurementError

PATH = "/prometheus/metrics"
_PREFIX = "trtllm_"
_DRAFTED = "spec_decode_drafted_tokens"
_ACCEPTED = "spec_decode_accepted_tokens"
_ENDED = "request_success"


def parse_trtllm_counters(page: str) -> Counters:
    """The counters since the server's start; a position that never counted isn't on the page.

    Raises:
        InvalidMeasurementError: `METRICS_MISSING`, no request is counted on it;
            `METRICS_UNREADABLE`.
    """
    drafted, accepted = Counter[int](), Counter[int]()
    totals = Counter[str]()
    for name, labels, count in counts_of(page, _PREFIX, path=PATH):
        totals[name] += count
        position = position_in(labels, "token_position")
        if position is not None:
            of_positions = {_DRAFTED: drafted, _ACCEPTED: accepted}.get(name, Counter())
            of_positions[position] += count
    if _ENDED not in totals:
        message = (
            f"looked for {_PREFIX}{_ENDED}_total; is the server started with"
            " return_perf_metrics: true?"
        )
        raise InvalidMeasurementError("METRICS_MISSING", message)
    counts = StepCounts(
        steps=drafted[0],
        accepted=accepted.total(),
        proposed=drafted.total(),
        position_counts=tuple(accepted[i] for i in range(max(drafted, default=-1) + 1)),
    )
    return Counters(steps=counts.steps, counts=counts, requests=totals[_ENDED])
