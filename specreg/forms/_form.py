"""What a form is: how the rows of a file spell prompts."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from specreg.errors import DatasetError
from specreg.forms._rows import read_rows, write_rows
from specreg.prompts import Prompt, check_ids, check_prompt


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row of a file; columns that no field names are allowed."""

    def prompt(self, number: int) -> Prompt | None:
        """What the row asks, None where it asks nothing; `number` counts the file's rows from 0.

        Raises:
            DatasetError: it must not be asked as it is; the message names the field.
        """
        raise NotImplementedError

    @classmethod
    def of(cls, prompt: Prompt) -> Self:
        """The row of a prompt that the form can hold."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a file holds.

    Attributes:
        prompts: in the order of its rows.
        left_out_rows: how many rows ask nothing.
    """

    prompts: tuple[Prompt, ...]
    left_out_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """A form of prompt files.

    Attributes:
        name: what users write.
        row: the type of its rows.
        needs: what a row must have, in words.
        one_turn: whether a row holds one turn alone.
        holds_ids: whether a row can hold token ids instead of texts.
    """

    name: str
    row: type[Row]
    needs: str
    one_turn: bool = False
    holds_ids: bool = False

    def load(self, path: Path) -> Loaded:
        """The prompts of a file of JSON lines, of one JSON array or of Parquet.

        Raises:
            DatasetError: the file can't be read, is empty, or a row is wrong; names file, row and
                field, and says what to do.
        """
        prompts, left_out_rows = [], 0
        for number, (place, row) in enumerate(read_rows(path, self.row, self._advice)):
            try:
                prompt = row.prompt(number)
                if prompt is not None:
                    check_prompt(prompt)
            except DatasetError as error:
                raise DatasetError(f"{place}: {error}") from error
            if prompt is None:
                left_out_rows += 1
            else:
                prompts.append(prompt)
        if not prompts:
            message = f"prompt file '{path}': asks nothing; {self._advice}"
            raise DatasetError(message)
        check_ids(prompts, f"prompt file '{path}'")
        return Loaded(prompts=tuple(prompts), left_out_rows=left_out_rows)

    def record(self, path: Path, prompts: Iterable[Prompt]) -> None:
        """Writes prompts as JSON lines, or as one array where the file ends in `.json`.

        Raises:
            DatasetError: the form can't hold a prompt, or the file can't be written.
        """
        write_rows(path, [self.row.of(self._held(prompt)) for prompt in prompts])

    def _held(self, prompt: Prompt) -> Prompt:
        if prompt.token_ids and not self.holds_ids:
            message = (
                f"prompt '{prompt.id}': token ids, and '{self.name}' holds texts alone; keep the"
                " form 'specreg'"
            )
            raise DatasetError(message)
        if self.one_turn and len(prompt.turns) > 1:
            message = (
                f"prompt '{prompt.id}': {len(prompt.turns)} turns, and '{self.name}' holds one;"
                " keep the first with --turns 1, or choose a form that holds several"
            )
            raise DatasetError(message)
        return prompt

    @property
    def _advice(self) -> str:
        return f"a row of '{self.name}' needs {self.needs}"
