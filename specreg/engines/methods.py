"""The table of speculative methods.

The file of an engine says which methods the engine supports, and with which settings. The section
"A method" of CONTRIBUTING.md lists all that a new method needs.
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

DRAFT = "{draft}"
"""In a setting, it stands for the folder or hub id of the draft model or head."""
DRAFT_TOKENS = "{draft_tokens}"
"""In a setting, it stands for the largest number of drafts that a step can accept: the number of
tokens that it drafts, or the depth of a tree."""
VERIFIED_TOKENS = "{verified_tokens}"
"""In a setting, it stands for the number of tokens that the target verifies in a step: all drafts,
and the token that they continue."""
BRANCHES = "{branches}"
"""In a setting, it stands for the branches of a tree."""


class Tree(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the drafts of a step branch.

    Attributes:
        branches: how many continuations each token of a surviving branch gets, and how many
            branches survive from one depth to the next.
        drafted_tokens: how many drafts a step has in all: the likeliest of those continuations.
    """

    branches: Annotated[int, msgspec.Meta(ge=2)]
    drafted_tokens: Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """The settings with which an engine uses a method, and what the method needs.

    Attributes:
        settings: the speculative settings by the engine's names; empty for `none`. A placeholder
            such as `DRAFT` stands for a value of the case.
        packages: the packages that the method needs in addition to the engine.
        learns: True if the method drafts from texts that the server has generated before, so that
            the acceptance depends on them.
        since: the first version of the engine with the method; empty if all have it.
        until: the first version of the engine without the method; empty if all have it.
    """

    settings: Mapping[str, Setting]
    packages: tuple[str, ...] = ()
    learns: bool = False
    since: str = ""
    until: str = ""

    def is_in(self, version: str) -> bool:
        """Return whether a version of the engine has the method; True if the version is unknown."""
        if not version:
            return True
        is_too_old = bool(self.since) and is_older(version, self.since)
        return not is_too_old and (not self.until or is_older(version, self.until))

    def render(
        self, draft: str | None, draft_tokens: int, tree: Tree | None = None
    ) -> dict[str, Setting]:
        """Return the settings with the values of a case.

        Args:
            draft: the folder or hub id of the draft model or head; None without one.
            draft_tokens: the largest number of drafts that a step can accept; the depth of a tree.
            tree: how the drafts branch; None if they don't.
        """
        # Without a tree `BRANCHES` needs no value, because only methods with trees have it.
        drafted_tokens = draft_tokens
        values: dict[Setting, Setting] = {DRAFT: draft or "", DRAFT_TOKENS: draft_tokens}
        if tree is not None:
            drafted_tokens = tree.drafted_tokens
            values[BRANCHES] = tree.branches

        # The token that the drafts continue counts too.
        values[VERIFIED_TOKENS] = drafted_tokens + 1
        return {key: values.get(value, value) for key, value in self.settings.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A speculative method.

    Attributes:
        needs_draft: True if a model pair must name a draft model or head for it.
        drafts_every_step: False if a step may find nothing to draft. Such steps aren't counted,
            unless the engine pads them; see `Engine.drafts_every_step`.
        drafts_trees: True if the drafts of a step branch.
    """

    needs_draft: bool = False
    drafts_every_step: bool = True
    drafts_trees: bool = False


def is_older(version: str, than: str) -> bool:
    """Return whether a version comes before another.

    A version that can't be read counts as new. So does `0.1.dev…`, the version of a checkout
    without tags.
    """
    if version.startswith("0.1.dev"):
        return False
    try:
        return Version(version) < Version(than)
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
        # The same drafters with drafts that branch.
        "draft_model_tree": Method(needs_draft=True, drafts_trees=True),
        "eagle_tree": Method(needs_draft=True, drafts_trees=True),
        "eagle3_tree": Method(needs_draft=True, drafts_trees=True),
        "medusa": Method(needs_draft=True),
        # Layers of the target itself draft.
        "mtp": Method(),
        # A separate MTP model, which reads the target's keys and values and writes none.
        "frozen_kv_mtp": Method(needs_draft=True),
        # A layer for each drafted token, instead of one layer that is run for each of them.
        "multi_layer_eagle": Method(needs_draft=True),
        # A draft model, a head and a diffusion head that draft all tokens of a step in one pass.
        "pard": Method(needs_draft=True),
        "p_eagle": Method(needs_draft=True),
        "dflash": Method(needs_draft=True),
        # DFlash with a convolution and a choice among candidates, and DFlash with a refiner.
        "dflash2": Method(needs_draft=True),
        "xpress": Method(needs_draft=True),
        # Like DFlash, but each token is then corrected by the one before it. A step may have fewer
        # drafts than requested, if the head's confidence is low.
        "dspark": Method(needs_draft=True),
        # A draft model with another vocabulary. It drafts tokens that both models have.
        "draft_model_tli": Method(needs_draft=True),
        # Repetitions within the text, which a suffix automaton finds.
        "suffix_automaton": Method(drafts_every_step=False),
        # The user's own drafter, `module.Class`, on the PYTHONPATH of the server.
        "custom_class": Method(needs_draft=True, drafts_every_step=False),
        # specreg's drafter of that kind, for engines that can't pin other methods' acceptance.
        SCHEDULED: Method(),
    }
)
"""The methods by name. Users write the name, and it is part of a case's id."""
