"""Shared memory: processes in, the files in /dev/shm that they use out; what is left of them goes.

A server that is killed leaves its own there, and the system never frees them. The standard library
alone, for the watchdog.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108 - it is what glibc's shm_open and sem_open use
_PREFIX = f"{FOLDER}/"
_GONE = " (deleted)"


def shared_files() -> frozenset[str]:
    """The names of all that lies there; nothing where there is no such folder."""
    with contextlib.suppress(OSError):
        return frozenset(path.name for path in FOLDER.iterdir())
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


def _opened(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(link.readlink())


def _mapped(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
            _, prefix, name = line.decode(errors="surrogateescape").partition(_PREFIX)
            yield prefix + name
