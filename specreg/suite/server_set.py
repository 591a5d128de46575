"""The servers that one case is measured on.

A server set doesn't own its servers: `specreg.servers.handle.Servers` has all servers of a run,
starts them and stops them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from specreg.matrix.case import Case
from specreg.servers.handle import ServerHandle
from specreg.servers.launch import Launch


@dataclass(frozen=True, slots=True)
class ServerSet:
    """The server of a case, and its control.

    Attributes:
        server: The server of the case, which starts when it is first needed.
        control: The server without speculation that runs at the same time; None if the case has no
            control, or if no speed is measured.
    """

    server: ServerHandle
    control: ServerHandle | None = None

    @classmethod
    def of(cls, case: Case, server: ServerHandle, control: ServerHandle | None) -> Self:
        """Return the servers of a case, without the control if the case has none."""
        return cls(server, control if case.control is not None else None)

    @property
    def launch(self) -> Launch:
        """The launch of the case's server."""
        return self.server.launch

    @property
    def without_control(self) -> "ServerSet":
        """The same set without the control."""
        return ServerSet(self.server)

    def __iter__(self) -> Iterator[ServerHandle]:
        yield self.server
        if self.control is not None:
            yield self.control

    def stop(self) -> None:
        """Stop the servers."""
        for handle in self:
            handle.stop()

    def stop_dead(self) -> None:
        """Stop what is left of servers that have died, so that they can be started again."""
        for handle in self:
            handle.stop_if_dead()
