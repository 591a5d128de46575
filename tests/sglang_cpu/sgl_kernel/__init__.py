"""A stand-in for SGLang's kernel package, in plain PyTorch, for protocol tests on a CPU.

SGLang's CPU code imports `sgl_kernel`, of which PyPI has only a CUDA build. With this folder's
parent on PYTHONPATH the real server runs on any CPU, none of its own files touched: its scheduler,
its speculation workers, its counters and its HTTP layer are what is tested. The operations here
are right and slow, so nothing that such a server does is a measure of speed.

In come SGLang's own calls, by its names and argument orders (0.5.23: `sglang/srt` and
`sglang/kernels`); out come tensors, most of them written in place. `convert_weight_packed` is left
out: by its absence SGLang knows that there are no kernels for Intel AMX, and computes norms,
rotary embedding, activations and linear layers with its own PyTorch code, on every CPU alike.
"""

import importlib.metadata
import sys
from typing import Never

from sgl_kernel import attention as attention
from sgl_kernel.attention import build_draft_decode_metadata_cpu as build_draft_decode_metadata_cpu
from sgl_kernel.locations import (
    assign_draft_cache_locs_contiguous_cpu as assign_draft_cache_locs_contiguous_cpu,
)
from sgl_kernel.locations import assign_extend_cache_locs_cpu as assign_extend_cache_locs_cpu
from sgl_kernel.locations import assign_req_to_token_pool_cpu as assign_req_to_token_pool_cpu
from sgl_kernel.locations import copy_all_layer_kv_cache_cpu as copy_all_layer_kv_cache_cpu
from sgl_kernel.locations import fill_accept_out_cache_loc_cpu as fill_accept_out_cache_loc_cpu
from sgl_kernel.speculative import (
    build_tree_kernel_efficient_cpu as build_tree_kernel_efficient_cpu,
)
from sgl_kernel.speculative import fill_bonus_tokens_cpu as fill_bonus_tokens_cpu
from sgl_kernel.speculative import verify_tree_greedy_cpu as verify_tree_greedy_cpu

WRITTEN_FOR = "0.5.23"


def rotate_input_ids_cpu(*_: object) -> Never:
    """Absent; SGLang imports it at start and calls it for drafts of several MTP layers only."""
    message = (
        "sgl_kernel.rotate_input_ids_cpu: the stand-in for CPUs doesn't have it;"
        " use another method, or a GPU"
    )
    raise NotImplementedError(message)


installed = importlib.metadata.version("sglang")
if installed != WRITTEN_FOR:  # the calls change with each version, unannounced
    message = (
        f"sgl_kernel: the stand-in for CPUs is written for SGLang {WRITTEN_FOR},"
        f" not for {installed}; install sglang=={WRITTEN_FOR}"
    )
    raise ImportError(message)
sys.stderr.write(
    "sgl_kernel: stand-in in plain PyTorch, for protocol tests on a CPU; never a measure of speed\n"
)
