"""Foreseeing: texts and their models in, what these would have said and drafted out.

    python -m specreg.reference.foreseeing < question.json > answer.json

A draft counts as long as all before it were the text, and up to there the drafter has seen the
text: one pass over it tells what would have been proposed at each of its places, as far as that
matters. Runs in the reference engine's environment.
"""

import itertools
import sys
from collections.abc import Callable, Sequence

import msgspec
import torch

from specreg.errors import SpecregError
from specreg.questions import Foreseen, Question, Text
from specreg.reference.eagle3 import ObservedTarget, load_head
from specreg.reference.models import load_model
from specreg.reference.reading import Model

Rights = Callable[[Text], Sequence[Sequence[bool]]]
"""A text in; by place in it, whether each draft of a step that begins there is the text out."""


def foresee(question: Question) -> Foreseen:
    """The answer to a question.

    Raises:
        ModelError: a model isn't there, or isn't of the architecture that the method needs.
    """
    target = load_model(question.target, question.dtype, {"": question.device})
    rights = _RIGHTS.get(question.method, _of_nothing)(question, target)
    with torch.inference_mode():
        return Foreseen(
            accepted=tuple(tuple(map(_leading, rights(text))) for text in question.texts),
            gaps_nats=tuple(_gap_nats(target, text, question.device) for text in question.texts),
        )


def _gap_nats(target: Model, text: Text, device: str) -> float:
    """How much less likely than the target's own choice the least fitting token is."""
    logits = target(input_ids=torch.tensor([text.ids], device=device)).logits[0].double()
    said = logits[text.prompt_tokens - 1 : -1]
    chosen = torch.tensor(text.ids[text.prompt_tokens :], device=device)
    gaps = said.max(-1).values - said.gather(-1, chosen[:, None])[:, 0]
    return float(gaps.max()) if len(chosen) else 0.0


def _of_nothing(question: Question, target: Model) -> Rights:
    del question, target
    return lambda _: ()


def _of_draft_model(question: Question, target: Model) -> Rights:
    del target
    model = load_model(question.draft, question.dtype, {"": question.device})

    def rights(text: Text) -> Sequence[Sequence[bool]]:
        first = question.unseen_tokens
        ids = torch.tensor([text.ids[first:]], device=question.device)
        likeliest = model(input_ids=ids).logits[0].argmax(-1).tolist()
        # What it says after a token is its draft for the next place, in whichever step that is.
        hits = [False] * (first + 1)
        hits += [
            drafted == token
            for drafted, token in zip(likeliest[:-1], text.ids[first + 1 :], strict=True)
        ]
        return [hits[place : place + question.draft_tokens] for place in range(len(hits))]

    return rights


def _of_head(question: Question, model: Model) -> Rights:
    loaded = load_head(question.draft, question.dtype, question.device)
    target = ObservedTarget(model, loaded.layers)

    def rights(text: Text) -> Sequence[Sequence[bool]]:
        ids = torch.tensor([text.ids], device=question.device)
        _, embeddings, streams = target.observe(ids)
        # A step at a place hangs on the token two before it: its state and the token after it
        # make the first draft.
        anchors = len(text.ids) - question.draft_tokens - 1
        drafts = loaded.head.unroll(streams[:, :anchors], embeddings[:, 1:], question.draft_tokens)
        by_step = [
            (logits[0].argmax(-1) == ids[0, 2 + step : 2 + step + anchors]).tolist()
            for step, logits in enumerate(drafts)
        ]
        return [[], [], *zip(*by_step, strict=True)]

    return rights


_RIGHTS = {"draft_model": _of_draft_model, "eagle3": _of_head}


def _leading(right: Sequence[bool]) -> int:
    """How many drafts are right before the first that isn't."""
    return sum(itertools.takewhile(bool, right))


def main() -> None:
    """A question on the standard input, its answer on the standard output."""
    try:
        answer = foresee(msgspec.json.decode(sys.stdin.buffer.read(), type=Question))
    except SpecregError as error:
        raise SystemExit(str(error)) from error
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
