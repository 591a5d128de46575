"""Starts the server, or fails to, as scripted.

In: vLLM's flags and the script that SCRIPTED_SERVER names. Out: a server, or the scripted failure.
"""

import logging
import mmap
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from .app import ScriptedServer
from .launch import parse_launch
from .script import Fault, Script, load_script

_LOG = logging.getLogger("vllm")
_SURVIVOR = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(float(sys.argv[1]))
"""


def main() -> None:
    """Serves until SIGTERM, unless the script says otherwise."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    script = load_script(os.environ)
    _LOG.info("vLLM API server version %s", script.version)
    launch = parse_launch(sys.argv[1:])
    _apply_start_faults(script)
    shared = _share_memory() if script.shares_memory else ()
    ScriptedServer(launch, script).serve()
    del shared


def _apply_start_faults(script: Script) -> None:
    if script.says_secrets:
        _LOG.info("variables %s, arguments %s", dict(os.environ), sys.argv)
    _flood(script.flood_bytes)
    if script.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if script.ignore_sigint:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if script.fault is Fault.SURVIVOR:
        _LOG.info("worker pid %d", _start_survivor(script.survivor_s))
    if script.fault is Fault.DAEMON:
        _start_daemon(script.survivor_s)
    time.sleep(script.ready_after_s)
    if script.fault is Fault.EXIT_AT_START:
        sys.stderr.write(f"{script.exit_log}\n")
        raise SystemExit(script.exit_status)


def _start_daemon(survivor_s: float) -> None:
    """Starts a survivor whose parent ends at once, so that it is nobody's child."""
    child = os.fork()
    if child == 0:
        os.setsid()
        _start_survivor(survivor_s)
        os._exit(0)
    os.waitpid(child, 0)


def _start_survivor(survivor_s: float) -> int:
    """Starts a child in a session of its own that ignores SIGTERM, and gives its PID."""
    child = subprocess.Popen(
        [sys.executable, "-c", _SURVIVOR, str(survivor_s)],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    if child.stdout:
        child.stdout.readline()
    return child.pid


def _flood(flood_bytes: int) -> None:
    """Prints noise, with the first and the last words around it."""
    if flood_bytes:
        block = os.urandom(2**20)
        os.write(1, b"first words\n")
        for _ in range(flood_bytes // len(block)):
            bytes_left = memoryview(block)
            while bytes_left:
                bytes_left = bytes_left[os.write(1, bytes_left) :]
        os.write(1, b"\nlast words\n")


def _share_memory() -> tuple[mmap.mmap, ...]:
    """A block and a semaphore, named as Python and glibc name theirs; nothing ever removes them.

    glibc maps a semaphore before it has its name: what the system tells of that is another one.
    """
    folder = Path("/dev/shm")  # noqa: S108 - that is where they are
    name = uuid.uuid4().hex[:8]
    block = folder / f"psm_{name}"
    nameless = folder / f"sem.{name[:6]}"
    shared = []
    for path in (block, nameless):
        with path.open("w+b") as file:
            file.truncate(mmap.PAGESIZE)
            shared.append(mmap.mmap(file.fileno(), mmap.PAGESIZE))
    (folder / f"sem.mp-{name}").hardlink_to(nameless)
    nameless.unlink()
    return tuple(shared)
