"""The values that the hooks share through pytest's stash during a session."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from specreg.core.errors import SpecregError
from specreg.report.document import RunReport
from specreg.report.progress import Progress
from specreg.suite.context import RunContext
from specreg.suite.result import RunResult
from specreg.suite.run import Run
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
        refusal: why the session ends before it measures anything; None if it doesn't.
        is_wanted: True if tests of the suite are selected.
        failed_otherwise: True if a test failed for another reason than its verdict.
        shown_errors: the first lines of the errors that were shown in full.
        has_nothing_to_run: True if `--specreg-shard` deselects all tests: the shard is empty, or
            the shards are only listed.
    """

    lines: list[str] = field(default_factory=list)
    refusal: Refusal | None = None
    is_wanted: bool = False
    failed_otherwise: bool = False
    shown_errors: set[str] = field(default_factory=set)
    has_nothing_to_run: bool = False

    def add_lines(self, lines: Iterable[str]) -> None:
        """Add extra lines to the summary."""
        self.lines.extend(lines)

    def note_nothing_to_run(self) -> None:
        """Note that `--specreg-shard` deselects all tests."""
        self.has_nothing_to_run = True

    def note_other_failure(self) -> None:
        """Note that a test failed for another reason than its verdict."""
        self.failed_otherwise = True

    def note_refusal(self, refusal: Refusal) -> None:
        """Note why the session ends before it measures anything, and show it in the summary."""
        self.refusal = refusal
        self.lines.append(refusal.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """The results of the session that the terminal summary shows.

    Attributes:
        report: the report of the run; None if it has no verdicts and wasn't meant to judge, or if
            the report can't be made.
        failure_blocks: a block of text for each failed case, by case id; empty if pytest shows each
            failed test instead.
    """

    result: RunResult
    report: RunReport | None
    failure_blocks: Mapping[str, str]


CONTEXT = pytest.StashKey[RunContext]()
PROGRESS = pytest.StashKey[Progress]()
NOTES = pytest.StashKey[SessionNotes]()
SELECTION = pytest.StashKey[Selection]()
"""What the collected tests need. Absent in a controller of pytest-xdist, which collects nothing."""
SHARDS = pytest.StashKey[Sequence[Shard]]()
"""All shards of the run, if one of them is selected or if they are only listed."""
RUN = pytest.StashKey[Run]()
"""The run, once it has started; absent if no test of the suite runs in this process."""
END = pytest.StashKey[SessionEnd]()


def refuse(config: pytest.Config, refusal: Refusal) -> None:
    """Note why the session ends before it measures anything."""
    config.stash[NOTES].note_refusal(refusal)
    # A worker of pytest-xdist also tells its controller.
    if hasattr(config, "workeroutput"):
        config.workeroutput[REFUSAL] = (refusal.text, refusal.status)


@contextlib.contextmanager
def usage_errors(config: pytest.Config) -> Iterator[None]:
    """Raise an error of specreg as a usage error of pytest, which ends the session.

    Raises:
        pytest.UsageError: a SpecregError was raised in the context.
    """
    try:
        yield
    except SpecregError as error:
        if hasattr(config, "workeroutput"):
            refuse(config, Refusal(str(error), int(pytest.ExitCode.USAGE_ERROR)))
        raise pytest.UsageError(str(error)) from error
