"""Published figures: acceptance from papers and tables, the last thing to compare with.

`baselines/published/<name>.json`, one figure each with its source. Acceptance hardly depends on the
machine; a speedup does, and is shown beside the measured one, never judged.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from specreg.core.errors import BaselineError
from specreg.core.files import UNREADABLE
from specreg.matrix.case import Case

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_SUM_WITHIN_TOKENS = 0.02
"""How far AL may lie from 1 + Σ of the positions: both are published rounded."""


class PublishedFigure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file.

    Attributes:
        source: a URL or a file, with what it is.
        conditions: in a sentence: prompts, sampling, cap, machine.
        method: of METHODS; target, draft: hub ids, `draft` None where the method needs none.
        dataset: the name of the prompt set.
        draft_tokens: tokens drafted per step (k).
        temperature: 0 is greedy; None where it isn't said, which a speedup alone may leave open.
        acceptance_length_tokens: AL = 1 + A / S, 1..k + 1; None where it isn't said.
        acceptance_rate_frac: AR = A / D, 0..1; None where it isn't said.
        position_frac: marginal acceptance P_i / S by position, each 0..1; k of them or none.
        tolerance_frac: the change of AL that the source itself still calls fine, relative to AL.
        turns, output_cap_tokens: of a conversation and a reply; None where the figure is for any.
        speedup_ratio: tokens/s with drafts by those without; None where it isn't said.
        engine, concurrency: of which it is, and of so many requests at once; a speedup has both.
    """

    schema_version: Literal[1]
    source: _Text
    conditions: _Text
    method: _Text
    target: _Text
    draft: str | None
    dataset: _Text
    draft_tokens: Annotated[int, msgspec.Meta(ge=1)]
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None
    acceptance_length_tokens: Annotated[float, msgspec.Meta(ge=1)] | None
    acceptance_rate_frac: _Share | None
    position_frac: tuple[_Share, ...]
    tolerance_frac: _Share | None
    turns: int | None = None
    output_cap_tokens: int | None = None
    speedup_ratio: Annotated[float, msgspec.Meta(gt=0)] | None = None
    engine: str | None = None
    concurrency: int | None = None

    @property
    def has_acceptance(self) -> bool:
        """Whether it holds something to judge by, not a speedup alone."""
        figures = (self.acceptance_length_tokens, self.acceptance_rate_frac, *self.position_frac)
        return any(one is not None for one in figures)

    def value(self, metric_name: str) -> float | None:
        """The figure of a metric, which has its name; None where it wasn't published."""
        figures = {f"acceptance_pos{n}_frac": one for n, one in enumerate(self.position_frac, 1)}
        return figures.get(metric_name, getattr(self, metric_name, None))


def load_published(folder: Path) -> tuple[PublishedFigure, ...]:
    """All published figures below a folder of baselines, in the order of their names.

    Raises:
        BaselineError: one of them can't be read, or can't be true.
    """
    return tuple(_load(path) for path in sorted((folder / "published").glob("*.json")))


def published_for(case: Case, published: Iterable[PublishedFigure]) -> PublishedFigure | None:
    """The first figure of the same models, settings and load; with acceptance where one has it."""
    ours = (one for one in published if _is_of(one, case))
    return max(ours, key=lambda one: one.has_acceptance, default=None)


def _is_of(one: PublishedFigure, case: Case) -> bool:
    server = case.server
    told = (one.method, one.target, one.draft, one.draft_tokens, one.dataset)
    wanted = (server.method, server.target, server.draft, server.draft_tokens)
    return (
        told == (*wanted, case.dataset)
        and server.tree is None  # a figure doesn't say how the drafts branched
        and one.temperature in {None, case.temperature}
        and one.turns in {None, case.turns}
        and one.output_cap_tokens in {None, case.output_cap_tokens}
        and one.engine in {None, server.engine}
        and one.concurrency in {None, case.load.concurrency}
    )


def _contradictions(published: PublishedFigure) -> Iterator[str]:
    """Say what can't be true of a figure, got and needed."""
    length, positions = published.acceptance_length_tokens, published.position_frac
    most = published.draft_tokens
    if published.speedup_ratio is not None and not (published.engine and published.concurrency):
        yield "a speedup without engine and concurrency, needed both"
    if published.has_acceptance and published.temperature is None:
        yield "acceptance without temperature, which it depends on"
    if not (published.has_acceptance or published.speedup_ratio):
        yield "no figure at all, needed a length, a rate, positions or a speedup"
    if positions and len(positions) != most:
        yield f"{len(positions)} positions, needed none or draft_tokens = {most}"
    if length is not None and length > most + 1:
        yield f"acceptance_length_tokens = {length}, needed 1 to {most + 1}"
    if length and positions and abs(1 + sum(positions) - length) > _SUM_WITHIN_TOKENS:
        implied = 1 + sum(positions)
        yield f"acceptance_length_tokens = {length}, by its positions it is {implied:.3f}"


def _load(path: Path) -> PublishedFigure:
    subject, advice = f"published figure '{path}'", "restore it with git, or remove it"
    try:
        published = msgspec.json.decode(path.read_bytes(), type=PublishedFigure)
    except (OSError, *UNREADABLE) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BaselineError(f"{subject}: {why}; {advice}") from error
    for wrong in _contradictions(published):
        raise BaselineError(f"{subject}: {wrong}; {advice}")
    return published
