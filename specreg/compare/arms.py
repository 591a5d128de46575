"""The servers of both sides of a gate, and whose fault it is where one fails."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.compare.pairs import Side
from specreg.compare.request import Request
from specreg.core.errors import MemoryHeldError, ServerDiedError, SpecregError, UnsupportedError
from specreg.matrix.case import Case
from specreg.servers.server import StartedServer
from specreg.servers.sources import Source
from specreg.servers.start import start_server


class SideError(SpecregError):
    """One of the sides failed.

    Attributes:
        side: which.
        started: whether its server had started.
    """

    def __init__(self, side: Side, message: str, *, started: bool = True) -> None:
        super().__init__(message)
        self.side, self.started = side, started


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Where the servers of a gate come from.

    Attributes:
        request: of the gate; folder: of what it leaves.
        sources: of A and of B; installed: what they are.
    """

    request: Request
    folder: Path
    sources: tuple[Source, Source]
    installed: tuple[str, str]

    def source(self, side: Side) -> Source:
        """Where the servers of a side come from."""
        return self.sources[side is Side.B]

    @contextlib.contextmanager
    def server(self, case: Case, side: Side, name: str) -> Iterator[StartedServer]:
        """A running server of a side.

        Raises:
            SideError: it didn't start.
            MemoryHeldError: a GPU hasn't got its memory back, whosever server it was.
        """
        source, request = self.source(side), self.request
        with contextlib.ExitStack() as stack:
            try:
                environment = source.environment(case)
                stack.enter_context(source.leased(case))
                server = stack.enter_context(
                    start_server(
                        case.server,
                        environment,
                        root=request.root,
                        log_path=self.folder / "logs" / f"{name.replace(' ', '')}.log",
                        on_gpu=request.on_gpu,
                        ready_within_s=request.ready_within_s,
                        show=lambda _: None,
                    )
                )
            except MemoryHeldError:
                raise
            except SpecregError as error:
                message = f"side {side} ('{source.origin.text}'): {error}"
                raise SideError(side, message, started=False) from error
            yield server

    def check_version(self, side: Side, told: Sequence[str]) -> None:
        """Check that all launches of a side are of one version, by its servers' own word.

        An interpreter that is taken as it is may hold another one by the time that a gate goes on.

        Args:
            side: whose.
            told: the versions.

        Raises:
            UnsupportedError: they aren't.
        """
        versions = dict.fromkeys(filter(None, told))
        if len(versions) > 1:
            message = (
                f"side {side} ('{self.source(side).origin.text}'): its servers said"
                f" {', '.join(versions)}, so its launches aren't of one version; bring back the one"
                " it had, or begin another gate"
            )
            raise UnsupportedError(message)


@contextlib.contextmanager
def naming(servers: Mapping[Side, StartedServer]) -> Iterator[None]:
    """Say of a server that went away whose it is."""
    try:
        yield
    except ServerDiedError:
        for side, server in servers.items():
            try:
                server.check_alive()
            except ServerDiedError as error:
                raise SideError(side, str(error).splitlines()[0]) from error
        raise
