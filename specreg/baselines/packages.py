"""Record which packages an engine's environment had, and compare them with the present ones.

The lists are in the folder `packages` in the machine's folder of baselines. There is one file for
each environment, because many baselines share one.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from specreg.baselines.schema import Baseline
from specreg.core.errors import BaselineError
from specreg.core.files import MIB, cause_of, read_regular, replace_file
from specreg.measurement.measure import Measurement
from specreg.servers.installer import differing_packages, packages_sha256

_FOLDER = "packages"
_DIGITS = 16
"""How many characters of the checksum a file's name has."""
_MAX_SHOWN = 12
"""The most packages that a message names."""


def packages_path(folder: Path, sha256: str) -> Path:
    """Return the path of a list of packages, by its checksum.

    Args:
        folder: a machine's folder of baselines.
        sha256: the checksum of the packages.
    """
    return folder / _FOLDER / f"{sha256[:_DIGITS]}.txt"


def record_packages(folder: Path, packages: Sequence[str]) -> None:
    """Write a list of packages, unless the folder has it or the list is empty.

    Raises:
        BaselineError: the file can't be written.
    """
    if not packages:
        return
    sha256 = packages_sha256(packages)
    path = packages_path(folder, sha256)

    # A file that somebody has changed, or that can't be read, is written again.
    with contextlib.suppress(BaselineError):
        recorded_packages(folder, sha256)
        return

    try:
        replace_file(path, "".join(f"{line}\n" for line in packages).encode())
    except OSError as error:
        raise BaselineError(
            f"packages '{path}': not written, {error.strerror}; make room or repair its rights"
        ) from error


def recorded_packages(folder: Path, sha256: str) -> tuple[str, ...]:
    """Return the recorded list of packages with this checksum.

    Raises:
        BaselineError: the file is missing, can't be read, or has another checksum.
    """
    path = packages_path(folder, sha256)
    advice = "restore the file, or record the baseline again"
    try:
        text = read_regular(path, MIB).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"packages '{path}': {cause_of(error)}; {advice}") from error

    packages = tuple(text.splitlines())
    if packages_sha256(packages) != sha256:
        problem = "changed since it was written, as its checksum is another one"
        raise BaselineError(f"packages '{path}': {problem}; {advice}")
    return packages


def render_differences(before: Sequence[str], after: Sequence[str]) -> str:
    """Render the packages that differ, each with both versions. At most a dozen are named."""
    changes = differing_packages(before, after)
    omitted = len(changes) - _MAX_SHOWN
    shown = ", ".join(changes[:_MAX_SHOWN])
    if omitted > 0:
        return f"{shown} and {omitted} more"
    return shown


def package_remarks(folder: Path, measurement: Measurement, baseline: Baseline) -> Iterator[str]:
    """Yield a remark if the packages of a measurement and its baseline differ.

    If the engine's version differs too, there is no remark, because other packages are expected.

    Args:
        folder: the machine's folder of baselines.
        baseline: the baseline that it is compared with.
    """
    recorded_sha256 = baseline.provenance.packages_sha256
    has_packages = recorded_sha256 and measurement.packages
    is_same_version = baseline.provenance.engine_version == measurement.engine_version
    if not has_packages or not is_same_version:
        return
    if recorded_sha256 == packages_sha256(measurement.packages):
        return
    version = f"{measurement.case.server.engine} {measurement.engine_version}"
    remark = f"{version} had other packages when its baseline was recorded"
    try:
        recorded = recorded_packages(folder, recorded_sha256)
    except BaselineError as error:
        yield f"{remark}, which can't be named: {error}"
        return

    yield f"{remark}: {render_differences(recorded, measurement.packages)}"
