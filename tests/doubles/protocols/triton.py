"""Triton with the vLLM backend as documented (additional_outputs.md), never recorded."""

from typing import ClassVar

import msgspec

from tests.doubles.vllm.app import ScriptedServer, json_response
from tests.doubles.vllm.http import Request, Response, Routes
from tests.doubles.vllm.request import Body, StreamOptions
from tests.doubles.vllm.steps import Chunk, Steps
from tests.doubles.vllm.wire import Json, Wire


class ScriptedTriton(ScriptedServer):
    """`generate_stream` of one model."""

    version: ClassVar = "2.51.0"

    def routes(self) -> Routes:
        return {
            ("GET", "/v2/health/ready"): self._health,
            ("GET", "/v2"): self._server,
            ("POST", "/v2/models/*/generate_stream"): self._generate,
        }

    async def _server(self, _: Request) -> Response:
        return json_response({"name": "triton", "version": self.version})

    async def _generate(self, request: Request) -> Response | None:
        return await self.answer(request, TritonWire)

    def parse_body(self, raw: bytes) -> Body:
        body = msgspec.json.decode(raw, type=_Generate)
        return Body(
            prompt=body.text_input,
            max_tokens=body.parameters.max_tokens,
            ignore_eos=body.parameters.ignore_eos,
            stream=True,
            stream_options=StreamOptions(include_usage=False),
        )


class _Parameters(msgspec.Struct, frozen=True):
    max_tokens: int | None = None
    temperature: float | None = None
    ignore_eos: bool = False


class _Generate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text_input: str
    parameters: _Parameters = _Parameters()
    stream: bool = False
    exclude_input_in_output: bool = False
    return_finish_reason: bool = False
    return_num_output_tokens: bool = False


class TritonWire(Wire):
    """The JSON of a response; a stream ends without a word."""

    __slots__ = ()
    done: ClassVar[tuple[bytes, ...]] = ()

    def event(self, chunk: Chunk, steps: Steps, *, last: bool) -> Json:
        """A piece of text, its tokens, and why it ends, which is "None" until it does."""
        return {
            "model_name": self.model,
            "model_version": "1",
            "text_output": chunk.text,
            "num_output_tokens": len(chunk.token_ids),
            "finish_reason": str(steps.finish_reason if last else None),
        }
