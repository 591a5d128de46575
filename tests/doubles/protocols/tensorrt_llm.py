"""`trtllm-serve` as read in its source (serve/, metrics/collector.py), never recorded."""

from collections import Counter
from dataclasses import dataclass

from tests.doubles.vllm.app import ScriptedServer, json_response
from tests.doubles.vllm.counters import of_ranks
from tests.doubles.vllm.http import Request, Response, Routes
from tests.doubles.vllm.steps import Chunk, Steps
from tests.doubles.vllm.wire import ChatWire, CompletionWire, Json, Wire


class ScriptedTensorrtLlm(ScriptedServer):
    """The OpenAI endpoints of `trtllm-serve`, and the counters of what has ended."""

    remembers = True

    def routes(self) -> Routes:
        return {**super().routes(), ("GET", "/prometheus/metrics"): self._positions}

    async def _chat(self, request: Request) -> Response | None:
        return await self.answer(request, TensorrtLlmChatWire)

    async def _completion(self, request: Request) -> Response | None:
        return await self.answer(request, TensorrtLlmCompletionWire)

    async def _metrics(self, _: Request) -> Response:
        return json_response([])

    async def _positions(self, _: Request) -> Response:
        """What never counted isn't there; one request asked whether the server is ready."""
        counts = Counter({'request_success_total{finished_reason="length"}': 1})
        for steps in self.ended:
            counts[f'request_success_total{{finished_reason="{steps.finish_reason}"}}'] += 1
            for accepted in steps.accepted:
                for kind, tokens in (("drafted", steps.draft_tokens), ("accepted", accepted)):
                    counts.update(
                        f'spec_decode_{kind}_tokens_total{{token_position="{position}"}}'
                        for position in range(tokens)
                    )
        page = "".join(f"trtllm_{name} {n}.0\n" for name, n in counts.items())
        return Response(
            body=of_ranks(page.encode(), self._script.ranks, self._script.counted_by_ranks)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Continuous(Wire):
    """Every chunk has the usage so far; what is null is left out; a space ends an event."""

    tail = b" \n\n"

    def event(self, chunk: Chunk, steps: Steps, *, last: bool) -> Json:
        # dataclass(slots=True) makes another class, of which super() without names knows nothing.
        body = super(_Continuous, self).event(chunk, steps, last=last)
        (choice,) = body["choices"] if isinstance(body["choices"], list) else ({},)
        usage = self.usage(len(self.sent_ids))
        return without_none(body | {"choices": [without_none(choice)]} | usage)

    def closing(self, steps: Steps, metrics: Json | None) -> list[Json]:
        del steps, metrics
        return [self.head(self.event_object) | {"choices": []} | self.usage(len(self.sent_ids))]


def without_none(body: Json) -> Json:
    return {key: value for key, value in body.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorrtLlmChatWire(_Continuous, ChatWire):
    """The JSON of `/v1/chat/completions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorrtLlmCompletionWire(_Continuous, CompletionWire):
    """The JSON of `/v1/completions`."""
