"""Releases: a package in, its versions that can be installed here out, by the index's client."""

import subprocess
from collections.abc import Iterable

import msgspec
import uv
from packaging.version import Version

from specreg.core.errors import EnvironmentSetupError, UnsupportedError
from specreg.core.files import UNREADABLE

_ERROR_LINES = 5
_MOST_NAMED = 10


class _Index(msgspec.Struct, frozen=True):
    versions: tuple[str, ...]


def released_versions(package: str) -> tuple[str, ...]:
    """All versions that pip would install, by its own settings.

    Raises:
        EnvironmentSetupError: the index can't be asked, or has none.
    """
    command = (uv.find_uv_bin(), "tool", "run", "pip", "index", "versions", package, "--json")
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    try:
        return msgspec.json.decode(done.stdout, type=_Index).versions
    except UNREADABLE as error:
        words = "\n".join(done.stderr.strip().splitlines()[-_ERROR_LINES:])
        message = (
            f"releases of '{package}': the index doesn't list them; check the network, or name them"
            f" with --versions\n{words}"
        )
        raise EnvironmentSetupError(message) from error


def check_released(version: Version, released: Iterable[Version]) -> None:
    """Silent where a version is among those that were released.

    Raises:
        UnsupportedError: it isn't; the message names the last ones.
    """
    known = sorted(released)
    if version not in known:
        shown = ", ".join(map(str, known[-_MOST_NAMED:])) or "none"
        message = f"version '{version}': was never released; the last ones are {shown}"
        raise UnsupportedError(message)
