"""How a model is spread over GPUs."""

from typing import Annotated

import msgspec

_Positive = Annotated[int, msgspec.Meta(ge=1)]


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

    tensor: _Positive = 1
    data: _Positive = 1
    expert: bool = False
    draft_tensor: _Positive | None = None
    pipeline: _Positive = 1
    nodes: _Positive = 1
    ray: bool = False

    @property
    def without_draft(self) -> "Parallel":
        """The same for a server that has none."""
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
        if self.nodes > 1 and self.data > 1:
            return (
                f"parallel.data = {self.data} with nodes = {self.nodes}: a server that spans nodes"
                " is one copy; leave one of them out"
            )
        if self.gpus % self.nodes:
            return (
                f"parallel.tensor = {self.tensor} and pipeline = {self.pipeline} with nodes ="
                f" {self.nodes}: {self.gpus} GPU(s) aren't as many on each; change one of them"
            )
        return ""


ALONE = Parallel()
