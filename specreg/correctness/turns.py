"""Get greedy answers in token ids turn by turn, each after the replies before it.

Two servers are compared on the same texts. The replies in these texts are those of one of the two:
of the server without speculation, or of the older version.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from specreg.core.errors import InvalidMeasurementError
from specreg.datasets.prompts import REPLIES, Prompt
from specreg.engines.wire_format import Endpoint, Message, Transcript
from specreg.load.token_client import encode_chats
from specreg.matrix.case import Case

Texts = Sequence[tuple[int, ...]]
_WITHOUT_THINKING = "without_thinking"
"""A thought that comes with the reply isn't sent along: it could fill the context."""


class TurnAnswer(NamedTuple):
    """One turn of a prompt: its name, its text in token ids, and the answer to it."""

    name: str
    text: tuple[int, ...]
    answer: Transcript


def turns_of(case: Case, prompt: Prompt) -> int:
    """Return how many turns of a prompt the case replays."""
    return len(prompt.turns[: case.turns]) or 1


def ask_each_turn(
    endpoint: Endpoint,
    case: Case,
    prompts: Sequence[Prompt],
    ask: Callable[[Texts], Sequence[Transcript]],
) -> tuple[TurnAnswer, ...]:
    """Send all first turns, then all second ones, and so on.

    Args:
        endpoint: the server whose tokenizer and template make the texts.
        case: says how prompts are sent, and how many turns of each.
        prompts: at least one.
        ask: returns the answers to texts. They become part of the later turns.

    Returns:
        The turns in the order in which they were sent.

    Raises:
        InvalidMeasurementError: a server doesn't answer in ids, or a reply has no text.
    """
    answers: list[TurnAnswer] = []
    histories: dict[str, tuple[Message, ...]] = {}
    for turn in range(1, max(turns_of(case, prompt) for prompt in prompts) + 1):
        sent_prompts = [prompt for prompt in prompts if turn <= turns_of(case, prompt)]
        for prompt in sent_prompts:
            if prompt.turns:
                user = Message("user", prompt.turns[turn - 1])
                histories[prompt.id] = (*histories.get(prompt.id, ()), user)
        # A prompt in token ids has no chat to encode.
        chats = [histories[prompt.id] for prompt in sent_prompts if not prompt.token_ids]
        encoded = iter(encode_chats(endpoint, case, chats))
        texts = [prompt.token_ids or next(encoded) for prompt in sent_prompts]
        for prompt, text, answer in zip(sent_prompts, texts, ask(texts), strict=True):
            name = prompt.id
            if turn > 1:
                name = f"{prompt.id} turn {turn}"
            answers.append(TurnAnswer(name, text, answer))
            if turn < turns_of(case, prompt):
                reply = Message("assistant", _reply(case, name, answer))
                histories[prompt.id] = (*histories[prompt.id], reply)
    return tuple(answers)


def _reply(case: Case, name: str, answer: Transcript) -> str:
    """Return the text of an answer as later turns have it, without a thought.

    Raises:
        InvalidMeasurementError: `ANSWER_UNREADABLE`, the server sent ids and no text.
    """
    if answer.text is None:
        message = (
            f"the answer to prompt '{name}' has no text, so the next turn can't be asked; look"
        )
        message += " at the server's log"
        raise InvalidMeasurementError("ANSWER_UNREADABLE", message)
    return REPLIES[case.history_reply](REPLIES[_WITHOUT_THINKING](answer.text))
