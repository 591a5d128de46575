"""Write the locks of the engines' environments anew: what is installed with each, with checksums.

A lock holds for every Python from 3.11 on and for every kind of Linux machine. It doesn't say where
its files came from, so a mirror will do. `--upgrade` takes newer packages.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from specreg.core.errors import UnsupportedError
from specreg.engines.engine import LOCKS, Engine, Requirement
from specreg.engines.registry import ENGINES
from specreg.servers.installer import uv_command

_LOCKED = ("reference", "sglang", "vllm")
"""The engines whose packages PyPI has. The others come from an index or an image of their own."""


def requirements_of(engine: Engine) -> Iterator[Requirement]:
    """Yield what is installed for an engine on a machine without a GPU, and on one with a GPU."""
    for on_gpu in (False, True):
        try:
            yield engine.requirement(on_gpu=on_gpu)
        except UnsupportedError:
            continue


def write_lock(engine: Engine, requirement: Requirement, arguments: list[str]) -> Path:
    """Write the lock of a requirement, with the packages that only some methods need."""
    device = "gpu" if requirement.local_torch is None else "cpu"
    path = LOCKS / f"{requirement.package}-{requirement.version}-{device}.txt"
    spellings = engine.methods.values()
    packages = {package for spelling in spellings for package in spelling.packages}
    wanted = (requirement.pin, *requirement.extras, *sorted(packages), *engine.ray_packages)
    overrides = list(requirement.overrides)
    if requirement.local_torch is not None:
        # A build for CPUs comes from another index, so it has another checksum.
        overrides.append(requirement.local_torch)
        arguments = ["--no-emit-package", "torch", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        override_path = Path(folder, "overrides.txt")
        override_path.write_text("\n".join(overrides))
        command = uv_command(
            *("pip", "compile", "-", "--output-file", str(path), "--quiet"),
            *("--override", str(override_path), "--universal", "--python-version", "3.11"),
            *("--generate-hashes", "--no-annotate", "--custom-compile-command", "nox -s lock"),
            *arguments,
        )
        subprocess.run(command, check=True, input="\n".join(wanted), text=True)  # noqa: S603 - ours
    return path


def main() -> None:
    """Write all locks, and remove those of versions that no engine installs any more."""
    LOCKS.mkdir(exist_ok=True)
    written = {
        write_lock(ENGINES[name], requirement, sys.argv[1:])
        for name in _LOCKED
        for requirement in requirements_of(ENGINES[name])
    }
    for path in set(LOCKS.glob("*.txt")) - written:
        path.unlink()


if __name__ == "__main__":
    main()
