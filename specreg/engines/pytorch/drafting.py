"""Who drafts: texts in, a draft for each out.

A drafter follows the rows of one batch from its start to its end.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from specreg.engines.pytorch.lookup import LookupRule, propose
from specreg.engines.pytorch.reading import Model, Reader
from specreg.engines.pytorch.verifying import NO_DRAFT, Draft, Floats, distributions, sample


class Row(Protocol):
    """A text that goes on.

    Attributes:
        context: the ids of prompt and answer so far.
        room_tokens: how many more fit into the target's context.
        temperature: 0 is greedy.
        random: where chance comes from.
    """

    @property
    def context(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def room_tokens(self) -> int: ...  # noqa: D102
    @property
    def temperature(self) -> float: ...  # noqa: D102
    @property
    def random(self) -> np.random.Generator: ...  # noqa: D102


class Drafter(Protocol):
    """One of the ways to draft."""

    def draft(self, rows: Sequence[Row]) -> list[Draft]:
        """A draft for each row; the same rows in the same order as ever."""

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with some of the rows, in the order they have."""


NewDrafter = Callable[[int], Drafter]
"""Makes the drafter of a batch, by how many rows it has."""


class NoDrafter:
    """Autoregressive decoding."""

    def draft(self, rows: Sequence[Row]) -> list[Draft]:
        """Nothing."""
        return [NO_DRAFT] * len(rows)

    def keep(self, rows: Sequence[int]) -> None:
        """Knows nothing of rows."""


class LookupDrafter:
    """N-gram lookup in the text so far, without a model (Ou et al. 2024)."""

    def __init__(self, rule: LookupRule, draft_tokens: int) -> None:
        self._rule, self._draft_tokens = rule, draft_tokens

    def draft(self, rows: Sequence[Row]) -> list[Draft]:
        """What followed the last tokens when they stood there before."""
        return [
            Draft(
                token_ids=propose(row.context, self._rule, min(self._draft_tokens, row.room_tokens))
            )
            for row in rows
        ]

    def keep(self, rows: Sequence[int]) -> None:
        """Knows nothing of rows."""


class ModelDrafter:
    """A smaller model that goes on by itself, by the temperature of the request."""

    def __init__(self, model: Model, draft_tokens: int, rows: int) -> None:
        self._reader = Reader(model, rows)
        self._draft_tokens = draft_tokens
        self._read: list[list[int]] = [[] for _ in range(rows)]

    def draft(self, rows: Sequence[Row]) -> list[Draft]:
        """The model's next tokens, one after the other."""
        limits = [min(self._draft_tokens, row.room_tokens) for row in rows]
        self._go_back(rows)
        unread = [row.context[len(read) :] for row, read in zip(rows, self._read, strict=True)]
        drafted: list[list[int]] = [[] for _ in rows]
        drawn_from: list[list[Floats]] = [[] for _ in rows]
        for place in range(max(limits)):
            logits = self._read_on(unread)
            for index, row in enumerate(rows):
                if place < limits[index]:
                    token_id, q = _choose(logits[index][-1], row)
                    drafted[index].append(token_id)
                    drawn_from[index].extend(q)
            unread = [
                ids[place:] if place + 1 < limit else []
                for ids, limit in zip(drafted, limits, strict=True)
            ]
        return [
            Draft(token_ids=tuple(ids), distributions=np.stack(q) if q else None)
            for ids, q in zip(drafted, drawn_from, strict=True)
        ]

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with some of the rows, in the order they have."""
        self._reader.keep(rows)
        self._read = [self._read[row] for row in rows]

    def _go_back(self, rows: Sequence[Row]) -> None:
        """Forgets, of what was read, all that didn't become the text."""
        # The last token is always read anew: what follows it is what is asked.
        agreed = [
            sum(1 for _ in itertools.takewhile(bool, map(int.__eq__, read, row.context[:-1])))
            for row, read in zip(rows, self._read, strict=True)
        ]
        self._reader.forget(
            [len(read) - count for read, count in zip(self._read, agreed, strict=True)]
        )
        for read, count in zip(self._read, agreed, strict=True):
            del read[count:]

    def _read_on(self, texts: Sequence[Sequence[int]]) -> list[Floats]:
        for read, text in zip(self._read, texts, strict=True):
            read.extend(text)
        return self._reader.read(texts, [min(1, len(text)) for text in texts])


def _choose(logits: Floats, row: Row) -> tuple[int, list[Floats]]:
    """A draft, and what it was drawn from if it was; logits of shape [V]."""
    if row.temperature == 0:
        return int(logits.argmax()), []
    q = distributions(logits, row.temperature)
    return sample(q, row.random), [q]
