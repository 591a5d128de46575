"""Find the new tokens in each event of a stream, whether events are cumulative or incremental.

An event of SGLang's `/generate` repeats the whole answer so far; with
`--incremental-streaming-output` it has only the new part. No field says which, so it is recognised
from the events themselves and never assumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from specreg.core.errors import InvalidMeasurementError

_ENOUGH_EXTENSIONS = 2
"""The number of texts that must begin with the text before them and be longer. So many can't do so
by chance."""
_QUOTED_CHARACTERS = 100


class _Way(Enum):
    """How the events of a stream relate to each other."""

    REPEATING = auto()
    """Each event has the whole answer so far."""
    NEW_ALONE = auto()
    """Each event has only the new part of the answer."""


class Addition(NamedTuple):
    """The part of an answer that one event adds.

    Attributes:
        tokens: the number of new tokens.
        text: the new text.
        token_ids: the new ids; empty if the event has no ids.
    """

    tokens: int
    text: str
    token_ids: Sequence[int]


@dataclass(slots=True, eq=False)
class RepeatingStream:
    """Recognises whether the events of an answer repeat it, and finds what each event adds.

    If the events have token ids, the ids decide, usually in the second event: it has either the ids
    of all tokens so far, or only those of the new tokens. Without ids the texts decide. A text that
    doesn't begin with the text before it is new. A text that does begin with it is a repetition if
    the event has no new token, or if this is the second text that begins so and is longer. All
    texts but the first are held back until this is decided.

    Attributes:
        _way: how the events relate to each other; None until it is decided.
        _tokens: the number of tokens so far.
        _token_ids: the ids so far.
        _last_text: the text of the last event.
        _shown: the text that has been returned, as long as the events may repeat it.
        _waiting: the texts that are held back.
        _extensions: how many texts have begun with the text before them and were longer.
    """

    _way: _Way | None = None
    _tokens: int = 0
    _token_ids: list[int] = field(default_factory=list)
    _last_text: str = ""
    _shown: str = ""
    _waiting: list[str] = field(default_factory=list)
    _extensions: int = 0

    def take(
        self, *, text: str, token_ids: Sequence[int] | None, all_tokens: int, is_last: bool
    ) -> Addition:
        """Return what one more event adds to the answer.

        Args:
            text: the text of the event.
            token_ids: the ids of the event; None if it has none.
            all_tokens: the number of tokens that the answer has so far, by the event's own count.
            is_last: True if the answer ends with the event.

        Raises:
            InvalidMeasurementError: `STREAM_UNRECOGNISED`, the event neither repeats the answer nor
                continues it, relates to it in another way than earlier events, or ends the answer
                while its text is still held back.
        """
        new_tokens = all_tokens - self._tokens
        if new_tokens < 0:
            raise _unrecognised(f"an event counts {all_tokens} tokens after {self._tokens}", text)
        new_ids: Sequence[int] = ()
        if token_ids is None:
            self._compare_text(text, new_tokens)
        else:
            new_ids = self._take_ids(list(token_ids), new_tokens, text)

        self._tokens = all_tokens
        self._last_text = text
        new_text = self._take_text(text, is_last=is_last)
        return Addition(tokens=new_tokens, text=new_text, token_ids=new_ids)

    def _take_ids(self, token_ids: list[int], new_tokens: int, text: str) -> Sequence[int]:
        """Return the new ids of an event, and decide how the events relate if the ids show it."""
        before = self._token_ids

        # A repeating event may have more ids than it counts, because SGLang counts tokens when a
        # step ends, and collects the ids later when it sends the event.
        all_tokens = self._tokens + new_tokens
        repeats = token_ids[: len(before)] == before and len(token_ids) >= all_tokens
        is_new_alone = len(before) == self._tokens and len(token_ids) == new_tokens
        if not (repeats or is_new_alone):
            message = (
                f"an event holds {len(token_ids)} token ids, where {new_tokens} tokens are new"
                f" after {self._tokens}"
            )
            raise _unrecognised(message, text)

        if repeats:
            way = _Way.REPEATING
            new_ids = token_ids[len(before) :]
        else:
            way = _Way.NEW_ALONE
            new_ids = token_ids

        # The first event decides nothing, unless it has more ids than it counts.
        if before or not is_new_alone:
            self._decide(way, text)
        before.extend(new_ids)
        return new_ids

    def _compare_text(self, text: str, new_tokens: int) -> None:
        """Decide how the events relate from a text without ids, if it shows that."""
        if not self._last_text:
            return
        if not text.startswith(self._last_text):
            self._decide(_Way.NEW_ALONE, text)
        elif new_tokens == 0:
            # The event has text but no new token, so the text is a repetition.
            self._decide(_Way.REPEATING, text)
        elif self._way is None and text != self._last_text:
            self._extensions += 1
            if self._extensions == _ENOUGH_EXTENSIONS:
                self._decide(_Way.REPEATING, text)

    def _decide(self, way: _Way, text: str) -> None:
        """Note how the events relate, and check that it doesn't contradict earlier events."""
        if self._way not in {None, way}:
            fault = "an event relates to the answer in another way than the events before it"
            raise _unrecognised(fault, text)
        self._way = way

    def _take_text(self, text: str, *, is_last: bool) -> str:
        """Return what an event adds to the text, together with the texts that were held back."""
        if self._way is _Way.NEW_ALONE:
            waited = "".join(self._waiting)
            self._waiting.clear()
            return waited + text

        if self._way is _Way.REPEATING:
            before = self._shown
            if not text.startswith(before):
                fault = "an event repeats the token ids before it, but not the text before it"
                raise _unrecognised(fault, text)
            self._shown = text
            return text[len(before) :]

        if not self._shown:
            # The first text has nothing to repeat, so all of it is new.
            self._shown = text
            return text

        self._waiting.append(text)
        if is_last:
            message = (
                "the answer ends before its events show whether each repeats the text before it"
            )
            raise _unrecognised(message, text)

        return ""


def _unrecognised(fault: str, text: str) -> InvalidMeasurementError:
    quoted = f"{fault}, in: {text[-_QUOTED_CHARACTERS:]!r}"
    return InvalidMeasurementError("STREAM_UNRECOGNISED", fault=quoted)
