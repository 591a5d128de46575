"""The speculative methods, a row each; how an engine spells one stands in the engine's file.

The engines whose `methods` name a method are those that support it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import msgspec
from packaging.version import InvalidVersion, Version

Setting = str | int | float

DRAFT = "{draft}"
"""Stands for the folder or hub id of the draft model or head."""
DRAFT_TOKENS = "{draft_tokens}"
"""Stands for the number of tokens drafted per step."""
VERIFIED_TOKENS = "{verified_tokens}"
"""Stands for one more: all drafts of a step, and the token that they continue."""
BRANCHES = "{branches}"
"""Stands for the branches of a tree."""


class Tree(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the drafts of a step branch, where they are no single continuation.

    Attributes:
        branches: how many continuations each token of a branch that lives on is given, and how
            many branches live on from one depth to the next; 2 or more.
        drafted_tokens: all drafts of a step, D / S: the likeliest of those continuations.
    """

    branches: Annotated[int, msgspec.Meta(ge=2)]
    drafted_tokens: Annotated[int, msgspec.Meta(ge=1)]

    def most_tokens(self, depth_tokens: int) -> int:
        """How many continuations there are to choose the drafts from: t + (s - 1) · t².

        Args:
            depth_tokens: s, the most drafts that a step can accept.
        """
        return self.branches + (depth_tokens - 1) * self.branches**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A word that an engine spells otherwise since a version of it."""

    before: str
    since: str
    after: str

    def of(self, version: str) -> str:
        """The word of a version."""
        return self.before if is_older(version, self.since) else self.after


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How an engine has a method.

    Attributes:
        settings: the speculation settings as the engine names them; empty for `none`.
        packages: what the method needs beside the engine.
        learns: whether it drafts from what it has served to others before, so that what it accepts
            depends on that.
        since: the first version that has the method and tells what it accepts; empty where the
            oldest that is tested had it.
        until: the version that lost it, empty where it still has it.
    """

    settings: Mapping[str, Setting | Renamed]
    packages: tuple[str, ...] = ()
    learns: bool = False
    since: str = ""
    until: str = ""

    def render(
        self, draft: str | None, draft_tokens: int, tree: Tree | None = None, version: str = ""
    ) -> dict[str, Setting]:
        """Fill in the settings for a version of the engine.

        Args:
            draft: the draft model or head, None where the method needs none.
            draft_tokens: the most drafts that a step can accept.
            tree: how they branch, None for one continuation.
            version: of the engine, "" for the newest.
        """
        known: Mapping[Setting, Setting] = {
            DRAFT: draft or "",
            DRAFT_TOKENS: draft_tokens,
            VERIFIED_TOKENS: (tree.drafted_tokens if tree else draft_tokens) + 1,
            **({BRANCHES: tree.branches} if tree else {}),
        }
        return {
            key: value.of(version) if isinstance(value, Renamed) else known.get(value, value)
            for key, value in self.settings.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to speculate.

    Attributes:
        name: what users write, and part of a case's id.
        needs_draft: whether a model pair must name a draft model or head for it.
        drafts_every_step: False where a step may go without a draft (nothing found to look up);
            such steps aren't among the counted ones.
        drafts_trees: whether the drafts of a step branch.
    """

    name: str
    needs_draft: bool = False
    drafts_every_step: bool = True
    drafts_trees: bool = False


def is_older(version: str, than: str) -> bool:
    """Whether a version comes before another; one that can't be told is taken for a new one."""
    try:
        return Version(version) < Version(than)
    except InvalidVersion:
        return False


_ROWS = (
    Method(name="none"),
    Method(name="ngram", drafts_every_step=False),
    Method(name="suffix", drafts_every_step=False),
    Method(name="draft_model", needs_draft=True),
    Method(name="eagle", needs_draft=True),
    Method(name="eagle3", needs_draft=True),
    # The same drafters, whose drafts branch.
    Method(name="draft_model_tree", needs_draft=True, drafts_trees=True),
    Method(name="eagle_tree", needs_draft=True, drafts_trees=True),
    Method(name="eagle3_tree", needs_draft=True, drafts_trees=True),
    Method(name="medusa", needs_draft=True),
    Method(name="mtp"),  # the target's own layers draft
    Method(name="dflash", needs_draft=True),
    # A step verifies up to max_verification_set_size n-grams of k, or none: D is unknown.
    Method(name="lookahead", drafts_every_step=False),
    # A drafter of one's own: `module.Class`, on the PYTHONPATH of the server.
    Method(name="custom_class", needs_draft=True, drafts_every_step=False),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _ROWS})
