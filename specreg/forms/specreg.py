"""Our own form: id, category, and turns or token ids. It holds all that a prompt is."""

import msgspec

from specreg.forms._form import Row, RowForm
from specreg.prompts import Prompt


class SpecregRow(Row, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row; see `Prompt` for the fields."""

    id: str
    category: str
    turns: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()

    def prompt(self, number: int) -> Prompt:  # noqa: ARG002 - it has an id
        """The same."""
        return Prompt(
            id=self.id, category=self.category, turns=self.turns, token_ids=self.token_ids
        )

    @classmethod
    def of(cls, prompt: Prompt) -> "SpecregRow":
        """The same."""
        return cls(**msgspec.structs.asdict(prompt))


FORM = RowForm(
    name="specreg",
    row=SpecregRow,
    needs="id, category and turns (a list of texts) or token_ids",
    holds_ids=True,
)
