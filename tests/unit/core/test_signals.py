"""What a signal does, asked of its handler itself."""

import signal
import sys
import time
from collections.abc import Iterator

import pytest

from specreg.core import signals as interrupting


@pytest.fixture
def number(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(interrupting, "SIGNALLED", [])
    before = signal.signal(signal.SIGUSR1, interrupting._interrupt)  # noqa: SLF001
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("file", "opened"),
    [("<frozen importlib._bootstrap_external>", ["closed"]), ("specreg/suite/run.py", [])],
    ids=["an-import", "anything-else"],
)
def test_an_import_closes_its_file_before_it_is_interrupted(
    number: int, file: str, opened: list[str]
) -> None:
    done: list[str] = []
    code = compile("signal.raise_signal(number); done.append('closed')", file, "exec")

    def go() -> None:
        exec(code, {"signal": signal, "number": number, "done": done})  # noqa: S102
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        go()
    assert done == opened


def test_an_interrupt_waits_for_a_finalizer_which_would_drop_it(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dropping:
        def __del__(self) -> None:
            signal.raise_signal(number)

    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it comes in one of the two
        Dropping()
        time.sleep(5)
    assert not dropped
    with pytest.raises(KeyboardInterrupt):
        interrupting.check_signalled()
