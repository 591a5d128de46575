"""The speculative methods, a row each; how an engine spells one stands in the engine's file.

The engines whose `methods` name a method are those that support it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import msgspec
from packaging.version import InvalidVersion, Version

SCHEDULED = "scheduled"
Scalar = str | int | float | bool
Setting = Scalar | tuple[Scalar | tuple[Scalar, ...], ...]
"""A value of an engine's speculative configuration."""

# They stand for the folder or hub id of the draft model or head, the number of tokens drafted per
# step, all of these and the token that they continue, and the branches of a tree.
DRAFT = "{draft}"
DRAFT_TOKENS = "{draft_tokens}"
VERIFIED_TOKENS = "{verified_tokens}"
BRANCHES = "{branches}"


class Tree(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the drafts of a step branch, where they are no single continuation.

    Attributes:
        branches: how many continuations each token of a surviving branch gets, and how many
            branches survive from one depth to the next.
        drafted_tokens: all drafts of a step: the likeliest of those continuations.
    """

    branches: Annotated[int, msgspec.Meta(ge=2)]
    drafted_tokens: Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How an engine has a method.

    Attributes:
        settings: the speculation settings as the engine names them; empty for `none`.
        packages: what the method needs beside the engine.
        learns: whether it drafts from what it has served to others before, so that what it accepts
            depends on that.
        until: the first version of the engine that has the method no more; empty for none.
    """

    settings: Mapping[str, Setting]
    packages: tuple[str, ...] = ()
    learns: bool = False
    until: str = ""

    def is_in(self, version: str) -> bool:
        """Return whether a version of the engine still has the method; an unknown one has."""
        return not version or not self.until or is_older(version, self.until)

    def render(
        self, draft: str | None, draft_tokens: int, tree: Tree | None = None
    ) -> dict[str, Setting]:
        """Fill in the settings; a step can accept `draft_tokens` at most, of a tree its depth."""
        drafted_tokens = tree.drafted_tokens if tree else draft_tokens
        known: dict[Setting, Setting] = {
            DRAFT: draft or "",
            DRAFT_TOKENS: draft_tokens,
            VERIFIED_TOKENS: drafted_tokens + 1,
        }
        if tree:
            known[BRANCHES] = tree.branches
        return {key: known.get(value, value) for key, value in self.settings.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to speculate.

    Attributes:
        needs_draft: whether a model pair must name a draft model or head for it.
        drafts_every_step: False where a step may go without a draft (nothing found to look up);
            such steps aren't among the counted ones.
        drafts_trees: whether the drafts of a step branch.
    """

    needs_draft: bool = False
    drafts_every_step: bool = True
    drafts_trees: bool = False


def is_older(version: str, than: str) -> bool:
    """Return True if a version comes before another.

    A version that can't be read is taken for a new one, and so is `0.1.dev…`, which is what a
    checkout without tags calls itself.
    """
    try:
        return Version(version) < Version(than) and not version.startswith("0.1.dev")
    except InvalidVersion:
        return False


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "none": Method(),
        "ngram": Method(drafts_every_step=False),
        "ngram_adaptive": Method(drafts_every_step=False),
        "suffix": Method(drafts_every_step=False),
        "draft_model": Method(needs_draft=True),
        "eagle": Method(needs_draft=True),
        "eagle3": Method(needs_draft=True),
        # The same drafters, whose drafts branch.
        "draft_model_tree": Method(needs_draft=True, drafts_trees=True),
        "eagle_tree": Method(needs_draft=True, drafts_trees=True),
        "eagle3_tree": Method(needs_draft=True, drafts_trees=True),
        "medusa": Method(needs_draft=True),
        "mtp": Method(),  # the target's own layers draft
        # An MTP model of its own, which reads the target's keys and values and writes none.
        "frozen_kv_mtp": Method(needs_draft=True),
        # A layer for each drafted token, instead of one layer that goes over itself.
        "multi_layer_eagle": Method(needs_draft=True),
        # A draft model and a head that draft all tokens of a step in one pass.
        "pard": Method(needs_draft=True),
        "p_eagle": Method(needs_draft=True),
        "dflash": Method(needs_draft=True),
        # Drafts as DFlash does, and then corrects each token by the one before it. A step may have
        # fewer drafts than asked for where its confidence is low.
        "dspark": Method(needs_draft=True),
        # A draft model with another vocabulary: it drafts tokens that both models have.
        "draft_model_tli": Method(needs_draft=True),
        # What the text itself repeats, looked up in a suffix automaton.
        "suffix_automaton": Method(drafts_every_step=False),
        # A drafter of one's own: `module.Class`, on the PYTHONPATH of the server.
        "custom_class": Method(needs_draft=True, drafts_every_step=False),
        # specreg's own of these, for an engine that can't pin the acceptance of others.
        SCHEDULED: Method(),
    }
)
"""By name, which users write and which is part of a case's id."""
