"""Decode a batch of jobs with a target and a drafter, step by step.

The first step of an answer reads the prompt and has no drafts. In each later step the target reads
the last token and the drafts after it, verifies the drafts, and rolls back those that it rejects.
A drafter serves the rows of one batch from its start to its end.

In the shapes of arrays, k is the number of drafts of a step, and V the size of the vocabulary.
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
from specreg.engines.pytorch.requests import DecodedStep, Job, Tokenizer
from specreg.engines.pytorch.speculation import NO_DRAFT, Draft, Floats, NGramStore

Model = Any
"""A causal language model of transformers."""


_LEARNT_CANDIDATES = 3
"""How many of the target's likeliest tokens `AdaptiveDrafter` learns at each position."""


class Reader:
    """Several rows of text that a model reads together, with the model's cache.

    Attributes:
        lengths: The number of tokens of each row that the model has read.
    """

    def __init__(self, model: Model, rows: int) -> None:
        self._model = model
        self._device = model.get_input_embeddings().weight.device
        self._cache = DynamicCache()
        # For each row, the columns of the cache that hold one of its tokens, and not padding.
        self._is_held = torch.zeros((rows, 0), dtype=torch.bool)
        self.lengths = [0] * rows

    def read(self, texts: Sequence[Sequence[int]], logits_wanted: Sequence[int]) -> list[Floats]:
        """Read the next ids of each row, and return the logits after the last of them.

        Args:
            texts: The ids of each row; empty for a row that reads nothing in this call. In the
                first call every row reads something.
            logits_wanted: The number of each row's last ids after which logits are returned.

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
            tokens: The number of tokens to roll back for each row, 0 or more.
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
            indices: The indices of the rows to keep, at least one, in ascending order.
        """
        if len(indices) == len(self.lengths):
            return
        self._cache.batch_select_indices(torch.tensor(indices))
        self._is_held = self._is_held[list(indices)]
        self.lengths = [self.lengths[index] for index in indices]


class Row:
    """A job of a batch, and the text decoded for it so far.

    Attributes:
        index: The index of the job in the batch.
        job: The job.
        models: The models that decode it.
        context: The ids of the prompt and of the answer so far.
        random: The random numbers of this row alone, so that other rows don't change its answer.
        is_finished: True after the last step.
    """

    def __init__(self, index: int, job: Job, models: "Models") -> None:
        self.index = index
        self.job = job
        self.models = models
        self.context = list(job.prompt)
        self.random = np.random.default_rng(job.seed)
        self.is_finished = False

    @property
    def max_drafts(self) -> int:
        """The largest number of tokens that the next step may draft: the context must hold them."""
        tokens_left = self.models.context_tokens - len(self.context)
        return min(self.models.draft_tokens, tokens_left)

    def take(self, draft: Draft, verified: speculation.Verified, logits: Floats) -> DecodedStep:
        """Add the verified tokens to the text, and return the step.

        Args:
            draft: The k drafts of the step.
            verified: The number of accepted drafts, and the token after them.
            logits: The logits of the target, of shape [k + 1, V].
        """
        # Find out where the answer ends: at its cap, or at a stop token before it.
        new_ids = (*draft.token_ids[: verified.accepted], verified.next_id)
        answered_tokens = len(self.context) - len(self.job.prompt)
        tokens_left = self.job.output_cap_tokens - answered_tokens
        delivered = new_ids[:tokens_left]
        finish_reason = None
        if len(new_ids) >= tokens_left:
            finish_reason = "length"
        for count, token_id in enumerate(delivered, start=1):
            if token_id in self.models.stop_ids and not self.job.ignore_eos:
                delivered = new_ids[:count]
                finish_reason = "stop"
                break
        # The end of the answer cuts the delivered tokens only. The step counts all accepted drafts,
        # as in vLLM, because acceptance is what the verifier accepts.
        self.context.extend(new_ids)
        self.is_finished = finish_reason is not None
        logprobs: tuple[Mapping[int, float], ...] = ()
        if self.job.top_logprobs is not None:
            logprobs = _likeliest(logits[: len(delivered)], self.job.top_logprobs)
        return DecodedStep(
            token_ids=delivered,
            drafted=len(draft.token_ids),
            accepted=verified.accepted,
            finish_reason=finish_reason,
            logprobs=logprobs,
        )


class Drafter:
    """The base class of drafters. It drafts nothing, which is autoregressive decoding."""

    def draft(self, rows: Sequence[Row]) -> list[Draft]:
        """Return a draft for each row.

        The rows are those of the batch that `keep` has left, in the order of the batch.
        """
        return [NO_DRAFT] * len(rows)

    def learn(self, rows: Sequence[Row], logits: Sequence[Floats]) -> None:
        """Learn from the tokens that a step has added to each row.

        Args:
            rows: The rows, with these tokens.
            logits: The target's logits before each token of the step, of shape [k + 1, V] for
                each row. They include the logits after rejected drafts.
        """

    def keep(self, indices: Sequence[int]) -> None:
        """Keep only some of the rows, given by their indices in ascending order."""


class LookupDrafter(Drafter):
    """Prompt lookup: drafts what followed the same n-gram earlier in the text, without a model."""

    def __init__(self) -> None:
        self._propose = speculation.propose

    def draft(self, rows: Sequence[Row]) -> list[Draft]:
        """Draft the tokens that followed the last tokens of a row at an earlier occurrence."""
        drafts = []
        for row in rows:
            token_ids = self._propose(row.context, row.max_drafts)
            drafts.append(Draft(token_ids=token_ids))
        return drafts


class AdaptiveDrafter(LookupDrafter):
    """An n-gram store that learns each text and the target's likeliest tokens along it.

    Ou et al. 2024 only learn the text. The store outlives the batch: the drafts of a request depend
    on the requests that were answered before it and together with it.
    """

    def __init__(self, store: NGramStore, rows: int) -> None:
        self._store = store
        self._propose = store.propose
        self._learnt_tokens = [0] * rows

    def learn(self, rows: Sequence[Row], logits: Sequence[Floats]) -> None:
        """Learn the prompt in the first step, and what each step adds."""
        for index, (row, row_logits) in enumerate(zip(rows, logits, strict=True)):
            text = row.context
            learnt_tokens = self._learnt_tokens[index]
            # The target computes no logits for the tokens of the prompt.
            first_with_logits = max(learnt_tokens, len(row.job.prompt))
            # Nothing comes before the first token of a text, so it isn't learnt.
            first = max(1, learnt_tokens)
            for position in range(first, len(text)):
                candidates: list[int] = []
                if position >= first_with_logits:
                    position_logits = row_logits[position - first_with_logits]
                    candidates = speculation.likeliest(position_logits, _LEARNT_CANDIDATES)
                start = max(0, position - speculation.LONGEST_RUN_TOKENS)
                # The text's own token comes last, because the last one wins a tie.
                self._store.learn(text[start:position], (*candidates, text[position]))
            self._learnt_tokens[index] = len(text)

    def keep(self, indices: Sequence[int]) -> None:
        """Keep the state of only some of the rows."""
        self._learnt_tokens = [self._learnt_tokens[index] for index in indices]


class ModelDrafter(Drafter):
    """A smaller model that continues the text by itself, at the temperature of the request."""

    def __init__(self, model: Model, rows: int) -> None:
        self._reader = Reader(model, rows)
        self._read_ids: list[list[int]] = [[] for _ in range(rows)]

    def draft(self, rows: Sequence[Row]) -> list[Draft]:
        """Draft the model's next tokens, one after another."""
        # Collect the ids of each row that the model hasn't read yet.
        limits = [row.max_drafts for row in rows]
        self._forget_wrong_tokens(rows)
        unread = []
        for row, read_ids in zip(rows, self._read_ids, strict=True):
            unread.append(row.context[len(read_ids) :])
        # Draft a token of each row in each pass of the model.
        drafted: list[list[int]] = [[] for _ in rows]
        drawn_from: list[list[Floats]] = [[] for _ in rows]
        for depth in range(max(limits)):
            for read_ids, ids in zip(self._read_ids, unread, strict=True):
                read_ids.extend(ids)
            # Only the logits after the last id are needed, and none of a row that reads nothing.
            logits_wanted = [min(1, len(ids)) for ids in unread]
            logits = self._reader.read(unread, logits_wanted)
            for index, row in enumerate(rows):
                if depth >= limits[index]:
                    continue
                next_logits = logits[index][-1]
                if row.job.temperature == 0:
                    drafted[index].append(int(next_logits.argmax()))
                else:
                    q = row.job.sampling.distributions(next_logits)
                    drawn_from[index].append(q)
                    drafted[index].append(speculation.sample(q, row.random))
            # In the next pass each row reads its newest draft, unless that was its last one.
            unread = [[] for _ in rows]
            for index, limit in enumerate(limits):
                if depth + 1 < limit:
                    unread[index] = drafted[index][depth:]
        drafts = []
        for ids, row_distributions in zip(drafted, drawn_from, strict=True):
            # Greedy drafts aren't drawn, so they have no distributions.
            distributions = np.stack(row_distributions) if row_distributions else None
            drafts.append(Draft(token_ids=tuple(ids), distributions=distributions))
        return drafts

    def _forget_wrong_tokens(self, rows: Sequence[Row]) -> None:
        """Roll back the drafts that the model has read and the target has rejected."""
        wrong_tokens = []
        for row, read_ids in zip(rows, self._read_ids, strict=True):
            # The last token is always read again, because the next draft needs the logits after it.
            known_ids = row.context[:-1]
            # A token is right only if all tokens before it are, because the model has read them.
            is_equal = map(int.__eq__, read_ids, known_ids)
            right_tokens = sum(itertools.takewhile(bool, is_equal))
            wrong_tokens.append(len(read_ids) - right_tokens)
            del read_ids[right_tokens:]
        self._reader.forget(wrong_tokens)

    def keep(self, indices: Sequence[int]) -> None:
        """Keep the state of only some of the rows."""
        self._reader.keep(indices)
        self._read_ids = [self._read_ids[index] for index in indices]


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The models that decode, and the limits of decoding with them.

    Attributes:
        target: The model whose text is generated.
        tokenizer: The tokenizer of the target.
        new_drafter: Makes the drafter of a batch, given the batch's number of rows.
        draft_tokens: The largest number of tokens that a step drafts; 0 without speculation.
        stop_ids: The ids of tokens that end a text.
        context_tokens: The largest number of tokens of prompt and answer together.
    """

    target: Model
    tokenizer: Tokenizer
    new_drafter: Callable[[int], Drafter]
    draft_tokens: int
    stop_ids: frozenset[int]
    context_tokens: int


def decode(
    models: Models, jobs: Sequence[Job], clock: Callable[[], int] = time.monotonic_ns
) -> Iterator[Mapping[int, DecodedStep]]:
    """Answer jobs as one batch, and yield the next step of all unfinished answers together.

    Args:
        models: The models that decode.
        jobs: The jobs, at least one.
        clock: Returns the monotonic time in nanoseconds.

    Yields:
        The steps by the index of their job.
    """
    rows = [Row(index, job, models) for index, job in enumerate(jobs)]
    reader = Reader(models.target, len(rows))
    drafter = models.new_drafter(len(rows))
    drafts = [NO_DRAFT] * len(rows)
    draft_ns = 0
    while True:
        # The target reads what it hasn't read yet and the drafts, which are verified.
        start_ns = clock()
        unread = []
        for row, length, draft in zip(rows, reader.lengths, drafts, strict=True):
            unread.append((*row.context[length:], *draft.token_ids))
        # One more than the drafts, for the token after the last accepted one.
        logits_wanted = [len(draft.token_ids) + 1 for draft in drafts]
        logits = reader.read(unread, logits_wanted)
        verified = []
        rejected_tokens = []
        for row, draft, row_logits in zip(rows, drafts, logits, strict=True):
            # `verify` is called by its module's name, so that tests can plant a fault there.
            row_verified = speculation.verify(draft, row_logits, row.job.sampling, row.random)
            verified.append(row_verified)
            rejected_tokens.append(len(draft.token_ids) - row_verified.accepted)
        reader.forget(rejected_tokens)
        # Reading back the logits waits for the device, so the time includes the device's work.
        target_ns = clock() - start_ns

        steps = {}
        for row, draft, row_verified, row_logits in zip(
            rows, drafts, verified, logits, strict=True
        ):
            step = row.take(draft, row_verified, row_logits)
            steps[row.index] = dataclasses.replace(step, draft_ns=draft_ns, target_ns=target_ns)
        yield steps

        # The drafter learns from the step, and drafts for the next step of the rows that go on.
        start_ns = clock()
        drafter.learn(rows, logits)
        unfinished = [number for number, row in enumerate(rows) if not row.is_finished]
        rows = [rows[number] for number in unfinished]
        if not rows:
            return
        reader.keep(unfinished)
        drafter.keep(unfinished)
        drafts = drafter.draft(rows)
        draft_ns = clock() - start_ns


def _likeliest(logits: Floats, count: int) -> tuple[Mapping[int, float], ...]:
    """Return, for each row of the logits, the log-probabilities of the likeliest tokens.

    The likeliest token comes first.
    """
    logprobs = torch.from_numpy(logits).double().log_softmax(-1)
    vocabulary = logprobs.shape[-1]
    values, ids = logprobs.topk(min(count, vocabulary))
    rows = []
    for row_ids, row_values in zip(ids.tolist(), values.tolist(), strict=True):
        rows.append(dict(zip(row_ids, row_values, strict=True)))
    return tuple(rows)
