"""Let the signals that end a run raise `KeyboardInterrupt` at a moment at which that is safe.

A run that is interrupted ends its processes itself. An exception that is raised between any two
instructions could leave a file open that nothing closes yet, or a module half imported, and Python
drops an exception that a finalizer raises. So a signal that comes while the run is busy is sent
again and again, until the run waits or has been busy for a second.
"""

import _thread
import asyncio
import os
import signal
import threading
import time
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, TypeVar

_T = TypeVar("_T")

_AGAIN_AFTER_S = 0.01
"""After this time, a signal that couldn't interrupt the run is sent again."""
_IDLE_CPU_S = 0.002
"""The most CPU time that a thread which waits uses from one look to the next."""
_BUSY_S = 1.0
"""How long a run may be busy after a signal before it is interrupted all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What the main thread was doing when a signal was looked at.

    Attributes:
        code: the code that it ran; None if it ran none.
        instruction: the index of the instruction in the code.
        cpu_s: the CPU time that the thread had used.
    """

    code: CodeType | None
    instruction: int
    cpu_s: float

    @classmethod
    def at(cls, frame: FrameType | None) -> "_Look":
        """Return what the thread of a frame is doing now."""
        cpu_s = time.thread_time()
        if frame is None:
            return cls(code=None, instruction=0, cpu_s=cpu_s)
        return cls(code=frame.f_code, instruction=frame.f_lasti, cpu_s=cpu_s)

    def has_waited_since(self, earlier: "_Look") -> bool:
        """Return whether the thread is still where it was, and has hardly computed since."""
        is_same = (self.code, self.instruction) == (earlier.code, earlier.instruction)
        return is_same and self.cpu_s - earlier.cpu_s < _IDLE_CPU_S


@dataclass(slots=True, kw_only=True)
class Interrupter:
    """Raises `KeyboardInterrupt` for signals.

    Attributes:
        busy_s: how long a run that never waits goes on after a signal, in seconds.
        interrupting_signals: the numbers of the signals that have interrupted the run.
    """

    busy_s: float = _BUSY_S
    interrupting_signals: list[int] = field(default_factory=list)
    _came_s: float | None = None
    """When the signal came that hasn't interrupted yet; None if there is none."""
    _last_look: _Look | None = None

    @property
    def has_signal(self) -> bool:
        """Whether a signal has interrupted the run, or is about to."""
        return self._came_s is not None or bool(self.interrupting_signals)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Interrupt the run if it waits, or if it has been busy for long; else look again soon.

        Raises:
            KeyboardInterrupt: the run is interrupted here.
        """
        now_s = time.monotonic()
        if self._came_s is None:
            self._came_s = now_s
        look = _Look.at(frame)
        waits = self._last_look is not None and look.has_waited_since(self._last_look)
        is_long_busy = now_s - self._came_s >= self.busy_s

        # Python would drop the exception in a finalizer.
        is_in_finalizer = any(
            caller.f_code.co_name == "__del__" for caller, _ in traceback.walk_stack(frame)
        )
        if is_in_finalizer or not (waits or is_long_busy):
            self._last_look = look
            _thread.start_new_thread(_send_again, (number,))
            return

        self._came_s = None
        self._last_look = None
        self.interrupting_signals.append(number)
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise the interrupt of an earlier signal again, because Python may have dropped it.

        Raises:
            KeyboardInterrupt: a signal has interrupted.
        """
        if self.interrupting_signals:
            raise KeyboardInterrupt


def _send_again(number: int) -> None:
    """Send this process a signal once more, in a moment.

    `threading.Timer` would need locks that the interrupted code may hold.
    """
    time.sleep(_AGAIN_AFTER_S)
    os.kill(os.getpid(), number)


INTERRUPTER = Interrupter()
"""The interrupter of this process."""


def interrupt_on_signals() -> None:
    """Have Ctrl-C, a cancelled job and a closed terminal interrupt the run.

    A signal that is ignored stays ignored, such as SIGHUP under nohup. SIGINT gets our handler
    too. Otherwise asyncio would install a handler that makes one interrupt of two in a row. But the
    second has to interrupt the cleanup that follows the first.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, INTERRUPTER.handle)


def check_signalled() -> None:
    """Raise `KeyboardInterrupt` if a signal has interrupted this process."""
    INTERRUPTER.check()


def run_in_loop(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in an event loop of its own, and raise what a handler of SIGALRM raises.

    pytest-timeout ends a test by such a handler. A loop drops what is raised in its callbacks, so
    the coroutine is cancelled instead, and the exception is raised after it has ended.

    Raises:
        BaseException: as raised by the coroutine or by the handler.
    """
    import uvloop  # noqa: PLC0415 - it is needed for measuring only

    handler = signal.getsignal(signal.SIGALRM)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or handler is None or isinstance(handler, int):
        return uvloop.run(coroutine)
    raised: list[BaseException] = []

    async def run() -> _T:
        loop = asyncio.get_running_loop()
        task = loop.create_task(coroutine)

        def note_alarm(number: int, frame: FrameType | None) -> None:
            try:
                handler(number, frame)
            except BaseException as error:  # noqa: BLE001 - pytest's isn't an Exception
                raised.append(error)
                loop.call_soon_threadsafe(task.cancel)

        signal.signal(signal.SIGALRM, note_alarm)

        try:
            return await task
        finally:
            signal.signal(signal.SIGALRM, handler)

    try:
        return uvloop.run(run())
    finally:
        if raised:
            raise raised[0]
