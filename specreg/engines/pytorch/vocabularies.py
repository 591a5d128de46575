"""Find the tokens that a draft model and a target with different vocabularies share.

This is the algorithm TLI (token-level intersection, Timor et al. 2025, arXiv 2502.05202) as vLLM
has it (v1/spec_decode/vocab_mapping.py, 0.32 and 0.33). The draft reads each token of the text as
its own token of the same spelling, and drafts only tokens that both models have.
"""

import torch
from torch import Tensor

from specreg.core.errors import ModelError
from specreg.engines.pytorch.requests import Tokenizer


class SharedVocabulary:
    """The tokens that a target and a draft both have.

    Attributes:
        draft_ids: the draft's id of each token of the target. For a token that the draft doesn't
            have, it is the id of the draft's unknown token, or of its end token if it has no
            unknown one.
        target_ids: the target's id of each token of the draft; -1 if the target doesn't have it.
    """

    def __init__(self, target: Tokenizer, draft: Tokenizer, sizes: tuple[int, int]) -> None:
        """Compare two tokenizers.

        Args:
            sizes: the number of ids of the target and of the draft.

        Raises:
            ModelError: they share no token, or the draft has neither an unknown nor an end token.
        """
        unknown_id = draft.unk_token_id
        if unknown_id is None:
            unknown_id = draft.eos_token_id
        if unknown_id is None:
            message = "draft: its tokenizer has neither an unknown nor an end token"
            raise ModelError(f"{message}; take a draft whose tokenizer has one")
        target_size, draft_size = sizes
        self.draft_ids = torch.full((target_size,), unknown_id)
        self.target_ids = torch.full((draft_size,), -1)
        target_vocabulary = target.get_vocab()
        for token, draft_id in draft.get_vocab().items():
            target_id = target_vocabulary.get(token)
            # A tokenizer may have ids for which the model has no embedding.
            if target_id is not None and target_id < target_size and draft_id < draft_size:
                self.draft_ids[target_id] = draft_id
                self.target_ids[draft_id] = target_id

        if not (self.target_ids >= 0).any():
            raise ModelError("draft: its tokenizer has no token of the target's; choose another")

    def choose(self, logits: Tensor) -> Tensor:
        """Return the target's ids of the likeliest tokens among those that both have.

        Args:
            logits: the logits of the draft, `[..., vocabulary]`.
        """
        target_ids = self.target_ids.to(logits.device)
        shared = logits.masked_fill(target_ids < 0, float("-inf"))
        return target_ids[shared.argmax(-1)]
