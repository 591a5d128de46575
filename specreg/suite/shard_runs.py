"""Read the run folders of shards, which a merge joins.

A shard writes `plan.json` before it starts anything, and its ledger while it measures. Therefore
the measurements of a shard that died can be merged too.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from specreg.core.errors import SpecregError
from specreg.core.files import UNREADABLE
from specreg.core.reasons import Reason
from specreg.core.received import check_below, read_received, received_files
from specreg.matrix.case import Case
from specreg.report.document import RunReport
from specreg.report.files import FILE_NAME, load_run_report
from specreg.runs.ledger import LEDGER, Recorded, check_has_no_old_ledger, read_ledger
from specreg.suite.plan import COPIED, PLAN, PLAN_VERSION, RunPlan
from specreg.verdicts.status import exit_status
from specreg.verdicts.verdict import Verdict

_MAX_PLAN_BYTES = 16 * 2**20
_AGAIN = "leave that run out of the merge, or repeat its shard"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRun:
    """The documents in the folder of a shard.

    Attributes:
        folder: the folder.
        plan: the plan of the shard.
        files: all files of the folder, relative to it.
        report: the report; None if the shard died before it wrote one.
    """

    folder: Path
    plan: RunPlan
    files: Sequence[PurePosixPath] = ()
    report: RunReport | None = None

    @property
    def failed_otherwise(self) -> bool:
        """True if the shard wrote its report, and failed for another reason than its verdicts."""
        if self.report is None or not self.report.run.exit_status:
            return False
        return not exit_status(self.report.run.verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredShard(ShardRun):
    """The documents in the folder of a shard, and what its ledger has of the cases of now.

    Attributes:
        recorded: what the ledger has.
    """

    recorded: Recorded

    def why_failed(self, case_id: str, check: str, number: int) -> Reason | None:
        """Return why a case couldn't be measured or checked on a launch; None if that isn't known.

        Args:
            case_id: the id of the case.
            check: the name of the check; empty for the measurement.
            number: the number of the launch, from 1.
        """
        for line in reversed(self.recorded.failed):
            if (line.case_id, line.check, line.launch) == (case_id, check, number):
                return Reason(code=line.code, text=line.text, remedy=line.remedy)
        return None


def has_plan(folder: Path) -> bool:
    """Return whether a run has begun in a folder. If so, the folder has a plan, readable or not."""
    return os.path.lexists(folder / PLAN)


def load_shard(folder: Path) -> ShardRun:
    """Load the plan and the report of a shard, whose folder may come from another machine.

    Raises:
        SpecregError: the folder has no plan, or has a link or a special file, or one of its
            documents can't be read.
        UnsupportedError: an earlier version of specreg has written it.
    """
    try:
        files = received_files(folder)
        for name in files:
            if name.parts[0] in COPIED:
                # A merge copies this file to a folder of the same name, so its path must be safe.
                check_below(folder, str(name))
        check_has_no_old_ledger(folder, remedy=_AGAIN)
        content = read_received(folder, PLAN, _MAX_PLAN_BYTES)
    except FileNotFoundError as error:
        cure = "name the folder of a run that has one"
        raise SpecregError(f"'{folder / PLAN}': {error.strerror}; {cure}") from error
    except OSError as error:
        raise SpecregError(f"run '{folder}': {error.strerror}; {_AGAIN}") from error

    has_report = PurePosixPath(FILE_NAME) in files
    return ShardRun(
        folder=folder,
        plan=_decode_plan(folder / PLAN, content),
        files=files,
        report=load_run_report(folder / FILE_NAME) if has_report else None,
    )


class _PlanVersion(msgspec.Struct, frozen=True):
    """The part of a plan that every version of specreg can read."""

    schema_version: int


def _decode_plan(path: Path, content: bytes) -> RunPlan:
    """Return the plan in a file's content.

    Raises:
        SpecregError: the plan is of another version, or the file isn't a plan.
    """
    try:
        version = msgspec.json.decode(content, type=_PlanVersion).schema_version
        if version != PLAN_VERSION:
            message = f"'{path}': is of version {version}, this specreg reads {PLAN_VERSION}"
            raise SpecregError(f"{message}; merge with the specreg that measured")
        return msgspec.json.decode(content, type=RunPlan)
    except UNREADABLE as error:
        raise SpecregError(f"'{path}': {error}; {_AGAIN}") from error


def with_ledger(shard: ShardRun, known: Mapping[str, Case], *, is_ours: bool) -> MeasuredShard:
    """Return a shard with the measurements and verdicts of its ledger.

    Args:
        shard: the shard.
        known: the cases in this repository, by `Case.key`. Entries of other cases are left out.
        is_ours: True if this machine wrote the ledger. Then entries that can't be read are left
            out too, because an earlier version of the cases or of specreg may have written them.

    Raises:
        SpecregError: the ledger can't be read, or it comes from another machine and has values
            that can't have been measured.
    """
    path = shard.folder / LEDGER
    recorded = Recorded()
    if os.path.lexists(path):
        # A ledger from another machine is checked line by line against the cases here.
        recorded = read_ledger(path, known=None if is_ours else known)
    sides = sorted({key.arm for key in recorded.measured} - {"case"})
    if sides:
        message = f"holds launches of side {', '.join(sides)} of a gate, needed those of a run"
        raise SpecregError(f"ledger '{path}': {message}; {_AGAIN}")
    measured = {key: found for key, found in recorded.measured.items() if key.case in known}
    checked = {
        (key, check): line for (key, check), line in recorded.checked.items() if key.case in known
    }
    try:
        for line in checked.values():
            msgspec.convert(line.verdict, Verdict)
    except msgspec.ValidationError as error:
        raise SpecregError(f"ledger '{path}': {error}; {_AGAIN}") from error

    return MeasuredShard(
        folder=shard.folder,
        plan=shard.plan,
        files=shard.files,
        report=shard.report,
        recorded=dataclasses.replace(recorded, measured=measured, checked=checked),
    )
