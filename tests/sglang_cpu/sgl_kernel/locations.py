"""Where keys and values lie: the slots of the pool that each request's positions point to.

`req_to_token` (request slots, positions) holds the pool slot of every position of every request;
what is written is written in place. Lengths and offsets are in tokens.
"""

import ctypes
from collections.abc import Iterator

from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,  # noqa: ARG001 - the table knows its width
) -> None:
    """Gives each request's positions start to end the next slots of `out_cache_loc`."""
    for row, positions, slots in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, positions] = out_cache_loc[slots].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,  # noqa: ARG001 - the table knows its width
) -> None:
    """Reads the slots of each request's positions start to end, one request after another."""
    for row, positions, slots in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[slots] = req_to_token[row, positions]


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Reads the `topk` × `num_steps` slots that follow each request's `seq_lens` tokens."""
    ends = seq_lens + topk * num_steps
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, ends, out_cache_loc, pool_len
    )


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Packs the slots of the accepted tokens to the front.

    Args:
        accept_index: rows of the accepted tokens in `out_cache_loc`, −1 where there is none.
    """
    slots = out_cache_loc[accept_index[accept_index >= 0].long()]
    accept_out_cache_loc[: len(slots)] = slots


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """Copies slots of every buffer, all of them read before any is written.

    Args:
        data_ptrs: address of each buffer, two per layer.
        strides: size of a slot of each buffer, bytes.
    """
    targets = tgt_loc.tolist()
    sources = src_loc.tolist()
    for address, size in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        slots = [ctypes.string_at(address + source * size, size) for source in sources]
        for target, slot in zip(targets, slots, strict=True):
            ctypes.memmove(address + target * size, slot, size)


def _spans(rows: Tensor, starts: Tensor, ends: Tensor) -> Iterator[tuple[int, slice, slice]]:
    """Each request's row, its positions, and their places among those of all requests."""
    used = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield row, slice(start, end), slice(used, used + end - start)
        used += end - start
