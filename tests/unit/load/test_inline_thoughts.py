"""Thoughts that a server leaves in the text, between their marks, and how requests are drawn."""

from collections.abc import Sequence

import jinja2
import msgspec
import pytest

from specreg.acceptance.trace import RequestTrace
from tests.unit import builders
from tests.unit.builders.wires import ONE_AT_A_TIME, Wire, replay_wire

CASE = builders.with_request(ONE_AT_A_TIME, output_cap_tokens=64)


def wire_of(texts: Sequence[str], tokens: int = 2) -> Wire:
    """A chat's answer: each text is a chunk of so many tokens."""
    pieces = []
    for number, text in enumerate(texts):
        choice = {"delta": {"content": text}, "token_ids": [7] * tokens}
        if number == len(texts) - 1:
            choice["finish_reason"] = "stop"
        pieces.append(b"data: " + msgspec.json.encode({"choices": [choice]}) + b"\n\n")
    usage = {"completion_tokens": tokens * len(texts), "prompt_tokens": 5}
    pieces.append(b"data: " + msgspec.json.encode({"choices": [], "usage": usage}) + b"\n\n")
    return Wire([*pieces, b"data: [DONE]\n\n"])


def trace_of(texts: Sequence[str]) -> RequestTrace:
    return replay_wire(wire_of(texts), CASE, builders.PROMPTS[:1]).traces[0]


@pytest.mark.parametrize(
    ("texts", "thought_chunks"),
    [
        (["<think>", "Is it", " so? </think>", "Yes", "."], 2),
        # The template ended the prompt with the mark, so the answer doesn't begin with it.
        (["Is it", " so?", " </think>", "Yes", "."], 2),
        (["Is it", " so? </th", "ink> Yes", "."], 2),  # the mark comes in two chunks
        (["<think>", "Is it", " so?", " Or"], 3),  # it never left the thought
        (["Yes", ".", " No", " thought"], 0),
        (["Yes </think>", " no", " </think>", " twice"], 0),  # the first mark ends it
    ],
)
def test_the_chunks_up_to_the_mark_are_those_of_the_thought(
    texts: list[str], thought_chunks: int
) -> None:
    trace = trace_of(texts)
    assert sum(trace.thought_chunk_sizes) == thought_chunks
    assert trace.later_chunks == len(texts) - 1


def test_a_request_has_what_cuts_off_unlikely_tokens_and_a_seed() -> None:
    drawn = builders.with_request(CASE, temperature=0.7, top_p=0.9, top_k=20, paired_seeds=True)
    wires = []
    for case in (CASE, drawn, drawn):
        wire = wire_of(["a", "b"])
        replay_wire(wire, case, builders.PROMPTS[:1])
        wires.append(wire)
    greedy, first, second = (wire.bodies[0] for wire in wires)
    assert "seed" not in greedy
    assert (greedy["top_p"], greedy["top_k"]) == (1.0, 0)
    assert (first["temperature"], first["top_p"], first["top_k"]) == (0.7, 0.9, 20)
    assert first["seed"] == second["seed"]


@pytest.mark.parametrize("thinking", [True, False])
def test_a_request_tells_the_chat_template_to_think_or_not(*, thinking: bool) -> None:
    wire = wire_of(["a", "b"])
    replay_wire(wire, builders.with_request(CASE, thinking=thinking), builders.PROMPTS[:1])
    switches = {"enable_thinking": thinking, "thinking": thinking}
    assert wire.bodies[0]["chat_template_kwargs"] == switches


QWEN = "{% if enable_thinking is defined and enable_thinking is false %}off{% else %}on{% endif %}"
DEEPSEEK = "{% if thinking is defined and thinking %}on{% else %}off{% endif %}"


@pytest.mark.parametrize("template", [QWEN, DEEPSEEK])
@pytest.mark.parametrize(("thinking", "switched"), [(True, "on"), (False, "off")])
def test_the_templates_of_both_families_understand_the_switch(
    template: str, switched: str, *, thinking: bool
) -> None:
    """As the templates of Qwen3 and of DeepSeek V3.1 ask for it."""
    case = builders.with_request(CASE, thinking=thinking)
    assert jinja2.Template(template).render(dict(case.request.template_args)) == switched
