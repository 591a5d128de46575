"""Decode: models and prompts in, the steps of their answers out.

The first step of an answer reads the prompt and drafts nothing. Each later one reads the token
before it and what was drafted after that, verifies, and rolls back what wasn't accepted. A drafter
follows the rows of one batch from its start to its end.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from specreg.engines.pytorch import speculation
from specreg.engines.pytorch.requests import Job, Step, Tokenizer
from specreg.engines.pytorch.speculation import NO_DRAFT, Draft, Floats, NGramStore

Model = Any
"""A causal language model of transformers."""


class Reader:
    """Rows of text that a model reads at once. `lengths`: by row, how many tokens it has read."""

    def __init__(self, model: Model, rows: int) -> None:
        self._model = model
        self._device = model.get_input_embeddings().weight.device
        self._cache = DynamicCache()
        self._held = torch.zeros((rows, 0), dtype=torch.bool)
        self.lengths = [0] * rows

    def read(self, texts: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[Floats]:
        """Read on: by row, the ids that follow; none for a row that waits, but not at first.

        Returns:
            By row, the float32 logits after the last `wanted` of them, of shape [wanted, V].
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
                logits_to_keep=kept,  # a list fits whichever GPU the last layer is on
            )
        logits = output.logits.float().cpu().numpy()
        self.lengths = [
            length + len(text) for length, text in zip(self.lengths, texts, strict=True)
        ]
        return [logits[row, [kept.index(place) for place in own]] for row, own in enumerate(places)]

    def forget(self, counts: Sequence[int]) -> None:
        """Roll back, by row, by 0 or more tokens."""
        for row, count in enumerate(counts):
            columns = self._held[row].nonzero().flatten()
            self._held[row, columns[len(columns) - count :]] = False
        self.lengths = [length - count for length, count in zip(self.lengths, counts, strict=True)]
        in_use = self._held.any(dim=0).nonzero().flatten()
        columns_left = int(in_use[-1]) + 1 if len(in_use) else 0
        self._cache.crop(columns_left - self._held.shape[1])
        self._held = self._held[:, :columns_left]

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with some of the rows, one at least, in the order they have."""
        if len(rows) == len(self.lengths):
            return
        self._cache.batch_select_indices(torch.tensor(rows))
        self._held = self._held[list(rows)]
        self.lengths = [self.lengths[row] for row in rows]


class Row:
    """A job, by its place in the batch, and what was decoded of it so far.

    `context` are the ids of prompt and answer.
    """

    def __init__(self, index: int, job: Job, models: "Models") -> None:
        self.index, self.job, self.models = index, job, models
        self.context = list(job.prompt)
        self.random = np.random.default_rng(job.seed)
        self.finished = False

    @property
    def most_drafts(self) -> int:
        """How many tokens its step may draft: no more than fit into the target's context."""
        return min(self.models.draft_tokens, self.models.context_tokens - len(self.context))

    def take(self, draft: Draft, verified: speculation.Verified, logits: Floats) -> Step:
        """Go on by what was verified; logits of shape [k + 1, V]."""
        new = (*draft.token_ids[: verified.accepted], verified.next_id)
        left = self.job.output_cap_tokens - (len(self.context) - len(self.job.prompt))
        finish_reason = "length" if len(new) >= left else None
        delivered = new[:left]
        for count, token_id in enumerate(delivered, start=1):
            if token_id in self.models.stop_ids and not self.job.ignore_eos:
                delivered, finish_reason = new[:count], "stop"
                break
        top = self.job.top
        self.context.extend(new)
        self.finished = finish_reason is not None
        return Step(
            token_ids=delivered,
            drafted=len(draft.token_ids),
            accepted=verified.accepted,
            finish_reason=finish_reason,
            logprobs=() if top is None else _likeliest(logits[: len(delivered)], top),
        )


class Drafter:
    """Autoregressive decoding, which drafts nothing; subclasses draft."""

    def draft(self, rows: Sequence[Row]) -> list[Draft]:
        """Draft for each row; the same rows in the same order as ever."""
        return [NO_DRAFT] * len(rows)

    def learn(self, rows: Sequence[Row], logits: Sequence[Floats]) -> None:
        """Take in what a step of each row added, and the target's logits before each token of it.

        Logits by row, of shape [k + 1, V]; those after a rejected draft are among them.
        """

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with some of the rows, in the order they have."""


class LookupDrafter(Drafter):
    """Prompt lookup: an n-gram of the text so far, without a model."""

    def __init__(self) -> None:
        self._propose = speculation.propose

    def draft(self, rows: Sequence[Row]) -> list[Draft]:
        """Draft what followed the last tokens when they stood there before."""
        return [Draft(token_ids=self._propose(row.context, row.most_drafts)) for row in rows]


class AdaptiveDrafter(LookupDrafter):
    """An n-gram store that learns each text, and the target's three likeliest tokens along it.

    (Ou et al. 2024, who learn the text alone.) The store outlives the batch: what a request is
    drafted depends on those that were answered before it and beside it.
    """

    def __init__(self, store: NGramStore, rows: int) -> None:
        self._store, self._propose = store, store.propose
        self._learnt = [0] * rows

    def learn(self, rows: Sequence[Row], logits: Sequence[Floats]) -> None:
        """Learn the prompt with the first step, and what each step adds."""
        for index, (row, own) in enumerate(zip(rows, logits, strict=True)):
            text, start = row.context, max(self._learnt[index], len(row.job.prompt))
            for place in range(max(1, self._learnt[index]), len(text)):
                candidates = speculation.likeliest(own[place - start], 3) if place >= start else ()
                run = text[max(0, place - speculation.LONGEST_TOKENS) : place]
                self._store.learn(run, (*candidates, text[place]))
            self._learnt[index] = len(text)

    def keep(self, rows: Sequence[int]) -> None:
        """Forget how far the others were learnt."""
        self._learnt = [self._learnt[row] for row in rows]


class ModelDrafter(Drafter):
    """A smaller model that goes on by itself, at the temperature of the request."""

    def __init__(self, model: Model, rows: int) -> None:
        self._reader = Reader(model, rows)
        self._read: list[list[int]] = [[] for _ in range(rows)]

    def draft(self, rows: Sequence[Row]) -> list[Draft]:
        """Draft the model's next tokens, one after the other."""
        limits = [row.most_drafts for row in rows]
        wrong = []  # all that was read and didn't become the text
        for row, read in zip(rows, self._read, strict=True):
            # The last token is always read anew: what follows it is what is asked.
            agreed = sum(itertools.takewhile(bool, map(int.__eq__, read, row.context[:-1])))
            wrong.append(len(read) - agreed)
            del read[agreed:]
        self._reader.forget(wrong)
        unread = [row.context[len(read) :] for row, read in zip(rows, self._read, strict=True)]
        drafted: list[list[int]] = [[] for _ in rows]
        drawn_from: list[list[Floats]] = [[] for _ in rows]
        for place in range(max(limits)):
            for read, text in zip(self._read, unread, strict=True):
                read.extend(text)
            logits = self._reader.read(unread, [min(1, len(text)) for text in unread])
            for index, row in enumerate(rows):
                if place < limits[index] and row.job.temperature == 0:
                    drafted[index].append(int(logits[index][-1].argmax()))
                elif place < limits[index]:
                    q = speculation.distributions(logits[index][-1], row.job.temperature)
                    drawn_from[index].append(q)
                    drafted[index].append(speculation.sample(q, row.random))
            unread = [
                ids[place:] if place + 1 < limit else []
                for ids, limit in zip(drafted, limits, strict=True)
            ]
        return [
            Draft(token_ids=tuple(ids), distributions=np.stack(q) if q else None)
            for ids, q in zip(drafted, drawn_from, strict=True)
        ]

    def keep(self, rows: Sequence[int]) -> None:
        """Forget the others."""
        self._reader.keep(rows)
        self._read = [self._read[row] for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What decodes: the target and its tokenizer, and what makes the drafter of so many rows.

    A step drafts at most `draft_tokens`, 0 without speculation. `stop_ids` end a text; prompt and
    answer have at most `context_tokens` together.
    """

    target: Model
    tokenizer: Tokenizer
    new_drafter: Callable[[int], Drafter]
    draft_tokens: int
    stop_ids: frozenset[int]
    context_tokens: int


def decode(
    models: Models, jobs: Sequence[Job], clock: Callable[[], int] = time.monotonic_ns
) -> Iterator[Mapping[int, Step]]:
    """Answer jobs, one at least, as one batch: a step of each that goes on, by its place."""
    rows = [Row(index, job, models) for index, job in enumerate(jobs)]
    reader, drafter = Reader(models.target, len(rows)), models.new_drafter(len(rows))
    drafts, draft_ns = [NO_DRAFT] * len(rows), 0
    while True:
        begun_ns = clock()
        unread = [row.context[read:] for row, read in zip(rows, reader.lengths, strict=True)]
        logits = reader.read(
            [(*ids, *draft.token_ids) for ids, draft in zip(unread, drafts, strict=True)],
            [len(draft.token_ids) + 1 for draft in drafts],
        )
        verified = [
            # By the module's name, so that a fault can be planted there.
            speculation.verify(draft, own, row.job.temperature, row.random)
            for row, draft, own in zip(rows, drafts, logits, strict=True)
        ]
        reader.forget(
            [len(draft.token_ids) - v.accepted for draft, v in zip(drafts, verified, strict=True)]
        )
        target_ns = clock() - begun_ns
        yield {
            row.index: dataclasses.replace(
                row.take(draft, one, own), draft_ns=draft_ns, target_ns=target_ns
            )
            for row, draft, one, own in zip(rows, drafts, verified, logits, strict=True)
        }
        begun_ns = clock()
        drafter.learn(rows, logits)
        kept = [place for place, row in enumerate(rows) if not row.finished]
        rows = [rows[place] for place in kept]
        if not rows:
            return
        reader.keep(kept)
        drafter.keep(kept)
        drafts = drafter.draft(rows)
        draft_ns = clock() - begun_ns


def _likeliest(logits: Floats, top: int) -> tuple[Mapping[int, float], ...]:
    """By row of the logits, the log-probabilities of the likeliest tokens, likeliest first."""
    logprobs = torch.from_numpy(logits).double().log_softmax(-1)
    values, ids = logprobs.topk(min(top, logprobs.shape[-1]))
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return tuple(dict(zip(*row, strict=True)) for row in rows)
