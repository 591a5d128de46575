"""Get greedy answers to conversations, turn by turn and in token ids.

Two servers are compared on the same texts. So the replies in a conversation all come from one of
them: from the server without speculation, or from side A of a gate.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from specreg.core.errors import InvalidMeasurementError
from specreg.datasets.prompts import REPLIES, Prompt
from specreg.engines.wire_format import Endpoint, Message, Transcript
from specreg.load.token_client import encode_chats
from specreg.matrix.case import Case

Texts = Sequence[tuple[int, ...]]
"""Texts to be continued, as token ids."""
_WITHOUT_THINKING = "without_thinking"
"""The treatment of replies that removes the model's thoughts. In later turns they could fill the
context."""


class TurnAnswer(NamedTuple):
    """The answer to one turn of a prompt.

    Attributes:
        name: the id of the prompt, followed by the number of the turn from the second turn on.
        text: the text that was sent, as token ids: the conversation up to this turn.
    """

    name: str
    text: tuple[int, ...]
    answer: Transcript


def turns_of(case: Case, prompt: Prompt) -> int:
    """Return how many turns of a prompt a case replays, at least 1."""
    # A prompt in token ids has no turns, and is sent once.
    return len(prompt.turns[: case.request.turns]) or 1


def ask_each_turn(
    endpoint: Endpoint,
    case: Case,
    prompts: Sequence[Prompt],
    ask: Callable[[Texts], Sequence[Transcript]],
) -> tuple[TurnAnswer, ...]:
    """Send the first turns of all prompts, then their second turns, and so on.

    Args:
        endpoint: the server whose tokenizer and chat template make the texts.
        case: the case, which says how prompts are sent, and how many turns each of them has.
        prompts: the prompts, at least one.
        ask: returns the answers to texts. They become part of the later turns.

    Returns:
        The answers in the order in which the turns were sent.

    Raises:
        InvalidMeasurementError: a server doesn't answer in ids, or a reply has no text.
    """
    answers: list[TurnAnswer] = []
    histories: dict[str, tuple[Message, ...]] = {}
    last_turn = max(turns_of(case, prompt) for prompt in prompts)
    for turn in range(1, last_turn + 1):
        # Add the user's message of this turn to each conversation.
        sent_prompts = [prompt for prompt in prompts if turn <= turns_of(case, prompt)]
        for prompt in sent_prompts:
            if prompt.turns:
                user = Message("user", prompt.turns[turn - 1])
                histories[prompt.id] = (*histories.get(prompt.id, ()), user)
        # Encode the conversations. A prompt in token ids is encoded already.
        chats = [histories[prompt.id] for prompt in sent_prompts if not prompt.token_ids]
        encoded_chats = iter(encode_chats(endpoint, case, chats))
        texts = [prompt.token_ids or next(encoded_chats) for prompt in sent_prompts]
        # Send them, and add the replies to the conversations that go on.
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
    """Return the text of an answer as it appears in later turns, without the model's thoughts.

    Raises:
        InvalidMeasurementError: `ANSWER_UNREADABLE`, the server sent ids and no text.
    """
    if answer.text is None:
        fault = f"the answer to prompt '{name}' has no text, so the next turn can't be sent"
        raise InvalidMeasurementError("ANSWER_UNREADABLE", fault=fault)
    without_thoughts = REPLIES[_WITHOUT_THINKING](answer.text)
    return REPLIES[case.request.history_reply](without_thoughts)
