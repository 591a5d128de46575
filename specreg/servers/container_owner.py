"""Mark a container with the process that started it, and tell later whether that process has ended.

A container of docker's goes on if the process that started it is killed with its supervisor.
"""

import contextlib
import os
from pathlib import Path

import psutil


def own_mark() -> str:
    """Return a text that names this process among all processes of all machines and times."""
    return "/".join((*_machine(), str(os.getpid()), str(_started_at(os.getpid()))))


def has_ended(mark: str) -> bool:
    """Return whether a process that `own_mark` names is known to have ended."""
    boot, namespace, pid, started_at = (*mark.split("/"), *[""] * 4)[:4]
    # In another container the same number may be another process, which lives.
    if (boot, namespace) != _machine() or not pid.isdigit():
        return False
    return str(_started_at(int(pid))) != started_at


def _machine() -> tuple[str, str]:
    """Return what names this boot of this machine, and the numbering of its processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return boot, str(os.stat("/proc/self/ns/pid").st_ino)  # noqa: PTH116 - it is a magic link


def _started_at(process_id: int) -> float | None:
    """Return when a process was started; None if it has ended."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(process_id)
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.create_time()
    return None
