"""The speculative methods, one row each: whether it needs a draft and how each engine spells it.

The engines that a row names are the engines that support the method; no engine's file names one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from specreg.errors import UnknownNameError

Setting = str | int | float

DRAFT = "{draft}"
"""Stands for the folder or hub id of the draft model or head."""
DRAFT_TOKENS = "{draft_tokens}"
"""Stands for the number of tokens drafted per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to speculate.

    Attributes:
        name: what users write, and part of a case's id.
        needs_draft: whether a model pair must name a draft model or head for it.
        drafts_every_step: False where a step may go without a draft (nothing found to look up);
            such steps aren't among the counted ones.
        spelling: by engine, the speculation settings as that engine names them; empty for `none`.
    """

    name: str
    needs_draft: bool
    drafts_every_step: bool = True
    spelling: Mapping[str, Mapping[str, Setting]]

    def settings(self, engine: str, draft: str | None, draft_tokens: int) -> dict[str, Setting]:
        """This method's settings in the words of `engine`.

        Raises:
            UnknownNameError: the engine doesn't support the method.
        """
        if engine not in self.spelling:
            raise UnknownNameError(f"engine for method '{self.name}'", engine, self.spelling)
        known: Mapping[Setting, Setting] = {DRAFT: draft or "", DRAFT_TOKENS: draft_tokens}
        return {key: known.get(value, value) for key, value in self.spelling[engine].items()}


_ROWS = (
    Method(name="none", needs_draft=False, spelling={"vllm": {}}),
    Method(
        name="ngram",
        needs_draft=False,
        drafts_every_step=False,
        spelling={
            "vllm": {
                "method": "ngram",
                "num_speculative_tokens": DRAFT_TOKENS,
                "prompt_lookup_max": 4,
                "prompt_lookup_min": 2,
            }
        },
    ),
    Method(
        name="draft_model",
        needs_draft=True,
        spelling={
            "vllm": {
                "method": "draft_model",
                "model": DRAFT,
                "num_speculative_tokens": DRAFT_TOKENS,
            }
        },
    ),
    Method(
        name="eagle3",
        needs_draft=True,
        spelling={
            "vllm": {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": DRAFT_TOKENS}
        },
    ),
    Method(
        # A drafter of one's own: `module.Class`, on the PYTHONPATH of the server.
        name="custom_class",
        needs_draft=True,
        drafts_every_step=False,
        spelling={
            "vllm": {
                "method": "custom_class",
                "model": DRAFT,
                "num_speculative_tokens": DRAFT_TOKENS,
            }
        },
    ),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _ROWS})
