"""Tell what is new in a stream whose events either repeat all so far or hold what is new alone.

SGLang's `/generate` does the first, and with `--incremental-streaming-output` the second. Nothing
in an event names the way, so it is recognised from the events and never assumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from specreg.core.errors import InvalidMeasurementError

_ENOUGH_EXTENSIONS = 2
"""How often a text must go on from the one before it, until that is no chance."""
_QUOTED_CHARACTERS = 100


class _Way(Enum):
    REPEATING = auto()
    """Each event holds all that was said so far."""
    NEW_ALONE = auto()
    """Each event holds what is new."""


class Addition(NamedTuple):
    """What one event adds to an answer."""

    tokens: int
    text: str
    token_ids: Sequence[int]


@dataclass(slots=True, eq=False)
class RepeatingStream:
    """The events of one answer so far, and which way they come, once that is known.

    With token ids the second event tells: it holds either as many ids as all tokens so far, the
    earlier ones first, or as many as are new. Without ids the texts tell: a text that doesn't begin
    with the one before it is new, and texts that go on from those before them repeat. Until the way
    is known, texts wait.
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
        """Take one more event.

        Args:
            text: of the event.
            token_ids: of the event, None where it has none.
            all_tokens: how many tokens the answer has so far.
            is_last: whether the answer ends with it.

        Raises:
            InvalidMeasurementError: `STREAM_UNRECOGNISED`, it comes neither way, or the answer
                ends before its events tell which.
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
        """Return the ids that are new; which ones these are also tells the way."""
        before = self._token_ids
        # An event that repeats may hold ids that it doesn't count yet: SGLang counts when a step
        # ends, and lists the ids when it sends the event.
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
        # The first event looks the same either way, unless it has ids that it doesn't count yet.
        if before or not is_new_alone:
            self._decide(way, text)
        before.extend(new_ids)
        return new_ids

    def _compare_text(self, text: str, new_tokens: int) -> None:
        """Learn the way from a text without ids."""
        if not self._last_text:
            return
        if not text.startswith(self._last_text):
            self._decide(_Way.NEW_ALONE, text)
        elif new_tokens == 0:
            # A text without a new token isn't new.
            self._decide(_Way.REPEATING, text)
        elif self._way is None and text != self._last_text:
            self._extensions += 1
            if self._extensions == _ENOUGH_EXTENSIONS:
                self._decide(_Way.REPEATING, text)

    def _decide(self, way: _Way, text: str) -> None:
        if self._way not in {None, way}:
            raise _unrecognised("an event comes another way than those before it", text)
        self._way = way

    def _take_text(self, text: str, *, is_last: bool) -> str:
        """Return what an event adds to the text, with what waited for the way to be known."""
        if self._way is _Way.NEW_ALONE:
            waited = "".join(self._waiting)
            self._waiting.clear()
            return waited + text
        if self._way is _Way.REPEATING:
            before = self._shown
            if not text.startswith(before):
                raise _unrecognised("an event repeats the token ids before it, not the text", text)
            self._shown = text
            return text[len(before) :]
        if not self._shown:
            # Nothing comes before the first text, so it is the same either way.
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
    message = (
        f"{fault}, in: {text[-_QUOTED_CHARACTERS:]!r}; events must hold either all text and token"
        " ids so far or the new ones alone; take a version of the engine that specreg knows"
    )
    return InvalidMeasurementError("STREAM_UNRECOGNISED", message)
