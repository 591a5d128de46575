"""What a change does to the versions of engines: a line `vllm==0.31.0 vllm==0.32.0` for each.

Reads the extras of pyproject.toml at a revision and here; a test holds them to what the suite
installs. Prints nothing where no engine changed.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

_ENGINES = ("vllm", "sglang")
_FILE = "pyproject.toml"


def pins_in(text: str) -> dict[str, str]:
    """By engine the requirement that a pyproject.toml pins."""
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    return {name: extras[name][0] for name in _ENGINES if extras.get(name)}


def main(revision: str) -> None:
    """Prints the old and the new requirement of each engine that changed."""
    command = ("git", "show", f"{revision}:{_FILE}")
    shown = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    before, now = pins_in(shown.stdout), pins_in(Path(_FILE).read_text())
    for name, pin in now.items():
        if before.get(name, pin) != pin:
            print(before[name], pin)  # noqa: T201 - what the workflow reads


if __name__ == "__main__":
    main(sys.argv[1])
