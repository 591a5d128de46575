"""What commands of pytest would run, listed in one process that all of them share.

Most of what `pytest --co` takes is starting Python and importing the tests of the suite.
"""

import contextlib
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.unit.builders.cases import ROOT


class Collection(msgspec.Struct, frozen=True):
    """What a command of pytest would run.

    Attributes:
        exit_code: the exit code of `pytest --co`.
        tests: the ids of the tests, in their order.
        output: what pytest printed, to show where a test fails.
    """

    exit_code: int
    tests: tuple[str, ...]
    output: str


def collect(commands: Sequence[str], *options: str) -> Mapping[str, Collection]:
    """List what each command would run.

    Args:
        commands: commands that begin with `pytest`, as they are typed in the repository's root.
        options: what every command gets besides.
    """
    words = {command: [*shlex.split(command), *options] for command in commands}
    done = subprocess.run(
        (sys.executable, "-m", __name__),
        check=False,
        cwd=ROOT,
        input=json.dumps(words),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return msgspec.json.decode(done.stdout, type=dict[str, Collection])


class _Listener:
    """Keeps the ids of the tests that pytest has collected and selected."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tests += [item.nodeid for item in session.items]


def _collect_here(words: Sequence[str]) -> Collection:
    """List what a command would run, in this process."""
    program, *arguments = words
    assert Path(program).name == "pytest", words
    listener = _Listener()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        exit_code = pytest.main([*arguments, "--co", "-q", "-p", "no:cacheprovider"], [listener])
    return Collection(exit_code=exit_code, tests=tuple(listener.tests), output=output.getvalue())


def _main() -> None:
    """Answer on stdout, as JSON, the commands that stand on stdin."""
    commands: dict[str, list[str]] = json.load(sys.stdin)
    collections = {command: _collect_here(words) for command, words in commands.items()}
    sys.stdout.write(msgspec.json.encode(collections).decode())


if __name__ == "__main__":
    _main()
