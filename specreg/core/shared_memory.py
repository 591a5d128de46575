"""Shared memory: processes in, the files in /dev/shm that they use out; what is left of them goes.

A server that is killed leaves its own there, and the system never frees them. The standard library
alone, for the watchdog.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108 - it is what glibc's shm_open and sem_open use
_PREFIX = f"{FOLDER}/"
_GONE = " (deleted)"
_Number = tuple[int, int]
"""Of a file: its device and its inode."""


def shared_files() -> frozenset[str]:
    """The names of all that lies there; nothing where there is no such folder."""
    with contextlib.suppress(OSError):
        return frozenset(path.name for path in FOLDER.iterdir())
    return frozenset()


def used_by(pids: Iterable[int]) -> frozenset[str]:
    """The names of what processes have open or mapped there, as far as one may look.

    glibc maps a semaphore under a name that it then changes for its own: it is known by its number
    alone.
    """
    used = [one for pid in pids for one in (*_opened(pid), *_mapped(pid))]
    named = {path.removeprefix(_PREFIX) for path, _ in used if not path.endswith(_GONE)}
    renamed = {number for path, number in used if path.endswith(_GONE)}
    return frozenset(named | (_names_of(renamed) if renamed else set()))


def used_by_anybody() -> frozenset[str]:
    """The names of what any process uses, as far as one may look."""
    return used_by(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def remove_shared(names: Iterable[str]) -> None:
    """Removes files of processes that ended, but for those that somebody else uses."""
    left = [name for name in names if (FOLDER / name).exists()]
    if left:
        used = used_by_anybody()
        for name in left:
            if name not in used:
                with contextlib.suppress(OSError):
                    (FOLDER / name).unlink()


def _names_of(numbers: AbstractSet[_Number]) -> set[str]:
    """The files there that have these."""
    names = set()
    for name in shared_files():
        with contextlib.suppress(OSError):
            if _number((FOLDER / name).lstat()) in numbers:
                names.add(name)
    return names


def _number(stat: os.stat_result) -> _Number:
    return stat.st_dev, stat.st_ino


def _opened(pid: int) -> Iterator[tuple[str, _Number]]:
    """Paths there, and whose they are."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if (path := str(link.readlink())).startswith(_PREFIX):
                    yield path, _number(link.stat())


def _mapped(pid: int) -> Iterator[tuple[str, _Number]]:
    """The same; proc_pid_maps(5) has the device, in hexadecimal, and the inode before the path."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
            fields, prefix, name = line.decode(errors="surrogateescape").partition(_PREFIX)
            if prefix:
                device, inode = fields.split()[-2:]
                major, minor = (int(part, 16) for part in device.split(":"))
                yield prefix + name, (os.makedev(major, minor), int(inode))
