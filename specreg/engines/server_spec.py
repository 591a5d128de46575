"""The settings of a server, from which its engine makes a command line."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from specreg.core.redaction import hide_secrets_of
from specreg.engines.methods import Setting, Tree

Positive = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
ModelRunner = Literal["v1", "v2"]
"""The part of vLLM that runs the steps of a model. vLLM has an old one, V1, and a new one, V2."""
MAX_DRAFT_TOKENS = 128
"""The largest number of tokens drafted per step: vLLM's sampler has room for no more."""
DraftTokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_DRAFT_TOKENS)]
IMAGE_NAME = re.compile(r"[A-Za-z0-9./][\w./:@+-]{0,383}")
ImageName = Annotated[str, msgspec.Meta(pattern=f"^({IMAGE_NAME.pattern})?$")]
"""A container image as `docker run` takes it, or for apptainer the path of a file."""
USUAL_DRAFT_TOKENS = 3
"""The number of tokens drafted per step unless a table has another one. It isn't part of ids."""
Width = Literal["8b", "1b", "30m"]
"""The size to which a model pair is widened: about the number of parameters of the target."""
_KIB_PER_GIB = 2**20


class Parallel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is spread over GPUs.

    Attributes:
        tensor: over how many GPUs each matrix is split.
        data: how many copies of the model there are.
        expert: True if the experts of a layer lie on different GPUs instead of being split.
        draft_tensor: the `tensor` of the draft; without it the engine chooses.
        pipeline: into how many stages the layers are cut, each on GPUs of its own.
        nodes: over how many machines the GPUs are spread evenly; a server on more than one is
            measured by its URL (`--specreg-attach`).
        ray: True if vLLM's Ray executor runs the parts.
    """

    tensor: Positive = 1
    data: Positive = 1
    expert: bool = False
    draft_tensor: Positive | None = None
    pipeline: Positive = 1
    nodes: Positive = 1
    ray: bool = False

    @property
    def without_draft(self) -> "Parallel":
        """The same settings for a server without a draft."""
        return msgspec.structs.replace(self, draft_tensor=None)

    @property
    def gpus(self) -> int:
        """The number of GPUs that a server takes."""
        return self.tensor * self.pipeline * self.data

    @property
    def gpus_by_node(self) -> int:
        """The number of GPUs that a server takes on each machine."""
        return self.gpus // self.nodes


ALONE = Parallel()
"""A whole model on one GPU."""


# It has no slots, because the settings of a baseline derive from it and from further classes, and
# Python allows only one base class with slots. Derived classes do have slots: msgspec decodes texts
# into them, and without slots it wouldn't set the attributes that a text leaves out.
@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of a server that must be equal for two measurements to be compared.

    Each of them is a key of `[[cases]]`, a setting of a baseline, and a flag that the engine's file
    makes of it.

    Attributes:
        dtype: the number format of target and draft, by the engine's name for it; `"auto"` for that
            of the target.
        max_model_len_tokens: the context: the most tokens of prompt and answer together.
        max_sequences: the most requests that the server works on at once.
        parallel: how the model is spread over GPUs, see the table `parallel`.
        engine_args: further arguments of the engine's command line.
        engine_env: further environment variables of the server.
        trust_remote_code: True if the engine may run code that comes with the model, with all
            rights of whoever runs specreg.
        tree: how the drafts of a `…_tree` method branch, see the table `tree`.
        pinned_length_tokens: the acceptance length that the engine keeps to, whatever is drafted;
            it goes with `acceptance = "pinned"`.
        speculation: further keys of the engine's speculative configuration, by the engine's own
            names: for vLLM the keys of `--speculative-config`, for SGLang flags without the leading
            dashes, for TensorRT-LLM the keys of `speculative_config`.
    """

    dtype: str = "auto"
    max_model_len_tokens: Positive = 1024
    max_sequences: Positive = 8
    parallel: Parallel = ALONE
    engine_args: tuple[str, ...] = ()
    engine_env: tuple[tuple[str, str], ...] = ()
    trust_remote_code: bool = False
    tree: Tree | None = None
    pinned_length_tokens: Annotated[float, msgspec.Meta(ge=1)] | None = None
    speculation: tuple[tuple[str, Setting], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The memory that the models of a server take.

    Attributes:
        target_gib: the weights of the target, in GiB.
        draft_gib: the weights of the draft, in GiB; 0 without a draft, None if it isn't known.
        token_kib: a token in the KV cache of the target, in KiB.
    """

    target_gib: float
    draft_gib: float | None
    token_kib: float

    def weights_gib(self, parallel: Parallel) -> float | None:
        """Return the weights on each GPU of a copy, in GiB; None if the draft's are unknown."""
        if self.draft_gib is None:
            return None
        target_gib = self.target_gib / (parallel.tensor * parallel.pipeline)
        draft_gib = self.draft_gib / (parallel.draft_tensor or parallel.tensor)
        return target_gib + draft_gib

    def cache_gib(self, parallel: Parallel, tokens: int) -> float:
        """Return the KV cache on each GPU, in GiB, if all copies together hold so many tokens."""
        gpus = parallel.tensor * parallel.pipeline * parallel.data
        return self.token_kib * tokens / gpus / _KIB_PER_GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec(ServerSettings):
    """The settings that must be equal for two cases to share a server.

    Attributes:
        gpu_memory_frac: the most of a GPU's memory that the server may take, 0..1; half or less if
            a control runs beside it. It isn't compared with a baseline.
        model_runner: `"v1"` or `"v2"`, which of vLLM's model runners the server has; without it
            vLLM chooses by its version, the method and the model. A model runner that is set here
            is part of the case's id.
        image: the container image that the server runs in, such as `"vllm/vllm-openai:v0.33.0"`;
            without it the server runs on the machine itself. It isn't compared with a baseline.
        engine: the name of the engine.
        method: the name of the speculative method; `none` for the target alone.
        models: the name of the model pair.
        target: the folder or hub id of the target.
        draft: the folder or hub id of the draft; None if the method needs none.
        padding_layers: how many layers are appended to the target, see `ModelsTable`.
        draft_tokens: the most drafts that a step can accept; 0 without speculation. Without a tree
            a step drafts no more than these.
        target_revision: the revision of the target on the hub; empty for its main branch.
        draft_revision: the revision of the draft on the hub; empty for its main branch.
        sizes: the memory that the models take; None if it isn't known.
        widen: the size to which tiny models are enlarged, see `ModelsTable`.
        variant: a suffix for the ids of the cases that speculate, if another table of the tier
            would make the same ids.
    """

    # These three aren't compared with a baseline. How large a share must be depends on the GPU, the
    # model runner is part of the case's id and so of the baseline's name, and an image is upgraded
    # like the engine's version.
    gpu_memory_frac: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.4
    model_runner: ModelRunner | None = None
    image: ImageName = ""
    engine: str
    method: str
    models: str
    target: str
    draft: str | None
    padding_layers: int
    draft_tokens: int
    target_revision: str = ""
    draft_revision: str = ""
    sizes: Sizes | None = None
    widen: Width | None = None
    variant: str = ""

    def __post_init__(self) -> None:
        """Hide the secrets among arguments and variables in all output."""
        hide_secrets_of(dict(self.engine_env), self.engine_args)

    @property
    def drafted_tokens(self) -> int:
        """The number of tokens that a step drafts."""
        if self.tree is not None:
            return self.tree.drafted_tokens
        return self.draft_tokens

    @property
    def id(self) -> str:
        """The name, such as `vllm-eagle3-tiny`.

        It ends with what is unusual: the number of drafts (`-k5`), a pinned acceptance length
        (`-al2.5`), a chosen model runner (`-v1`) and a variant (its name).
        """
        name = f"{self.engine}-{self.method}-{self.models}"
        if self.draft_tokens not in {0, USUAL_DRAFT_TOKENS}:
            name += f"-k{self.draft_tokens}"
        if self.pinned_length_tokens:
            name += f"-al{self.pinned_length_tokens:g}"
        if self.model_runner is not None:
            name += f"-{self.model_runner}"
        if self.variant:
            name += f"-{self.variant}"
        return name

    @property
    def without_speculation(self) -> "ServerSpec":
        """The server with the same settings, but without speculation."""
        sizes = self.sizes
        if sizes is not None:
            sizes = dataclasses.replace(sizes, draft_gib=0.0)

        # All settings of the drafter are reset, so that all methods of a target share a control.
        return dataclasses.replace(
            self,
            method="none",
            draft=None,
            draft_revision="",
            draft_tokens=0,
            tree=None,
            pinned_length_tokens=None,
            speculation=(),
            variant="",
            parallel=self.parallel.without_draft,
            sizes=sizes,
        )
