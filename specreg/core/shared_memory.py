"""Find and remove what processes leave in /dev/shm.

This module needs the standard library alone, because the supervisor has nothing else.
"""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from specreg.core.sessions import Session, all_process_ids, living

FOLDER = Path("/dev/shm")  # noqa: S108 - it is what glibc's shm_open and sem_open use
_PREFIX = f"{FOLDER}/"


def shared_files() -> frozenset[str]:
    """Return the names of all files in /dev/shm; none where there is no such folder."""
    with contextlib.suppress(OSError):
        return frozenset(path.name for path in FOLDER.iterdir())
    return frozenset()


def shared_by(session: Session, before: Collection[str]) -> set[str]:
    """Return the names of the processes' files in /dev/shm that weren't there before."""
    return set(used_by(living(session)).difference(before))


def used_by(pids: Iterable[int] | None = None) -> frozenset[str]:
    """Return the names of files there that processes (None: any we may see) have open or mapped.

    By their numbers: glibc maps a semaphore under a name that it then changes for its own.
    """
    numbers = {
        found for pid in (all_process_ids() if pids is None else pids) for found in _numbers(pid)
    }
    names = set[str]()
    for name in shared_files() if numbers else ():
        with contextlib.suppress(OSError):
            stat = (FOLDER / name).lstat()
            names.update({name} if (stat.st_dev, stat.st_ino) in numbers else ())
    return frozenset(names)


def _numbers(pid: int) -> Iterator[tuple[int, int]]:
    """Yield device and inode of each file that a process has open or mapped there."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(_PREFIX):
                    yield link.stat().st_dev, link.stat().st_ino
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
            # proc_pid_maps(5) has the device, in hexadecimal, and the inode before the path.
            fields, is_there, _ = line.partition(_PREFIX.encode())
            if is_there:
                device, inode = fields.split()[-2:]
                major, minor = (int(part, 16) for part in device.split(b":"))
                yield os.makedev(major, minor), int(inode)


def remove_shared(names: Iterable[str]) -> None:
    """Remove files of processes that ended, but for those that other processes use."""
    left = shared_files().intersection(names)
    for name in left - used_by() if left else ():
        with contextlib.suppress(OSError):
            (FOLDER / name).unlink()
