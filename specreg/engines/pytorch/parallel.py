"""Draft all tokens of a step in one pass, as PARD does with a draft model.

The draft model reads the text, and after it a mask in place of each further token of a step. A mask
reads the text up to the token after which its step begins, and the masks before it in that step. So
the drafts of all positions of a text can be computed in one pass, and each depends only on the text
before it.
"""

import torch
from torch import Tensor

from specreg.engines.pytorch.models import Model


def draft_in_parallel(draft: Model, ids: Tensor, drafted: int, mask_id: int) -> list[Tensor]:
    """Return a draft model's logits for the steps that begin after each token of a text.

    Args:
        ids: the texts, `[rows, tokens]`.
        drafted: the number of tokens that a step drafts, 1 or more.
        mask_id: the token that stands for a token that isn't known yet.

    Returns:
        The logits of each drafted token, `[rows, tokens, vocabulary]`.
    """
    rows, tokens = ids.shape
    text_positions = torch.arange(tokens, device=ids.device)
    masks = ids.new_full((rows, tokens * (drafted - 1)), mask_id)

    # The text itself has depth 0. The masks of a step have the depths from 1 on, and stand as many
    # positions after the token after which the step begins.
    positions = torch.cat([text_positions + depth for depth in range(drafted)])
    output = draft(
        input_ids=torch.cat([ids, masks], 1),
        position_ids=positions.expand(rows, -1),
        attention_mask=_visible(tokens, drafted, draft.dtype, ids.device),
    )
    return list(output.logits.split(tokens, 1))


def _visible(tokens: int, drafted: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return what each token and mask reads, as a term that is added to the attention's scores.

    Its shape is `[1, 1, all, all]`, for all tokens and masks.
    """
    # The anchor of a mask is the token after which its step begins. A token is its own anchor.
    anchors = torch.arange(tokens, device=device).repeat(drafted)
    depths = torch.arange(drafted, device=device).repeat_interleave(tokens)
    is_text = depths[None, :] == 0
    reads_text = is_text & (anchors[None, :] <= anchors[:, None])
    has_same_anchor = anchors[None, :] == anchors[:, None]
    is_not_deeper = depths[None, :] <= depths[:, None]
    reads_masks = ~is_text & has_same_anchor & is_not_deeper
    reads = reads_text | reads_masks
    lowest_score = torch.finfo(dtype).min
    zeros = torch.zeros((), dtype=dtype, device=device)
    added_scores = torch.where(reads, zeros, lowest_score).to(dtype)
    return added_scores[None, None]
