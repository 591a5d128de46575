"""Foreseeing: texts and their models in, what these would have said and drafted out.

    python -m specreg.engines.pytorch.foreseeing [DEVICE] < question.json > answer.json

A draft counts as long as all before it were the text, and up to there the drafter has seen the
text: one pass over it tells what would have been proposed at each of its places, as far as that
matters. Runs in the reference engine's environment, on its device.
"""

import itertools
import os
import sys
from collections.abc import Callable, Sequence

import msgspec
import torch

from specreg.core.errors import SpecregError
from specreg.engines.pytorch.eagle3 import ObservedTarget
from specreg.engines.pytorch.heads import load_head
from specreg.engines.pytorch.models import (
    check_context,
    check_draft,
    context_of,
    devices_there,
    load_config,
    load_model,
    load_tokenizer,
)
from specreg.engines.pytorch.placement import choose_devices
from specreg.engines.pytorch.questions import REFUSED, Foreseen, Question, Text
from specreg.engines.pytorch.reading import Model

Rights = Sequence[Sequence[bool]]
"""By place in a text, whether each draft of a step that begins there is the text."""
Read = Callable[[torch.Tensor], tuple[torch.Tensor, Rights]]
"""A text's ids `[1, tokens]` in; the target's logits `[1, tokens, V]` and the rights out."""


def foresee(question: Question, device: str) -> Foreseen:
    """The answer to a question.

    Args:
        question: one text at least.
        device: where to compute, as PyTorch calls it.

    Raises:
        ModelError: a model isn't there, isn't of the architecture that the method needs, or
            doesn't fit the texts or the target.
    """
    longest = max(len(text.ids) for text in question.texts)
    config = load_config(question.target)
    check_context("target", question.target, context_of(config), longest)
    read = _READS.get(question.method, _of_nothing)(question, device, longest)
    accepted, gaps_nats = [], []
    for text in question.texts:
        with torch.inference_mode():
            logits, rights = read(torch.tensor([text.ids], device=device))
            gaps_nats.append(_gap_nats(logits[0], text))
        accepted.append(tuple(map(_leading, rights)))
    return Foreseen(accepted=tuple(accepted), gaps_nats=tuple(gaps_nats))


def _gap_nats(logits: torch.Tensor, text: Text) -> float:
    """How much less likely than the target's own choice the answer's least fitting token is."""
    first, end = text.prompt_tokens, text.prompt_tokens + text.output_tokens
    said = logits[first - 1 : end - 1].double()
    chosen = torch.tensor(text.ids[first:end], device=logits.device)
    gaps = said.max(-1).values - said.gather(-1, chosen[:, None])[:, 0]
    return float(gaps.max()) if len(chosen) else 0.0


def _target(question: Question, device: str) -> Model:
    return load_model(question.target, question.dtype, {"": device})


def _of_nothing(question: Question, device: str, longest: int) -> Read:
    del longest
    target = _target(question, device)
    return lambda ids: (target(input_ids=ids).logits, ())


def _of_draft_model(question: Question, device: str, longest: int) -> Read:
    tokenizer = load_tokenizer(question.target)
    check_draft(question.draft, load_config(question.target), tokenizer, longest)
    target = _target(question, device)
    model = load_model(question.draft, question.dtype, {"": device})
    first = question.unseen_tokens

    def read(ids: torch.Tensor) -> tuple[torch.Tensor, Rights]:
        likeliest = model(input_ids=ids[:, first:]).logits.argmax(-1)
        # What it says after a token is its draft for the next place, in whichever step that is.
        hits = [False] * (first + 1)
        hits += (likeliest[0, :-1] == ids[0, first + 1 :]).tolist()
        rights = [hits[place : place + question.draft_tokens] for place in range(len(hits))]
        return target(input_ids=ids).logits, rights

    return read


def _of_head(question: Question, device: str, longest: int) -> Read:
    model = _target(question, device)
    loaded = load_head(question.draft, model, longest)
    target = ObservedTarget(model, loaded.layers)

    def read(ids: torch.Tensor) -> tuple[torch.Tensor, Rights]:
        logits, embeddings, streams = target.observe(ids)
        # A step at a place hangs on the token two before it: its state and the token after it
        # make the first draft.
        anchors = ids.shape[1] - question.draft_tokens - 1
        drafts = loaded.head.unroll(streams[:, :anchors], embeddings[:, 1:], question.draft_tokens)
        by_step = [
            (drafted[0].argmax(-1) == ids[0, 2 + step : 2 + step + anchors]).tolist()
            for step, drafted in enumerate(drafts)
        ]
        return logits, [[], [], *zip(*by_step, strict=True)]

    return read


_READS = {"draft_model": _of_draft_model, "eagle3": _of_head}


def _leading(right: Sequence[bool]) -> int:
    """How many drafts are right before the first that isn't."""
    return sum(itertools.takewhile(bool, right))


def main() -> None:
    """Answer the question in a line of the standard input, in a line of the standard output.

    What others print there goes to the standard error.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        device, *_ = choose_devices(sys.argv[1:], devices_there())
        answer = foresee(msgspec.json.decode(sys.stdin.buffer.readline(), type=Question), device)
    except SpecregError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a program's own words
        raise SystemExit(REFUSED) from error
    with answers:
        answers.write(msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()
