"""The answers of both sides of a gate: each is asked once, and what came of it is kept."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from specreg.compare.pairs import Pair, Side
from specreg.core.errors import InvalidMeasurementError
from specreg.core.files import UNREADABLE, replace_file
from specreg.correctness.answers import (
    Answers,
    answers_of,
    compare_answers,
    verdict_on_answers,
    why_not_compared,
)
from specreg.matrix.prompts import load_case_prompts
from specreg.servers.server import Server
from specreg.verdicts.judge import Outcome, Verdict

_MOST_BLOCKS = 2
"""Answers that couldn't be compared in as many aren't asked for any more."""


class _Known(msgspec.Struct):
    """What a gate's folder keeps of answers, by pair."""

    answers: dict[str, Answers] = {}
    verdicts: dict[str, Verdict] = {}


@dataclass(slots=True, kw_only=True)
class AnswerComparison:
    """The answers of a gate, as far as they were asked for.

    Attributes:
        path: of the file that keeps them.
        failed: by pair why its answers couldn't be compared.
        blocks: by pair, those in which its answers were to be compared.
    """

    pairs: Sequence[Pair]
    root: Path
    path: Path
    show: Callable[[str], None]
    failed: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, set[int]] = field(default_factory=dict)
    _known: _Known = field(default_factory=_Known)

    def take_over(self) -> None:
        """Go on with what the folder has, if it can be read."""
        try:
            self._known = msgspec.json.decode(self.path.read_bytes(), type=_Known)
        except (OSError, *UNREADABLE):
            self._known = _Known()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What is known of each pair's answers, or why nothing is."""
        return tuple(map(self._verdict, self.pairs))

    def _verdict(self, pair: Pair) -> Verdict:
        if pair.id in self._known.verdicts:
            return self._known.verdicts[pair.id]
        if why := why_not_compared(pair.a, pair.b):
            return verdict_on_answers(pair.id, Outcome.NOT_COMPARABLE, why)
        unknown = self.failed.get(pair.id, "the answers weren't compared; --resume does so")
        return verdict_on_answers(pair.id, Outcome.INVALID, unknown)

    def wants(self, pairs: Collection[Pair]) -> bool:
        """Whether a further block may tell of answers what those before couldn't."""
        return any(
            self._verdict(pair).outcome is Outcome.INVALID
            and len(self.blocks.get(pair.id, ())) < _MOST_BLOCKS
            for pair in pairs
        )

    def ask(self, pair: Pair, servers: Mapping[Side, Server], block: int) -> None:
        """Ask side A for its answers once, and hold side B's against them once.

        Raises:
            ServerDiedError: a server went away.
        """
        if self._verdict(pair).outcome is not Outcome.INVALID:
            return
        self.blocks.setdefault(pair.id, set()).add(block)
        prompts = load_case_prompts(self.root, pair.a)[: pair.a.prompts]
        known, side = self._known, Side.A
        try:
            plain = servers.get(Side.A) or servers.get(Side.A2)
            if pair.id not in known.answers and plain is not None:
                known.answers[pair.id] = answers_of(pair.a, plain, prompts)
            side = Side.B
            if Side.B in servers and pair.id in known.answers:
                self.show(f"{pair.id}: comparing the answers")
                theirs, a, b = known.answers[pair.id], servers.get(Side.A), servers[Side.B]
                known.verdicts[pair.id] = compare_answers(pair.id, pair.b, b, prompts, theirs, a)
        except InvalidMeasurementError as error:
            self.failed[pair.id] = f"side {side}: {error}"
            for one in servers.values():
                one.check_alive()
        replace_file(self.path, msgspec.json.encode(known))
