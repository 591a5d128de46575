"""What the hooks keep in pytest's stash while a session lasts."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from specreg.core.errors import SpecregError
from specreg.report.document import RunVerdict
from specreg.report.progress import Progress
from specreg.suite.case_runner import CaseRunner
from specreg.suite.context import RunContext
from specreg.suite.result import Run, RunResult
from specreg.suite.selection import Selection
from specreg.suite.shards import Shard

REFUSAL = "specreg_refused"
"""The key under which a worker of pytest-xdist tells its controller why it refused to begin."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the session ends before it measures anything, and its exit status."""

    text: str
    status: int


@dataclass(slots=True, kw_only=True)
class SessionNotes:
    """What the hooks learn about the session, apart from verdicts.

    Attributes:
        lines: extra lines for the summary.
        refusal: set when the session ends before it begins.
        is_wanted: whether tests of the suite were selected, or would have been if the selection
            had left any test at all.
        failed_otherwise: whether a test failed otherwise than by its verdict.
        is_empty_shard: whether the selected shard has no server group.
    """

    lines: list[str] = field(default_factory=list)
    refusal: Refusal | None = None
    is_wanted: bool = False
    failed_otherwise: bool = False
    is_empty_shard: bool = False

    def add_lines(self, lines: Iterable[str]) -> None:
        """Add extra lines to the summary."""
        self.lines.extend(lines)

    def note_parametrized(self) -> None:
        """Note that a test of the suite was collected."""
        self.is_wanted = True

    def note_selected(self, *, suite_tests: int, all_tests: int) -> None:
        """Note how many tests a selection left.

        A selection that leaves no test at all may have been meant for tests of the suite.
        """
        self.is_wanted = bool(suite_tests) or (self.is_wanted and not all_tests)

    def note_empty_shard(self) -> None:
        """Note that the selected shard has no test."""
        self.is_empty_shard = True

    def note_other_failure(self) -> None:
        """Note that a test failed otherwise than by its verdict."""
        self.failed_otherwise = True

    def note_refusal(self, refusal: Refusal) -> None:
        """Note why the session ends before it begins; the summary says it."""
        self.refusal = refusal
        self.lines.append(refusal.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """What the end of the session hands to the terminal summary.

    Attributes:
        result: what the run came to.
        verdict: what it decided, None if it judged nothing.
        failure_blocks: a block of text for each failed case, empty where pytest shows each test.
    """

    result: RunResult
    verdict: RunVerdict | None
    failure_blocks: Mapping[str, str]


CONTEXT = pytest.StashKey[RunContext]()
PROGRESS = pytest.StashKey[Progress]()
NOTES = pytest.StashKey[SessionNotes]()
SELECTION = pytest.StashKey[Selection]()
"""What the collected tests need; absent in a controller of pytest-xdist, which collects nothing."""
SHARDS = pytest.StashKey[Sequence[Shard]]()
"""How the run is cut, if one shard of it is selected."""
RUN = pytest.StashKey[Run[CaseRunner]]()
"""The run, once it has started; absent if no test of the suite runs in this process."""
RECORD_PROPERTY = pytest.StashKey[Callable[[str, object], None]]()
"""Takes a property of the whole run for JUnit's file."""
END = pytest.StashKey[SessionEnd]()


def refuse(config: pytest.Config, refusal: Refusal) -> None:
    """Note why the session ends before it begins; a worker of pytest-xdist tells its controller."""
    config.stash[NOTES].note_refusal(refusal)
    if hasattr(config, "workeroutput"):
        config.workeroutput[REFUSAL] = (refusal.text, refusal.status)


@contextlib.contextmanager
def usage_errors(config: pytest.Config) -> Iterator[None]:
    """Turn an error of specreg into a usage error of pytest, which ends the session.

    Raises:
        pytest.UsageError: specreg raised an error in the context.
    """
    try:
        yield
    except SpecregError as error:
        if hasattr(config, "workeroutput"):
            refuse(config, Refusal(str(error), int(pytest.ExitCode.USAGE_ERROR)))
        raise pytest.UsageError(str(error)) from error
