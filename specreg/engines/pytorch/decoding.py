"""Decode a batch of jobs with a target and a drafter, step by step.

The first step of an answer reads the prompt and has no drafts. In each later step the target reads
the last token and the drafts after it, verifies the drafts, and rolls back those that it rejects.
A drafter serves the rows of one batch from its start to its end.

In the shapes of arrays, k is the number of drafts of a step, and V the size of the vocabulary.
"""

import argparse
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specreg.engines.pytorch import speculation
from specreg.engines.pytorch.models import (
    Model,
    check_models,
    default_device,
    load_model,
    num_parameters,
)
from specreg.engines.pytorch.options import divide_devices
from specreg.engines.pytorch.reader import Reader
from specreg.engines.pytorch.requests import DecodedStep, Job, Tokenizer
from specreg.engines.pytorch.speculation import NO_DRAFT, Draft, FloatArray, NGramStore

_LEARNT_CANDIDATES = 3
"""How many of the target's likeliest tokens `AdaptiveDrafter` learns at each position."""


class Row:
    """A job of a batch, and the text decoded for it so far.

    Attributes:
        index: the index of the job in the batch.
        models: the models that decode it.
        context: the ids of the prompt and of the answer so far.
        random: the random numbers of this row alone, so that other rows don't change its answer.
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

    def take(self, draft: Draft, verified: speculation.Verified, logits: FloatArray) -> DecodedStep:
        """Add the verified tokens to the text, and return the step.

        Args:
            draft: the k drafts of the step.
            verified: the number of accepted drafts, and the token after them.
            logits: the logits of the target, of shape [k + 1, V].
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

    def learn(self, rows: Sequence[Row], logits: Sequence[FloatArray]) -> None:
        """Learn from the tokens that a step has added to each row.

        Args:
            rows: the rows, with these tokens.
            logits: the target's logits before each token of the step, of shape [k + 1, V] for
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

    def learn(self, rows: Sequence[Row], logits: Sequence[FloatArray]) -> None:
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
        drawn_from: list[list[FloatArray]] = [[] for _ in rows]
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
                if row.job.sampling.temperature == 0:
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
        target: the model whose text is generated.
        tokenizer: the tokenizer of the target.
        new_drafter: makes the drafter of a batch, given the batch's number of rows.
        draft_tokens: the largest number of tokens that a step drafts; 0 without speculation.
        stop_ids: the ids of tokens that end a text.
        context_tokens: the largest number of tokens of prompt and answer together.
    """

    target: Model
    tokenizer: Tokenizer
    new_drafter: Callable[[int], Drafter]
    draft_tokens: int
    stop_ids: frozenset[int]
    context_tokens: int


def load_models(options: argparse.Namespace) -> Models:
    """Load the models that a command line names, ready to decode.

    Raises:
        ModelError: a model can't be loaded, or target and draft don't fit together.
        UnsupportedError: a model's cache can't be rolled back, or the devices can't be divided.
    """
    draft_name = options.draft_model

    # Check the models by their configurations first, because reading weights takes long.
    tokenizer = check_models(options.model, draft_name, options.context_tokens)
    target_devices = draft_devices = options.device or (default_device(),)
    draft = None
    if draft_name is not None:
        target_devices, draft_devices = divide_devices(
            target_devices,
            options.placement,
            options.gpu_ratio,
            lambda: (num_parameters(options.model), num_parameters(draft_name)),
        )

    target = load_model(options.model, options.dtype, *target_devices)
    if draft_name is not None:
        draft = load_model(draft_name, options.dtype, *draft_devices)

    # The store belongs to the server: each batch adds to it.
    store = NGramStore()
    drafters: Mapping[str, Callable[[int], Drafter]] = {
        "none": lambda _: Drafter(),
        "ngram": lambda _: LookupDrafter(),
        "ngram_adaptive": lambda rows: AdaptiveDrafter(store, rows),
        "draft_model": lambda rows: ModelDrafter(draft, rows),
    }
    draft_tokens = options.draft_tokens
    if options.method == "none":
        draft_tokens = 0
    return Models(
        target=target,
        tokenizer=tokenizer,
        new_drafter=drafters[options.method],
        draft_tokens=draft_tokens,
        stop_ids=_stop_ids(target, tokenizer),
        context_tokens=options.context_tokens,
    )


def _stop_ids(target: Model, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the token ids that end a text, by the tokenizer and by the generation config."""
    stop_ids = {tokenizer.eos_token_id}

    # A generation config names one token, several or none.
    configured = target.generation_config.eos_token_id
    if isinstance(configured, list):
        stop_ids.update(configured)
    else:
        stop_ids.add(configured)

    return frozenset(stop_ids - {None})


def decode(
    models: Models, jobs: Sequence[Job], clock: Callable[[], int] = time.monotonic_ns
) -> Iterator[Mapping[int, DecodedStep]]:
    """Answer jobs as one batch, and yield the next step of all unfinished answers together.

    Args:
        models: the models that decode.
        jobs: the jobs, at least one.
        clock: returns the monotonic time in nanoseconds.

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


def _likeliest(logits: FloatArray, count: int) -> tuple[Mapping[int, float], ...]:
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
