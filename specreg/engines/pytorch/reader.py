"""Read rows of text with a model and its cache, and roll back what is rejected.

In the shapes of arrays, V is the size of the vocabulary.
"""

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from specreg.engines.pytorch.models import Model
from specreg.engines.pytorch.speculation import FloatArray


class Reader:
    """Several rows of text that a model reads together, with the model's cache.

    Attributes:
        lengths: the number of tokens of each row that the model has read.
    """

    def __init__(self, model: Model, rows: int) -> None:
        self._model = model
        self._device = model.get_input_embeddings().weight.device
        self._cache = DynamicCache()
        # For each row, the columns of the cache that hold one of its tokens, and not padding.
        self._is_held = torch.zeros((rows, 0), dtype=torch.bool)
        self.lengths = [0] * rows

    def read(
        self, texts: Sequence[Sequence[int]], logits_wanted: Sequence[int]
    ) -> list[FloatArray]:
        """Read the next ids of each row, and return the logits after the last of them.

        Args:
            texts: the ids of each row; empty for a row that reads nothing in this call. In the
                first call every row reads something.
            logits_wanted: the number of each row's last ids after which logits are returned.

        Returns:
            The logits of each row in float32, of shape [logits_wanted, V].
        """
        # Pad the rows on the right, so that each padded position has a token of its row before it.
        # Without such a token a position computes NaN, which a mask doesn't keep from other rows.
        width = max(map(len, texts))
        padded = []
        for text in texts:
            padding = [0] * (width - len(text))
            padded.append([*text, *padding])
        columns = torch.arange(width)
        new_tokens = torch.tensor([[len(text)] for text in texts])
        is_new = columns < new_tokens

        # The rows differ in length, so a column isn't the same position of each text.
        positions = torch.tensor(self.lengths)[:, None] + columns
        self._is_held = torch.cat((self._is_held, is_new), dim=1)

        # Have the model compute logits only in the columns in which a row needs them.
        wanted_columns = []
        for text, wanted in zip(texts, logits_wanted, strict=True):
            wanted_columns.append(range(len(text) - wanted, len(text)))
        computed_columns = sorted(set().union(*wanted_columns))
        with torch.inference_mode():
            output = self._model(
                input_ids=torch.tensor(padded).to(self._device),
                attention_mask=self._is_held.to(self._device, torch.long),
                position_ids=torch.where(is_new, positions, 0).to(self._device),
                past_key_values=self._cache,
                use_cache=True,
                # This is a list and not a tensor, because a tensor would have to be on the GPU of
                # the last layer.
                logits_to_keep=computed_columns,
            )

        for row, text in enumerate(texts):
            self.lengths[row] += len(text)

        # Give each row its own logits.
        logits = output.logits.float().cpu().numpy()
        row_logits = []
        for row, row_columns in enumerate(wanted_columns):
            indices = [computed_columns.index(column) for column in row_columns]
            row_logits.append(logits[row, indices])
        return row_logits

    def forget(self, tokens: Sequence[int]) -> None:
        """Roll back the last tokens of each row.

        Args:
            tokens: the number of tokens to roll back for each row, 0 or more.
        """
        for row, count in enumerate(tokens):
            columns = self._is_held[row].nonzero().flatten()
            # `columns[-count:]` would be all columns for a row that forgets nothing.
            forgotten = columns[len(columns) - count :]
            self._is_held[row, forgotten] = False
            self.lengths[row] -= count

        # The columns at the end that no row holds any more are dropped from the cache.
        columns_in_use = self._is_held.any(dim=0).nonzero().flatten()
        width = 0
        if len(columns_in_use):
            width = int(columns_in_use[-1]) + 1

        # With a negative number, `crop` removes as many columns as that.
        self._cache.crop(width - self._is_held.shape[1])
        self._is_held = self._is_held[:, :width]

    def keep(self, indices: Sequence[int]) -> None:
        """Keep only some of the rows.

        Args:
            indices: the indices of the rows to keep, at least one, in ascending order.
        """
        if len(indices) == len(self.lengths):
            return
        self._cache.batch_select_indices(torch.tensor(indices))
        self._is_held = self._is_held[list(indices)]
        self.lengths = [self.lengths[index] for index in indices]
