"""Lines of aiperf's `multi_turn`: a conversation each, its answers live."""

import msgspec

from specreg.forms._form import Row, RowForm
from specreg.prompts import Prompt


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is said; by the user where no role is given."""

    text: str
    role: str | None = None


class AiperfRow(Row, frozen=True, kw_only=True):
    """A conversation.

    Attributes:
        session_id: its identifier.
        turns: what is said.
    """

    session_id: str
    turns: tuple[Turn, ...]

    def prompt(self, number: int) -> Prompt:  # noqa: ARG002 - it has an id
        """What the user says."""
        turns = tuple(turn.text for turn in self.turns if turn.role in {None, "user"})
        return Prompt(id=self.session_id, category="own", turns=turns)

    @classmethod
    def of(cls, prompt: Prompt) -> "AiperfRow":
        """The conversation; its category is lost."""
        return cls(session_id=prompt.id, turns=tuple(Turn(text=text) for text in prompt.turns))


FORM = RowForm(
    name="aiperf", row=AiperfRow, needs="session_id and turns (a list of objects with a text)"
)
