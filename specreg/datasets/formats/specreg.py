"""Our own form: id, category, and turns or token ids. It holds all that a prompt is."""

from specreg.datasets.formats._form import Row, RowForm
from specreg.datasets.prompts import Prompt


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


FORM = RowForm(
    name="specreg",
    row=SpecregRow,
    needs="id, category and turns (a list of texts) or token_ids",
)
