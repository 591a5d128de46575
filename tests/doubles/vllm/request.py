"""What a client asks for. In: the body of a POST. Out: a Job, with its truth and its fault."""

import time
import uuid
from dataclasses import dataclass

import msgspec

from .launch import Launch
from .script import Fault, Script, Stream, chat_prompt, prompt_token_ids, steps_of
from .steps import Chunk, Steps, changed, in_pairs, merged, split
from .wire import Wire

_COMPLETION_TOKENS = 16
"""The protocol's default of `max_tokens` for `/v1/completions`."""


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream says besides its tokens."""

    include_usage: bool = False


class Body(msgspec.Struct, frozen=True):
    """The part of a generation request that the server acts on."""

    model: str | None = None
    messages: list[dict[str, str]] | None = None
    prompt: str | list[int] | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    logprobs: int | None = None
    return_tokens_as_token_ids: bool | None = None

    @property
    def text(self) -> str:
        """The prompt's text; ids are a text of numbers."""
        if self.messages is not None:
            return chat_prompt(self.messages)
        if isinstance(self.prompt, str):
            return self.prompt
        return " ".join(map(str, self.prompt or ()))

    @property
    def room_tokens(self) -> int | None:
        """The most tokens that the answer may have."""
        default = None if self.messages is not None else _COMPLETION_TOKENS
        return self.max_tokens or default

    def steps(self, script: Script, draft_tokens: int) -> Steps:
        return steps_of(
            self.text,
            script,
            num_speculative_tokens=draft_tokens,
            max_tokens=self.room_tokens,
            ignore_eos=self.ignore_eos,
        )


@dataclass(slots=True, kw_only=True)
class Job:
    """One request on its way: `steps` are the truth, `chunks` what is sent at once.

    `stretch` is by how much its steps take longer.
    """

    body: Body
    wire: Wire
    steps: Steps
    chunks: tuple[Chunk, ...]
    fault: Fault | None
    stretch: float = 1.0

    @property
    def wants_usage(self) -> bool:
        options = self.body.stream_options
        return bool(options and options.include_usage) and self.fault is not Fault.NO_USAGE


def job_of(
    body: Body, launch: Launch, script: Script, *, shape: type[Wire], fault: Fault | None
) -> Job:
    steps = body.steps(script, 0 if fault is Fault.SPEC_DISABLED else launch.draft_tokens)
    if fault is Fault.CHANGED_TOKEN and steps.accepted:
        steps = changed(steps)
    if script.otherwise_from_token and steps.draft_tokens:
        steps = changed(steps, script.otherwise_from_token)
    chunks = merged(steps.chunks) if fault is Fault.MERGED_CHUNKS else steps.chunks
    if script.stream is Stream.TOKENS:
        chunks = split(chunks)
    elif script.stream is Stream.MIXED:
        third = len(chunks) // 3
        steps_alone = chunks[third : 2 * third]
        chunks = (*split(chunks[:third]), *steps_alone, *in_pairs(chunks[2 * third :]))
    wire = shape(
        key=uuid.uuid4().hex[:16],
        created_s=int(time.time()),
        model=launch.name,
        prompt_ids=prompt_token_ids(body.text),
        with_ids=bool(body.return_token_ids),
        thought_tokens=script.thought_tokens,
        loses_text=script.loses_text,
        scored=body.logprobs,
        scored_by_id=bool(body.return_tokens_as_token_ids),
    )
    return Job(body=body, wire=wire, steps=steps, chunks=chunks, fault=fault)
