"""`verdict.json`: what a run decided, for programs; nox folds pytest's own status into 1."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from specreg.core.decoding import UNREADABLE
from specreg.core.errors import ReportError
from specreg.core.files import replace_file
from specreg.report.breakdown import CategoryFigures
from specreg.telemetry.identity import ProcessorLoad
from specreg.verdicts.judge import Outcome, Verdict

SCHEMA_VERSION = 1

REGRESSED_STATUS = 1
UNDECIDED_STATUS = 10
NO_BASELINE_STATUS = 11


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The file.

    Attributes:
        schema_version: of this form.
        run: its folder's name; tier: what was run; environment: on what.
        attached: the URL of the server that somebody else ran, empty if we started our own.
        complete: whether the whole tier was judged, and nothing cut it short.
        exit_status: of the run.
        outcomes: how many verdicts of each; verdicts: in the order of the run.
        skipped: by case that didn't fit the machine, what it needs.
        no_power: why power wasn't measured, empty where it was or wasn't asked for.
        slowed: by case that speculation slows down for sure, its speedup, below 1.
        load: of this machine's processor when the run began; null where others measured, and of a
            run that an earlier specreg recorded.
        categories: by case and category, where a case that speculates has several.
    """

    schema_version: int = SCHEMA_VERSION
    run: str
    tier: str
    environment: str
    attached: str = ""
    complete: bool
    exit_status: int
    outcomes: dict[str, int]
    verdicts: tuple[Verdict, ...]
    skipped: dict[str, str] = {}
    no_power: str = ""
    slowed: dict[str, float] = {}
    load: ProcessorLoad | None = None
    categories: dict[str, dict[str, CategoryFigures]] = {}


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """What verdicts that failed say in a number.

    1: something REGRESSED or is WRONG. 10: nothing did, but something is INVALID or INCONCLUSIVE.
    11: only baselines are missing or unreadable. 0: all hold.
    """
    failed = {verdict.outcome for verdict in verdicts if verdict.fails}
    if failed & {Outcome.REGRESSED, Outcome.WRONG}:
        return REGRESSED_STATUS
    if failed & {Outcome.INVALID, Outcome.INCONCLUSIVE}:
        return UNDECIDED_STATUS
    return NO_BASELINE_STATUS if Outcome.NO_BASELINE in failed else 0


def count_outcomes(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many verdicts there are of each outcome, in the order of the outcomes."""
    counted = Counter(verdict.outcome for verdict in verdicts)
    return {str(outcome): counted[outcome] for outcome in Outcome if counted[outcome]}


def record_verdict(path: Path, verdict: RunVerdict) -> None:
    """Writes the file.

    Raises:
        ReportError: the disk refuses.
    """
    try:
        replace_file(path, msgspec.json.format(msgspec.json.encode(verdict), indent=1) + b"\n")
    except OSError as error:
        message = f"verdicts '{path}': not written, {error.strerror}; make room or mend its rights"
        raise ReportError(message) from error


def load_verdict(path: Path) -> RunVerdict | None:
    """The file that was written, None where there is none that can be read."""
    with contextlib.suppress(OSError, *UNREADABLE):
        content = path.read_bytes().replace(b'"sight_frac"', b'"mde_frac"')  # until 0.1
        return msgspec.json.decode(content, type=RunVerdict)
    return None


def properties(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """What a verdict says, as names and texts of JUnit properties; what is absent isn't there."""
    for name, value in msgspec.to_builtins(verdict).items():
        if value not in (None, ""):
            yield f"specreg.{name}", str(value)
