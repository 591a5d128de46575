"""Launches: a server and the how-manieth time in, a server that starts when it is needed out."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specreg.core.errors import ServerDiedError, SpecregError
from specreg.matrix.case import Case, ServerSpec
from specreg.servers.readiness import POLL_S
from specreg.servers.server import Server

_NS_PER_S = 10**9

Poll = Callable[[], Server | None]
"""Gives a server once it has generated a token, and None before; raises why it never will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start of a server.

    Attributes:
        spec: what is started.
        number: the how-manieth time, from 1.
        only_for: the id of the one case that is measured on it; empty for all that share it.
    """

    spec: ServerSpec
    number: int
    only_for: str = ""

    @property
    def id(self) -> str:
        """`vllm-eagle3-tiny`, or the case that it is for; from the second on with `-launch2`."""
        return (self.only_for or self.spec.id) + self._suffix

    def case_id(self, case: Case) -> str:
        """The same of a case on this launch."""
        return case.id + self._suffix

    @property
    def _suffix(self) -> str:
        return f"-launch{self.number}" if self.number > 1 else ""


@dataclass(slots=True, kw_only=True, eq=False)
class Starting:
    """A server that starts when it is first asked for; one that failed to isn't tried again.

    Attributes:
        launch: what it is.
        start: starts it and doesn't wait; it ends with the context.
        ready_s: seconds from its last start to its first token; None until it has generated that.
    """

    launch: Launch
    start: Callable[[], contextlib.AbstractContextManager[Poll]]
    ready_s: float | None = None
    _running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _started_ns: int = 0
    _poll: Poll | None = None
    _server: Server | None = None
    _error: SpecregError | None = None

    @property
    def server(self) -> Server:
        """The running server; started and waited for where it doesn't run.

        Raises:
            SpecregError: it didn't start.
        """
        while (server := self.poll()) is None:
            time.sleep(POLL_S)
        return server

    def begin(self) -> None:
        """Start it where it neither runs nor starts, without waiting until it is ready.

        Raises:
            SpecregError: it can't be started.
        """
        if self._error is not None:
            raise self._error
        if self._poll is None:
            self.ready_s = None
            with self._failing():
                self._poll = self._running.enter_context(self.start())
            self._started_ns = time.monotonic_ns()

    def poll(self) -> Server | None:
        """The server once it is ready, None before; started where it doesn't start yet.

        Raises:
            SpecregError: it didn't start.
        """
        self.begin()
        if self._server is None and self._poll is not None:
            with self._failing():
                self._server = self._poll()
            if self._server is not None:
                self.ready_s = (time.monotonic_ns() - self._started_ns) / _NS_PER_S
        return self._server

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """End what was started, and remember why, where it doesn't start."""
        try:
            try:
                yield
            except SpecregError:
                self.stop()
                raise
        except SpecregError as error:
            self._error = error
            raise

    @property
    def running(self) -> bool:
        """Whether it is ready."""
        return self._server is not None

    @property
    def is_starting(self) -> bool:
        """Whether it was started and isn't ready yet."""
        return self._poll is not None and self._server is None

    def stop_if_dead(self) -> None:
        """Stops what is left of it if it went away, so that the next who asks gets a fresh one.

        Raises:
            MemoryHeldError: its GPU hasn't got its memory back.
        """
        try:
            if self._server is not None:
                self._server.check_alive()
        except ServerDiedError:
            self.stop()

    def stop(self) -> None:
        """Stops it, if it runs or starts."""
        self._server = self._poll = None
        self._running.close()


def wait_until_ready(startings: Sequence[Starting]) -> None:
    """Start servers at once, and return when each has generated a token.

    They are asked in turn, so the `ready_s` of one is late by what the others take to answer.

    Raises:
        SpecregError: one didn't start. The others go on: who asks for one again waits for it.
    """
    for one in startings:
        one.begin()
    while startings := [one for one in startings if one.poll() is None]:
        time.sleep(POLL_S)


def launches_of(case: Case, number: int) -> tuple[Launch, Launch]:
    """The how-manieth launch of a case's control and of its server."""
    only_for = case.id if case.needs_fresh_server else ""
    server = Launch(spec=case.server, number=number, only_for=only_for)
    return Launch(spec=case.control, number=number) if case.control else server, server
