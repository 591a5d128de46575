"""A signal interrupts a run where it waits, and nowhere where that does harm."""

import contextlib
import hashlib
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from specreg.core.interrupts import Interrupter

NUMBER = signal.SIGUSR1


@contextlib.contextmanager
def interrupted_by(interrupter: Interrupter) -> Iterator[None]:
    """Have an interrupter handle the signal in the context."""
    handler_before = signal.signal(NUMBER, interrupter.handle)
    try:
        yield
    finally:
        signal.signal(NUMBER, signal.SIG_IGN)
        time.sleep(0.03)  # until one that a failed test left pending has come
        signal.signal(NUMBER, handler_before)


def test_an_interrupt_comes_where_the_run_waits() -> None:
    """Elsewhere a file may be open that nothing closes yet, or a module half imported."""
    done: list[str] = []

    def go() -> None:
        signal.raise_signal(NUMBER)
        done.append("closed")
        time.sleep(5)

    with interrupted_by(Interrupter()), pytest.raises(KeyboardInterrupt):
        go()
    assert done == ["closed"]


def test_a_second_signal_interrupts_again() -> None:
    """The second interrupts the cleanup that follows the first."""
    interrupter = Interrupter()
    with interrupted_by(interrupter):
        for _ in range(2):
            signal.raise_signal(NUMBER)
            with pytest.raises(KeyboardInterrupt):
                time.sleep(5)
    assert interrupter.interrupting_signals == [NUMBER, NUMBER]


def test_what_computes_is_no_waiting_though_it_is_met_twice_at_one_place() -> None:
    """As the scan of a large /proc is, at the opening of its files."""
    done: list[int] = []

    def go() -> None:
        signal.raise_signal(NUMBER)
        done.extend(hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)[0] for _ in range(20))
        time.sleep(5)

    with interrupted_by(Interrupter(busy_s=60.0)), pytest.raises(KeyboardInterrupt):
        go()
    assert len(done) == 20


def test_a_run_that_never_waits_is_interrupted_too() -> None:
    with interrupted_by(Interrupter(busy_s=0.1)):
        signal.raise_signal(NUMBER)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it comes in one of them
            for count in range(2000):
                exec(f"time.sleep(0.001 + {count}e-9)")  # noqa: S102 - each is code of its own


def test_an_interrupt_waits_for_a_finalizer_which_would_drop_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Dropping:
        def __del__(self) -> None:
            signal.raise_signal(NUMBER)
            time.sleep(0.1)

    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    interrupter = Interrupter(busy_s=0.05)
    interrupter.check()
    with interrupted_by(interrupter), pytest.raises(KeyboardInterrupt):  # noqa: PT012 - one of two
        Dropping()
        time.sleep(5)
    assert not dropped
    with pytest.raises(KeyboardInterrupt):
        interrupter.check()
