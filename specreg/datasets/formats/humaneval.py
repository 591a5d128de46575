"""HumanEval: a function's head and docstring, to be completed."""

from specreg.datasets.formats._form import Row, RowForm
from specreg.datasets.prompts import Prompt


class HumanEvalRow(Row, frozen=True, kw_only=True, rename={"text": "prompt"}):
    """A task.

    Attributes:
        task_id: `HumanEval/0`.
        text: the code to complete; in the file `prompt`.
    """

    task_id: str
    text: str

    def prompt(self, number: int) -> Prompt:  # noqa: ARG002 - it has an id
        """The code as it stands."""
        return Prompt(id=self.task_id, category="coding", turns=(self.text,))


FORM = RowForm(name="humaneval", row=HumanEvalRow, needs="task_id and prompt (a text)")
