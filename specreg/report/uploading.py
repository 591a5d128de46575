"""Sending a run's folder, or histories, to a storage that fsspec knows: S3, GCS, a disk."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specreg.core.commands import install_command
from specreg.core.errors import ReportError
from specreg.verdicts.history import merge_histories

_Send = Callable[[Any, Path, str], None]
"""Takes a storage of fsspec, a file, and its path there."""


def upload_folder(folder: Path, to: str) -> str:
    """Copies a folder below a place; what lies there under its name is replaced.

    Args:
        folder: what to copy.
        to: `s3://bucket/prefix`, or any other URL of fsspec.

    Returns:
        Where it lies now.

    Raises:
        ReportError: fsspec or the package for that storage isn't there, or it refuses.
    """
    return _upload(folder, to, lambda storage, path, target: storage.put_file(str(path), target))


def upload_histories(folder: Path, to: str) -> str:
    """Adds the lines of a folder of histories to those below a place; none is lost there.

    Two that do so in the same moment may lose lines of one; the next time adds them again.

    Args:
        folder: of the histories.
        to: as `upload_folder` takes it.

    Returns:
        Where they lie now.

    Raises:
        ReportError: as `upload_folder` does.
    """
    return _upload(folder, to, _add_lines)


def _add_lines(storage: Any, path: Path, target: str) -> None:  # noqa: ANN401 - fsspec has no types
    try:
        there = storage.cat_file(target)
    except FileNotFoundError:
        there = b""
    storage.pipe_file(target, merge_histories(there, path.read_bytes()))


def _upload(folder: Path, to: str, send: _Send) -> str:
    if importlib.util.find_spec("fsspec") is None:
        message = f"upload to '{to}': fsspec is missing; {install_command('upload')} first"
        raise ReportError(message)
    import fsspec  # noqa: PLC0415 - an extra
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415

    folder = folder.resolve()  # "." has no name
    place = f"{to.rstrip('/')}/{folder.name}"
    try:
        storage, base = fsspec.core.url_to_fs(place)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            target = f"{base}/{path.relative_to(folder).as_posix()}"
            # The others make what they need; S3 would make a bucket, which few may.
            if isinstance(storage, LocalFileSystem):
                storage.makedirs(target.rpartition("/")[0], exist_ok=True)
            send(storage, path, target)
    # Each storage has errors of its own; all of them come from outside.
    except Exception as error:
        message = f"upload to '{place}': {error}; mend the URL, its rights, or install its package"
        raise ReportError(message) from error
    return place
