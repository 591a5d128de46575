"""Luggage: what a worker reads of a repository in, one piece out, unpacked on a node.

Those are the prompts that lie in it, the models that its matrix names by a folder within it, and
the baselines. What lies elsewhere is each node's own: prompts that were prepared, models by their
hub's id or an absolute path, engines. Whether that is the same, a worker checks before it measures.
"""

import io
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from specreg.core.errors import SpecregError
from specreg.matrix.case import Case
from specreg.matrix.models import is_hub_id

MOST_BYTES = 256 * 2**20
_BYTES_PER_MIB = 2**20
_PROMPTS = "fixtures/prompts"


class Unpacked(NamedTuple):
    """Where it lies."""

    root: Path
    baselines: Path


def pack(
    root: Path, baselines: Path, cases: Iterable[Case], *, most_bytes: int = MOST_BYTES
) -> bytes:
    """What workers that measure cases read, as a tape archive.

    Args:
        root: the repository's.
        baselines: the folder of the baselines.
        cases: to be measured.
        most_bytes: that it may have.

    Raises:
        SpecregError: it has more, or a file can't be read.
    """
    folders = {_PROMPTS: root / _PROMPTS}
    for case in cases:
        for name in filter(None, (case.server.target, case.server.draft)):
            within = os.path.normpath(name)
            if not is_hub_id(name) and not within.startswith(("/", "..")):
                folders[within] = root / within
    sizes = {name: _size_bytes(folder) for name, folder in folders.items()}
    if sum(sizes.values()) > most_bytes:
        largest = max(sizes, key=lambda name: sizes[name])
        message = (
            f"'{root / largest}': {sizes[largest] / _BYTES_PER_MIB:.0f} MiB, and what is sent to"
            f" other machines has {most_bytes / _BYTES_PER_MIB:.0f} MiB at most; put it on each of"
            " them, and name it by an absolute path or by its id on the hub"
        )
        raise SpecregError(message)
    packed = io.BytesIO()
    try:
        with tarfile.open(fileobj=packed, mode="w", dereference=True) as archive:
            for name, folder in folders.items():
                if folder.exists():
                    archive.add(folder, f"root/{name}")
            if baselines.exists():
                archive.add(baselines, "baselines")
    except OSError as error:
        message = f"'{error.filename}': can't be sent to other machines, {error.strerror}"
        raise SpecregError(f"{message}; mend its rights") from error
    return packed.getvalue()


def unpack(luggage: bytes, folder: Path) -> Unpacked:
    """Lays it out in a folder.

    Raises:
        OSError: the disk refuses.
    """
    with tarfile.open(fileobj=io.BytesIO(luggage)) as archive:
        archive.extractall(folder, filter="data")
    for name in Unpacked._fields:
        (folder / name).mkdir(exist_ok=True)
    return Unpacked(root=folder / "root", baselines=folder / "baselines")


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
