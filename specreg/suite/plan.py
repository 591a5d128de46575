"""What a run is about to do, and what its shards have measured: the folders that a merge joins.

A shard leaves `plan.json` before it starts anything and its journal while it measures, so one that
died is joined as far as it came.
"""

import dataclasses
import datetime as dt
import hashlib
import os
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import msgspec

from specreg.baselines.record import commit_of
from specreg.core.errors import InvalidMeasurementError, SpecregError
from specreg.core.files import UNREADABLE
from specreg.core.names import CaseId, Name
from specreg.core.received import check_below, read_received, received_files
from specreg.core.timeline import RunTime
from specreg.correctness.checks import CorrectnessCheck
from specreg.matrix.case import Case, Tier
from specreg.matrix.models import served_models
from specreg.measurement.journal import load_checks, load_journal
from specreg.measurement.measure import Measurement
from specreg.report.document import FILE_NAME, Report, exit_status, load_report
from specreg.suite.context import RunContext
from specreg.suite.machine import gpus_of
from specreg.suite.options import (
    MOST_LAUNCHES_ASKED,
    MOST_PROMPTS_ASKED,
    MOST_SHARDS,
    Inconclusive,
    Options,
)
from specreg.suite.selection import Selection
from specreg.telemetry.identity import Environment
from specreg.verdicts.verdict import Verdict

PLAN = "plan.json"
JOURNAL = "journal.jsonl"
COPIED = ("logs", "power")
"""The folders of a run that are those of its servers and devices."""
_SHARD_MISSING = "SHARD_MISSING"


PLAN_VERSION: Literal[1] = 1
_MOST_PLAN_BYTES = 16 * 2**20
_AGAIN = "leave that run out, and run it again"
_Text = Annotated[str, msgspec.Meta(max_length=20_000)]
_Word = Annotated[str, msgspec.Meta(max_length=128)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=MOST_SHARDS)]
_Gib = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run was asked for, as facts: how many prompts it replays, and how it judges.

    A merge compares them between shards and says what it measured by them. None of them is a path,
    a program or a URL: those are the merging side's own.
    """

    num_prompts: Annotated[int, msgspec.Meta(ge=1, le=MOST_PROMPTS_ASKED)] | None = None
    inconclusive: Inconclusive = "fail"
    oracle: bool = False
    engine: Name | None = None
    engine_version: _Word | None = None


class RunPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run is about to do, written before it starts anything.

    `gpus_gib` is of each GPU and None where that isn't known, `reason` None where nothing is
    recorded. `number` and `of` are 0 where the run isn't cut, `shards` the cases of each. `asked`,
    the metrics and checks, and `skipped`, what it needs, are by case.
    """

    schema_version: Literal[1] = PLAN_VERSION
    run: Name
    began_at: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    host: _Word
    commit: _Word
    tier: Name
    matrix_sha256: _Word
    environment: Environment
    gpus_gib: Annotated[tuple[_Gib | None, ...], msgspec.Meta(max_length=1024)] = ()
    options: PlanOptions
    reason: _Text | None
    launches: Annotated[int, msgspec.Meta(ge=1, le=MOST_LAUNCHES_ASKED)]
    number: _Number = 0
    of: _Number = 0
    shards: Annotated[tuple[tuple[CaseId, ...], ...], msgspec.Meta(max_length=MOST_SHARDS)] = ()
    asked: dict[CaseId, tuple[Name, ...]]
    skipped: dict[CaseId, _Text] = {}
    no_power: _Text = ""
    driver_version: _Word = ""

    @property
    def name(self) -> str:
        """What people call it."""
        return f"shard {self.number}/{self.of}" if self.of else f"'{self.run}'"


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


@dataclass(frozen=True, slots=True)
class MergedShards:
    """What other processes measured and checked, in place of measuring and checking it here.

    `root` is of the repository of this machine, whose models count.
    """

    shards: Sequence[ShardRun]
    root: Path

    @property
    def plan(self) -> RunPlan:
        """The plan of one shard; what it says of the run holds for each."""
        return self.shards[0].plan

    def measurement(self, case: Case, launch: int) -> Measurement:
        """What the first shard that did has measured of a case, with the models here.

        Raises:
            SpecregError: none did.
        """
        for shard in self.shards:
            if (measured := shard.measured.get((case.id, launch))) is not None:
                target, draft = served_models(self.root, case.server)
                return dataclasses.replace(measured, target=target, draft=draft)
        raise self._why_not(case.id)

    def verdict(self, check: CorrectnessCheck, case: Case) -> Verdict:
        """The verdict of a check; SpecregError where none was made."""
        for shard in self.shards:
            if (verdict := shard.checked.get((case.id, check.name))) is not None:
                return dataclasses.replace(verdict, case_id=case.id, metric=check.name)
        raise self._why_not(case.id, check.name)

    def _why_not(self, case_id: str, metric: str = "") -> SpecregError:
        """Return the error that says why no shard has measured or checked a case."""
        own = [shard for shard in self.shards if case_id in shard.plan.asked]
        if not own:
            number = next(number for number, ids in self.missing.items() if case_id in ids)
            return InvalidMeasurementError(_SHARD_MISSING, self._why_missing(number))
        shard, report = own[-1], own[-1].report
        if report is None:
            message = f"{shard.plan.name} died before it was done, see '{shard.folder}'"
            return InvalidMeasurementError(_SHARD_MISSING, message)
        verdicts = [verdict for verdict in report.run.verdicts if verdict.case_id == case_id]
        explained = [verdict for verdict in verdicts if verdict.reason is not None]
        of_metric = [verdict for verdict in explained if verdict.metric == metric]
        reasons = [verdict.reason for verdict in (*of_metric, *explained) if verdict.reason]
        if not reasons:
            return InvalidMeasurementError(_SHARD_MISSING, f"{shard.plan.name} ended without it")
        if reasons[0].code:
            return InvalidMeasurementError(reasons[0].code, reasons[0].text)
        return SpecregError(str(reasons[0]))

    def _why_missing(self, number: int) -> str:
        shard = f"{number}/{self.plan.of}"
        return f"shard {shard} isn't there: run it with --specreg-shard={shard}, merge again"

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
        for number in self.missing:
            yield f"{_SHARD_MISSING}: {self._why_missing(number)}"
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


def matrix_sha256(tier: Tier) -> str:
    """A checksum of all settings of a tier's cases."""
    return hashlib.sha256("\n".join(case.key for case in tier.cases).encode()).hexdigest()


def plan_of(
    context: RunContext, selection: Selection, shards: Sequence[Collection[str]]
) -> RunPlan:
    """Return what a run is about to do.

    Args:
        context: what is fixed for the run.
        selection: what its tests need.
        shards: the cases of each shard, if the run is one of them.
    """
    gpus = gpus_of(context.options)
    return RunPlan(
        run=context.run_folder.name,
        began_at=context.clock.began_at.replace(microsecond=0),
        host=socket.gethostname(),
        commit=commit_of(context.root),
        tier=context.tier.name,
        matrix_sha256=matrix_sha256(context.tier),
        environment=context.environment,
        gpus_gib=gpus.memory_gib,
        options=plan_options(context.options),
        reason=(context.options.reason or "").strip() if context.is_recording else None,
        launches=context.launches,
        number=context.options.part[0] if context.options.part else 0,
        of=len(shards),
        shards=tuple(map(tuple, shards)),
        asked={case: tuple(sorted(names)) for case, names in selection.names.items()},
        skipped=dict(selection.skipped),
        no_power=selection.no_power,
        driver_version=gpus.driver_version,
    )


def plan_options(options: Options) -> PlanOptions:
    """What a merge has to know of the options of a run."""
    names = PlanOptions.__struct_fields__
    return PlanOptions(**{name: getattr(options, name) for name in names})
