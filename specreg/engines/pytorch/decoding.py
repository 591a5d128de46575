"""Decoding: models and prompts in, the steps of their answers out.

The first step of an answer reads the prompt and drafts nothing. Each later one reads the token
before it and what was drafted after that, verifies, and forgets what wasn't accepted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from specreg.engines.pytorch import verifying
from specreg.engines.pytorch.drafting import NewDrafter
from specreg.engines.pytorch.jobs import Job, Step
from specreg.engines.pytorch.reading import Model, Reader
from specreg.engines.pytorch.verifying import NO_DRAFT, Draft, Floats, Verified


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What decodes.

    Attributes:
        target: the model whose answers they are.
        new_drafter: makes what drafts for it.
        stop_ids: the ids that end a text.
        context_tokens: how many tokens prompt and answer may have together.
    """

    target: Model
    new_drafter: NewDrafter
    stop_ids: frozenset[int]
    context_tokens: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Row:
    """A job on its way; see `specreg.engines.pytorch.drafting.Row`."""

    index: int
    job: Job
    models: Models
    context: list[int]
    random: np.random.Generator
    unread: Sequence[int] = field(default_factory=tuple)
    finished: bool = False

    @property
    def temperature(self) -> float:
        return self.job.temperature

    @property
    def room_tokens(self) -> int:
        return self.models.context_tokens - len(self.context)

    def take(self, draft: Draft, verified: Verified, logits: Floats) -> Step:
        """Goes on by what was verified; logits of shape [k + 1, V]."""
        new = (*draft.token_ids[: verified.accepted], verified.next_id)
        self.unread = (verified.next_id,)
        delivered, finish_reason = self._cut(new)
        self.context.extend(new)
        self.finished = finish_reason is not None
        return Step(
            token_ids=delivered,
            drafted=len(draft.token_ids),
            accepted=verified.accepted,
            finish_reason=finish_reason,
            logprobs=() if self.job.top is None else _likeliest(logits, delivered, self.job.top),
        )

    def _cut(self, new: tuple[int, ...]) -> tuple[tuple[int, ...], str | None]:
        """The new tokens up to the answer's end, and why it ends, if it does."""
        left = self.job.output_cap_tokens - (len(self.context) - len(self.job.prompt))
        for count, token_id in enumerate(new[:left], start=1):
            if token_id in self.models.stop_ids and not self.job.ignore_eos:
                return new[:count], "stop"
        return new[:left], "length" if len(new) >= left else None


def decode(
    models: Models, jobs: Sequence[Job], wanted: Callable[[int], bool] = lambda _: True
) -> Iterator[Mapping[int, Step]]:
    """Answers jobs as one batch.

    Args:
        models: what decodes.
        jobs: one at least.
        wanted: whether a job, by its place, is still of interest; asked after each step.

    Yields:
        One step of each job that isn't finished, by its place in `jobs`.
    """
    rows = [
        _Row(
            index=index,
            job=job,
            models=models,
            context=list(job.prompt),
            random=np.random.default_rng(job.seed),
            unread=job.prompt,
        )
        for index, job in enumerate(jobs)
    ]
    reader, drafter = Reader(models.target, len(rows)), models.new_drafter(len(rows))
    drafts = [NO_DRAFT] * len(rows)
    while True:
        yield _step(reader, rows, drafts)
        kept = [place for place, row in enumerate(rows) if not row.finished and wanted(row.index)]
        rows = [rows[place] for place in kept]
        if not rows:
            return
        reader.keep(kept)
        drafter.keep(kept)
        drafts = drafter.draft(rows)


def _step(reader: Reader, rows: Sequence[_Row], drafts: Sequence[Draft]) -> dict[int, Step]:
    logits = reader.read(
        [(*row.unread, *draft.token_ids) for row, draft in zip(rows, drafts, strict=True)],
        [len(draft.token_ids) + 1 for draft in drafts],
    )
    verified = [
        # By the module's name, so that a fault can be planted there.
        verifying.verify(draft, own, row.temperature, row.random)
        for row, draft, own in zip(rows, drafts, logits, strict=True)
    ]
    reader.forget(
        [len(draft.token_ids) - one.accepted for draft, one in zip(drafts, verified, strict=True)]
    )
    return {
        row.index: row.take(draft, one, own)
        for row, draft, one, own in zip(rows, drafts, verified, logits, strict=True)
    }


def _likeliest(
    logits: Floats, token_ids: Sequence[int], top: int
) -> tuple[Mapping[int, float], ...]:
    """See `Step.logprobs`."""
    found = []
    for row, token_id in zip(logits, token_ids, strict=False):
        exact = row.astype(np.float64)
        logprobs = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
        ids = logprobs.argsort()[::-1][:top].tolist()
        chosen = ids if token_id in ids else [*ids, token_id]
        found.append({one: float(logprobs[one]) for one in chosen})
    return tuple(found)
