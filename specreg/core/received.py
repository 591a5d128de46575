"""Read run folders that may come from other machines, and write only below a given folder.

Whoever ran a shard wrote what is in its folder, so the content is only data. A link in it could
lead to a secret of this machine, reading a FIFO would wait forever, and a file of a terabyte would
fill the memory. So each part of a path is looked at before a file is opened, and no link is
followed. The account that runs specreg is trusted not to change a folder meanwhile.
"""

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath, PurePosixPath
from typing import BinaryIO

from specreg.core.files import (
    MIB,
    check_kind,
    open_checked,
    read_bounded,
    real_path,
    refusal,
    replace_file,
)

_FILE_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.~-]{1,200}", re.ASCII)
_MAX_FILES = 20_000
_MAX_FOLDERS_DEEP = 8
_MAX_FOLDER_BYTES = 8 * 2**30


@contextlib.contextmanager
def open_received(folder: Path, name: str) -> Iterator[BinaryIO]:
    """Open a file of a run folder to read it.

    Args:
        folder: the run folder.
        name: the path of the file in the run folder, with slashes between folders.

    Raises:
        OSError: the path has a part that isn't a plain name; or the file doesn't exist, isn't a
            regular file, has further hard links, or is behind a link. `strerror` says which.
    """
    path = folder
    *folders, file_name = _parts_of(folder, name)
    for part in folders:
        path /= part
        check_kind(path.lstat(), stat.S_IFDIR)
    with open_checked(path / file_name, follow_symlinks=False) as file:
        _check_alone(os.fstat(file.fileno()))
        yield file


def read_received(folder: Path, name: str, most_bytes: int) -> bytes:
    """Read a file of a run folder.

    Raises:
        OSError: as for `open_received`, or the file is longer than `most_bytes`.
    """
    with open_received(folder, name) as file:
        return read_bounded(file, most_bytes)


def received_files(folder: Path) -> list[PurePosixPath]:
    """Return the paths of all files of a run folder, relative to it and sorted.

    Raises:
        OSError: the path isn't a folder; or the folder has a link, a file with further hard links
            or something else that isn't a regular file; or it has too many files or folders, too
            large files, or too deep folders.
    """
    files: list[PurePosixPath] = []
    entries = 0
    size_bytes = 0
    top = real_path(folder)

    # Walking through a FIFO would wait for a writer.
    check_kind(top.stat(), stat.S_IFDIR)

    for path, folders, names in os.walk(top):
        below = PurePosixPath(Path(path).relative_to(top))
        if len(below.parts) > _MAX_FOLDERS_DEEP:
            raise refusal(f"lies more than {_MAX_FOLDERS_DEEP} folders deep", below)
        entries += len(folders) + len(names)
        if entries > _MAX_FILES:
            raise refusal(f"holds more than {_MAX_FILES} files and folders")
        for name in (*folders, *names):
            needed_kind = stat.S_IFDIR if name in folders else stat.S_IFREG
            status = Path(path, name).lstat()
            check_kind(status, needed_kind, below / name)
            _check_alone(status, below / name)
            if needed_kind == stat.S_IFREG:
                size_bytes += status.st_size
        # The sizes count and not the room on the disk, which a sparse file takes only once it is
        # copied.
        if size_bytes > _MAX_FOLDER_BYTES:
            raise refusal(f"holds more than {_MAX_FOLDER_BYTES / 2**30:g} GiB")
        files.extend(below / name for name in names)

    return sorted(files)


def copy_received(folder: Path, name: str, into: Path, new_name: str, most_bytes: int) -> None:
    """Copy a file of a run folder to a path below another folder.

    Raises:
        OSError: as for `read_received` and `check_below`, or the copy can't be written.
    """
    path = check_below(into, new_name)
    path.parent.mkdir(parents=True, exist_ok=True)

    with open_received(folder, name) as source:
        if os.fstat(source.fileno()).st_size > most_bytes:
            raise refusal(f"is longer than {most_bytes / MIB:g} MiB")
        # Writing to an old file could write through a link, so a new file is made.
        path.unlink(missing_ok=True)
        with path.open("xb") as copy:
            shutil.copyfileobj(source, copy)


def write_below(folder: Path, name: str, content: bytes) -> Path:
    """Write a file below a folder, with the folders between, and return its path.

    Raises:
        OSError: as for `check_below`, or the file can't be written.
    """
    path = check_below(folder, name)
    replace_file(path, content)
    return path


def write_received(files: Mapping[str, bytes], into: Path) -> None:
    """Write the files of a run folder that another machine has sent.

    Args:
        files: the content of each file, by its path in the run folder.
        into: the folder to write them to.

    Raises:
        OSError: there are too many or too large files, or a path could lead elsewhere; or a file
            can't be written.
    """
    if len(files) > _MAX_FILES:
        raise refusal(f"holds more than {_MAX_FILES} files")
    if sum(map(len, files.values())) > _MAX_FOLDER_BYTES:
        raise refusal(f"holds more than {_MAX_FOLDER_BYTES / 2**30:g} GiB")
    for name, content in files.items():
        if name.count("/") > _MAX_FOLDERS_DEEP:
            raise refusal(f"lies more than {_MAX_FOLDERS_DEEP} folders deep", PurePath(name))
        write_below(into, name, content)


def check_below(folder: Path, name: str) -> Path:
    """Return the path of a file that is about to be written below a folder.

    Raises:
        OSError: `name` could lead elsewhere, because it has a part that isn't a plain name, or
            because a folder on the way is a link or a file.
    """
    path = folder
    *folders, file_name = _parts_of(folder, name)
    for part in folders:
        path /= part
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise refusal("is a link, or no folder", path)
    return path / file_name


def _parts_of(folder: Path, name: str) -> tuple[str, ...]:
    """Return the parts of a name.

    Raises:
        OSError: a part isn't a plain name.
    """
    parts = tuple(name.split("/"))
    if not all(_FILE_NAME.fullmatch(part) for part in parts):
        raise refusal("is an odd name", folder / name)
    return parts


def _check_alone(status: os.stat_result, path: PurePath | None = None) -> None:
    """Check that a file has no further hard links, which might be files of this machine.

    Raises:
        OSError: the file has further hard links.
    """
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise refusal(f"has {status.st_nlink} hard links, needed a file of its own", path)
