"""Measure and check cases in other processes."""

from collections.abc import Sequence
from typing import Protocol

from specreg.correctness.checks import CorrectnessCheck
from specreg.matrix.case import Case
from specreg.measurement.journal import Key
from specreg.measurement.measure import Measurement
from specreg.verdicts.judge import Verdict


class Away(Protocol):
    """What measures in other processes, several servers at once."""

    def send(self, cases: Sequence[Case], launch: int) -> None:
        """Have cases measured on a launch of their servers, numbered from 1."""
        ...

    def measurement(self, case: Case, launch: int, key: Key) -> Measurement:
        """What was measured of a case; waits for it.

        Raises:
            SpecregError: it couldn't be.
        """
        ...

    def verdict(self, check: CorrectnessCheck, case: Case, launch: int) -> Verdict:
        """The verdict of a check; waits for it.

        Raises:
            SpecregError: it couldn't be made.
        """
        ...

    def kill(self) -> None:
        """Ends them at once, whatever they are at; their supervisors end the servers."""
        ...

    def close(self, *, early: bool) -> str:
        """Ends them, or waits until they are done; what to say of it.

        Raises:
            SpecregError: a server left something behind.
        """
        ...
