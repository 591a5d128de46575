"""What a form is: how the rows of a file spell prompts."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from specreg.core.errors import DatasetError
from specreg.datasets.formats._rows import read_rows
from specreg.datasets.prompts import Prompt, check_ids, check_prompt


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a file; columns that no field names are allowed."""

    def prompt(self, number: int) -> Prompt | None:
        """What the row asks, None where it asks nothing; `number` counts the file's rows from 0.

        Raises:
            DatasetError: it must not be asked as it is; the message names the field.
        """
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
    """

    name: str
    row: type[Row]
    needs: str

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

    @property
    def _advice(self) -> str:
        return f"a row of '{self.name}' needs {self.needs}"
