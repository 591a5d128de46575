"""SGLang 0.5.23 as recorded: its chat, and `/generate`, which repeats itself."""

from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from tests.doubles.vllm.app import ScriptedServer
from tests.doubles.vllm.counters import of_ranks
from tests.doubles.vllm.http import Request, Response, Routes
from tests.doubles.vllm.request import Body, StreamOptions
from tests.doubles.vllm.steps import Chunk, Steps
from tests.doubles.vllm.wire import ChatWire, Json, Wire

_CALLS = "sglang:spec_verify_calls_total"


class ScriptedSglang(ScriptedServer):
    remembers = True
    generate_wire: ClassVar[type[Wire]]

    def routes(self) -> Routes:
        return {**super().routes(), ("POST", "/generate"): self._generate}

    async def _chat(self, request: Request) -> Response | None:
        return await self.answer(request, SglangChatWire)

    async def _generate(self, request: Request) -> Response | None:
        return await self.answer(request, self.generate_wire)

    async def _metrics(self, _: Request) -> Response:
        calls = sum(steps.verify_steps for steps in self.ended)
        page = f'{_CALLS}{{engine_type="unified"}} {calls}.0\n'.encode()
        return Response(body=of_ranks(page, self._script.ranks, self._script.counted_by_ranks))

    def parse_body(self, raw: bytes) -> Body:
        """A chat like vLLM's, or what `/generate` takes."""
        body = msgspec.json.decode(raw, type=_Generate)
        if body.sampling_params is None:
            return super().parse_body(raw)
        return Body(
            prompt=body.text if body.input_ids is None else body.input_ids,
            max_tokens=body.sampling_params.max_new_tokens,
            ignore_eos=body.sampling_params.ignore_eos,
            stream=body.stream,
            stream_options=StreamOptions(include_usage=True),
        )


class _Sampling(msgspec.Struct, frozen=True):
    max_new_tokens: int | None = None
    ignore_eos: bool = False


class _Generate(msgspec.Struct, frozen=True):
    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: _Sampling | None = None
    stream: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangChatWire(ChatWire):
    """The JSON of `/v1/chat/completions` with `continuous_usage_stats`."""

    thought_key: ClassVar = "reasoning_content"

    def opening(self) -> list[Json]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def event(self, chunk: Chunk, steps: Steps, *, last: bool) -> Json:  # noqa: ARG002
        """A content delta with the usage so far."""
        delta = self.texts(chunk.token_ids)
        self.sent_ids.extend(chunk.token_ids)
        return self._chunk(delta) | self.usage(len(self.sent_ids))

    def closing(self, steps: Steps, metrics: Json | None) -> list[Json]:
        """Why it ended, the record of the speculation, and the usage: a chunk each."""
        del metrics
        ended = self._chunk({}, finish_reason=steps.finish_reason)
        head: Json = self.head(self.event_object) | {"choices": []}
        record = {"sglext": {"spec_tokens_details": speculation_of(steps)}}
        recorded = [head | {"usage": None} | record] if steps.accepted else []
        return [ended, *recorded, head | self.usage(steps.completion_tokens)]

    def _chunk(self, delta: Json, finish_reason: str | None = None) -> Json:
        ends = {"finish_reason": finish_reason}
        choice = {"index": 0, "delta": {"reasoning_content": None} | delta} | ends
        return self.head(self.event_object) | {"choices": [choice]}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateWire(Wire):
    """The JSON of `/generate`: each event repeats all that was said."""

    id_prefix: ClassVar = "gen"
    so_far: list[str] = field(default_factory=list)

    def event(self, chunk: Chunk, steps: Steps, *, last: bool) -> Json:
        """All so far; the last one has the record of the speculation."""
        self.sent_ids.extend(chunk.token_ids)
        self.so_far.append(chunk.text)
        ended = {"type": steps.finish_reason, "length": len(self.sent_ids)} if last else None
        meta: Json = {"finish_reason": ended, "completion_tokens": len(self.sent_ids)}
        record = speculation_of(steps) if last and steps.accepted else {}
        text = "".join(self.so_far)
        return {"text": text, "output_ids": list(self.sent_ids), "meta_info": meta | record}

    def closing(self, steps: Steps, metrics: Json | None) -> list[Json]:
        del steps, metrics
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalGenerateWire(GenerateWire):
    """The same with `--incremental-streaming-output`: each event holds what is new alone."""

    def event(self, chunk: Chunk, steps: Steps, *, last: bool) -> Json:
        # dataclass(slots=True) makes another class, of which super() without names knows nothing.
        event = super(IncrementalGenerateWire, self).event(chunk, steps, last=last)
        return event | {"text": chunk.text, "output_ids": list(chunk.token_ids)}


class ScriptedIncrementalSglang(ScriptedSglang):
    generate_wire = IncrementalGenerateWire


ScriptedSglang.generate_wire = GenerateWire


def speculation_of(steps: Steps) -> Json:
    return {
        "spec_num_correct_drafts": steps.accepted_tokens,
        "spec_num_proposed_drafts": steps.drafted_tokens,
        "spec_correct_drafts_histogram": steps.histogram,
    }
