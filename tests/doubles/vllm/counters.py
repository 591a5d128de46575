"""The counters of `/metrics`, with the names, labels and `_created` series of vLLM 0.32."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .steps import FinishReason

PREFIX = "vllm:spec_decode"
OTHER_PREFIX = "vllm:speculation"
"""What the fault `counters_renamed` calls them."""


def of_ranks(page: bytes, ranks: int, counted: str) -> bytes:
    """A page on which each rank has series of its own of some counters, with the same numbers."""
    lines = []
    for line in page.split(b"\n"):
        name, brace, rest = line.partition(b"{")
        if line.startswith(b"#") or not brace or ranks == 1 or counted.encode() not in name:
            lines.append(line)
            continue
        lines += [b'%b{tp_rank="%d",%b' % (name, rank, rest) for rank in range(ranks)]
    return b"\n".join(lines)


class Counters:
    """One life of the counters; those of the speculation are absent where nothing is drafted."""

    def __init__(
        self, model: str, draft_tokens: int, prefix: str = PREFIX, queue_s: float = 0.0
    ) -> None:
        self._labels = {"model_name": model, "engine": "0"}
        self._registry = CollectorRegistry()
        self._draft_tokens = draft_tokens
        if draft_tokens:
            self._drafts = self._counter(f"{prefix}_num_drafts", "Number of spec decoding drafts.")
            self._drafted = self._counter(f"{prefix}_num_draft_tokens", "Number of draft tokens.")
            name = f"{prefix}_num_accepted_tokens"
            self._accepted = self._counter(name, "Number of accepted tokens.")
            text = "Accepted tokens per draft position."
            self._by_position = self._counters(
                f"{name}_per_pos", text, "position", range(draft_tokens)
            )
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prefill tokens processed.")
        self._tokens = self._counter("vllm:generation_tokens", "Generation tokens processed.")
        reasons = (*FinishReason, "abort")
        text = "Successfully processed requests."
        finished = self._counters("vllm:request_success", text, "finished_reason", reasons)
        self._finished = dict(zip(reasons, finished, strict=True))
        self._queue_s = queue_s
        waits = Histogram(
            "vllm:request_queue_time_seconds",
            "Histogram of time spent in WAITING phase for request.",
            self._labels,
            registry=self._registry,
        )
        self._waits = waits.labels(**self._labels)
        gauge = Gauge(
            "vllm:num_requests_running", "Running requests.", self._labels, registry=self._registry
        )
        self.running = gauge.labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, self._labels, registry=self._registry).labels(**self._labels)

    def _counters(
        self, name: str, text: str, label: str, values: Iterable[object]
    ) -> list[Counter]:
        """Counters of one name with one more label."""
        family = Counter(name, text, (*self._labels, label), registry=self._registry)
        return [family.labels(**self._labels, **{label: str(value)}) for value in values]

    def count_prompt(self, prompt_tokens: int) -> None:
        self._prompt_tokens.inc(prompt_tokens)

    def count_tokens(self, tokens: int, accepted: Iterable[int]) -> None:
        """Counts delivered tokens and the accepted tokens of each verify step behind them."""
        self._tokens.inc(tokens)
        for accepted_tokens in accepted:
            self._drafts.inc()
            self._drafted.inc(self._draft_tokens)
            self._accepted.inc(accepted_tokens)
            for counter in self._by_position[:accepted_tokens]:
                counter.inc()

    def count_finish(self, reason: str) -> None:
        self._finished[reason].inc()
        self._waits.observe(self._queue_s)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)
