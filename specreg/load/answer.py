"""Gather what one streamed answer holds, by the channel in which it came."""

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from specreg.acceptance.trace import Reply, StreamEvent
from specreg.datasets.prompts import is_unfinished_thought

_DIGITS = 16
_LEAST_LOOPING_CHARACTERS = 64
"""Of a shorter answer a half may well repeat itself."""
_REPEATED_EVENTS = 3
"""So many events repeat the text before them and go on, with no more tokens than it had, by no
chance."""


_THOUGHT, _TEXT, _OTHER = "thought", "text", "other"
"""The channels of an answer."""


class _Run(NamedTuple):
    """What came in one channel, until another one took its turn."""

    channel: str
    texts: list[str]


@dataclass(slots=True, eq=False)
class AnswerText:
    """All that one answer has said so far.

    Attributes:
        in_thought: whether what came last belongs to a thought.
        is_partly_unseen: whether tokens came of which nothing was shown, neither ids nor text.
    """

    in_thought: bool = False
    is_partly_unseen: bool = False
    _runs: list[_Run] = field(default_factory=list)
    _channel: str = ""
    _token_ids: list[int] = field(default_factory=list)
    _last_is_unseen: bool = False
    _last: StreamEvent | None = None
    _repeats: int | None = 0

    def take(self, event: StreamEvent) -> None:
        """Take what one more event shows."""
        is_unseen = True
        if event.thought:
            is_unseen = False
            self._say(_THOUGHT, event.thought)
        if event.text:
            is_unseen = False
            self._say(_TEXT, event.text)
        if event.other:
            is_unseen = False
            self._say(_OTHER, event.other)
        if self._repeats is not None and not is_unseen:
            self._count_repetition(event)
        if event.tokens:
            self._token_ids += event.token_ids
            if self._last_is_unseen:  # the last token may well have no text: it ends the answer
                self.is_partly_unseen = True
            self._last_is_unseen = is_unseen

    def _say(self, channel: str, text: str) -> None:
        if channel != self._channel:
            self._runs.append(_Run(channel, []))
            self._channel = channel
            self.in_thought = channel == _THOUGHT
        self._runs[-1].texts.append(text)

    def _count_repetition(self, event: StreamEvent) -> None:
        """Count events that hold all before them; None once one doesn't."""
        last = self._last
        self._last = event
        if last is None or self._repeats is None:
            return
        said, said_before = event.thought + event.text, last.thought + last.text
        if not said.startswith(said_before):
            self._repeats = None
        elif len(said) > len(said_before) and event.tokens <= last.tokens:
            self._repeats += 1

    @property
    def repeats_events(self) -> bool:
        """Whether each event holds all text so far, where it should hold what is new alone."""
        return self._repeats is not None and self._repeats >= _REPEATED_EVENTS

    @property
    def text(self) -> str:
        """The answer without its thought."""
        return self._joined(_TEXT)

    @property
    def thought(self) -> str:
        """The thought, as far as the server tells it apart."""
        return self._joined(_THOUGHT)

    @property
    def reply(self) -> Reply:
        """What the answer holds beside its thought."""
        text = self.text
        has_other = any(run.channel == _OTHER for run in self._runs)
        if is_unfinished_thought(text) or (self.thought and not text and not has_other):
            return Reply.UNFINISHED_THOUGHT
        return Reply.TEXT if text.strip() or has_other else Reply.NOTHING

    @property
    def loops(self) -> bool:
        """Whether the second half of all that was said repeats itself."""
        said = "".join(text for run in self._runs for text in run.texts)
        if len(said) < _LEAST_LOOPING_CHARACTERS:
            return False
        half = said[len(said) // 2 :]
        period = half.find(half[: len(half) // 2], 1)
        return 0 < period <= len(half) // 2 and half[period:] == half[:-period]

    def sha256(self, tokens: int) -> str:
        """The first 16 digits of a checksum of all that was generated.

        Args:
            tokens: how many tokens the answer has by the server's count.

        Returns:
            An empty text where what came doesn't show all of them: two such answers may differ in
            what wasn't shown.
        """
        has_all_ids = bool(tokens) and len(self._token_ids) == tokens
        if not has_all_ids and (self.is_partly_unseen or not self._runs):
            return ""
        digest = hashlib.sha256()
        if has_all_ids:
            digest.update(msgspec.json.encode(self._token_ids))
        for run in self._runs:
            text = "".join(run.texts).encode(errors="surrogatepass")
            digest.update(b"%b %d " % (run.channel.encode(), len(text)))
            digest.update(text)
        return digest.hexdigest()[:_DIGITS]

    def _joined(self, channel: str) -> str:
        runs = [run for run in self._runs if run.channel == channel]
        return "".join(text for run in runs for text in run.texts)
