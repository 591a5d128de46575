"""The CUDA that an engine's packages bring, and the oldest driver that runs it.

An engine whose CUDA is newer than the driver starts, and fails late with an error of CUDA. Within a
major release of CUDA each driver that runs its first minor release runs the others (NVIDIA's guide
to CUDA compatibility, "Minor Version Compatibility").
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from specreg.engines.engine import Requirement as EngineRequirement
from specreg.servers.installer import version_in

_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?")
"""The package with CUDA's runtime; from CUDA 13 on its name has no number."""
_LEAST_DRIVERS = {12: "525.60.13", 13: "580.65.06"}
"""By major release of CUDA the oldest driver for Linux that runs it, by its release notes."""
_COMPATIBLE = Path("/usr/local/cuda/compat")


def cuda_release_of(packages: Sequence[str]) -> str:
    """Return the release of CUDA among some packages, such as 13.0; empty if there is none.

    Args:
        packages: lines of `uv pip freeze`, such as `nvidia-cuda-runtime==13.0.96`.
    """
    names = (line.partition("==")[0] for line in packages)
    for name in filter(_RUNTIME.fullmatch, names):
        try:
            version = Version(version_in(packages, name))
        except InvalidVersion:
            continue
        return f"{version.major}.{version.minor}"
    return ""


def locked_packages(requirement: EngineRequirement) -> tuple[str, ...]:
    """Return the packages of a lock that are installed here, as `uv pip freeze` would say them."""
    if requirement.lock is None:
        return ()
    return tuple(_pins(requirement.lock.read_text()))


def _pins(lock: str) -> Iterator[str]:
    for line in lock.splitlines():
        if line.startswith((" ", "#")) or "==" not in line:
            continue
        try:
            pin = Requirement(line.rstrip("\\").strip())
        except InvalidRequirement:
            continue
        if pin.marker is None or pin.marker.evaluate():
            yield f"{pin.name}{pin.specifier}"


def least_driver_of(cuda_release: str) -> str:
    """Return the oldest driver that runs a release of CUDA; empty if it isn't known."""
    major = cuda_release.partition(".")[0]
    return _LEAST_DRIVERS.get(int(major), "") if major.isdecimal() else ""


def why_driver_too_old(
    cuda_release: str, driver: str, variables: Mapping[str, str] = os.environ
) -> str:
    """Return why a driver doesn't run a release of CUDA; empty if it does, or that isn't known.

    NVIDIA's package of forward compatibility lets older drivers run it; where its library is, there
    is nothing to say. PyPI has one build of each release of vLLM and SGLang, for CUDA 13 (looked up
    on 2026-11-26: no local version, such as `+cu129`, and no package of another name).

    Args:
        cuda_release: the release of CUDA that the engine brings; empty if it isn't known.
        driver: the version of the machine's driver; empty if it isn't known.
        variables: the environment variables of the server.
    """
    least_driver = least_driver_of(cuda_release)
    # A vendor may add words of its own: `535.161.08-grid`.
    numbers = re.match(r"\d+(\.\d+)*", driver, re.ASCII)
    if numbers is None:
        return ""
    is_enough = not least_driver or Version(numbers[0]) >= Version(least_driver)
    searched = map(Path, variables.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    folders = [_COMPATIBLE, *(folder for folder in searched if folder.name == _COMPATIBLE.name)]
    is_compatible = any((folder / "libcuda.so.1").exists() for folder in folders)
    if is_enough or is_compatible:
        return ""
    return (
        f"brings CUDA {cuda_release}, which takes driver {least_driver} or newer, and this machine"
        f" has {driver}; update the driver, or, as PyPI has no build for an older CUDA, install one"
        " of the engine's own page into an environment, and name that with --specreg-engine-python"
    )
