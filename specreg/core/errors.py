"""Every error that specreg raises on purpose, as one tree.

A message reads `<subject>: <what is wrong, got and needed>; <what to do>`.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from specreg.core.readable import LINE_CHARACTERS, readable_block
from specreg.core.reasons import Reason


class SpecregError(Exception):
    """Any error that specreg raises on purpose. Its message can be shown to the user as it is.

    Attributes:
        code: the code of the reason, if people are to look it up; the message begins with it.
        reason: the reason of a verdict on a case that couldn't be judged because of this error.
    """

    code: ClassVar[str] = ""

    def __init__(self, message: str) -> None:
        message = readable_block(message, line_characters=LINE_CHARACTERS)
        head, _, _ = message.partition("\n")
        self.reason = Reason(code=self.code, text=head)
        super().__init__(f"{self.code}: {message}" if self.code else message)

    @property
    def head(self) -> str:
        """The first line, without the log that may follow it."""
        return str(self).partition("\n")[0]


def leaves(error: BaseException) -> tuple[BaseException, ...]:
    """Return the errors of an exception group and its subgroups; for another error only itself."""
    if not isinstance(error, BaseExceptionGroup):
        return (error,)
    return tuple(leaf for exception in error.exceptions for leaf in leaves(exception))


class UnknownNameError(SpecregError):
    """A name that isn't declared: of an engine, a method, a dataset, a case, a key and so on."""

    def __init__(self, kind: str, name: str, known: Iterable[str], where: str = "") -> None:
        known = sorted(known)
        close = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean '{close[0]}'? " if close else ""
        prefix = f"{where}: " if where else ""
        super().__init__(
            f"{prefix}unknown {kind} '{name}'; {advice}known: {', '.join(known) or 'none'}"
        )


def check_name(kind: str, name: str, known: Iterable[str], where: str = "") -> None:
    """Check that a name is known.

    Args:
        kind: what the name is for, such as `dataset`.
        known: the names that exist.
        where: where the name was read, for the message.

    Raises:
        UnknownNameError: the name isn't known. The message lists those that are.
    """
    if name not in known:
        raise UnknownNameError(kind, name, known, where)


class MatrixError(SpecregError):
    """A tier's file that can't be decoded or contradicts itself.

    The message names the file, and the table and the key if the error is about one.
    """


class UnsupportedError(SpecregError):
    """A setting, a case or a command that an engine, its version or specreg doesn't support."""


class DatasetError(SpecregError):
    """A prompt file or a prompt set that can't be used, fetched or prepared.

    The message names the file, and the row and the field if the error is about one.
    """


class ModelError(SpecregError):
    """A model that is missing or incomplete, or can't be read, used or made larger."""


class UnfetchedModelError(ModelError):
    """A model that can't be fetched from the hub."""

    code = "MODEL_NOT_FETCHED"


class EnvironmentSetupError(SpecregError):
    """An engine's environment that can't be made or checked, or that was changed.

    If the installer failed, the message ends with its output.
    """


class ServerError(SpecregError):
    """A server that doesn't work."""


class ServerStartError(ServerError):
    """A server that died while it started, or never generated a token.

    `log_tail` has the last 40 lines of its log.
    """

    code = "SERVER_NOT_STARTED"

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
    """A server whose engine couldn't fetch a model from the hub."""

    code = "MODEL_NOT_FETCHED"


class PortInUseError(ServerStartError):
    """A server whose port another program took between its choice and the server's start."""


class ServerRefusedError(ServerError):
    """A server that refused to generate a token. The message is its answer."""


class ServerDiedError(ServerError):
    """A server that died while it was measured."""

    code = "SERVER_DIED"


class AnswerError(ServerError):
    """A request for which a server gave no usable answer.

    Attributes:
        status: the status of HTTP, if the server answered with an error; None otherwise.
        late: True if no whole answer came in time.
    """

    def __init__(self, message: str, *, status: int | None = None, late: bool = False) -> None:
        self.status = status
        self.late = late
        super().__init__(message)


class AttachError(ServerError):
    """No server, or not the one that a case needs, answers at a URL."""


class SensorError(SpecregError):
    """A device whose power can't be read, or that is gone, slowed down or used by a program."""


class NoGpuError(SensorError):
    """A machine that has no GPU, or a process that sees none."""


class MemoryHeldError(SensorError):
    """A GPU whose memory isn't free after its server's end. This error ends the run."""


class UnkillableError(MemoryHeldError):
    """Processes that still live after they were killed. This error ends the run.

    The message has their ids.
    """


class InvalidMeasurementError(SpecregError):
    """A measurement that broke a check, with the code and the facts of its reason."""

    def __init__(self, code: str | Reason, /, **facts: object) -> None:
        reason = code if isinstance(code, Reason) else Reason.of(code, **facts)
        super().__init__(str(reason))
        self.reason = reason


class ServerAnswerError(InvalidMeasurementError):
    """A server that answers a request with an error. The message is the server's own.

    `status` is the status of HTTP in that message; None if the message has none.
    """

    def __init__(self, words: str, status: int | None = None) -> None:
        super().__init__("SERVER_ERROR", words=words)
        self.status = status


class HungError(InvalidMeasurementError):
    """A server that accepts requests and generates nothing for some time, and so is stopped."""

    def __init__(self, silent_s: float) -> None:
        super().__init__("HUNG", silent_s=silent_s)
        self.silent_s = silent_s


class BaselineError(SpecregError):
    """A baseline file that can't be read, or must not be written. The file isn't changed."""


class ReportError(SpecregError):
    """A report that can't be read, made or sent. Its run isn't affected."""
