"""Run the rows of nightly.yml one after another, and print what became of each.

`nox -s nightly` calls it with the interpreter that has nox, and with what the user typed: nothing
for all rows, `1/2` for the first, third, fifth … of them, or the names of sessions.

Exit status: 0 if all rows were green, and 1 otherwise.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from ruamel.yaml import YAML

WORKFLOW = Path(".github/workflows/nightly.yml")
_PART = re.compile(r"([1-9]\d*)/([1-9]\d*)")


class Row(NamedTuple):
    """A row of the workflow's matrix: a session, and what is typed after `--`."""

    session: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join((self.session, *self.arguments))


class Result(NamedTuple):
    """What became of a row."""

    row: Row
    status: int
    took_s: float


def rows_of(workflow: Path) -> tuple[list[Row], Mapping[str, str]]:
    """Return the rows of the workflow's matrix, and the variables that each of them gets."""
    job = YAML(typ="safe").load(workflow)["jobs"]["nox"]
    rows = [
        Row(entry["session"], tuple(shlex.split(entry.get("arguments", ""))))
        for entry in job["strategy"]["matrix"]["include"]
    ]
    return rows, job["steps"][-1].get("env", {})


def chosen(rows: Sequence[Row], words: Sequence[str]) -> Sequence[Row]:
    """Return the rows that the user chose.

    Raises:
        SystemExit: a word is neither a part, such as 1/2, nor the name of a session in the rows.
    """
    sessions = {row.session for row in rows}
    names = []
    for word in words:
        part = _PART.fullmatch(word)
        if part is not None and int(part[1]) <= int(part[2]):
            # Neighbours have a session in common and take about as long, so they are dealt out.
            rows = rows[int(part[1]) - 1 :: int(part[2])]
        elif word in sessions:
            names.append(word)
        else:
            known = ", ".join(sorted(sessions))
            sys.exit(f"'{word}': is neither a part nor a session; type 1/2, 2/2 or some of {known}")
    return [row for row in rows if not names or row.session in names]


def run(python: str, rows: Sequence[Row], variables: Mapping[str, str]) -> list[Result]:
    """Run each row, whatever became of those before it; Ctrl-C ends with the results so far."""
    results = []
    for number, row in enumerate(rows, 1):
        print(f"\n=== {number} of {len(rows)}: {row}", flush=True)  # noqa: T201 - its output
        started_s = time.monotonic()
        command = (python, "-m", "nox", "-s", row.session, "--", *row.arguments)
        with subprocess.Popen(command, env=os.environ | variables) as process:  # noqa: S603 - ours
            try:
                status = process.wait()
            except KeyboardInterrupt:
                # Ctrl-C reached the session too, which stops its servers first.
                process.wait()
                break
        results.append(Result(row, status, time.monotonic() - started_s))
    return results


def table_of(rows: Sequence[Row], results: Sequence[Result]) -> Table:
    """Return a table with a line for each row; a row that wasn't reached has no time."""
    table = Table("session", "result", "time", box=None, pad_edge=False)
    table.columns[2].justify = "right"
    for result in results:
        word = "green" if result.status == 0 else f"RED, status {result.status}"
        minutes, seconds = divmod(round(result.took_s), 60)
        table.add_row(str(result.row), word, f"{minutes} min {seconds:02d} s")
    for row in rows[len(results) :]:
        table.add_row(str(row), "not run", "")
    return table


def main() -> None:
    """Run the rows that the command line chooses."""
    python, *words = sys.argv[1:]
    rows, variables = rows_of(WORKFLOW)
    chosen_rows = chosen(rows, words)
    results = run(python, chosen_rows, variables)
    print()  # noqa: T201 - its output
    Console(markup=False, width=None if sys.stdout.isatty() else 160).print(
        table_of(chosen_rows, results)
    )
    all_green = len(results) == len(chosen_rows) and all(result.status == 0 for result in results)
    sys.exit(0 if all_green else 1)


if __name__ == "__main__":
    main()
