"""TensorRT-LLM: `trtllm-serve` of the PyPI package `tensorrt-llm`, on a GPU alone.

Written from its documentation and source (docs/source/features/speculative-decoding.md,
tensorrt_llm/commands/serve.py); never seen running here.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from specreg.core.errors import UnsupportedError
from specreg.engines._engine import Engine, LaunchOptions, Requirement
from specreg.engines._parallel import Parallel
from specreg.engines.methods import is_older
from specreg.engines.protocols import tensorrt_llm as tensorrt_llm_protocol
from specreg.engines.protocols.tensorrt_llm import FIRST_THAT_COUNTS

_VERSION = "1.2.1"
_OPTIONS = "options.yaml"


class TensorrtLlm(Engine):
    """TensorRT-LLM, 1.0 or newer. A method's settings are paths into its file of options."""

    name: ClassVar = "tensorrt_llm"
    spelling: ClassVar = "tensorrt_llm"
    oldest: ClassVar = "1.0"
    module: ClassVar = "tensorrt_llm"
    health_path: ClassVar = "/health"
    version_path: ClassVar = "/version"
    protocol: ClassVar = tensorrt_llm_protocol.PROTOCOL
    serves_names: ClassVar = False

    def requirement(self, *, on_gpu: bool) -> Requirement:
        """`tensorrt-llm`.

        Raises:
            UnsupportedError: without a GPU.
        """
        if not on_gpu:
            message = (
                "engine 'tensorrt_llm': runs on a GPU alone; put it into a tier that needs one"
            )
            raise UnsupportedError(message)
        return Requirement(package="tensorrt-llm", version=_VERSION)

    def check_parallel(self, parallel: Parallel) -> None:
        """One copy, and the draft is split as the target.

        Raises:
            UnsupportedError: `trtllm-serve` can't spread the model so.
        """
        if parallel.data > 1 or parallel.draft_tensor not in {None, parallel.tensor}:
            message = (
                f"parallel.data = {parallel.data}, draft_tensor = {parallel.draft_tensor}:"
                " trtllm-serve runs one copy and splits the draft as the target; leave them out"
            )
            raise UnsupportedError(message)

    def files(self, options: LaunchOptions) -> Mapping[str, str]:
        """The file of options; JSON is YAML too."""
        settings = {
            "dtype": options.dtype,
            # A repeated prompt must cost what it cost the first time.
            "kv_cache_config.enable_block_reuse": False,
            "kv_cache_config.free_gpu_memory_fraction": options.gpu_memory_frac,
            # Without it no request is counted; older versions may not know it.
            **(
                {}
                if is_older(options.version, FIRST_THAT_COUNTS)
                else {"return_perf_metrics": True}
            ),
        }
        return {_OPTIONS: json.dumps(_nested({**settings, **options.speculation}), indent=2)}

    def command(self, python: Path, options: LaunchOptions) -> tuple[str, ...]:
        """`trtllm-serve`, beside its environment's interpreter."""
        return (
            *(str(python.with_name("trtllm-serve")), options.target),
            *("--host", "127.0.0.1", "--port", str(options.port)),
            *("--max_batch_size", str(options.max_sequences)),
            *("--max_seq_len", str(options.max_model_len_tokens)),
            *_parallel_flags(options.parallel),
            *("--extra_llm_api_options", str(options.folder / _OPTIONS)),
            *(("--trust_remote_code",) if options.trust_remote_code else ()),
            *options.engine_args,
        )

    def environment(self, options: LaunchOptions) -> Mapping[str, str]:
        """Offline where nothing needs to be fetched."""
        return {"HF_HUB_OFFLINE": "1"} if options.offline else {}


def _nested(settings: Mapping[str, object]) -> dict[str, object]:
    """`{"a.b": 1, "c": 2}` as `{"a": {"b": 1}, "c": 2}`."""
    sections: dict[str, dict[str, object]] = {}
    for path, value in settings.items():
        section, _, key = path.rpartition(".")
        sections.setdefault(section, {})[key] = value
    return {**sections.pop("", {}), **sections}


def _parallel_flags(parallel: Parallel) -> tuple[str, ...]:
    """Nothing for one GPU."""
    return (
        *(("--tp_size", str(parallel.tensor)) if parallel.tensor > 1 else ()),
        *(("--pp_size", str(parallel.pipeline)) if parallel.pipeline > 1 else ()),
        *(("--ep_size", str(parallel.tensor)) if parallel.expert else ()),
    )


ENGINE = TensorrtLlm()
