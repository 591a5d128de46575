"""The servers that a case is measured on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from specreg.matrix.case import Case
from specreg.servers.launch import Launch, Starting


@dataclass(frozen=True, slots=True)
class ServerSet:
    """The server of a case, and its control.

    Attributes:
        server: starts when it is first needed.
        control: the server without speculation that runs at the same time; None where the case has
            no control, or where no speed is measured.
    """

    server: Starting
    control: Starting | None = None

    @classmethod
    def of(cls, case: Case, server: Starting, control: Starting | None) -> Self:
        """Return the servers of a case: a control only where the case has one."""
        return cls(server, control if case.control is not None else None)

    @property
    def launch(self) -> Launch:
        """The launch of the case's server."""
        return self.server.launch

    @property
    def without_control(self) -> "ServerSet":
        """The server of the case alone."""
        return ServerSet(self.server)

    def __iter__(self) -> Iterator[Starting]:
        yield self.server
        if self.control is not None:
            yield self.control

    def stop(self) -> None:
        """Stop the servers."""
        for starting in self:
            starting.stop()

    def stop_dead(self) -> None:
        """Stop what is left of servers that went away, so that the next attempt starts afresh."""
        for starting in self:
            starting.stop_if_dead()
