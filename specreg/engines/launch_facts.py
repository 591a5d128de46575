"""Facts about a launch of a server that its settings and its version don't determine.

Two launches of the same version with the same settings may compute differently: vLLM has two model
runners, an attention backend is chosen by the installed packages, and a model on the hub may
change. If a speed got worse, such a change may be the cause, so reports name it first.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec

Fact = Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
NONE = "none"
"""The value of a fact about something that the server doesn't have."""


class LaunchFacts(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The facts of one launch of a server. A fact that isn't known is empty.

    Attributes:
        model_runner: vLLM's model runner, "v1" or "v2".
        attention_backend: the attention backend by the engine's own name for it.
        flashinfer: the version of FlashInfer in the engine's environment; "none" without it.
        cuda_toolkit: the release of the CUDA compiler that the server finds; "none" without one.
        target_revision: the commit of the target on the hub; empty for a folder.
        draft_revision: the commit of the draft on the hub; empty for a folder and without a draft.
        refused_sampling: the sampling parameters that the server refuses, so that its own defaults
            for them apply; empty if it takes them all.
    """

    model_runner: Fact = ""
    attention_backend: Fact = ""
    flashinfer: Fact = ""
    cuda_toolkit: Fact = ""
    target_revision: Fact = ""
    draft_revision: Fact = ""
    refused_sampling: Fact = ""


NOTHING_KNOWN = LaunchFacts()
"""The facts of a launch of which nothing is known."""
_TITLES = {
    "model_runner": "model runner",
    "attention_backend": "attention backend",
    "flashinfer": "FlashInfer",
    "cuda_toolkit": "CUDA toolkit",
    "target_revision": "revision of the target",
    "draft_revision": "revision of the draft",
    "refused_sampling": "refused sampling parameters",
}
"""The name of each fact in reports, in the order in which changes are listed."""


def known_facts(facts: LaunchFacts) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each fact that is known."""
    for name, title in _TITLES.items():
        value = getattr(facts, name)
        if value:
            yield title, value


def changed_facts(before: LaunchFacts, new: LaunchFacts) -> Iterator[str]:
    """Yield a text such as `model runner v1 -> v2` for each fact that has changed.

    A fact that is unknown for one of the launches is left out.
    """
    new_values = dict(known_facts(new))
    for title, value in known_facts(before):
        new_value = new_values.get(title, value)
        if new_value != value:
            yield f"{title} {value} -> {new_value}"


def changes_runner(before: LaunchFacts, new: LaunchFacts) -> bool:
    """Return whether two launches are known to have different model runners."""
    runners = {before.model_runner, new.model_runner}
    return "" not in runners and len(runners) > 1
