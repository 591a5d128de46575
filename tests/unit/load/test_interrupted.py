"""Ctrl-C that a callback of the event loop dropped, together with its connection, still counts."""

import signal
import socket
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from specreg.core.address import Address
from specreg.core.errors import AnswerError
from specreg.core.http import ask
from specreg.core.interrupts import INTERRUPTER
from tests.unit.builders.wires import PIECES, Wire, replay_wire


class Broken(Wire):
    """Loses the connection after the first piece."""

    async def _stream(self) -> AsyncIterator[bytes]:
        yield PIECES[0]
        message = "the connection was lost"
        raise httpx.ReadError(message)


@pytest.fixture
def signalled() -> Iterator[None]:
    """A process that a signal has interrupted, as far as it knows."""
    INTERRUPTER.interrupting_signals.append(signal.SIGINT)
    yield
    INTERRUPTER.interrupting_signals.clear()


@pytest.fixture
def closed_url() -> str:
    """The address of a port at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.usefixtures("signalled")
def test_a_request_that_an_interrupt_broke_ends_the_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        replay_wire(Broken(PIECES))


@pytest.mark.usefixtures("signalled")
def test_a_question_that_an_interrupt_broke_ends_the_run(closed_url: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        ask(Address(closed_url), "GET", "/metrics", within_s=5.0)


def test_without_a_signal_it_is_the_server_s_failure(closed_url: str) -> None:
    traces = replay_wire(Broken(PIECES)).traces
    assert {trace.error for trace in traces} == {"ReadError: the connection was lost"}
    with pytest.raises(AnswerError):
        ask(Address(closed_url), "GET", "/metrics", within_s=5.0)
