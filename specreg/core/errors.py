"""Every error that specreg raises on purpose, as one tree.

A message reads `<subject>: <what is wrong, got and needed>; <what to do>`.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path

from specreg.core.readable import readable_block
from specreg.core.reasons import Invalidity, Reason

_LINE_CHARACTERS = 4_000
"""The longest line of a message. Some quote a whole log, and what to do stands at the end."""


class SpecregError(Exception):
    """Any error that specreg raises on purpose; its message is fit to be shown to the user."""

    def __init__(self, message: str) -> None:
        super().__init__(readable_block(message, line_characters=_LINE_CHARACTERS))

    @property
    def head(self) -> str:
        """The first line, without the log that may follow it."""
        return str(self).partition("\n")[0]

    @property
    def reason(self) -> Reason:
        """The reason that this error gives the verdict on what it prevented."""
        return Reason(text=self.head)


def leaves(error: BaseException) -> tuple[BaseException, ...]:
    """Return the errors of a group and its subgroups; of a single error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return (error,)
    return tuple(leaf for exception in error.exceptions for leaf in leaves(exception))


class UnknownNameError(SpecregError):
    """An engine, method, dataset, tier or model pair that isn't declared."""

    def __init__(self, kind: str, name: str, known: Iterable[str], where: str = "") -> None:
        known = sorted(known)
        close = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean '{close[0]}'? " if close else ""
        prefix = f"{where}: " if where else ""
        super().__init__(
            f"{prefix}unknown {kind} '{name}'; {advice}known: {', '.join(known) or 'none'}"
        )


def check_name(kind: str, name: str, known: Iterable[str], where: str = "") -> None:
    """Raise an UnknownNameError of a name that isn't among those known; `where` it was asked."""
    if name not in known:
        raise UnknownNameError(kind, name, known, where)


class MatrixError(SpecregError):
    """A matrix file that doesn't decode, or asks for what can't be; names file, table and key."""


class UnsupportedError(SpecregError):
    """An engine or its version lacks what a case asks for; the message says which has it."""


class DatasetError(SpecregError):
    """A prompt file that can't be used, or a set that wasn't prepared; names file, row, field."""


class ModelError(SpecregError):
    """A model folder that is missing or incomplete."""


class EnvironmentSetupError(SpecregError):
    """An engine's environment could not be made; the message ends with the installer's words."""


class ServerError(SpecregError):
    """A server that doesn't do what it was started for."""


class ServerStartError(ServerError):
    """A server that died while starting, or never generated a token; `log_tail` has 40 lines."""

    def __init__(
        self, subject: str, failure: str, advice: str, log_path: Path, log_tail: str
    ) -> None:
        self.failure = failure
        self.log_path = log_path
        self.log_tail = log_tail
        super().__init__(
            f"{subject}: {failure}; {advice}\n"
            f"last lines of {log_path}:\n{log_tail or '(the log is empty)'}"
        )


class ModelNotFetchedError(ServerStartError):
    """A server whose engine the hub didn't give a model."""


class PortInUseError(ServerStartError):
    """A server whose port another program took between its choice and its use."""


class ServerRefusedError(ServerError):
    """A server that refused to generate a token; the message is its answer."""


class ServerDiedError(ServerError):
    """A server that went away while it was measured."""


class AnswerError(ServerError):
    """An answer that is refused, with HTTP's `status`, or late, or too long, or no HTTP."""

    def __init__(self, message: str, *, status: int | None = None, late: bool = False) -> None:
        self.status = status
        self.late = late
        super().__init__(message)


class AttachError(ServerError):
    """Nothing, or something else than asked for, answers at a URL."""


class SensorError(SpecregError):
    """A device whose power can't be read, that is gone, or on which another run measures."""


class NoGpuError(SensorError):
    """A machine that has no GPU, or a process that is shown none."""


class MemoryHeldError(SensorError):
    """A GPU whose memory isn't back after its server's end; it ends the run."""


class UnkillableError(MemoryHeldError):
    """Processes that live after they were killed; the message has their ids. It ends the run."""


class InvalidMeasurementError(SpecregError):
    """A measurement that broke a check."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.invalidity = Invalidity(
            code, readable_block(message, line_characters=_LINE_CHARACTERS)
        )

    @property
    def reason(self) -> Reason:
        """The reason that the broken check gives its verdict."""
        return Reason.of(self.invalidity)


class ServerAnswerError(InvalidMeasurementError):
    """A server that answers an error where it should answer a request; the message is its words.

    `status` is HTTP's as the words have it, None where they have none.
    """

    def __init__(self, words: str, status: int | None = None) -> None:
        super().__init__("SERVER_ERROR", f"the server says '{words}'")
        self.status = status


class HungError(InvalidMeasurementError):
    """A server that takes requests and generates nothing for so many seconds. It is ended."""

    code = "HUNG"

    def __init__(self, silent_s: float) -> None:
        super().__init__(self.code, f"no token came for {silent_s:g} s; look at the server's log")
        self.silent_s = silent_s


class BaselineError(SpecregError):
    """A baseline file that can't be read or must not be written; it is left as it is."""


class ReportError(SpecregError):
    """A report that can't be read, made or sent; the run that it is of stays as it is."""
