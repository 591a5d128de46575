"""Wheels for tests that install something."""

import hashlib
import zipfile
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str, *requires: str) -> str:
    """Write a wheel without a module, and return its checksum."""
    metadata_folder = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    needed = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    with zipfile.ZipFile(path, "w") as wheel:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}"
        wheel.writestr(f"{metadata_folder}/METADATA", metadata)
        wheel.writestr(f"{metadata_folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        wheel.writestr(f"{metadata_folder}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()
