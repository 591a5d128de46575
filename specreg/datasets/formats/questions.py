"""`question.jsonl` of FastChat, Spec-Bench and EAGLE; HuggingFaceH4's columns go by other names."""

from specreg.core.errors import DatasetError
from specreg.datasets.formats._form import Row, RowForm
from specreg.datasets.prompts import Prompt


class QuestionRow(Row, frozen=True, kw_only=True, rename={"texts": "prompt"}):
    """A question.

    Attributes:
        question_id, prompt_id: an identifier, under either name.
        category: its category.
        turns, texts: what the user says; `texts` is `prompt` in the file.
    """

    category: str
    question_id: int | str | None = None
    prompt_id: int | str | None = None
    turns: tuple[str, ...] | None = None
    texts: tuple[str, ...] | None = None

    def prompt(self, number: int) -> Prompt:  # noqa: ARG002 - it has an id
        """The question."""
        name = self.question_id if self.question_id is not None else self.prompt_id
        turns = self.turns if self.turns is not None else self.texts
        if name is None or turns is None:
            field = "question_id" if name is None else "turns"
            raise DatasetError(f"{field} is missing; a row of 'questions' needs {FORM.needs}")
        return Prompt(id=str(name), category=self.category, turns=turns)


FORM = RowForm(
    name="questions",
    row=QuestionRow,
    needs="question_id, category and turns (a list of texts)",
)
