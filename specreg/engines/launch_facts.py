"""What a launch of a server ran with that neither its settings nor its version say.

Two launches of one version with the same settings may compute otherwise: vLLM has two model
runners, an attention backend is chosen by what is installed, and a model on the hub may change. A
speed that got worse may come from such a change, so it is named first.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec

Fact = Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
NONE = "none"
"""The value of a fact about what a server could have and hasn't."""


class LaunchFacts(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a launch of a server ran with. A fact that isn't known is empty.

    Attributes:
        model_runner: vLLM's model runner, "v1" or "v2".
        attention_backend: the attention backend by the engine's own name for it.
        flashinfer: the version of FlashInfer in the engine's environment; "none" without it.
        cuda_toolkit: the release of the CUDA compiler that the server finds; "none" without one.
        target_revision: the commit of the target on the hub; empty for a folder.
        draft_revision: the commit of the draft on the hub; empty for a folder and without a draft.
    """

    model_runner: Fact = ""
    attention_backend: Fact = ""
    flashinfer: Fact = ""
    cuda_toolkit: Fact = ""
    target_revision: Fact = ""
    draft_revision: Fact = ""


NOTHING_KNOWN = LaunchFacts()
_TITLES = {
    "model_runner": "model runner",
    "attention_backend": "attention backend",
    "flashinfer": "FlashInfer",
    "cuda_toolkit": "CUDA toolkit",
    "target_revision": "revision of the target",
    "draft_revision": "revision of the draft",
}
"""By fact, what people call it, in the order in which changes are named."""


def known_facts(facts: LaunchFacts) -> Iterator[tuple[str, str]]:
    """Yield the facts that are known, each as what people call it and its value."""
    for name, title in _TITLES.items():
        value = getattr(facts, name)
        if value:
            yield title, value


def changed_facts(before: LaunchFacts, new: LaunchFacts) -> Iterator[str]:
    """Yield each fact that differs and is known of both launches: `model runner v1 -> v2`."""
    now_by_title = dict(known_facts(new))
    for title, value in known_facts(before):
        value_now = now_by_title.get(title, value)
        if value_now != value:
            yield f"{title} {value} -> {value_now}"


def changes_runner(before: LaunchFacts, new: LaunchFacts) -> bool:
    """Return whether two launches are known to have different model runners."""
    runners = {before.model_runner, new.model_runner}
    return "" not in runners and len(runners) > 1
