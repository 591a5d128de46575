"""SGLang: the PyPI package `sglang`, whose kernels are for GPUs.

Without a GPU the server itself runs, given a package that stands in for its kernels;
`tests/doubles/sglang_cpu` has one, for tests of the protocol and never to measure a speed.
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import msgspec

from specreg.core.errors import UnsupportedError
from specreg.core.files import UNREADABLE
from specreg.engines._engine import Engine, Fetch, Identity, LaunchOptions, Requirement
from specreg.engines._parallel import Parallel
from specreg.engines.methods import is_older
from specreg.engines.protocols import sglang as sglang_protocol

_VERSION = "0.5.23"
# Between these each flag below was read by the parser; others are asked by `--help`.
_FLAGS_KNOWN_FROM, _FLAGS_KNOWN_BEFORE = "0.5.21", "0.5.24"
_SERVER = "sglang.launch_server"
_MOST_CHARACTERS = 1024
# CUDA builds all of them, and of no use without a GPU; two are of versions before 0.5.22.
_KERNELS = (
    "cuda-tile",
    "cuda-python",
    "flash-attn-4",
    "flashinfer-python",
    "humming-kernels",
    "nvidia-cutlass-dsl",
    "nvidia-mathdx",
    "nvshmem4py-cu13",
    "quack-kernels",
    "sgl-deep-ep",
    "sgl-deep-gemm",
    "sgl-flash-mla",
    "sglang-kernel",
    "tilelang",
    "tokenspeed-mla",
    "torch-memory-saver",
    "torchaudio",
    "torchcodec",
)


class _ServerInfo(msgspec.Struct, frozen=True):
    """Of whatever type: one that changed mustn't hide the others."""

    model_path: object = ""
    speculative_algorithm: object = None
    speculative_draft_model_path: object = None
    speculative_num_steps: object = None
    speculative_eagle_topk: object = None
    speculative_num_draft_tokens: object = None

    @property
    def speculation(self) -> dict[str, str]:
        """The settings that are set, by their flags."""
        return {
            name.replace("_", "-"): str(value)[:_MOST_CHARACTERS]
            for name in self.__struct_fields__
            if name.startswith("speculative_") and (value := getattr(self, name)) is not None
        }


class Sglang(Engine):
    """SGLang."""

    name: ClassVar = "sglang"
    spelling: ClassVar = "sglang"
    oldest: ClassVar = "0.5.9"
    module: ClassVar = "sglang"
    health_path: ClassVar = "/health"
    version_path: ClassVar = "/server_info"
    protocol: ClassVar = sglang_protocol.PROTOCOL
    memory_flags: ClassVar = ("--max-total-tokens", "--mem-fraction-static")

    def requirement(self, *, on_gpu: bool) -> Requirement:
        """`sglang`; without a GPU on a CPU's torch, and without its kernels."""
        if on_gpu:
            return Requirement(package="sglang", version=_VERSION)
        return Requirement(
            package="sglang",
            version=_VERSION,
            overrides=(
                *(f"{package} ; sys_platform == 'never'" for package in _KERNELS),
                "torch==2.13.0",
            ),
            local_torch="torch==2.13.0",
        )

    def check_parallel(self, parallel: Parallel) -> None:
        """The draft is split as the target, the layers are whole, and Ray runs nothing.

        Raises:
            UnsupportedError: it is to be otherwise.
        """
        if parallel.pipeline > 1 or parallel.ray:
            message = (
                f"parallel.pipeline = {parallel.pipeline}, ray = {str(parallel.ray).lower()}:"
                " SGLang drafts nothing where layers are cut into stages, and has no executor of"
                " Ray's; leave them out"
            )
            raise UnsupportedError(message)
        if parallel.draft_tensor not in {None, parallel.tensor}:
            message = (
                f"parallel.draft_tensor = {parallel.draft_tensor} with tensor = {parallel.tensor}:"
                " SGLang splits the draft as the target; leave it out"
            )
            raise UnsupportedError(message)

    def command(self, python: Path, options: LaunchOptions) -> tuple[str, ...]:
        """The server's module, and the method's settings as flags."""
        return (
            *(str(python), "-m", _SERVER),
            *("--model-path", options.target, "--served-model-name", options.served_name),
            *("--host", "127.0.0.1", "--port", str(options.port)),
            *("--dtype", options.dtype),
            *("--context-length", str(options.max_model_len_tokens)),
            *("--max-running-requests", str(options.max_sequences)),
            "--enable-metrics",
            # A repeated prompt must cost what it cost the first time.
            "--disable-radix-cache",
            # Else the model's own generation_config.json sets the sampling.
            *("--sampling-defaults", "openai"),
            *(_gpu_flags(options) if options.on_gpu else _CPU_FLAGS),
            *_parallel_flags(options.parallel),
            *_export_flags(options),
            *(f"--{key}={value}" for key, value in options.speculation.items()),
            *(("--trust-remote-code",) if options.trust_remote_code else ()),
            *options.engine_args,
        )

    def help_command(self, python: Path, version: str) -> tuple[str, ...]:
        """The server's own help, for a version that wasn't tested."""
        old = is_older(version, _FLAGS_KNOWN_FROM)
        known = not version or (not old and is_older(version, _FLAGS_KNOWN_BEFORE))
        return () if known else (str(python), "-m", _SERVER, "--help")

    def environment(self, options: LaunchOptions) -> Mapping[str, str]:
        """Offline where nothing needs to be fetched, and nothing compiled on a CPU."""
        offline = {"HF_HUB_OFFLINE": "1"} if options.offline else {}
        on_cpu = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
        return offline | ({} if options.on_gpu else on_cpu)

    def identify(self, fetch: Fetch) -> Identity:
        """`/server_info` has all the server's settings."""
        found = super().identify(fetch)
        if found.engine != self.name:
            return found
        with contextlib.suppress(*UNREADABLE):
            info = msgspec.json.decode(fetch("GET", self.version_path), type=_ServerInfo)
            return dataclasses.replace(
                found,
                target=str(info.model_path or found.target)[:_MOST_CHARACTERS],
                speculates=info.speculative_algorithm is not None,
                speculation=info.speculation,
            )
        return found


_CPU_FLAGS = (
    *("--device", "cpu", "--max-total-tokens", "8192"),  # else it takes most of the memory
    # The only one on a CPU that can verify drafts; SGLang takes it by itself where there is AMX.
    *("--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx"),
)


_PREFILL_GRAPHS = "0.5.14"
"""Since then the graphs of prefills have a flag of their own; before, one of piecewise graphs."""
_MOST_STATIC_FRAC = 0.95


def _gpu_flags(options: LaunchOptions) -> tuple[str, ...]:
    """How much memory it may take; and graphs of prefills as long as one prompt can be, no longer.

    SGLang takes as its own all that went since its start, so the share must hold what a server
    beside it takes meanwhile. The cache is no larger for that.
    """
    old = is_older(options.version, _PREFILL_GRAPHS)
    graphs = "--piecewise-cuda-graph-max-tokens" if old else "--cuda-graph-max-bs-prefill"
    longest = (graphs, str(options.max_model_len_tokens)) if options.takes(graphs) else ()
    if options.memory is None:
        return ("--mem-fraction-static", str(options.gpu_memory_frac), *longest)
    share_frac = min(options.memory.share_frac + options.gpu_memory_frac, _MOST_STATIC_FRAC)
    return (
        *("--max-total-tokens", str(options.memory.cache_tokens)),
        *("--mem-fraction-static", f"{share_frac:.4f}"),
        *longest,
    )


def _export_flags(options: LaunchOptions) -> tuple[str, ...]:
    """The file in which old versions tell what a chat accepted; it holds the prompts too."""
    if not options.speculation or not sglang_protocol.PROTOCOL.exports(options.version):
        return ()
    return ("--export-metrics-to-file", "--export-metrics-to-file-dir", str(options.private))


def _parallel_flags(parallel: Parallel) -> tuple[str, ...]:
    """Nothing for one GPU."""
    return (
        *(("--tp-size", str(parallel.tensor)) if parallel.tensor > 1 else ()),
        *(("--dp-size", str(parallel.data)) if parallel.data > 1 else ()),
        *(("--ep-size", str(parallel.tensor)) if parallel.expert else ()),
    )


ENGINE = Sglang()
