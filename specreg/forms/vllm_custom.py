"""Lines of `vllm bench serve --dataset-name custom`.

It takes the length of answers from --custom-output-len.
"""

from specreg.forms._form import Row, RowForm
from specreg.prompts import Prompt


class VllmCustomRow(Row, frozen=True, kw_only=True, rename={"text": "prompt"}):
    """A request."""

    text: str

    def prompt(self, number: int) -> Prompt:
        """The text; rows have no ids, so their number is one."""
        return Prompt(id=f"vllm-custom-{number}", category="own", turns=(self.text,))

    @classmethod
    def of(cls, prompt: Prompt) -> "VllmCustomRow":
        """The text; id and category are lost."""
        return cls(text=prompt.turns[0])


FORM = RowForm(name="vllm-custom", row=VllmCustomRow, needs="prompt (a text)", one_turn=True)
