"""Facts about a launch of a server that its settings and its version don't determine.

Two launches of the same version with the same settings may compute differently: vLLM has two model
runners, an attention backend is chosen by the installed packages, a server inherits the variables
of the shell, and a model on the hub may change. If a speed got worse, such a change may be the
cause, so reports name it first.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated

import msgspec

from specreg.core.readable import readable_line
from specreg.core.redaction import HIDDEN, is_secret

_MOST_CHARACTERS = 128
Fact = Annotated[str, msgspec.Meta(max_length=_MOST_CHARACTERS, pattern=r"^[^\x00-\x1f\x7f]*$")]
Variable = Annotated[str, msgspec.Meta(max_length=_MOST_CHARACTERS, pattern=r"^[A-Z][A-Z0-9_]*$")]
NONE = "none"
"""The value of a fact about something that the server doesn't have."""
DISABLED = "disabled"
"""The value of a fact about something that the server has and doesn't use."""
_UNSET = "unset"
_FAMILIES = re.compile(
    # The engines.
    r"(?:VLLM|SGLANG|SGL|TLLM|TRTLLM|FLASHINFER|DG_JIT"
    # PyTorch, and what compiles kernels.
    r"|PYTORCH|TORCH[A-Z]*|TRITON|TVM"
    # CUDA and ROCm.
    r"|CUDA|CUDNN|CUBLAS|CUBLASLT|NCCL|NVSHMEM|UCX|HIP|HSA|RCCL|AITER|MIOPEN"
    # The libraries that compute on a CPU, and its memory.
    r"|OMP|GOMP|KMP|MKL|OPENBLAS|ONEDNN|DNNL|ATEN|NUMBA|MALLOC)_[A-Z0-9_]+"
    r"|NVIDIA_TF32_OVERRIDE|LD_PRELOAD"
)
"""Variables that may change what a server computes with, or how fast."""
_PLACES = re.compile(
    # The GPUs that the server sees.
    r"\w*VISIBLE_DEVICES|CUDA_DEVICE_ORDER"
    # A toolkit, whose release is a fact of its own, and versions that images of containers name.
    r"|(?:CUDA|HIP)_(?:\w+_)?(?:PATH|DIR)|\w+_(?:HOME|ROOT|VERSION)"
    # Caches, and addresses of the machine.
    r"|\w+_(?:CACHE_DIR|CACHE_PATH|EXTENSIONS_DIR|WORKSPACE_BASE|HOST_IP|PORT)"
)
"""Variables of these families that say where something is, and differ from machine to machine."""


class LaunchFacts(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The facts of one launch of a server. A fact that isn't known is empty.

    Attributes:
        image: the container image that the server runs in, by the name that the user gave.
        image_digest: the digest of that image, which may change under the same name.
        model_runner: vLLM's model runner, "v1" or "v2".
        attention_backend: the attention backend by the engine's own name for it.
        flashinfer: the version of FlashInfer in the engine's environment; "none" without it,
            "disabled" if the engine can't use its kernels.
        flashinfer_sampler: whether FlashInfer draws the tokens, "on" or "off".
        async_scheduling: whether a step is scheduled while the one before it runs, "on" or "off".
        cuda_graphs: which steps run as CUDA graphs, by the engine's own name for it.
        cuda_toolkit: the release of the CUDA compiler that the server finds; "none" without one.
        target_revision: the commit of the target on the hub; empty for a folder.
        draft_revision: the commit of the draft on the hub; empty for a folder and without a draft.
        refused_sampling: the sampling parameters that the server refuses, so that its own defaults
            for them apply; empty if it takes them all.
        variables: the variables of the engine, of PyTorch and of CUDA that the server inherited
            from the shell, each with its value; None if they aren't known.
    """

    image: Fact = ""
    image_digest: Fact = ""
    model_runner: Fact = ""
    attention_backend: Fact = ""
    flashinfer: Fact = ""
    flashinfer_sampler: Fact = ""
    async_scheduling: Fact = ""
    cuda_graphs: Fact = ""
    cuda_toolkit: Fact = ""
    target_revision: Fact = ""
    draft_revision: Fact = ""
    refused_sampling: Fact = ""
    variables: tuple[tuple[Variable, Fact], ...] | None = None


NOTHING_KNOWN = LaunchFacts()
"""The facts of a launch of which nothing is known."""
_TITLES = {
    "image": "image",
    "image_digest": "digest of the image",
    "model_runner": "model runner",
    "attention_backend": "attention backend",
    "flashinfer": "FlashInfer",
    "flashinfer_sampler": "FlashInfer's sampler",
    "async_scheduling": "asynchronous scheduling",
    "cuda_graphs": "CUDA graphs",
    "cuda_toolkit": "CUDA toolkit",
    "target_revision": "revision of the target",
    "draft_revision": "revision of the draft",
    "refused_sampling": "refused sampling parameters",
}
"""The name of each fact in reports, in the order in which changes are listed."""


def inherited_variables(
    variables: Mapping[str, str], own: Collection[str]
) -> tuple[tuple[str, str], ...]:
    """Return the variables that a server inherits and that may change what is measured.

    Args:
        variables: all variables of the shell.
        own: the names of those that specreg or the case sets for the server.

    Returns:
        Each variable with its value, sorted by name. A secret value is hidden, and a long one cut.
    """
    pairs = []
    for name, value in sorted(variables.items()):
        is_of_family = len(name) <= _MOST_CHARACTERS and _FAMILIES.fullmatch(name) is not None
        if is_of_family and _PLACES.fullmatch(name) is None and name not in own:
            shown = HIDDEN if is_secret(name, value) else readable_line(value, _MOST_CHARACTERS)
            pairs.append((name, shown))
    return tuple(pairs)


def known_facts(facts: LaunchFacts) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each fact that is known."""
    yield from _titled_facts(facts)
    for name, value in facts.variables or ():
        yield name, value or "''"


def _titled_facts(facts: LaunchFacts) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each known fact that isn't a variable."""
    for name, title in _TITLES.items():
        value = getattr(facts, name)
        if value:
            yield title, value


def changed_facts(before: LaunchFacts, new: LaunchFacts) -> Iterator[str]:
    """Yield a text such as `model runner v1 -> v2` for each fact that has changed.

    A fact that is unknown for one of the launches is left out.
    """
    new_values = dict(_titled_facts(new))
    for title, value in _titled_facts(before):
        new_value = new_values.get(title, value)
        if new_value != value:
            yield f"{title} {value} -> {new_value}"

    if before.variables is None or new.variables is None:
        return
    old_variables = dict(before.variables)
    new_variables = dict(new.variables)
    for name in sorted(old_variables.keys() | new_variables.keys()):
        old_value = old_variables.get(name, _UNSET) or "''"
        new_value = new_variables.get(name, _UNSET) or "''"
        if old_value != new_value:
            yield f"{name} {old_value} -> {new_value}"


def changes_runner(before: LaunchFacts, new: LaunchFacts) -> bool:
    """Return whether two launches are known to have different model runners."""
    runners = {before.model_runner, new.model_runner}
    return "" not in runners and len(runners) > 1
