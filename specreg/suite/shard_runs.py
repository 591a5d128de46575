"""What the shards of a run have left: the folders that a merge joins.

A shard leaves `plan.json` before it starts anything and its journal while it measures, so one that
died is joined as far as it came.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import msgspec

from specreg.core.errors import SpecregError
from specreg.core.files import UNREADABLE
from specreg.core.received import check_below, read_received, received_files
from specreg.matrix.case import Case
from specreg.measurement.journal import load_checks, load_journal
from specreg.measurement.measure import Measurement
from specreg.report.document import FILE_NAME, Report, exit_status, load_report
from specreg.suite.plan import COPIED, JOURNAL, PLAN, PLAN_VERSION, RunPlan
from specreg.verdicts.verdict import Verdict

_MOST_PLAN_BYTES = 16 * 2**20
_AGAIN = "leave that run out, and run it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRun:
    """What lies in the folder of a shard, by case's id and launch or check.

    Of one that didn't come to its end there is no report. `files` are all that lie in the folder,
    from there on. What was `measured` and `checked` is read by `with_journal`, once the cases of
    the repository here are known.
    """

    folder: Path
    plan: RunPlan
    files: Sequence[PurePosixPath] = ()
    measured: Mapping[tuple[str, int], Measurement] = field(default_factory=dict)
    checked: Mapping[tuple[str, str], Verdict] = field(default_factory=dict)
    report: Report | None = None

    @property
    def failed_otherwise(self) -> bool:
        """Whether it ended, and failed by something else than its verdicts."""
        run = self.report.run if self.report else None
        return run is not None and bool(run.exit_status) and not exit_status(run.verdicts)


def has_plan(folder: Path) -> bool:
    """Whether a run had begun: something is called as its plan, be it readable or not."""
    return os.path.lexists(folder / PLAN)


def load_shard(folder: Path) -> ShardRun:
    """Load what lies in a shard's folder, which may come from another machine.

    Raises:
        SpecregError: it has no plan, holds a link or something else that is no regular file, or one
            of its documents can't be read.
    """
    try:
        files = received_files(folder)
        for name in files:
            if name.parts[0] in COPIED:  # by this name below the folder of the merged run
                check_below(folder, str(name))
        content = read_received(folder, PLAN, _MOST_PLAN_BYTES)
    except FileNotFoundError as error:
        cure = "name the folder of a run that has one"
        raise SpecregError(f"'{folder / PLAN}': {error.strerror}; {cure}") from error
    except OSError as error:
        raise SpecregError(f"run '{folder}': {error.strerror}; {_AGAIN}") from error
    plan = _plan_of(folder, content)
    has_report = PurePosixPath(FILE_NAME) in files
    report = load_report(folder / FILE_NAME) if has_report else None
    return ShardRun(folder=folder, plan=plan, files=files, report=report)


def _plan_of(folder: Path, content: bytes) -> RunPlan:
    """Decode the plan in a shard's folder; SpecregError where it is of another form."""
    path = folder / PLAN
    try:
        version = msgspec.json.decode(content, type=_PlanVersion).schema_version
        if version != PLAN_VERSION:
            message = f"'{path}': is of version {version}, this specreg reads {PLAN_VERSION}"
            raise SpecregError(f"{message}; merge with the specreg that measured")
        return msgspec.json.decode(content, type=RunPlan)
    except UNREADABLE as error:
        raise SpecregError(f"'{path}': {error}; {_AGAIN}") from error


class _PlanVersion(msgspec.Struct, frozen=True):
    schema_version: int


def with_journal(shard: ShardRun, cases: Iterable[Case], *, is_ours: bool) -> ShardRun:
    """The shard with what its journal holds of these cases, which are those of the repository here.

    Args:
        shard: its folder.
        cases: of the tier.
        is_ours: whether this machine wrote the journal, which an earlier process may have begun by
            other settings of the cases. What can't be read of it is left out then.

    Raises:
        SpecregError: the journal can't be read, or one of another machine says what can't be.
    """
    path = shard.folder / JOURNAL
    if not os.path.lexists(path):
        return shard
    known = {case.key: case for case in cases}
    trusted = None if is_ours else known
    every = load_journal(path, known=trusted)
    measured = {key: one for key, one in every.items() if key.case in known}
    checks = load_checks(path, known=trusted)
    checked = {key: verdict for key, verdict in checks.items() if key[0].case in known}
    try:
        verdicts = {key: msgspec.convert(told, Verdict) for key, told in checked.items()}
    except msgspec.ValidationError as error:
        raise SpecregError(f"journal '{path}': {error}; {_AGAIN}") from error
    return dataclasses.replace(
        shard,
        measured={(key.case_id, key.launch): one for key, one in measured.items()},
        checked={(key.case_id, check): verdict for (key, check), verdict in verdicts.items()},
    )
