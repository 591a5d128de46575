"""Attention over SGLang's pool of keys and values, for prompts, verification and decoding.

Shapes: `q` (tokens, heads, head size); `k`, `v` the same with the key-value heads; a buffer
(slots, key-value heads, head size), one per layer; `req_to_token` (request slots, positions), the
buffer slot of every position of every request. Scores are summed in float32.
"""
# ruff: noqa: FBT001 - the argument lists are SGLang's

import math

import torch
from torch import Tensor


def extend_attention_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,  # noqa: ARG001 - a size for workspaces, which we have none of
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Writes to `o` the attention of several new tokens per request.

    A new token sees the whole prefix of its request, which is in the buffers, and of the new
    tokens those up to itself, or, with `tree_mask`, those that the mask marks.

    Args:
        seq_lens: length of each request with its new tokens, tokens.
        extend_seq_lens: new tokens of each request.
        extend_start_loc: row in `q` of each request's first new token.
        tree_mask: flat (requests, new, new), true where the row's token sees the column's;
            all requests have the same number of new tokens then.

    Raises:
        NotImplementedError: a variant of attention that a dense Llama doesn't have.
    """
    _refuse(
        "extend_attention_cpu",
        k_scale=k_scale != 1,
        v_scale=v_scale != 1,
        logit_cap=logit_cap != 0,
        is_cross_attn=is_cross_attn,
        sliding_window_size=sliding_window_size > 0,
        encoder_lens=encoder_lens is not None,
        sinks=sinks is not None,
        is_causal=not is_causal,
    )
    spans = zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_seq_lens.tolist(),
        extend_start_loc.tolist(),
        strict=True,
    )
    for request, (row, total, new, start) in enumerate(spans):
        prefix = req_to_token[row, : total - new].long()
        tokens = slice(start, start + new)
        if tree_mask is None:
            among_new = torch.ones(new, new, dtype=torch.bool).tril()
        else:
            among_new = tree_mask.view(-1, new, new)[request].bool()
        o[tokens] = _attend(
            q[tokens],
            torch.cat((k_buffer[prefix], k[tokens].view(new, *k_buffer.shape[1:]))),
            torch.cat((v_buffer[prefix], v[tokens].view(new, *v_buffer.shape[1:]))),
            torch.cat((torch.ones(new, total - new, dtype=torch.bool), among_new), dim=1),
            sm_scale,
        )


def decode_attention_cpu(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    o: Tensor,
    k: Tensor,
    v: Tensor,
    loc: Tensor,
    attn_logits: Tensor,  # noqa: ARG001 - a workspace
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Stores one new token per request in the buffers, and writes its attention to `o`.

    Args:
        loc: buffer slot of each new token.
        seq_lens: length of each request with its new token, tokens.

    Raises:
        NotImplementedError: a variant of attention that a dense Llama doesn't have.
    """
    _refuse(
        "decode_attention_cpu",
        k_scale=k_scale != 1,
        v_scale=v_scale != 1,
        logit_cap=logit_cap != 0,
        is_cross_attn=is_cross_attn,
        sliding_window_size=sliding_window_size > 0,
        encoder_lens=encoder_lens is not None,
        sinks=sinks is not None,
    )
    k_buffer[loc] = k.view(-1, *k_buffer.shape[1:])
    v_buffer[loc] = v.view(-1, *v_buffer.shape[1:])
    rows = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    for request, (row, total) in enumerate(rows):
        seen = req_to_token[row, :total].long()
        everything = torch.ones(1, total, dtype=torch.bool)
        token = slice(request, request + 1)
        o[token] = _attend(q[token], k_buffer[seen], v_buffer[seen], everything, sm_scale)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """One row of buffer slots per branch of the draft: the request's prefix, then the branch.

    The slots after a request's prefix are its branches' one after another, `num_steps` each.

    Returns:
        Shape (requests × topk, pool_len), of `req_to_token`'s type; unused positions are 0.
    """
    rows = req_to_token.new_zeros(len(seq_lens) * topk, pool_len)
    requests = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    for request, (row, length) in enumerate(requests):
        for branch in range(topk):
            start = length + branch * num_steps
            slots = rows[request * topk + branch]
            slots[:length] = req_to_token[row, :length]
            slots[length : length + num_steps] = req_to_token[row, start : start + num_steps]
    return rows


def _attend(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float) -> Tensor:
    """softmax(q·k × scale)·v where `visible` (rows of q, keys) is true, -inf elsewhere."""
    group = q.shape[1] // keys.shape[1]  # query heads that share one key-value head
    keys, values = (part.float().repeat_interleave(group, dim=1) for part in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * scale
    weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)


def _refuse(operation: str, **flags: bool) -> None:
    names = [name for name, is_asked in flags.items() if is_asked]
    if names:
        message = (
            f"sgl_kernel.{operation}: the stand-in for CPUs doesn't do {', '.join(names)};"
            " use a dense Llama, or a GPU"
        )
        raise NotImplementedError(message)


for _operation, _written in (
    (extend_attention_cpu, ("o",)),
    (decode_attention_cpu, ("k_buffer", "v_buffer", "o")),
):
    _name = f"sgl_kernel::{_operation.__name__}"
    torch.library.define(_name, torch.library.infer_schema(_operation, mutates_args=_written))
    torch.library.impl(_name, "cpu", _operation)
