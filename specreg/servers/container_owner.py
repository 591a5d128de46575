"""Mark a container with the process that started it, and tell later whether that process has ended.

A container of docker's goes on if the process that started it is killed with its supervisor.
"""

import contextlib
import os
from pathlib import Path


def own_mark() -> str:
    """Return a text that names this process among all processes of all machines and times."""
    return "/".join((*_machine(), str(os.getpid()), _started_at(os.getpid())))


def has_ended(mark: str) -> bool:
    """Return whether a process that `own_mark` names is known to have ended."""
    boot, namespace, pid, started_at = (*mark.split("/"), *[""] * 4)[:4]
    # In another container the same number may be another process, which lives.
    if (boot, namespace) != _machine() or not pid.isdigit() or not started_at.isdigit():
        return False
    return _started_at(int(pid)) != started_at


def _machine() -> tuple[str, str]:
    """Return what names this boot of this machine, and the numbering of its processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return boot, str(os.stat("/proc/self/ns/pid").st_ino)  # noqa: PTH116 - it is a magic link


def _started_at(process_id: int) -> str:
    """Return when a process was started, in ticks since the boot; empty if it has ended.

    Times of the clock would move when somebody sets it.
    """
    with contextlib.suppress(OSError):
        # The fields 3 and 22 of proc_pid_stat(5). Field 2, the name, may have any characters.
        stat = Path(f"/proc/{process_id}/stat").read_bytes().rpartition(b")")[2].split()
        if stat[0] not in {b"Z", b"X"}:
            return stat[19].decode()
    return ""
