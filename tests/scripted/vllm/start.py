"""Starts the server, or fails to, as scripted.

In: vLLM's flags and the script that SCRIPTED_SERVER names. Out: a server, or the scripted failure.
"""

import logging
import os
import signal
import subprocess
import sys
import time

from . import __version__
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
    _LOG.info("vLLM API server version %s", __version__)
    launch = parse_launch(sys.argv[1:])
    script = load_script(os.environ)
    _apply_start_faults(script)
    ScriptedServer(launch, script).serve()


def _apply_start_faults(script: Script) -> None:
    if script.fault is Fault.EXIT_AT_START:
        sys.stderr.write(f"{script.exit_log}\n")
        raise SystemExit(script.exit_status)
    if script.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if script.fault is Fault.SURVIVOR:
        _LOG.info("worker pid %d", _start_survivor(script.survivor_s))
    time.sleep(script.ready_after_s)


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
