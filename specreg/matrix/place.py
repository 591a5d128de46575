"""Where something stands in a matrix file, for errors."""

import re
from dataclasses import dataclass
from pathlib import Path

_CASES = re.compile(r"\s*\[\[\s*cases\s*\]\]")
_SUBTABLE = r"\s*\[\s*{table}\s*\.\s*{key}\s*\]"
_KEY = r"\s*{key}\s*[=.]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table of a file.

    Attributes:
        path: the file's.
        table: what it is called, `[[cases]] no. 2`; empty for the whole file.
        lines: the file's.
        row: the table's first line, counted from 0; None where nobody can tell.
    """

    path: Path
    table: str
    lines: tuple[str, ...]
    row: int | None

    def at(self, key: str = "") -> str:
        """The file, the line, and the table; the line is the key's, if that is found."""
        row = self._row(key)
        line = "" if row is None else f", line {row + 1}"
        table = f", {self.table}" if self.table else ""
        return f"matrix file '{self.path}'{line}{table}"

    def _row(self, key: str) -> int | None:
        if self.row is None or not key:
            return self.row
        first = re.escape(re.split(r"[.\[]", key)[0])
        inside = re.compile(_KEY.format(key=first))
        below = re.compile(_SUBTABLE.format(table=r"[\w.\-]+", key=first))
        for row in range(self.row, len(self.lines)):
            line = self.lines[row]
            if row > self.row and _CASES.match(line):
                break
            if inside.match(line) or below.match(line):
                return row
        return self.row


def whole_file(path: Path, text: str) -> Place:
    """The file itself, whose keys stand at its top."""
    return Place(path=path, table="", lines=tuple(text.splitlines()), row=None)


def case_table(path: Path, text: str, number: int) -> Place:
    """The how-manieth `[[cases]]`, from 1."""
    lines = tuple(text.splitlines())
    rows = [row for row, line in enumerate(lines) if _CASES.match(line)]
    row = rows[number - 1] if number <= len(rows) else None
    return Place(path=path, table=f"[[cases]] no. {number}", lines=lines, row=row)


def models_table(path: Path, text: str, name: str) -> Place:
    """`[models.NAME]`."""
    lines = tuple(text.splitlines())
    heading = re.compile(rf"""\s*\[\s*models\s*\.\s*["']?{re.escape(name)}["']?\s*\]""")
    row = next((row for row, line in enumerate(lines) if heading.match(line)), None)
    return Place(path=path, table=f"[models.{name}]", lines=lines, row=row)
