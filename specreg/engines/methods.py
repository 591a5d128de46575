"""The speculative methods, one row each: whether it needs a draft and how each engine spells it.

The engines that a row names are the engines that support the method; no engine's file names one.
Those that a row's comment calls untried were read in the engine's documentation or source.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

import msgspec
from packaging.version import InvalidVersion, Version

from specreg.core.errors import UnknownNameError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to speculate.

    Attributes:
        name: what users write, and part of a case's id.
        needs_draft: whether a model pair must name a draft model or head for it.
        drafts_every_step: False where a step may go without a draft (nothing found to look up);
            such steps aren't among the counted ones.
        spelling: by engine, the speculation settings as that engine names them; empty for `none`.
        packages: by engine, what the method needs beside the engine.
        learns_on: the engines on which it drafts from what it has served to others before, so that
            what it accepts depends on that.
        since: by engine, its first version that has the method and tells what it accepts; one that
            isn't there had it in the oldest that is tested.
        until: by engine, the version that lost it; one that isn't there still has it.
    """

    name: str
    needs_draft: bool = False
    drafts_every_step: bool = True
    spelling: Mapping[str, Mapping[str, Setting | Renamed]]
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    learns_on: AbstractSet[str] = frozenset()
    since: Mapping[str, str] = field(default_factory=dict)
    until: Mapping[str, str] = field(default_factory=dict)

    @property
    def drafts_trees(self) -> bool:
        """Whether the drafts of a step branch."""
        return any(BRANCHES in words.values() for words in self.spelling.values())

    def settings(
        self,
        engine: str,
        draft: str | None,
        draft_tokens: int,
        tree: Tree | None = None,
        *,
        version: str = "",
    ) -> dict[str, Setting]:
        """This method's settings in the words of a version of `engine`.

        Args:
            engine: the name of its spelling.
            draft: the draft model or head, None where the method needs none.
            draft_tokens: the most drafts that a step can accept.
            tree: how they branch, None for one continuation.
            version: of the engine, "" for the newest.

        Raises:
            UnknownNameError: the engine doesn't support the method.
        """
        self.check_engine(engine)
        known: Mapping[Setting, Setting] = {
            DRAFT: draft or "",
            DRAFT_TOKENS: draft_tokens,
            VERIFIED_TOKENS: (tree.drafted_tokens if tree else draft_tokens) + 1,
            **({BRANCHES: tree.branches} if tree else {}),
        }
        spelt = {key: _spelt(value, version) for key, value in self.spelling[engine].items()}
        return {key: known.get(value, value) for key, value in spelt.items()}

    def check_engine(self, engine: str, where: str = "") -> None:
        """Silent where the engine has the method.

        Raises:
            UnknownNameError: it doesn't; the message begins with where that was asked.
        """
        if engine not in self.spelling:
            what = f"engine for method '{self.name}'"
            raise UnknownNameError(what, engine, self.spelling, where)


def is_older(version: str, than: str) -> bool:
    """Whether a version comes before another; one that can't be told is taken for a new one."""
    try:
        return Version(version) < Version(than)
    except InvalidVersion:
        return False


def _spelt(value: Setting | Renamed, version: str) -> Setting:
    if isinstance(value, Renamed):
        return value.before if is_older(version, value.since) else value.after
    return value


_ROWS = (
    Method(name="none", spelling={"vllm": {}, "sglang": {}, "tensorrt_llm": {}, "reference": {}}),
    Method(
        name="ngram",
        drafts_every_step=False,
        learns_on=frozenset({"sglang"}),  # its corpus takes in every batch
        spelling={
            "vllm": {
                "method": "ngram",
                "num_speculative_tokens": DRAFT_TOKENS,
                "prompt_lookup_max": 4,
                "prompt_lookup_min": 2,
            },
            "sglang": {
                "speculative-algorithm": "NGRAM",
                "speculative-num-draft-tokens": VERIFIED_TOKENS,
                # One continuation, as the other engines propose; SGLang's own default is a tree.
                "speculative-ngram-max-bfs-breadth": 1,
            },
            "tensorrt_llm": {
                "speculative_config.decoding_type": "NGram",
                "speculative_config.max_draft_len": DRAFT_TOKENS,
                "speculative_config.max_matching_ngram_size": 4,
                "speculative_config.is_public_pool": False,
                "disable_overlap_scheduler": True,
            },
            "reference": {
                "method": "ngram",
                "draft-tokens": DRAFT_TOKENS,
                "longest-tokens": 4,
                "shortest-tokens": 2,
            },
        },
    ),
    Method(
        name="suffix",
        drafts_every_step=False,
        learns_on=frozenset({"vllm"}),  # its cache keeps the answers of requests that have ended
        spelling={
            "vllm": {"method": "suffix", "num_speculative_tokens": DRAFT_TOKENS},
        },
        packages={"vllm": ("arctic-inference==0.1.1",)},
    ),
    Method(
        name="draft_model",
        needs_draft=True,
        spelling={
            "vllm": {
                "method": "draft_model",
                "model": DRAFT,
                "num_speculative_tokens": DRAFT_TOKENS,
            },
            "sglang": {
                "speculative-algorithm": "STANDALONE",
                "speculative-draft-model-path": DRAFT,
                "speculative-num-steps": DRAFT_TOKENS,
                "speculative-eagle-topk": 1,
                "speculative-num-draft-tokens": VERIFIED_TOKENS,
            },
            "tensorrt_llm": {
                "speculative_config.decoding_type": Renamed(
                    before="DraftTarget", since="1.3.0rc0", after="Draft_Target"
                ),
                "speculative_config.max_draft_len": DRAFT_TOKENS,
                "speculative_config.speculative_model_dir": DRAFT,
                "disable_overlap_scheduler": True,
            },
            "reference": {
                "method": "draft_model",
                "draft-model": DRAFT,
                "draft-tokens": DRAFT_TOKENS,
            },
        },
    ),
    Method(
        name="eagle",
        needs_draft=True,
        spelling={
            "vllm": {"method": "eagle", "model": DRAFT, "num_speculative_tokens": DRAFT_TOKENS},
            "sglang": {
                "speculative-algorithm": "EAGLE",
                "speculative-draft-model-path": DRAFT,
                "speculative-num-steps": DRAFT_TOKENS,
                "speculative-eagle-topk": 1,
                "speculative-num-draft-tokens": VERIFIED_TOKENS,
            },
        },
    ),
    Method(
        name="eagle3",
        needs_draft=True,
        spelling={
            "vllm": {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": DRAFT_TOKENS},
            "sglang": {
                "speculative-algorithm": "EAGLE3",
                "speculative-draft-model-path": DRAFT,
                "speculative-num-steps": DRAFT_TOKENS,
                "speculative-eagle-topk": 1,
                "speculative-num-draft-tokens": VERIFIED_TOKENS,
            },
            "tensorrt_llm": {
                # TensorRT-LLM never had EAGLE-1 or 2 on PyTorch, and still takes the old word.
                "speculative_config.decoding_type": Renamed(
                    before="Eagle", since="1.3.0rc5", after="Eagle3"
                ),
                "speculative_config.max_draft_len": DRAFT_TOKENS,
                "speculative_config.speculative_model_dir": DRAFT,
            },
        },
    ),
    *(
        # SGLang's other use of the same drafters. vLLM 0.31 and 0.32 draft no trees.
        Method(
            name=f"{chain}_tree",
            needs_draft=True,
            spelling={
                "sglang": {
                    "speculative-algorithm": algorithm,
                    "speculative-draft-model-path": DRAFT,
                    "speculative-num-steps": DRAFT_TOKENS,
                    "speculative-eagle-topk": BRANCHES,
                    "speculative-num-draft-tokens": VERIFIED_TOKENS,
                }
            },
        )
        for chain, algorithm in (
            ("draft_model", "STANDALONE"),
            ("eagle", "EAGLE"),
            ("eagle3", "EAGLE3"),
        )
    ),
    Method(
        name="medusa",
        needs_draft=True,
        spelling={
            "vllm": {"method": "medusa", "model": DRAFT, "num_speculative_tokens": DRAFT_TOKENS}
        },
    ),
    Method(
        # The target's own layers draft.
        name="mtp",
        spelling={
            "vllm": {"method": "mtp", "num_speculative_tokens": DRAFT_TOKENS},
            "sglang": {
                "speculative-algorithm": "EAGLE",
                "speculative-num-steps": DRAFT_TOKENS,
                "speculative-eagle-topk": 1,
                "speculative-num-draft-tokens": VERIFIED_TOKENS,
            },
            "tensorrt_llm": {
                "speculative_config.decoding_type": "MTP",
                "speculative_config.max_draft_len": DRAFT_TOKENS,
                # What it counts by up to some candidate of 1.3; later ones warn and leave it out.
                "speculative_config.num_nextn_predict_layers": DRAFT_TOKENS,
            },
        },
    ),
    Method(
        name="dflash",
        needs_draft=True,
        # 0.5.9 lacks it. 0.5.11 and 0.5.13 count no histogram of it, and what was delivered alone.
        # Between 0.5.13 and 0.5.19 nobody looked; nor at TensorRT-LLM after 1.3.0rc5.
        since={"sglang": "0.5.19", "tensorrt_llm": "1.3.0rc22"},
        spelling={
            "vllm": {"method": "dflash", "model": DRAFT, "num_speculative_tokens": DRAFT_TOKENS},
            "sglang": {
                "speculative-algorithm": "DFLASH",
                "speculative-draft-model-path": DRAFT,
                "speculative-num-draft-tokens": VERIFIED_TOKENS,
            },
            "tensorrt_llm": {
                # Its mask token and the layers that it reads stand in the draft's own config.json.
                "speculative_config.decoding_type": "DFlash",
                "speculative_config.max_draft_len": DRAFT_TOKENS,
                "speculative_config.speculative_model": DRAFT,
            },
        },
    ),
    Method(
        # TensorRT-LLM's older backend alone: engine_args = ["--backend", "tensorrt"]. 1.3.0rc5 has
        # it; between that and 1.3.0rc22 nobody looked.
        name="lookahead",
        # A step verifies up to max_verification_set_size n-grams of k, or none: D is unknown.
        drafts_every_step=False,
        until={"tensorrt_llm": "1.3.0rc22"},
        spelling={
            "tensorrt_llm": {
                "speculative_config.decoding_type": "Lookahead",
                "speculative_config.max_window_size": 4,
                "speculative_config.max_ngram_size": VERIFIED_TOKENS,
                "speculative_config.max_verification_set_size": 4,
            }
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
