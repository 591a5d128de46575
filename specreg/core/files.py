"""Write files safely, and find the folders of specreg's own files.

A file is replaced in one step, so that a reader sees the old content or the new one and never a
part. The temporary files of a killed process are removed when the same file is written again.

Bytes are written as they are. Secrets are hidden before a document is encoded, see
`specreg.core.values`.
"""

import contextlib
import errno
import hashlib
import os
import platform
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import BinaryIO, Protocol

import msgspec
import platformdirs

from specreg.core.errors import SpecregError

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that a decoder raises for bytes that it can't read. RecursionError comes from too deep
a nesting."""
MIB = 2**20
_LARGE_FILE_BYTES = 20 * MIB
"""The size from which the user is told that a file is read. Reading 20 MiB takes some seconds."""
_KINDS = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_PACKAGE = Path(__file__).parents[1]
_IN_WHEEL = _PACKAGE / "repository"
OWN_REPOSITORY = _IN_WHEEL if _IN_WHEEL.is_dir() else _PACKAGE.parent
"""The checkout of specreg, or the part of it that its wheel has."""


def repository_path(root: Path, path: str) -> Path:
    """Return the absolute path of a file in a repository.

    A file below `fixtures/` that the repository lacks, such as a tiny model, is taken from
    specreg's own.

    Args:
        root: the root of the repository.
        path: the path relative to it.
    """
    path_here = root / path
    if path.startswith("fixtures/") and not path_here.exists():
        own_path = OWN_REPOSITORY / path
        if own_path.exists():
            return own_path
    return path_here


def cache_dir() -> Path:
    """Return the cache, a folder of environments, prompts, models and checksums.

    All checkouts share it.
    """
    return Path(os.environ.get("SPECREG_CACHE") or platformdirs.user_cache_dir("specreg"))


def check_cache() -> None:
    """Check that files can be written to the cache, without making it.

    Raises:
        SpecregError: the cache, or the folder in which it would be made, isn't writable.
    """
    cache = cache_dir().absolute()
    with _cache_errors(cache):
        check_can_write(cache)


def cache_folder(name: str) -> Path:
    """Return a folder in the cache, and make it if it isn't there.

    Raises:
        SpecregError: the folder can't be made, or isn't writable.
    """
    folder = cache_dir() / name
    with _cache_errors(cache_dir()):
        folder.mkdir(parents=True, exist_ok=True)
        _check_writable(folder)
    return folder


def check_can_write(folder: Path) -> None:
    """Check that files can be written to a folder, without making the folder.

    Raises:
        OSError: the folder, or the existing folder in which it would be made, isn't writable.
    """
    _check_writable(existing_folder(folder))


def existing_folder(folder: Path) -> Path:
    """Return a folder, or the closest one above it that exists if it doesn't exist yet."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def _check_writable(folder: Path) -> None:
    """Check that files can be made in a folder.

    Raises:
        OSError: the path isn't a folder, or the folder isn't writable.
    """
    error_number = 0
    if not folder.is_dir():
        error_number = errno.ENOTDIR
    elif not os.access(folder, os.W_OK | os.X_OK):
        error_number = errno.EACCES
    if error_number:
        raise OSError(error_number, os.strerror(error_number))


@contextlib.contextmanager
def _cache_errors(cache: Path) -> Iterator[None]:
    """Raise an OSError of the context as a SpecregError that names the cache."""
    try:
        yield
    except OSError as error:
        raise SpecregError(
            f"cache '{cache}': can't be written, {error.strerror}; repair its rights, or name"
            " another folder with SPECREG_CACHE"
        ) from error


def data_dir() -> Path:
    """Return the folder of the prompt sets that `specreg prepare` writes, which checkouts share."""
    return Path(os.environ.get("SPECREG_DATA") or cache_dir() / "datasets")


def real_path(path: Path) -> Path:
    """Return an absolute path without links.

    Before Python 3.13, `Path.resolve` raises a RuntimeError for a loop of links. This function
    returns a path in the loop, so that opening it raises an OSError, as for any other bad path.
    """
    return Path(os.path.realpath(path))


def cause_of(error: Exception) -> str:
    """Return why a file couldn't be read or written, in the words of the system or of a decoder.

    The text of an OSError also has a number and a path, and the caller's message names the path
    already.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def remedy_of(error: OSError, of_file: str = "make room or repair its rights") -> str:
    """Return what to do about an error of the system.

    Args:
        of_file: what to do if the file that the error names is the cause.
    """
    # Whatever file is opened when too many are open is named, and isn't the cause.
    if error.filename is not None and error.errno not in {errno.EMFILE, errno.ENFILE}:
        return of_file
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "make room, `df -h` shows on which disk"
    return "raise the limit that it met, which `ulimit -a` shows, or end other programs"


def cause_and_path_of(error: OSError) -> str:
    """Return why the system refused something, and the file that it refused if it names one."""
    cause = cause_of(error)
    if error.filename is None:
        return cause
    return f"{cause}: '{error.filename}'"


def refusal(problem: str, path: PurePath | None = None) -> OSError:
    """Return an OSError whose `strerror` is a problem in words.

    Args:
        path: the path of the file, which is put before the problem; None to leave it out.
    """
    if path is not None:
        problem = f"{str(path)!a} {problem}"
    return OSError(errno.EINVAL, problem)


def check_kind(status: os.stat_result, needed_kind: int, path: PurePath | None = None) -> None:
    """Check that a file is of a kind.

    Args:
        status: the status of the file.
        needed_kind: the kind, such as `stat.S_IFREG`.
        path: the path of the file, for the error; None to leave it out.

    Raises:
        OSError: the file is of another kind.
    """
    kind = stat.S_IFMT(status.st_mode)
    if kind != needed_kind:
        raise refusal(f"is {_KINDS.get(kind, 'odd')}, needed {_KINDS[needed_kind]}", path)


@contextlib.contextmanager
def open_checked(path: Path, *, follow_symlinks: bool = True) -> Iterator[BinaryIO]:
    """Open a regular file to read it.

    Raises:
        OSError: the file can't be opened, or isn't a regular file.
    """
    # The kind is checked before the file is opened, because opening a device may have an effect,
    # and reading a FIFO waits forever.
    check_kind(path.stat(follow_symlinks=follow_symlinks), stat.S_IFREG)
    flags = os.O_RDONLY if follow_symlinks else os.O_RDONLY | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags), "rb") as file:
        yield file


class Readable(Protocol):
    """An open file, or what unpacks one as it is read."""

    def read(self, size: int, /) -> bytes:
        """Read at most so many bytes."""


def read_bounded(file: Readable, most_bytes: int) -> bytes:
    """Read all of an open file.

    Raises:
        OSError: the file is longer than `most_bytes`, or can't be read.
    """
    content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise refusal(f"is longer than {most_bytes / MIB:g} MiB")
    return content


def large_file_line(path: Path) -> str:
    """Return a line that says that a file is read which is so large that this takes a while.

    Returns:
        The line; empty if the file isn't large, or isn't there.
    """
    size_bytes = 0
    with contextlib.suppress(OSError):
        size_bytes = path.stat().st_size
    if size_bytes < _LARGE_FILE_BYTES:
        return ""
    return f"reading '{path}', {size_bytes / MIB:.0f} MiB"


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Read a regular file, and follow links to it.

    Raises:
        OSError: the file can't be read, isn't a regular file, or is longer than `most_bytes`.
    """
    with open_checked(path) as file:
        return read_bounded(file, most_bytes)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file and make its folder. An old file stays until the new one is on the disk.

    Raises:
        OSError: the file can't be written; the old one is unchanged.
    """
    part = _new_part(path)
    try:
        with _named(path), part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Give an OSError the path of the file, which the system doesn't name if a write fails."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def temporary_folder_beside(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to a path.

    The caller makes a file in the folder, or fills the folder, and moves the file or the folder to
    the path in one step.

    Raises:
        OSError: the folder can't be made.
    """
    part = _new_part(path)
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def append_lines(path: Path, content: bytes) -> None:
    """Append lines to a file, all or none of them, and make its folder.

    Raises:
        OSError: the lines can't be written; the file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _named(path), path.open("a+b", buffering=0) as file:
        # If an earlier writer was killed within a line, end that line first.
        before_bytes = file.seek(0, os.SEEK_END)
        if before_bytes:
            file.seek(-1, os.SEEK_END)
            ends_line = file.read(1) == b"\n"
            if not ends_line:
                content = b"\n" + content
        # Write the lines. A disk that is almost full takes a part and fails at the next call.
        bytes_left = memoryview(content)
        try:
            while bytes_left:
                bytes_left = bytes_left[file.write(bytes_left) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(before_bytes)
            raise


def _new_part(path: Path) -> Path:
    """Return a temporary path next to a path, and remove what killed processes left at such paths.

    The temporary name has the process's id and the machine's name. The machine's name is needed
    because machines may share a disk, and a process id means nothing on another machine.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    own_prefix = f".{path.name}.{platform.node()}."
    for neighbour in path.parent.iterdir():
        match = re.fullmatch(rf"{re.escape(own_prefix)}(\d+)\.part", neighbour.name)
        if match is None:
            continue
        process_id = int(match[1])
        is_running = Path(f"/proc/{process_id}").exists()
        # This process removes its own files, so one with its id is left by an earlier process.
        if is_running and process_id != os.getpid():
            continue
        if neighbour.is_dir():
            shutil.rmtree(neighbour, ignore_errors=True)
        else:
            neighbour.unlink(missing_ok=True)

    return path.with_name(f"{own_prefix}{os.getpid()}.part")


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex. It is computed once for each version of the file.

    Raises:
        OSError: the file can't be read, or isn't a regular file.
    """
    path = real_path(path)

    # Look it up in the cache.
    cached_path = _cached_sum_path(path)
    with contextlib.suppress(OSError):
        cached_checksum = cached_path.read_text(errors="replace")
        if re.fullmatch(r"[0-9a-f]{64}", cached_checksum):
            return cached_checksum

    # Compute it, and cache it unless the file changed meanwhile or the cache isn't writable.
    with open_checked(path) as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    if _cached_sum_path(path) == cached_path:
        with contextlib.suppress(OSError):
            replace_file(cached_path, checksum.encode())
    return checksum


def _cached_sum_path(path: Path) -> Path:
    """Return the path at which the cache keeps a file's checksum.

    When the file changes, so does this path.
    """
    # A program can set mtime back after it has changed the file, but not ctime.
    status = path.stat()
    version = (
        os.fsencode(path),
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
    )
    version_sha256 = hashlib.sha256(repr(version).encode()).hexdigest()
    return cache_dir() / "sums" / version_sha256
