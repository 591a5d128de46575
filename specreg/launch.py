"""Launches: a server and the how-manieth time in, a server that starts when it is needed out."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from specreg.errors import ServerDiedError, SpecregError
from specreg.matrix import Case, ServerSpec
from specreg.server import Server


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
        launch: of which; start: begins and ends it.
        ready_s: from its start to its first token, None before.
    """

    launch: Launch
    start: Callable[[], contextlib.AbstractContextManager[Server]]
    ready_s: float | None = None
    _running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _server: Server | None = None
    _error: SpecregError | None = None

    @property
    def server(self) -> Server:
        """The running server.

        Raises:
            SpecregError: it didn't start.
        """
        if self._error is not None:
            raise self._error
        if self._server is None:
            began_s = time.monotonic()
            try:
                self._server = self._running.enter_context(self.start())
                self.ready_s = time.monotonic() - began_s
            except SpecregError as error:
                self._error = error
                raise
        return self._server

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._server is not None

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
        """Stops it, if it runs."""
        self._server = None
        self._running.close()


def launches_of(case: Case, number: int) -> tuple[Launch, Launch]:
    """The how-manieth launch of a case's control and of its server."""
    only_for = case.id if case.needs_fresh_server else ""
    server = Launch(spec=case.server, number=number, only_for=only_for)
    return Launch(spec=case.control, number=number) if case.control else server, server
