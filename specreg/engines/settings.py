"""What a server is started with, as a table of cases writes it and a command line takes it.

A setting that is added here is a key of `[[cases]]`, part of what a baseline is compared by, and at
hand in `LaunchOptions`; an engine's file spells it.
"""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from specreg.engines.methods import Tree

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Parallel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is spread over GPUs.

    Attributes:
        tensor: over how many GPUs each matrix is split; data: how many copies there are.
        expert: whether the experts of a layer lie on different GPUs instead of being split.
        draft_tensor: as `tensor`, of the draft; None for the engine's own choice.
        pipeline: into how many stages the layers are cut, each on GPUs of its own.
        nodes: over how many machines the GPUs are spread, as many on each; a server of several
            is measured by its URL alone.
        ray: whether vLLM's Ray executor runs the parts.
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
        """The same without a draft, for a server that has none."""
        return msgspec.structs.replace(self, draft_tensor=None)

    @property
    def gpus(self) -> int:
        """How many GPUs that takes."""
        return self.tensor * self.pipeline * self.data

    @property
    def gpus_by_node(self) -> int:
        """How many of them each node has."""
        return self.gpus // self.nodes

    def why_not(self) -> str:
        """Why no engine can spread a model so, empty where one might; what to do at its end."""
        if self.nodes == 1 or (self.data == 1 and self.gpus % self.nodes == 0):
            return ""
        return (
            f"parallel.nodes = {self.nodes} with data = {self.data}, tensor = {self.tensor} and"
            f" pipeline = {self.pipeline}: a server over nodes is one copy with as many GPUs on"
            " each; change one of them"
        )


ALONE = Parallel()


# No slots here: Python allows only one base with slots. Derived classes have them: without, msgspec
# doesn't set the attributes that the decoded text leaves out.
@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of a server that must be equal for two measurements to be compared.

    Attributes:
        dtype: the engine's name of the number format.
        max_model_len_tokens: prompt and output together.
        max_sequences: requests that the server takes on at once.
        parallel: how the models are spread over GPUs.
        engine_args, engine_env: further arguments and environment variables, as pairs.
        trust_remote_code: whether the engine runs code that the models bring.
        tree: how the drafts branch, None for one continuation.
        pinned_length_tokens: the acceptance length that the engine keeps to whatever is drafted, 1
            to the most that a step can emit; None for what the drafts are worth.
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


@dataclass(frozen=True, kw_only=True)
class LaunchSettings(ServerSettings):
    """All settings of a server."""

    gpu_memory_frac: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.4
    """Share of a GPU's memory that the server may take at most, 0..1. Case and control run beside
    one another, so at most half. It isn't compared: which share is enough differs by GPU."""


def taken(kind: type[Any], source: object) -> dict[str, Any]:
    """The fields of a dataclass `kind`, each with the value that `source` has under its name."""
    return {field.name: getattr(source, field.name) for field in dataclasses.fields(kind)}
