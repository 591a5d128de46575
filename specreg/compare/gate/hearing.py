"""Hearing: servers of both sides as they come up in, whether their answers are the same out.

Each side is asked once. What couldn't be compared is tried again on a later launch, but no launches
are made for it for ever.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specreg.compare.gate.beside import blaming
from specreg.compare.gate.journal import Journal
from specreg.compare.gate.launched import Arm
from specreg.compare.gate.plan import Pair
from specreg.compare.gate.texts import (
    TextsJudged,
    TextsSaid,
    compare_texts,
    hear,
    not_compared,
    untold,
    why_not_compared,
)
from specreg.core.errors import InvalidMeasurementError
from specreg.datasets.prompts import Prompt
from specreg.matrix.prompts import load_case_prompts
from specreg.servers.server import Server

_MOST_BLOCKS = 2


@dataclass(slots=True, kw_only=True)
class Hearing:
    """The answers of a gate, as far as they were heard.

    Attributes:
        pairs: what is compared.
        root: the repository's root; journal: of the gate; show: is told what goes on.
        said: by side A, by case; texts: what became of them.
        unheard: why answers couldn't be compared.
        asked_in: by case, the blocks in which its answers were to be compared since the gate began
            or went on.
    """

    pairs: Sequence[Pair]
    root: Path
    journal: Journal
    show: Callable[[str], None]
    said: dict[str, TextsSaid] = field(default_factory=dict)
    texts: dict[str, TextsJudged] = field(default_factory=dict)
    unheard: dict[str, TextsJudged] = field(default_factory=dict)
    asked_in: dict[str, set[int]] = field(default_factory=dict)

    def take_over(self, lines: Sequence[object]) -> None:
        """What a gate that was cut off had heard."""
        self.said = {one.case_id: one for one in lines if isinstance(one, TextsSaid)}
        self.texts = {one.case_id: one for one in lines if isinstance(one, TextsJudged)}

    @property
    def judged(self) -> tuple[TextsJudged, ...]:
        """What is known of each case's answers, or why nothing is."""
        why_not = {pair.id: why_not_compared(pair.a, pair.b) for pair in self.pairs}
        others = (not_compared(case_id, why) for case_id, why in why_not.items() if why)
        return (*self.texts.values(), *self._untold.values(), *others)

    @property
    def _untold(self) -> Mapping[str, TextsJudged]:
        """Of each case whose answers must be the same and aren't compared yet, why not."""
        return {
            pair.id: self.unheard.get(pair.id, untold(pair.id, "nobody has compared the answers"))
            for pair in self.pairs
            if not why_not_compared(pair.a, pair.b) and pair.id not in self.texts
        }

    def wants(self, case_ids: Iterable[str]) -> bool:
        """Whether a further block may tell of answers what those before couldn't.

        Answers that couldn't be compared in two blocks, and a side that never came so far, aren't
        asked for until the launches are used up.
        """
        return any(
            case_id in self._untold and len(self.asked_in.get(case_id, ())) < _MOST_BLOCKS
            for case_id in case_ids
        )

    def begin(self, pairs: Sequence[Pair], block: int) -> None:
        """Notes that servers are started on which some answers could be compared."""
        for case_id in self._untold.keys() & {pair.id for pair in pairs}:
            self.asked_in.setdefault(case_id, set()).add(block)

    def listen(self, pair: Pair, servers: Mapping[Arm, Server]) -> None:
        """Side A's answers once, and side B's held against them once.

        Raises:
            SideError: a server went away.
        """
        if pair.id not in self._untold:
            return
        prompts = load_case_prompts(self.root, pair.a)[: pair.a.prompts]
        for arm in sorted(servers):
            with blaming(arm):
                try:
                    self._listen(pair, arm, servers, prompts)
                except InvalidMeasurementError as error:
                    self.unheard[pair.id] = untold(pair.id, f"side {arm}: {error}")
                    servers[arm].check_alive()

    def _listen(
        self,
        pair: Pair,
        arm: Arm,
        servers: Mapping[Arm, Server],
        prompts: Sequence[Prompt],
    ) -> None:
        server, said = servers[arm], self.said.get(pair.id)
        if arm is Arm.B and said is not None:
            self.show(f"{pair.id}: comparing the answers")
            found = compare_texts(pair.b, server, prompts, said, servers.get(Arm.A))
            self.texts[pair.id] = found
            self.journal.write(found)
            if Arm.A in servers:  # which was asked too
                with blaming(Arm.A):
                    servers[Arm.A].check_alive()
        elif arm is not Arm.B and said is None:
            self.said[pair.id] = hear(pair.a, pair.id, server, prompts)
            self.journal.write(self.said[pair.id])
