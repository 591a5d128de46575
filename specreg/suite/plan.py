"""What a run is about to do, and what its shards have measured: the folders that a merge joins.

A shard leaves `plan.json` before it starts anything and its journal while it measures, so one that
died is joined as far as it came.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from specreg.core.errors import SpecregError
from specreg.core.files import UNREADABLE
from specreg.core.timeline import RunTime
from specreg.correctness.checks import CorrectnessCheck
from specreg.matrix.case import Case
from specreg.measurement.journal import load_checks, load_journal
from specreg.measurement.measure import Measurement
from specreg.report.document import FILE_NAME, Report, exit_status, load_report
from specreg.telemetry.identity import Environment
from specreg.verdicts.judge import Verdict

PLAN = "plan.json"
JOURNAL = "journal.jsonl"


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is about to do, written before it starts anything.

    `began_at` is in UTC by ISO 8601, `gpus_gib` of each GPU, `reason` None where nothing is
    recorded. `number` and `of` are 0 where the run isn't cut, `shards` the cases of each.
    `asked`, the metrics and checks, and `skipped`, what it needs, are by case.
    """

    run: str
    began_at: str
    host: str
    commit: str
    tier: str
    matrix_sha256: str
    environment: Environment
    gpus_gib: tuple[float, ...] = ()
    options: dict[str, Any]
    reason: str | None
    launches: int
    number: int = 0
    of: int = 0
    shards: tuple[tuple[str, ...], ...] = ()
    asked: dict[str, tuple[str, ...]]
    skipped: dict[str, str] = {}
    no_power: str = ""
    driver_version: str = ""

    @property
    def name(self) -> str:
        """What people call it."""
        return f"shard {self.number}/{self.of}" if self.of else f"'{self.run}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRun:
    """What lies in the folder of a shard, by case's id and launch or check.

    Of one that didn't come to its end there is no report.
    """

    folder: Path
    plan: RunPlan
    measured: Mapping[tuple[str, int], Measurement]
    checked: Mapping[tuple[str, str], Mapping[str, Any]]
    report: Report | None = None

    @property
    def failed_otherwise(self) -> bool:
        """Whether it ended, and failed by something else than its verdicts."""
        run = self.report.run if self.report else None
        return run is not None and bool(run.exit_status) and not exit_status(run.verdicts)


def load_shard(folder: Path) -> ShardRun:
    """Load what lies in a shard's folder; SpecregError where it has no plan that can be read."""
    path = folder / PLAN
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=RunPlan)
    except OSError as error:
        cure = "name the folder of a run that has one"
        raise SpecregError(f"'{path}': {error.strerror}; {cure}") from error
    except UNREADABLE as error:
        raise SpecregError(f"'{path}': {error}; leave that run out, and run it again") from error
    report = load_report(folder / FILE_NAME) if (folder / FILE_NAME).exists() else None
    return journalled(folder, plan, report)


def journalled(folder: Path, plan: RunPlan, report: Report | None) -> ShardRun:
    """What the journal in a folder holds of a run."""
    path = folder / JOURNAL
    measured, checked = (load_journal(path), load_checks(path)) if path.exists() else ({}, {})
    return ShardRun(
        folder=folder,
        plan=plan,
        measured={(key.case_id, key.launch): one for key, one in measured.items()},
        checked={(key.case_id, check): one for (key, check), one in checked.items()},
        report=report,
    )


@dataclass(frozen=True, slots=True)
class MergedShards:
    """What other processes measured and checked, in place of measuring and checking it here."""

    shards: Sequence[ShardRun]

    @property
    def plan(self) -> RunPlan:
        """The plan of one shard; what it says of the run holds for each."""
        return self.shards[0].plan

    def measurement(self, case: Case, launch: int) -> Measurement:
        """What the first shard that did has measured of a case; SpecregError where none did."""
        for shard in self.shards:
            if (found := shard.measured.get((case.id, launch))) is not None:
                return found
        raise SpecregError(self._why_not(case.id))

    def verdict(self, check: CorrectnessCheck, case: Case) -> Verdict:
        """The verdict of a check; SpecregError where none was made."""
        for shard in self.shards:
            if (found := shard.checked.get((case.id, check.name))) is not None:
                return msgspec.convert(found, Verdict)
        raise SpecregError(self._why_not(case.id, check.name))

    def _why_not(self, case_id: str, metric: str = "") -> str:
        own = [shard for shard in self.shards if case_id in shard.plan.asked]
        if not own:
            return self._why_missing(next(n for n, ids in self.missing.items() if case_id in ids))
        shard, report = own[-1], own[-1].report
        if report is None:
            return f"SHARD_MISSING: {shard.plan.name} died before it was done, see '{shard.folder}'"
        ours = [one for one in report.run.verdicts if one.case_id == case_id and one.reason]
        told = [one for one in ours if one.metric == metric] or ours
        return told[0].reason if told else f"SHARD_MISSING: {shard.plan.name} ended without it"

    def _why_missing(self, number: int) -> str:
        shard = f"{number}/{self.plan.of}"
        cure = f"run it with --specreg-shard={shard}, merge again"
        return f"SHARD_MISSING: shard {shard} isn't there: {cure}"

    @property
    def time(self) -> RunTime:
        """Where the time of the shards that came to their end went."""
        ended = [one.report.time for one in self.shards if one.report and one.report.time]
        return RunTime(
            pairs=tuple(pair for one in ended for pair in one.pairs),
            idle_s=sum(one.idle_s for one in ended),
            wall_s=sum(one.wall_s for one in ended),
        )

    @property
    def missing(self) -> Mapping[int, Sequence[str]]:
        """By number the cases of the shards that have any and aren't there."""
        there = {shard.plan.number for shard in self.shards}
        dealt = enumerate(self.plan.shards, start=1)
        return {number: cases for number, cases in dealt if cases and number not in there}

    @property
    def is_whole(self) -> bool:
        """Whether all shards are there and came to their end."""
        return not self.missing and all(shard.report is not None for shard in self.shards)

    @property
    def remarks(self) -> Iterator[str]:
        """What is missing, what died, and what was measured twice, in words."""
        yield from map(self._why_missing, self.missing)
        for shard in self.shards:
            if shard.report is None:
                yield f"{shard.plan.name} died before it was done: '{shard.folder}'"
            elif shard.failed_otherwise:
                status = f"{shard.plan.name} ended with status {shard.report.run.exit_status}"
                why = "a test that isn't the suite's failed there, or it was cut short"
                yield f"{status}, which its verdicts don't say: {why}"
        by_case: dict[str, list[str]] = {}
        for shard in self.shards:
            for case_id in dict.fromkeys(case_id for case_id, _ in shard.measured):
                by_case.setdefault(case_id, []).append(shard.plan.name)
        for case_id, names in by_case.items():
            if len(names) > 1:
                yield f"{case_id}: measured by {' and '.join(names)}; the first one's counts"

    @property
    def hosts(self) -> Mapping[str, str]:
        """By case's id, the machine that measured it."""
        return {
            case_id: shard.plan.host
            for shard in reversed(self.shards)
            for case_id, _ in shard.measured
        }

    def torch_version(self, case_id: str) -> str:
        """The torch that a case's engine ran with, empty where no report says it."""
        cases = (one for it in self.shards if it.report for one in it.report.cases)
        versions = (one.torch_version for one in cases if one.case_id == case_id)
        return next(filter(None, versions), "")
