"""Gather the texts of one streamed answer, by the channels in which they came."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from specreg.acceptance.trace import Reply, StreamEvent
from specreg.datasets.prompts import END_OF_THOUGHT, is_unfinished_thought

_DIGITS = 16
"""How many digits of a checksum are kept."""
_LEAST_LOOPING_CHARACTERS = 64
"""A shorter answer may repeat itself without looping."""
_REPEATED_EVENTS = 3
"""How many events must repeat the text of the event before them and add to it, without having more
tokens, for a stream to count as one that repeats its text. So many don't do so by chance."""

# The channels of an answer
_THOUGHT = "thought"
_TEXT = "text"
_OTHER = "other"


class _Stretch(NamedTuple):
    """The texts that came in one channel before another channel took its turn."""

    channel: str
    texts: list[str]


@dataclass(slots=True, eq=False)
class AnswerText:
    """What has been received of one answer so far.

    Attributes:
        in_thought: whether the last text belongs to a thought.
        is_partly_unseen: whether an event with tokens, other than the last one, came without any
            text. The ids of these tokens may be known nevertheless.
        inline_thought_chunks: for a server that doesn't separate thoughts, the number of chunks up
            to the end of the thought, which a mark in the text shows; 0 without such a mark. All
            text before the mark is the thought. The mark of its beginning may be missing, because a
            template may have put it at the end of the prompt.
    """

    in_thought: bool = False
    is_partly_unseen: bool = False
    inline_thought_chunks: int = 0
    _stretches: list[_Stretch] = field(default_factory=list)
    _channel: str = ""
    _token_ids: list[int] = field(default_factory=list)
    _last_is_unseen: bool = False
    _last: StreamEvent | None = None
    # How many events repeated the text of the event before them; None once an event didn't.
    _repeats: int | None = 0
    _text_end: str = ""
    _has_ended_thought: bool = False

    def take(self, event: StreamEvent) -> None:
        """Add one more event."""
        is_unseen = True
        if event.thought:
            is_unseen = False
            self._append(_THOUGHT, event.thought)
        if event.text:
            is_unseen = False
            self._append(_TEXT, event.text)
            self._look_for_end(event.text)

        if event.extra_json:
            is_unseen = False
            self._append(_OTHER, event.extra_json)
        if self._repeats is not None and not is_unseen:
            self._count_repetition(event)
        if event.tokens:
            self._token_ids += event.token_ids
            # The last token of an answer may well have no text, so only an event before it counts.
            if self._last_is_unseen:
                self.is_partly_unseen = True
            self._last_is_unseen = is_unseen

    def end_chunk(self, chunks: int) -> None:
        """Note that the last event ended a chunk.

        Args:
            chunks: how many chunks have come so far.
        """
        if self._has_ended_thought and not self.inline_thought_chunks:
            self.inline_thought_chunks = chunks

    def _append(self, channel: str, text: str) -> None:
        if channel != self._channel:
            self._stretches.append(_Stretch(channel, []))
            self._channel = channel
            self.in_thought = channel == _THOUGHT
        self._stretches[-1].texts.append(text)

    def _look_for_end(self, text: str) -> None:
        """Look in the text for the mark that ends a thought."""
        if self._has_ended_thought or any(
            stretch.channel == _THOUGHT for stretch in self._stretches
        ):
            return

        # The mark may be split between events.
        recent = self._text_end + text
        self._has_ended_thought = END_OF_THOUGHT in recent
        self._text_end = recent[1 - len(END_OF_THOUGHT) :]

    def _count_repetition(self, event: StreamEvent) -> None:
        """Count the events that repeat the text of the event before them, until one doesn't."""
        last = self._last
        self._last = event
        if last is None or self._repeats is None:
            return
        text = event.thought + event.text
        last_text = last.thought + last.text
        if not text.startswith(last_text):
            self._repeats = None
        elif len(text) > len(last_text) and event.tokens <= last.tokens:
            self._repeats += 1

    @property
    def repeats_events(self) -> bool:
        """True if each event has all text so far, where it should have only the new text."""
        return self._repeats is not None and self._repeats >= _REPEATED_EVENTS

    @property
    def text(self) -> str:
        """The text of the answer, with the thought if the server doesn't separate it."""
        return self._joined(_TEXT)

    @property
    def thought(self) -> str:
        """The thought; empty if the server doesn't separate it from the text."""
        return self._joined(_THOUGHT)

    @property
    def reply(self) -> Reply:
        """What the answer holds apart from its thought."""
        text = self.text
        has_other = any(stretch.channel == _OTHER for stretch in self._stretches)
        if is_unfinished_thought(text) or (self.thought and not text and not has_other):
            return Reply.UNFINISHED_THOUGHT
        if text.strip() or has_other:
            return Reply.TEXT
        return Reply.NOTHING

    @property
    def loops(self) -> bool:
        """True if the second half of all text repeats itself."""
        all_text = "".join(_texts_of(self._stretches))
        if len(all_text) < _LEAST_LOOPING_CHARACTERS:
            return False
        middle = len(all_text) // 2
        half = all_text[middle:]

        # The distance to the next copy of the half's beginning is the length of one repetition.
        longest_period = len(half) // 2
        period = half.find(half[:longest_period], 1)
        return 0 < period <= longest_period and half[period:] == half[:-period]

    def sha256(self, tokens: int) -> str:
        """Return the first 16 digits of a checksum of everything that was generated.

        Args:
            tokens: how many tokens came, by the server's count.

        Returns:
            An empty text if nothing came, or if some tokens came without any text and not all
            tokens have ids, because two such answers may differ in tokens that aren't seen.
        """
        has_all_ids = self._has_all_ids(tokens)
        if not has_all_ids and (self.is_partly_unseen or not self._stretches):
            return ""
        digest = hashlib.sha256()
        if has_all_ids:
            digest.update(msgspec.json.encode(self._token_ids))
        for stretch in self._stretches:
            text = "".join(stretch.texts).encode(errors="surrogatepass")
            digest.update(b"%b %d " % (stretch.channel.encode(), len(text)))
            digest.update(text)

        return digest.hexdigest()[:_DIGITS]

    def ids_sha256(self, tokens: int) -> str:
        """Return the first 16 digits of a checksum of the token ids; empty if any isn't known.

        Args:
            tokens: how many tokens came, by the server's count.
        """
        if not self._has_all_ids(tokens):
            return ""
        return hashlib.sha256(msgspec.json.encode(self._token_ids)).hexdigest()[:_DIGITS]

    def _has_all_ids(self, tokens: int) -> bool:
        return bool(tokens) and len(self._token_ids) == tokens

    def _joined(self, channel: str) -> str:
        """Return the text of one channel."""
        return "".join(
            _texts_of(stretch for stretch in self._stretches if stretch.channel == channel)
        )


def _texts_of(stretches: Iterable[_Stretch]) -> Iterator[str]:
    return itertools.chain.from_iterable(stretch.texts for stretch in stretches)
