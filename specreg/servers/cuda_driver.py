"""Find the CUDA release that an engine's packages bring, and the oldest driver that runs it.

An engine whose CUDA is too new for the driver starts, and fails minutes later with an error of
CUDA. A driver that runs the first minor release of a CUDA also runs the later ones of the same
major release (NVIDIA's guide to CUDA compatibility, "Minor Version Compatibility").
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from specreg.engines.engine import Requirement as EngineRequirement
from specreg.servers.installer import version_in
from specreg.servers.interpreters import PYTHON_CHOICE

_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?")
"""The package with CUDA's runtime. From CUDA 13 on, its name has no number."""
_LEAST_DRIVERS = {12: "525.60.13", 13: "580.65.06"}
"""The oldest driver for Linux that runs each major release of CUDA, from CUDA's release notes."""
_COMPATIBILITY_FOLDER = Path("/usr/local/cuda/compat")
"""The folder of NVIDIA's forward-compatibility package, with which older drivers run newer CUDA."""


def cuda_release_of(packages: Sequence[str]) -> str:
    """Return the release of CUDA that an environment's packages have, such as 13.0.

    Args:
        packages: the lines of `uv pip freeze`, such as `nvidia-cuda-runtime==13.0.96`.

    Returns:
        The release; empty if CUDA's runtime isn't among the packages.
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
    """Return the packages that an engine's lock installs here, as `uv pip freeze` would list them.

    Lines for other systems and other versions of Python are left out.
    """
    if requirement.lock is None:
        return ()
    return tuple(pins_of(requirement.lock.read_text()))


def pins_of(lock: str) -> Iterator[str]:
    """Yield the packages of a lock that are installed here, such as `numpy==2.4.6`."""
    for line in lock.splitlines():
        # Indented lines hold the checksums of the requirement above them.
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
    if not major.isdecimal():
        return ""
    return _LEAST_DRIVERS.get(int(major), "")


def why_driver_too_old(
    cuda_release: str, driver: str, variables: Mapping[str, str] = os.environ
) -> str:
    """Return why a driver is too old for the CUDA release that an engine brings.

    Args:
        cuda_release: the release of CUDA that the engine brings; empty if it isn't known.
        driver: the version of the machine's driver; empty if it isn't known.
        variables: the environment variables of the server.

    Returns:
        The reason with advice; empty if the driver runs the release, if the release or the driver
        isn't known, or if NVIDIA's forward-compatibility package is installed.
    """
    least_driver = least_driver_of(cuda_release)

    # A vendor may add words of its own: `535.161.08-grid`.
    numbers = re.match(r"\d+(\.\d+)*", driver, re.ASCII)
    if numbers is None:
        return ""

    # If a driver reports fewer numbers, such as `580`, only those are compared.
    parts = numbers[0].count(".") + 1
    least_parts = ".".join(least_driver.split(".")[:parts])
    if not least_driver or Version(numbers[0]) >= Version(least_parts):
        return ""

    # The forward-compatibility package may also be in a folder that LD_LIBRARY_PATH lists.
    searched_folders = map(Path, variables.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    compatibility_folders = [
        _COMPATIBILITY_FOLDER,
        *(folder for folder in searched_folders if folder.name == _COMPATIBILITY_FOLDER.name),
    ]
    if any((folder / "libcuda.so.1").exists() for folder in compatibility_folders):
        return ""

    # PyPI has no build for an older CUDA: on 2026-11-26 it had one build of each release of vLLM
    # and SGLang, for CUDA 13, without local versions such as `+cu129`.
    return (
        f"brings CUDA {cuda_release}, which needs driver {least_driver} or newer, and this machine"
        f" has {driver}; update the driver, or install a build for an older CUDA from the engine's"
        f" own page (PyPI has none) into an environment, and name its Python ({PYTHON_CHOICE})"
    )
