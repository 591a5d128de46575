"""Releases: a package in, its versions that can be installed here out, by the index's client."""

import subprocess

import msgspec
import uv

from specreg.errors import EnvironmentSetupError

_ERROR_LINES = 5


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
    except msgspec.DecodeError as error:
        words = "\n".join(done.stderr.strip().splitlines()[-_ERROR_LINES:])
        message = (
            f"releases of '{package}': the index doesn't list them; check the network, or name them"
            f" with --versions\n{words}"
        )
        raise EnvironmentSetupError(message) from error
