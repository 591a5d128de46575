"""Print how a change moves the versions of engines: a line `vllm==0.31.0 vllm==0.32.0` for each.

It compares the extras of pyproject.toml at a revision with those of the working tree, which a test
holds to what the suite installs. It prints nothing if no engine changed.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

_ENGINES = ("vllm", "sglang")
_FILE = "pyproject.toml"


def pins_in(text: str) -> dict[str, str]:
    """Return the requirement of each engine that the text of a pyproject.toml pins, by engine."""
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    return {name: extras[name][0] for name in _ENGINES if extras.get(name)}


def main(revision: str) -> None:
    """Print the old and the new requirement of each engine that changed."""
    command = ("git", "show", f"{revision}:{_FILE}")
    shown = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    old_pins = pins_in(shown.stdout)
    new_pins = pins_in(Path(_FILE).read_text())
    for name, pin in new_pins.items():
        if old_pins.get(name, pin) != pin:
            print(old_pins[name], pin)  # noqa: T201 - what the workflow reads


if __name__ == "__main__":
    main(sys.argv[1])
