"""A server that runs: how to ask it, whether it still lives, and its log."""

import contextlib
import subprocess
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from specreg.core.errors import AnswerError, ServerDiedError
from specreg.core.http import ask
from specreg.core.processes import SupervisedProcess, process_ids
from specreg.engines.engine import Engine
from specreg.engines.wire_format import Endpoint
from specreg.matrix.case import ServerSpec

_DYING_S, _ENDING_S = 1.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server that has generated a token.

    Attributes:
        spec: what was asked for; engine: how to speak to it.
        base_url: `http://127.0.0.1:PORT`.
        model: the name that the model is served under; ours alone if we started it.
        target, draft: what the spec's references stood for: folders or hub ids.
        engine_version: by its own word.
    """

    spec: ServerSpec
    engine: Engine
    base_url: str
    model: str
    target: str
    draft: str | None
    engine_version: str

    @property
    def endpoint(self) -> Endpoint:
        """Where to ask it, for which model and in which engine's wire format."""
        return Endpoint(base_url=self.base_url, model=self.model, engine=self.engine.name)

    def pids(self) -> frozenset[int]:
        """Its processes, as far as they are ours."""
        return frozenset()

    def check_alive(self) -> None:
        """Check that the server answers; ServerDiedError if it doesn't any more."""
        try:
            ask(self.base_url, "GET", self.engine.health_path, within_s=_ENDING_S)
        except AnswerError as error:
            message = f"server at {self.base_url}: answers no more, {error}; look at its log"
            raise ServerDiedError(message) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedServer(Server):
    """One of our own: what runs."""

    process: SupervisedProcess

    @property
    def log_path(self) -> Path:
        """What it says."""
        return self.process.log_path

    def pids(self) -> frozenset[int]:
        """Its processes."""
        return process_ids(self.process)

    def check_alive(self) -> None:
        """Check that the server runs; a ServerDiedError with the end of its log if it ended."""
        # Its connections close a moment before it can be waited for.
        how = self.ended(_DYING_S)
        if not how and (answer := self._broken_answer()):
            # vLLM takes seconds to end once its engine has.
            how = self.ended(_ENDING_S) or f"answers {answer}"
        if how:
            message = (
                f"server '{self.spec.id}': {how} while it was measured;"
                f" last lines of {self.log_path}:\n{self.process.last_lines()}"
            )
            raise ServerDiedError(message)

    def ended(self, within_s: float = 0.0) -> str:
        """How it ended; empty while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"ended with status {self.process.popen.wait(within_s)}"
        return ""

    def _broken_answer(self) -> str:
        """What it says of its health; empty where it is well, or hangs and says nothing."""
        path = self.engine.health_path
        try:
            answer = ask(self.base_url, "GET", path, within_s=_DYING_S)
        except AnswerError as error:
            return "" if error.late else f"no more, {error}"
        failed = answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        return f"{answer.status} at {self.base_url}{path}" if failed else ""
