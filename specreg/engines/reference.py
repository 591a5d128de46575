"""Start the reference engine, `specreg.engines.pytorch`: slow and exact.

Its tiers set `speed = false`, so its speed isn't judged.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from specreg.acceptance.record import Source
from specreg.core.errors import UnsupportedError
from specreg.engines.engine import Engine, Requirement, Site
from specreg.engines.methods import DRAFT, DRAFT_TOKENS, Setting, Spelling
from specreg.engines.server_spec import ServerSpec
from specreg.engines.vllm import VllmWireFormat


class ReferenceWireFormat(VllmWireFormat):
    """vLLM's wire format, in which each answer carries its own counts and there are no counters."""

    request_source: ClassVar[Source | None] = Source.REFERENCE
    counters_source: ClassVar[Source | None] = None
    counters_path: ClassVar[str | None] = None
    ends_at_texts: ClassVar[bool] = False
    # The reference engine has no defaults but the neutral values.
    neutral_sampling: ClassVar[Mapping[str, float]] = {}


_VERSION = "5.19.0"
_TORCH = "torch==2.13.0"
_PACKAGES = (
    _TORCH,
    "accelerate==1.15.0",  # puts a model on its device as it is read
    "aiohttp==3.14.5",
    "jinja2==3.1.6",
    "msgspec==0.22.0",
    "numpy==2.4.6",
)
_METHODS = {
    "none": Spelling(settings={}),
    "ngram": Spelling(settings={"method": "ngram", "draft-tokens": DRAFT_TOKENS}),
    "ngram_adaptive": Spelling(
        settings={"method": "ngram_adaptive", "draft-tokens": DRAFT_TOKENS},
        learns=True,  # each text is added to its store
    ),
    "draft_model": Spelling(
        settings={"method": "draft_model", "draft-model": DRAFT, "draft-tokens": DRAFT_TOKENS}
    ),
}


class ReferenceEngine(Engine):
    """The reference engine. Its version is that of transformers, whose models it runs."""

    name: ClassVar = "reference"
    methods: ClassVar = _METHODS
    seen: ClassVar = dict.fromkeys(_METHODS, "measured 5.19.0, 2026-11-24")
    oldest: ClassVar = "5.19"
    module: ClassVar = "transformers"
    parallel_fields: ClassVar = frozenset({"pipeline"})
    wire_format: ClassVar = ReferenceWireFormat()

    def requirement(self, *, on_gpu: bool) -> Requirement:
        """Return transformers and torch; without a GPU torch's build for CPUs, if there is one."""
        local_torch = None
        if not on_gpu:
            local_torch = _TORCH
        return Requirement(
            package="transformers", version=_VERSION, extras=_PACKAGES, local_torch=local_torch
        )

    def further_speculation(
        self, speculation: Sequence[tuple[str, Setting]]
    ) -> Mapping[str, Setting]:
        """Refuse any further setting, because the engine has none.

        Raises:
            UnsupportedError: a setting is given.
        """
        if speculation:
            first_key, _ = speculation[0]
            message = "the reference engine has no further keys of speculation; leave it out"
            raise UnsupportedError(f"speculation.{first_key}: {message}")
        return {}

    def command(self, python: Path, spec: ServerSpec, site: Site) -> tuple[str, ...]:
        """Return the command, with the method's settings as flags."""
        gpus = spec.parallel.pipeline
        device_flags: tuple[str, ...] = ("--device", "cpu")
        if site.on_gpu and gpus > 1:
            devices = [f"cuda:{index}" for index in range(gpus)]
            device_flags = ("--device", ",".join(devices))
        elif site.on_gpu:
            # Without the flag, the engine takes the first GPU that it sees.
            device_flags = ()

        speculation = self.rendered_speculation(spec, site.draft)
        speculation_flags = [f"--{key}={value}" for key, value in speculation.items()]
        return (
            *(str(python), "-m", "specreg.engines.pytorch"),
            *("--model", site.target, "--served-model-name", site.served_name),
            *("--port", str(site.port)),
            *("--dtype", spec.dtype),
            *("--context-tokens", str(spec.max_model_len_tokens)),
            *("--max-sequences", str(spec.max_sequences)),
            *device_flags,
            *speculation_flags,
            *spec.engine_args,
        )

    def environment(self, spec: ServerSpec, site: Site) -> Mapping[str, str]:
        """Return variables with which the engine finds specreg, after the user's own modules."""
        # specreg isn't installed in the engine's environment, so its folder is named.
        folders = [str(Path(__file__).parents[2])]
        users_path = os.environ.get("PYTHONPATH")
        if users_path:
            folders.insert(0, users_path)
        python_path = os.pathsep.join(folders)
        return {**super().environment(spec, site), "PYTHONPATH": python_path}
