"""What a model has read of some texts: tokens in, logits out, and back again.

A batch shares one cache of keys and values, of shape [rows, heads, columns, size] in each layer.
Each read appends columns to it, as many for all rows; a mask says which of them a row holds, and
its positions count those alone. What a row forgets is masked, and columns that no row holds any
more at the end are cut off: a single row's cache has no gaps.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from specreg.engines.pytorch.verifying import Floats

Model = Any
"""A causal language model of transformers."""


class Reader:
    """Texts that a model reads at once. `lengths`: by row, how many tokens it has read."""

    def __init__(self, model: Model, rows: int) -> None:
        self._model = model
        self._device = model.get_input_embeddings().weight.device
        self._cache = DynamicCache()
        self._held = torch.zeros((rows, 0), dtype=torch.bool)
        self.lengths = [0] * rows

    def read(self, texts: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[Floats]:
        """Reads on.

        Args:
            texts: by row, the ids that follow; none for a row that waits, but not at first.
            wanted: by row, after how many of the last of them the logits are wanted.

        Returns:
            By row, logits of shape [wanted, V] in float32.
        """
        width = max(map(len, texts))
        ids = torch.tensor([[*text, *(0,) * (width - len(text))] for text in texts])
        # Filled up on the right, where a row sees tokens of its own: one that sees none computes
        # NaN, which a mask doesn't keep away.
        new = torch.arange(width) < torch.tensor([[len(text)] for text in texts])
        positions = torch.tensor(self.lengths)[:, None] + torch.arange(width)
        self._held = torch.cat((self._held, new), dim=1)
        places = [
            range(len(text) - count, len(text)) for text, count in zip(texts, wanted, strict=True)
        ]
        kept = sorted(set().union(*places))
        with torch.inference_mode():
            output = self._model(
                input_ids=ids.to(self._device),
                attention_mask=self._held.to(self._device, torch.long),
                position_ids=torch.where(new, positions, 0).to(self._device),
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=torch.tensor(kept, device=self._device),
            )
        logits = output.logits.float().cpu().numpy()
        self.lengths = [
            length + len(text) for length, text in zip(self.lengths, texts, strict=True)
        ]
        return [logits[row, [kept.index(place) for place in own]] for row, own in enumerate(places)]

    def forget(self, counts: Sequence[int]) -> None:
        """Goes back, by row, by as many tokens as `counts` says, 0 or more."""
        for row, count in enumerate(counts):
            columns = self._held[row].nonzero().flatten()
            self._held[row, columns[len(columns) - count :]] = False
        self.lengths = [length - count for length, count in zip(self.lengths, counts, strict=True)]
        in_use = self._held.any(dim=0).nonzero().flatten()
        columns_left = int(in_use[-1]) + 1 if len(in_use) else 0
        self._cache.crop(columns_left - self._held.shape[1])
        self._held = self._held[:, :columns_left]

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with some of the rows, one at least, in the order they have."""
        if len(rows) == len(self.lengths):
            return
        self._cache.batch_select_indices(torch.tensor(rows))
        self._held = self._held[list(rows)]
        self.lengths = [self.lengths[row] for row in rows]
