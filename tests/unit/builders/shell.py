"""What a shell starts if somebody pastes the commands of servers into it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_STUB = """#!{python} -IS
import json, os, sys
with open(os.environ["STARTED"], "a") as file:
    file.write(json.dumps([sys.argv, dict(os.environ)]) + chr(10))
"""


class Started(NamedTuple):
    """A program that was started: its words and its environment variables."""

    words: Sequence[str]
    variables: Mapping[str, str]


def write_stub(path: Path) -> None:
    """Write a program that only notes how it is started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_STUB.format(python=sys.executable))
    path.chmod(0o755)


def paste(text: str, folder: Path) -> Sequence[Started]:
    """Run a text in a shell, and return what it has started."""
    noted = folder / "started.jsonl"
    environment = {**os.environ, "STARTED": str(noted)}
    subprocess.run(
        ("/bin/sh", "-eus"),
        check=True,
        input=text,
        text=True,
        env=environment,
        cwd=folder,
        timeout=600,
    )
    return [Started(*json.loads(line)) for line in noted.read_text().splitlines()]
