"""Lock files against other processes.

The locks are those of `flock`, which end with their process. Some file systems have none: Lustre
without `-o flock`, some mounts of FUSE, NFS without its lock daemon. A file that only stands for a
lock would outlive a killed process, so such a folder is refused instead.
"""

import errno
import fcntl
import tempfile
from pathlib import Path

import filelock
import psutil

from specreg.core.errors import SpecregError
from specreg.core.files import cause_of, existing_folder, real_path

_REMEDY = (
    "name a folder on another file system: --specreg-runs for runs, --out for a gate or a soak,"
    " SPECREG_CACHE for the cache"
)
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}
"""What `flock` answers on a file system that can't lock."""


def new_lock(path: Path) -> filelock.FileLock:
    """Return a lock that isn't held yet. All threads of this process share it.

    Args:
        path: the file of the lock, in a folder that exists.

    Raises:
        SpecregError: as for `check_locks`.
    """
    check_locks(path.parent)
    return filelock.FileLock(path, thread_local=False)


def check_locks(folder: Path) -> None:
    """Check that files in a folder can be written and locked.

    Args:
        folder: the folder, which need not exist yet.

    Raises:
        SpecregError: the file system has no locks, or nothing can be written to the folder.
    """
    existing = existing_folder(folder)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        cause = cause_of(error)
        if error.errno not in _NO_LOCKS:
            message = f"folder '{folder}': no file can be written and locked there, {cause}"
            raise SpecregError(f"{message}; make room, repair its rights, or {_REMEDY}") from error
        raise SpecregError(
            f"folder '{folder}': its file system{_described(existing)} has no locks, without"
            f" which two runs would use the same files (flock: {cause}); {_REMEDY}"
        ) from error


def _described(folder: Path) -> str:
    """Return the type of a folder's file system and where it is mounted; empty if unknown."""
    path = real_path(folder)
    above = {str(path), *map(str, path.parents)}
    mounts = [part for part in psutil.disk_partitions(all=True) if part.mountpoint in above]
    if not mounts:
        return ""

    # The last mount hides earlier ones at the same place.
    closest = max(reversed(mounts), key=lambda part: len(part.mountpoint))
    return f", {closest.fstype} at '{closest.mountpoint}',"
