"""Draft all tokens of a step in one pass, as PARD does with a draft model.

The draft reads the text and, after it, a mask in place of each further token. A mask sees the text
and the masks before it, so what is drafted at a place depends on that place's text alone.
"""

from typing import Any

import torch
from torch import Tensor

Model = Any
"""A causal language model of transformers, built as Llama."""


def draft_in_parallel(draft: Model, ids: Tensor, drafted: int, mask_id: int) -> list[Tensor]:
    """Return what a draft model says after each token of a text, for each drafted token of a step.

    Args:
        draft: the draft model.
        ids: the texts, `[rows, tokens]`.
        drafted: how many tokens a step drafts, 1 or more.
        mask_id: the token that stands for one that isn't known yet.

    Returns:
        By drafted token, the logits `[rows, tokens, vocabulary]`.
    """
    rows, tokens = ids.shape
    places = torch.arange(tokens, device=ids.device)
    masks = ids.new_full((rows, tokens * (drafted - 1)), mask_id)
    positions = torch.cat([places + step for step in range(drafted)])
    logits = draft(
        input_ids=torch.cat([ids, masks], 1),
        position_ids=positions.expand(rows, -1),
        attention_mask=_visible(tokens, drafted, draft.dtype, ids.device),
    ).logits
    return list(logits.split(tokens, 1))


def _visible(tokens: int, drafted: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return what each token and mask sees, as an additive mask `[1, 1, all, all]`."""
    places = torch.arange(tokens, device=device).repeat(drafted)
    steps = torch.arange(drafted, device=device).repeat_interleave(tokens)
    is_text = steps[None, :] == 0
    sees_text = is_text & (places[None, :] <= places[:, None])
    sees_masks = (
        ~is_text & (places[None, :] == places[:, None]) & (steps[None, :] <= steps[:, None])
    )
    hidden = torch.finfo(dtype).min
    zeros = torch.zeros((), dtype=dtype, device=device)
    return torch.where(sees_text | sees_masks, zeros, hidden)[None, None].to(dtype)
