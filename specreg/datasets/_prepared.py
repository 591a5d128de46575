"""Sets that aren't committed: `specreg prepare` writes them, this reads them."""

from specreg.datasets._dataset import Prompt, PromptSet, Wanted, load_prompt_lines
from specreg.errors import DatasetError


def load_prepared(one: PromptSet, wanted: Wanted) -> tuple[Prompt, ...]:
    """The prompts of a prepared set.

    Raises:
        DatasetError: nobody prepared it here, or its file can't be read.
    """
    path = wanted.data_dir / f"{one.name}.jsonl"
    if not path.is_file():
        message = (
            f"dataset '{one.name}': not prepared on this machine; run specreg prepare {one.name}"
        )
        raise DatasetError(message)
    return load_prompt_lines(path)
