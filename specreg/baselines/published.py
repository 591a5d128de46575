"""Published figures: acceptance that somebody wrote down, the last thing to compare with.

`baselines/published/<name>.json`, one figure each with its source. Acceptance hardly depends on the
machine; speed does, so there is none here.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from specreg.core.errors import BaselineError
from specreg.core.files import UNREADABLE
from specreg.matrix.case import Case

_SCHEMA_VERSION = 1
_SUM_WITHIN_TOKENS = 0.02
"""How far AL may lie from 1 + Σ of the positions: both are published rounded."""


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file.

    Attributes:
        schema_version: of this form.
        source: a URL or a file, with what it is.
        conditions: in a sentence: prompts, sampling, cap, machine.
        method: of METHODS; target, draft: hub ids, `draft` None where the method needs none.
        dataset: the name of the prompt set.
        draft_tokens: tokens drafted per step (k).
        temperature: 0 is greedy.
        acceptance_length_tokens: AL = 1 + A / S, 1..k + 1; None where nobody said.
        acceptance_rate_frac: AR = A / D, 0..1; None where nobody said.
        position_frac: marginal acceptance P_i / S by position, each 0..1; k of them or none.
        tolerance_frac: the change of AL that the source itself still calls fine, relative to AL.
        turns, output_cap_tokens: of a conversation and a reply; None where the figure is for any.
    """

    schema_version: int
    source: str
    conditions: str
    method: str
    target: str
    draft: str | None
    dataset: str
    draft_tokens: int
    temperature: float
    acceptance_length_tokens: float | None
    acceptance_rate_frac: float | None
    position_frac: tuple[float, ...]
    tolerance_frac: float | None
    turns: int | None = None
    output_cap_tokens: int | None = None

    def value(self, metric_name: str) -> float | None:
        """The figure of a metric, None where nobody published it."""
        figures = {
            "acceptance_length_tokens": self.acceptance_length_tokens,
            "acceptance_rate_frac": self.acceptance_rate_frac,
        }
        for number, figure in enumerate(self.position_frac, start=1):
            figures[f"acceptance_pos{number}_frac"] = figure
        return figures.get(metric_name)


def load_published(folder: Path) -> tuple[Published, ...]:
    """All published figures below a folder of baselines, in the order of their names.

    Raises:
        BaselineError: one of them can't be read, or can't be true.
    """
    return tuple(_load(path) for path in sorted((folder / "published").glob("*.json")))


def published_for(case: Case, published: Iterable[Published]) -> Published | None:
    """The first figure of the same models, method, k, prompts, sampling, turns and cap."""
    return next((one for one in published if _is_of(one, case)), None)


def _is_of(one: Published, case: Case) -> bool:
    server = case.server
    told = (one.method, one.target, one.draft, one.draft_tokens, one.dataset, one.temperature)
    wanted = (server.method, server.target, server.draft, server.draft_tokens)
    return (
        told == (*wanted, case.dataset, case.temperature)
        and server.tree is None  # a figure doesn't say how the drafts branched
        and one.turns in {None, case.turns}
        and one.output_cap_tokens in {None, case.output_cap_tokens}
    )


def _contradiction(published: Published) -> str | None:
    """What can't be true of a figure, got and needed; None when it hangs together."""
    return next(itertools.chain(_out_of_range(published), _at_odds(published)), None)


def _out_of_range(published: Published) -> Iterator[str]:
    for name in ("source", "conditions", "method", "target", "dataset"):
        if not getattr(published, name):
            yield f"{name} is empty"
    most = published.draft_tokens
    for name, got, least, greatest in (
        ("schema_version", published.schema_version, _SCHEMA_VERSION, _SCHEMA_VERSION),
        ("draft_tokens", most, 1, math.inf),
        ("temperature", published.temperature, 0, math.inf),
        ("acceptance_length_tokens", published.acceptance_length_tokens, 1, most + 1),
        ("acceptance_rate_frac", published.acceptance_rate_frac, 0, 1),
        ("tolerance_frac", published.tolerance_frac, 0, 1),
        *(("position_frac", share, 0, 1) for share in published.position_frac),
    ):
        if got is not None and not least <= got <= greatest:
            yield f"{name} = {got}, needed {least} to {greatest}"


def _at_odds(published: Published) -> Iterator[str]:
    length, rate = published.acceptance_length_tokens, published.acceptance_rate_frac
    positions, most = published.position_frac, published.draft_tokens
    if length is None and rate is None and not positions:
        yield "no acceptance at all, needed a length, a rate or positions"
    if positions and len(positions) != most:
        yield f"{len(positions)} positions, needed none or draft_tokens = {most}"
    if any(later > earlier for earlier, later in itertools.pairwise(positions)):
        yield f"position_frac = {list(positions)} rises, needed the share of steps that got so far"
    if length is None:
        return
    implied, least = 1 + sum(positions), (length - 1) / most
    if positions and abs(implied - length) > _SUM_WITHIN_TOKENS:
        yield f"acceptance_length_tokens = {length}, by its positions it is {implied:.3f}"
    if rate is not None and rate < least - _SUM_WITHIN_TOKENS / most:
        yield f"acceptance_rate_frac = {rate}, at a length of {length} it is {least:.3f} or more"


def _load(path: Path) -> Published:
    advice = "restore it with git, or remove it"
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Version).schema_version
        if version != _SCHEMA_VERSION:
            message = f"schema version {version}, this specreg reads {_SCHEMA_VERSION}"
            raise BaselineError(f"published figure '{path}': {message}; {advice}")
        published = msgspec.json.decode(content, type=Published)
    except OSError as error:
        raise BaselineError(f"published figure '{path}': {error.strerror}; {advice}") from error
    except UNREADABLE as error:
        raise BaselineError(f"published figure '{path}': {error}; {advice}") from error
    if wrong := _contradiction(published):
        raise BaselineError(f"published figure '{path}': {wrong}; {advice}")
    return published


class _Version(msgspec.Struct, frozen=True):
    schema_version: int
