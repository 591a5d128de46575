"""Sending a run's folder, or a history, to a storage that fsspec knows: S3, GCS, a disk."""

import importlib.util
from pathlib import Path

from specreg.errors import ReportError


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
    if importlib.util.find_spec("fsspec") is None:
        message = f"upload to '{to}': fsspec is missing; pip install 'specreg[upload]' first"
        raise ReportError(message)
    import fsspec  # noqa: PLC0415 - an extra

    place = f"{to.rstrip('/')}/{folder.name}"
    try:
        storage, base = fsspec.core.url_to_fs(place)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            target = f"{base}/{path.relative_to(folder).as_posix()}"
            storage.makedirs(target.rpartition("/")[0], exist_ok=True)
            storage.put_file(str(path), target)
    # Each storage has errors of its own; all of them come from outside.
    except Exception as error:
        message = f"upload to '{place}': {error}; mend the URL, its rights, or install its package"
        raise ReportError(message) from error
    return place
