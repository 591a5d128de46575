"""A crew: errands in, workers that do them out; who they are and where is all that crews differ in.

`here` is that of this machine. A pool asks one of them, and knows nothing of how it does it.
"""

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from specreg.core.logs import BoundedLog
from specreg.core.redaction import hide_said, known_secrets
from specreg.many.errand import Order, Said
from specreg.many.places import Need, Place


class Worker(Protocol):
    """Somebody who does an errand."""

    @property
    def how(self) -> str:
        """How it ended, in words, once it says nothing any more."""
        ...

    def __iter__(self) -> Iterator[Said]:
        """What it says until it has ended, its servers with it."""
        ...

    def hang_up(self) -> None:
        """Lets it know that it is to end its servers, and itself; returns at once."""
        ...

    def kill(self) -> None:
        """Ends it at once; its servers are their supervisors'. Nothing if it has ended."""
        ...


class Crew(Protocol):
    """Who does errands. One thread at a time asks it, but for what its workers are asked."""

    @property
    def option(self) -> str:
        """What a user asks for it by."""
        ...

    @property
    def gpus(self) -> int:
        """How many it has in all; 0 for none, or where nobody knows."""
        ...

    def place(self, need: Need) -> Place | None:
        """Where an errand can be done now; None while it must wait. Give it back when done.

        Raises:
            SpecregError: it can't be done anywhere, or not any more.
        """
        ...

    def give_back(self, place: Place) -> None:
        """Somebody else may have it."""
        ...

    def start(self, order: Order, place: Place, log_path: Path) -> Worker:
        """Has an order carried out at a place.

        Args:
            order: what to do; its GPUs and cores are the place's.
            place: where.
            log_path: gets what the worker says of itself, if it does.

        Raises:
            OSError: it can't be started here.
            SpecregError: it can't be started there.
        """
        ...

    def at_once(self, needs: Iterable[Need]) -> tuple[int, str]:
        """How many of the widest run at once at most, and why not more; empty where all do."""
        ...

    def close(self) -> None:
        """Gives back what it has, once all workers have ended."""
        ...


class WorkerLog:
    """What a worker says of itself, its first and last and no secrets; most say nothing."""

    def __init__(self, path: Path) -> None:
        """Makes no file before there is something to write."""
        self._path = path
        self._log: BoundedLog | None = None

    def take(self, said: bytes) -> None:
        """Puts it on disk, after what was said there before.

        Raises:
            OSError: there is no file to be made.
        """
        if self._log is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
            hide = functools.partial(hide_said, secrets=known_secrets())
            self._log = BoundedLog(self._path, hide)
        self._log.take(said)
        self._log.write()

    def close(self) -> None:
        """Writes the rest, if there is any."""
        if self._log is not None:
            self._log.close()
