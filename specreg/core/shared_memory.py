"""Find and remove what processes leave in /dev/shm.

This module needs the standard library alone, because the supervisor has nothing else.
"""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from specreg.core.descendants import all_process_ids, living

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is what glibc's shm_open and sem_open use
_PREFIX = f"{SHARED_MEMORY}/"


def shared_files() -> frozenset[str]:
    """Return the names of all files in /dev/shm; none if there is no such folder."""
    with contextlib.suppress(OSError):
        return frozenset(path.name for path in SHARED_MEMORY.iterdir())
    return frozenset()


def shared_below(supervisor: int, before: Collection[str]) -> set[str]:
    """Return the names of the files in /dev/shm that the descendants of a supervisor use.

    Those that were there before are left out.
    """
    return set(used_by(living(supervisor)).difference(before))


def used_by(process_ids: Iterable[int] | None = None) -> frozenset[str]:
    """Return the names of the files in /dev/shm that processes have open or mapped.

    The files are found by device and inode, because glibc maps a semaphore under a name that it
    changes afterwards.

    Args:
        process_ids: the processes; None for all that we may see.
    """
    if process_ids is None:
        process_ids = all_process_ids()
    used = set[tuple[int, int]]()
    for process_id in process_ids:
        used.update(_devices_and_inodes(process_id))
    if not used:
        return frozenset()
    names = set[str]()
    for name in shared_files():
        with contextlib.suppress(OSError):
            stat = (SHARED_MEMORY / name).lstat()
            if (stat.st_dev, stat.st_ino) in used:
                names.add(name)

    return frozenset(names)


def _devices_and_inodes(process_id: int) -> Iterator[tuple[int, int]]:
    """Yield device and inode of each file in /dev/shm that a process has open or mapped."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{process_id}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(_PREFIX):
                    stat = link.stat()
                    yield stat.st_dev, stat.st_ino
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process_id}/maps").read_bytes().splitlines():
            # proc_pid_maps(5) has the device, in hexadecimal, and the inode before the path.
            fields, separator, _ = line.partition(_PREFIX.encode())
            if separator:
                device, inode = fields.split()[-2:]
                major, minor = (int(part, 16) for part in device.split(b":"))
                yield os.makedev(major, minor), int(inode)


def remove_shared(names: Iterable[str]) -> None:
    """Remove files of processes that have ended, except those that other processes use."""
    remaining_names = shared_files().intersection(names)
    if not remaining_names:
        return
    for name in remaining_names - used_by():
        with contextlib.suppress(OSError):
            (SHARED_MEMORY / name).unlink()
