"""Processes, and whether they live."""

import psutil


def lives(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped doesn't."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
