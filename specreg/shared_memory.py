"""Shared memory: processes in, the files in /dev/shm that they use out; what is left of them goes.

A server that is killed leaves its own there, and the system never frees them. The standard library
alone, for the watchdog.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108 - it is what glibc's shm_open and sem_open use
_PREFIX = f"{FOLDER}/"
_GONE = " (deleted)"


def shared_files() -> frozenset[str]:
    """The names of all that lies there; nothing where there is no such folder."""
    with contextlib.suppress(OSError):
        return frozenset(os.listdir(FOLDER))
    return frozenset()


def used_by(pids: Iterable[int]) -> frozenset[str]:
    """The names of what processes have open or mapped there, as far as one may look."""
    return frozenset(
        path.removeprefix(_PREFIX)
        for pid in pids
        for path in (*_opened(pid), *_mapped(pid))
        if path.startswith(_PREFIX) and not path.endswith(_GONE)
    )


def used_by_anybody() -> frozenset[str]:
    """The names of what any process uses, as far as one may look."""
    return used_by(int(name) for name in os.listdir("/proc") if name.isdigit())


def remove_shared(names: Iterable[str]) -> None:
    """Removes files of processes that ended, but for those that somebody else uses."""
    left = [name for name in names if (FOLDER / name).exists()]
    if left:
        used = used_by_anybody()
        for name in left:
            if name not in used:
                with contextlib.suppress(OSError):
                    (FOLDER / name).unlink()


def _opened(pid: int) -> list[str]:
    paths = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                paths.append(os.readlink(entry.path))
    return paths


def _mapped(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{pid}/maps").read_bytes().decode(errors="surrogateescape")
        return [f"{_PREFIX}{line.partition(_PREFIX)[2]}" for line in maps.splitlines() if _PREFIX in line]
    return []
