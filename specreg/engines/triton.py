"""Triton Inference Server with its vLLM backend, as in NVIDIA's container.

The `engine_args` of a case are vLLM's arguments as `name=value`, by their names in Python. They are
written to model.json.

Each response has the number of its tokens (docs/additional_outputs.md of the backend, r24.12 and
newer, and observed on a real tritonserver 2.51). There are no counts of steps: src/utils/metrics.py
passes on vLLM's counters of tokens and times, but none of drafts. So acceptance is computed from
the chunks. With one request in flight, each chunk is one step. With several, Triton sometimes
merges chunks. If a merged chunk holds more tokens than a step can emit, acceptance is INVALID
(`CHUNKS_MERGED`); smaller merged chunks make the estimated steps fewer and longer. The endpoint
`generate` isn't used, because a single response doesn't show when each token came.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import msgspec

from specreg.acceptance.trace import Body, StreamEvent
from specreg.core.errors import AttachError, UnsupportedError
from specreg.core.files import UNREADABLE
from specreg.core.http import Count, ShortText
from specreg.engines import vllm
from specreg.engines.engine import Engine, Fetch, Identity, Requirement, ServerVersion, Site
from specreg.engines.launch_facts import LaunchFacts
from specreg.engines.methods import Setting
from specreg.engines.server_spec import ModelRunner, ServerSpec
from specreg.engines.wire_format import (
    Ask,
    Event,
    ParseEvent,
    WireFormat,
    check_ended_well,
    check_no_error,
    decode_event,
)

_NOT_YET = {None, "", "None", "null"}
"""The values of the finish reason while the answer goes on."""


class _Event(Event, frozen=True, kw_only=True):
    text_output: str = ""
    num_output_tokens: Count = 0
    finish_reason: ShortText | None = None


_decoder = msgspec.json.Decoder(_Event)


class TritonWireFormat(WireFormat):
    """The wire format of Triton with the vLLM backend."""

    ends_at_texts: ClassVar[bool] = False
    accepts_only_text: ClassVar[bool] = True
    # The vLLM inside Triton 2.51 refuses a top_k of 0.
    neutral_sampling: ClassVar[Mapping[str, float]] = {**WireFormat.neutral_sampling, "top_k": -1}

    def path(self, ask: Ask) -> str:
        """Return the path of the model's own endpoint."""
        return f"/v2/models/{quote(ask.model, safe='')}/generate_stream"

    def body(self, ask: Ask) -> Body:
        """Return a body with the text as it is. It requests each response's number of tokens."""
        parameters = {
            "max_tokens": ask.output_cap_tokens,
            **self.sampling(ask),
            "ignore_eos": ask.ignore_eos,
        }
        if ask.seed is not None:
            parameters["seed"] = ask.seed
        return {
            "text_input": ask.text,
            "stream": True,
            "exclude_input_in_output": True,
            "return_finish_reason": True,
            "return_num_output_tokens": True,
            "parameters": parameters,
        }

    def new_parser(self, ask: Ask) -> ParseEvent:
        """Return a parser that adds up the tokens of the responses."""
        del ask
        tokens = 0

        def parse_event(event: bytes) -> StreamEvent:
            nonlocal tokens
            parsed = decode_event(_decoder, event)

            # An error without a field `error` decodes as an event without text.
            if not parsed.text_output:
                check_no_error(event)

            # A response has the number of its own tokens, so their sum is the usage so far.
            tokens += parsed.num_output_tokens
            finish_reason = None
            if parsed.finish_reason not in _NOT_YET:
                finish_reason = parsed.finish_reason
            if finish_reason is not None:
                check_ended_well(finish_reason, event)
            return StreamEvent(
                tokens=parsed.num_output_tokens,
                text=parsed.text_output,
                finish_reason=finish_reason,
                usage_tokens=tokens,
            )

        return parse_event


_CONFIG = """\
name: "{name}"
backend: "vllm"
max_batch_size: 0
model_transaction_policy {{ decoupled: true }}
instance_group [ {{ count: 1 kind: KIND_MODEL }} ]
"""


class _Model(msgspec.Struct, frozen=True):
    name: ShortText
    state: ShortText = ""


class _ModelConfig(msgspec.Struct, frozen=True):
    backend: ShortText = ""


class _Server(ServerVersion, frozen=True):
    name: ShortText = ""


class Triton(Engine):
    """Triton with vLLM as its backend. Its methods have vLLM's settings."""

    name: ClassVar = "triton"
    methods: ClassVar = vllm.Vllm.methods
    seen: ClassVar = {
        **dict.fromkeys(("none", "ngram"), "started 2.51, 2026-11-24"),
        **dict.fromkeys(("draft_model", "eagle3"), "measured 2.51, 2026-11-24"),
    }
    backend: ClassVar = "vllm"
    oldest: ClassVar = "2.51"
    program: ClassVar = "tritonserver"
    health_path: ClassVar = "/v2/health/ready"
    version_path: ClassVar = "/v2"
    parallel_fields: ClassVar = vllm.Vllm.parallel_fields - {"ray"}
    wire_format: ClassVar = TritonWireFormat()
    has_model_runners: ClassVar = True
    revisions: ClassVar = ("target", "draft")
    reserved_speculation_keys: ClassVar = vllm.Vllm.reserved_speculation_keys

    def requirement(self, *, on_gpu: bool) -> Requirement:
        """Return a requirement that only names Triton, which can't be installed as a package."""
        del on_gpu
        return Requirement(package="tritonserver", version="")

    def check(self, spec: ServerSpec) -> None:
        """Check a server's settings, and that each argument has a name.

        Raises:
            UnsupportedError: an argument has no name, or the engine doesn't support a setting.
        """
        super().check(spec)
        for argument in spec.engine_args:
            _parse_argument(argument)

    def further_speculation(
        self, speculation: Sequence[tuple[str, Setting]]
    ) -> Mapping[str, Setting]:
        """Return the further settings by the names of vLLM, which is the backend.

        Raises:
            UnsupportedError: another setting of the tier sets one of them.
        """
        return vllm.Vllm().further_speculation(speculation)

    def turns_drafting_off(self, speculation: Mapping[str, Setting]) -> bool:
        """Return whether the settings let some steps of vLLM, the backend, go without any draft."""
        return vllm.Vllm().turns_drafting_off(speculation)

    def accepts_unlikely_drafts(self, speculation: Mapping[str, Setting]) -> bool:
        """Return whether vLLM, the backend, accepts drafts that the target wouldn't generate."""
        return vllm.Vllm().accepts_unlikely_drafts(speculation)

    def files(self, spec: ServerSpec, site: Site) -> Mapping[str, str]:
        """Return the model repository: the model's configuration and the engine's arguments."""
        model = site.served_name

        # The user's own arguments come last, so that they replace those of specreg.
        further_arguments = dict(map(_parse_argument, spec.engine_args))
        speculation = self.rendered_speculation(spec, site.draft)
        arguments = vllm.engine_arguments(spec, site, speculation) | further_arguments
        return {
            f"{model}/config.pbtxt": _CONFIG.format(name=model),
            f"{model}/1/model.json": json.dumps(arguments, indent=2),
        }

    def command(self, python: Path, spec: ServerSpec, site: Site) -> tuple[str, ...]:
        """Return the command that serves HTTP only, because nothing uses the other ports."""
        del python, spec
        return (
            *("tritonserver", "--model-repository", str(site.folder)),
            *("--model-control-mode", "explicit", "--load-model", site.served_name),
            *("--http-address", "127.0.0.1", "--http-port", str(site.port)),
            *("--allow-grpc", "false", "--allow-metrics", "false"),
        )

    def environment(self, spec: ServerSpec, site: Site) -> Mapping[str, str]:
        """Return the variables of vLLM, which is the backend."""
        return vllm.Vllm().environment(spec, site)

    def drafts_every_step(self, method: str, model_runner: str) -> bool:
        """Return whether every step drafts in vLLM, which is the backend."""
        return vllm.Vllm().drafts_every_step(method, model_runner)

    def shared_runner(self, method: str, version: str) -> ModelRunner | None:
        """Return V1 for the control if vLLM, the backend, runs a method with V1 only."""
        # Triton's version doesn't show which vLLM is inside, so vLLM's counts as the newest.
        del version
        return vllm.Vllm().shared_runner(method, "")

    def launch_facts(self, log: str, fetch: Fetch) -> LaunchFacts:
        """Return the facts in vLLM's log lines, which are part of Triton's log."""
        return vllm.Vllm().launch_facts(log, fetch)

    def identify(self, fetch: Fetch) -> Identity:
        """Return what a server reports about its model. Triton doesn't report the model's weights.

        Returns:
            The identity; an empty one if an answer can't be read.

        Raises:
            Whatever `fetch` raises.
            AttachError: no model or several models are ready, or the model's backend isn't vLLM.
        """
        try:
            server = msgspec.json.decode(fetch("GET", self.version_path), type=_Server)
            # The index also has models of the repository that aren't loaded.
            index = fetch("POST", "/v2/repository/index")
            models = msgspec.json.decode(index, type=tuple[_Model, ...])
            ready = [model.name for model in models if model.state == "READY"]
            if len(ready) != 1:
                names = ", ".join(f"'{name}'" for name in ready) or "none"
                message = f"{len(ready)} models are READY: {names}, needed one"
                raise AttachError(f"{message}; load only the model of the case")
            model = ready[0]
            config = fetch("GET", f"/v2/models/{quote(model, safe='')}/config")
            backend = msgspec.json.decode(config, type=_ModelConfig).backend
        except UNREADABLE:
            return Identity()

        if backend != "vllm":
            message = (
                f"model '{model}' has the backend '{backend}', needed 'vllm'; load a model that"
                " has it"
            )
            raise AttachError(message)

        return Identity(engine=server.name, version=server.version, model=model, target="")


def _parse_argument(argument: str) -> tuple[str, object]:
    """Parse an argument: `seed=7` becomes `("seed", 7)`. A value that isn't JSON is a text.

    Raises:
        UnsupportedError: the argument has no name.
    """
    name, equals, value = argument.partition("=")
    if not equals or not name.isidentifier():
        message = (
            f"engine_args '{argument}': has no name, and Triton needs vLLM's arguments as they are"
            ' in model.json; write name=value, as in "seed=7" or "kv_cache_dtype=fp8"'
        )
        raise UnsupportedError(message)

    try:
        return name, msgspec.json.decode(value)
    except UNREADABLE:
        return name, value
