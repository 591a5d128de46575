"""Turn the signals that end a run into a `KeyboardInterrupt` each."""

import os
import signal
import threading
import traceback
from types import FrameType

SIGNALLED: list[int] = []
"""The signals that came, by number."""
_OPENS_MODULES = "<frozen importlib._bootstrap_external>"
"""An exception between its opening of a module's file and its `with` would leave the file open."""
_MOMENT_S = 0.01


def interrupt_on_signals() -> None:
    """Let a cancelled job or a closed terminal end a run as Ctrl-C does, with its servers.

    Not under nohup, which has the signal ignored. Of two in a row asyncio, which takes Ctrl-C for
    itself where no other handler was set, made one: the second must find the first's cleaning up.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, _interrupt)


def check_signalled() -> None:
    """Raise `KeyboardInterrupt` if a signal came: Python drops one that a finalizer raises."""
    if SIGNALLED:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End the run; a moment later where it would leave a file open or be dropped by a finalizer.

    pytest fails a run for either.
    """
    callers = [] if frame is None else [one.f_code for one, _ in traceback.walk_stack(frame)]
    opens = bool(callers) and callers[0].co_filename == _OPENS_MODULES
    if opens or any(code.co_name == "__del__" for code in callers):
        threading.Timer(_MOMENT_S, os.kill, (os.getpid(), number)).start()
        return
    SIGNALLED.append(number)
    raise KeyboardInterrupt
