"""Lets no SIGKILL of ours reach some processes, as if they waited in the kernel.

A supervisor, which loads no such module, still kills them when it ends.

Put on PYTHONPATH, in each Python it loads; theirs is the command line that holds `$UNKILLABLE`.
"""

import os
import signal
from pathlib import Path

_WORDS = os.environb.get(b"UNKILLABLE", b"")
_kill = os.kill


def _spare(pid: int, number: int) -> None:
    command = Path(f"/proc/{pid}/cmdline")
    if number == signal.SIGKILL and command.exists() and _WORDS in command.read_bytes():
        return
    _kill(pid, number)


if _WORDS:
    os.kill = _spare
