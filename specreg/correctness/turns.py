"""Ask for greedy answers in token ids turn by turn, each after the replies before it.

Two servers are compared on the same texts: those that one of them, without speculation or of the
older version, gives by its own replies.
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
    """Return how many turns of a prompt the case asks."""
    return len(prompt.turns[: case.turns]) or 1


def ask_each_turn(
    endpoint: Endpoint,
    case: Case,
    prompts: Sequence[Prompt],
    ask: Callable[[Texts], Sequence[Transcript]],
) -> tuple[TurnAnswer, ...]:
    """Ask all first turns, then all second ones, and so on.

    Args:
        endpoint: of the server whose tokenizer and template make the texts.
        case: how its prompts are put, and how many turns of each.
        prompts: at least one.
        ask: gives the answers to texts, which later turns come after.

    Raises:
        InvalidMeasurementError: a server doesn't answer in ids, or a reply has no text.
    """
    answers: list[TurnAnswer] = []
    histories: dict[str, tuple[Message, ...]] = {}
    for turn in range(1, max(turns_of(case, prompt) for prompt in prompts) + 1):
        going = [prompt for prompt in prompts if turn <= turns_of(case, prompt)]
        for prompt in going:
            if prompt.turns:
                user = Message("user", prompt.turns[turn - 1])
                histories[prompt.id] = (*histories.get(prompt.id, ()), user)
        chats = [histories[prompt.id] for prompt in going if not prompt.token_ids]
        encoded = iter(encode_chats(endpoint, case, chats))
        texts = [prompt.token_ids or next(encoded) for prompt in going]
        for prompt, text, answer in zip(going, texts, ask(texts), strict=True):
            name = prompt.id if turn == 1 else f"{prompt.id} turn {turn}"
            answers.append(TurnAnswer(name, text, answer))
            if turn < turns_of(case, prompt):
                reply = Message("assistant", _reply(case, name, answer))
                histories[prompt.id] = (*histories[prompt.id], reply)
    return tuple(answers)


def _reply(case: Case, name: str, answer: Transcript) -> str:
    if answer.text is None:
        message = f"the answer to prompt '{name}' has no text, so the next turn can't be asked"
        raise InvalidMeasurementError("ANSWER_UNREADABLE", message)
    return REPLIES[case.history_reply](REPLIES[_WITHOUT_THINKING](answer.text))
