"""The packages of an engine's environment with which baselines were recorded.

They lie in `packages` in the machine's folder, a file for each environment, as many baselines share
one.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from specreg.baselines.schema import Baseline
from specreg.core.errors import BaselineError
from specreg.core.files import MIB, read_regular, replace_file
from specreg.measurement.measure import Measurement
from specreg.servers.installer import differing_packages, packages_sha256

_FOLDER = "packages"
_DIGITS = 16
_MAX_SHOWN = 12


def packages_path(folder: Path, sha256: str) -> Path:
    """Return where the packages with a checksum are listed, in a machine's folder of baselines."""
    return folder / _FOLDER / f"{sha256[:_DIGITS]}.txt"


def record_packages(folder: Path, packages: Sequence[str]) -> None:
    """Write the list of some packages, unless it is there or they aren't known.

    Raises:
        BaselineError: the disk refuses.
    """
    path = packages_path(folder, packages_sha256(packages))
    if not packages or path.exists():
        return
    try:
        replace_file(path, "".join(f"{line}\n" for line in packages).encode())
    except OSError as error:
        raise BaselineError(
            f"packages '{path}': not written, {error.strerror}; make room or mend its rights"
        ) from error


def recorded_packages(folder: Path, sha256: str) -> tuple[str, ...]:
    """Return the packages with a checksum; nothing if no list with this checksum is there."""
    try:
        text = read_regular(packages_path(folder, sha256), MIB).decode()
    except (OSError, UnicodeDecodeError):
        return ()
    packages = tuple(text.splitlines())
    return packages if packages_sha256(packages) == sha256 else ()


def render_differences(before: Sequence[str], after: Sequence[str]) -> str:
    """Render the packages that differ, each with both versions, the first dozen by name."""
    changes = differing_packages(before, after)
    more = len(changes) - _MAX_SHOWN
    shown = ", ".join(changes[:_MAX_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown


def package_remarks(folder: Path, measurement: Measurement, baseline: Baseline) -> Iterator[str]:
    """Say which packages a measurement had other than its baseline, of one engine's version."""
    recorded_sha256 = baseline.provenance.packages_sha256
    is_known = recorded_sha256 and measurement.packages
    is_same_version = baseline.provenance.engine_version == measurement.engine_version
    if not is_known or not is_same_version:
        return
    if recorded_sha256 == packages_sha256(measurement.packages):
        return
    recorded = recorded_packages(folder, recorded_sha256)
    version = f"{measurement.case.server.engine} {measurement.engine_version}"
    if not recorded:
        path = packages_path(folder, recorded_sha256)
        yield f"{version} had other packages when its baseline was recorded; '{path}' is missing"
        return
    changes = render_differences(recorded, measurement.packages)
    yield f"{version} had other packages when its baseline was recorded, then and now: {changes}"
