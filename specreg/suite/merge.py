"""Join the folders of a run's shards: what they measured is judged once more, all of it together.

A shard leaves `plan.json` before it starts anything and its journal while it measures, so one that
died is joined as far as it came.
"""

import contextlib
import dataclasses
import datetime as dt
import hashlib
import re
import shutil
import socket
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

import msgspec

from specreg.baselines.record import commit_of
from specreg.baselines.store import BaselineStore
from specreg.core.errors import SpecregError
from specreg.core.files import UNREADABLE
from specreg.core.timeline import RunTime
from specreg.correctness.checks import CorrectnessCheck, checks_of
from specreg.matrix.case import Case, Tier
from specreg.measurement.journal import Journal, load_checks, load_journal
from specreg.measurement.measure import Measurement
from specreg.report.document import FILE_NAME, Report, exit_status, load_report
from specreg.servers.launch import Launch, Starting
from specreg.suite.configure import load_cases, provision_of, softened_of
from specreg.suite.options import Options, options_to_repeat
from specreg.suite.recording import take_further
from specreg.suite.run import Suite
from specreg.suite.shards import parse_choice
from specreg.telemetry.identity import Environment, find_gpus
from specreg.verdicts.judge import Verdict

PLAN = "plan.json"
_JOURNAL = "journal.jsonl"
_COPIED = ("logs", "power")
_MUST_AGREE = (
    "commit",
    "tier",
    "matrix_sha256",
    "environment",
    "launches",
    "reason",
    "of",
    "shards",
)


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is about to do, written before it starts anything.

    Attributes:
        run: its folder's name; began_at: in UTC by ISO 8601; host: the machine's name.
        commit: of the repository; tier, matrix_sha256: its name and the checksum of its cases.
        environment: the machine's; gpus_gib: the memory of each of its GPUs.
        options: what the user asked for; reason: why baselines are recorded, None where not.
        launches: of each server.
        number, of: which shard it is, and of how many; 0 where the run isn't cut.
        shards: the cases of each shard, by its place from 0.
        asked: by case of this run, the metrics and checks.
        skipped: by case that doesn't fit, what it needs; no_power: why power isn't measured.
        driver_version: of the GPUs, empty without.
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


def matrix_sha256(tier: Tier) -> str:
    """The checksum of all that the cases of a tier are."""
    return hashlib.sha256("\n".join(case.key for case in tier.cases).encode()).hexdigest()


def plan_of(suite: Suite, shards: Sequence[Collection[str]]) -> RunPlan:
    """What a run whose tests are chosen is about to do; the cases of all shards, if it is one."""
    gpus = find_gpus()
    return RunPlan(
        run=suite.run_folder.name,
        began_at=suite.began_at.isoformat(timespec="seconds"),
        host=socket.gethostname(),
        commit=commit_of(suite.root),
        tier=suite.tier.name,
        matrix_sha256=matrix_sha256(suite.tier),
        environment=suite.environment,
        gpus_gib=gpus.memory_gib,
        options=dataclasses.asdict(suite.options),
        reason=suite.update_reason,
        launches=suite.launches,
        number=parse_choice(suite.options.shard).number if suite.options.shard else 0,
        of=len(shards),
        shards=tuple(map(tuple, shards)),
        asked={case: tuple(sorted(names)) for case, names in suite.asked.items()},
        skipped=dict(suite.skipped),
        no_power=suite.no_power,
        driver_version=gpus.driver_version,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRun:
    """What lies in the folder of a shard.

    Attributes:
        folder, plan: see there.
        measured: by case's id and launch; checked: by case's id and the check's name.
        report: None of a shard that didn't come to its end.
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

    def why_not(self, case_id: str, metric: str) -> str:
        """Why it hasn't measured a case that was its own."""
        if self.report is None:
            return f"{self.plan.name} died before it was done, see '{self.folder}'"
        ours = [one for one in self.report.run.verdicts if one.case_id == case_id and one.reason]
        own = [one for one in ours if one.metric == metric] or ours
        return own[0].reason if own else f"{self.plan.name} ended without it"


def load_shard(folder: Path) -> ShardRun:
    """What lies in the folder of a shard.

    Raises:
        SpecregError: there is no plan, or it can't be read.
    """
    path = folder / PLAN
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=RunPlan)
    except OSError as error:
        message = f"'{path}': {error.strerror}; name the folder of a run that has one"
        raise SpecregError(message) from error
    except UNREADABLE as error:
        raise SpecregError(f"'{path}': {error}; leave that run out, and run it again") from error
    report = load_report(folder / FILE_NAME) if (folder / FILE_NAME).exists() else None
    return journalled(folder, plan, report)


def journalled(folder: Path, plan: RunPlan, report: Report | None) -> ShardRun:
    """What the journal in a folder holds of a run."""
    path = folder / _JOURNAL
    measured, checked = (load_journal(path), load_checks(path)) if path.exists() else ({}, {})
    return ShardRun(
        folder=folder,
        plan=plan,
        measured={(key.case_id, key.launch): one for key, one in measured.items()},
        checked={(key.case_id, check): one for (key, check), one in checked.items()},
        report=report,
    )


def check_alike(shards: Sequence[ShardRun]) -> None:
    """Check that shards are of one run: commit, tier, matrix, machine, and how they were cut.

    Raises:
        SpecregError: they aren't; it says which differ.
    """
    for name in _MUST_AGREE:
        values = [getattr(shard.plan, name) for shard in shards]
        if any(value != values[0] for value in values):
            told = [_shown(one) for one in values]
            each = (f"'{shard.folder}' {text}" for shard, text in zip(shards, told, strict=True))
            message = f"{name} differs: {', '.join(each)}; merge the shards of one run alone"
            raise SpecregError(message)


def _shown(value: object) -> str:
    if isinstance(value, Environment):
        return value.name
    return f"of {sum(map(len, value))} cases" if isinstance(value, tuple) else repr(value)


@dataclass(frozen=True, slots=True)
class MergedShards:
    """What other processes measured and checked, in place of measuring and checking it here."""

    shards: Sequence[ShardRun]

    def measurement(self, case: Case, launch: int) -> Measurement:
        """What was measured of a case on a launch; of two shards that did, the first one's.

        Raises:
            SpecregError: none did; it says why.
        """
        for shard in self.shards:
            if (found := shard.measured.get((case.id, launch))) is not None:
                return found
        raise SpecregError(self.why_not(case.id))

    def verdict(self, check: CorrectnessCheck, case: Case) -> Verdict:
        """The verdict of a check.

        Raises:
            SpecregError: none was made.
        """
        for shard in self.shards:
            if (found := shard.checked.get((case.id, check.name))) is not None:
                return msgspec.convert(found, Verdict)
        raise SpecregError(self.why_not(case.id, check.name))

    def why_not(self, case_id: str, metric: str = "") -> str:
        """Why a case wasn't measured or checked, in words."""
        own = [shard for shard in self.shards if case_id in shard.plan.asked]
        if own:
            return own[-1].why_not(case_id, metric)
        plan = self.shards[0].plan
        number = next(n for n, cases in enumerate(plan.shards, start=1) if case_id in cases)
        return _missing(number, plan.of)

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
    def missing(self) -> Sequence[int]:
        """The numbers of the shards that have cases and aren't there."""
        there = {shard.plan.number for shard in self.shards}
        dealt = enumerate(self.shards[0].plan.shards, start=1)
        return [number for number, cases in dealt if cases and number not in there]

    @property
    def is_whole(self) -> bool:
        """Whether all shards are there and came to their end."""
        return not self.missing and all(shard.report is not None for shard in self.shards)

    @property
    def remarks(self) -> Iterator[str]:
        """What is missing, what died, and what was measured twice, in words."""
        for number in self.missing:
            yield _missing(number, self.shards[0].plan.of)
        for shard in self.shards:
            if shard.report is None:
                yield f"{shard.plan.name} died before it was done: '{shard.folder}'"
            elif shard.failed_otherwise:
                yield (
                    f"{shard.plan.name} ended with status {shard.report.run.exit_status}, which its"
                    " verdicts don't say: a test that isn't the suite's failed there, or it was cut"
                    " short"
                )
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


def _missing(number: int, of: int) -> str:
    return f"shard {number}/{of} is missing: run it with --specreg-shard={number}/{of}, merge again"


def take_shards(suite: Suite, shards: Sequence[ShardRun], *, whole: bool) -> tuple[str, ...]:
    """Judge what shards measured, as if one process had.

    Args:
        suite: of the whole run; nothing is started.
        shards: one at least.
        whole: whether a case that no shard measured is INVALID; else it is left out.

    Returns:
        What is to be said of the shards.
    """
    merged, plan = MergedShards(shards), shards[0].plan
    asked: dict[str, set[str]] = {}
    for shard in shards:
        for case_id, names in shard.plan.asked.items():
            asked.setdefault(case_id, set()).update(names)
        suite.skipped.update(shard.plan.skipped)
    everything = {name for names in asked.values() for name in names}
    for number in merged.missing:
        asked.update(dict.fromkeys(plan.shards[number - 1], everything))
    suite.merged, suite.hosts, suite.asked = merged, merged.hosts, asked
    suite.no_power, suite.driver_version = plan.no_power, plan.driver_version
    suite.torch_versions = {
        case.case_id: case.torch_version
        for shard in shards
        if shard.report is not None
        for case in shard.report.cases
    }
    for control, server, case in suite.setups():
        if case.id in asked and case.id not in suite.skipped:
            _judge(suite, case, control, server, whole=whole)
    _copy_files(shards, suite.run_folder)
    for shard in shards:
        if shard.folder != suite.run_folder:
            suite.journal.take(shard.folder / _JOURNAL)
    return tuple(merged.remarks)


def _copy_files(shards: Sequence[ShardRun], into: Path) -> None:
    """Have what servers and devices said of all shards in one folder; equal names get a number."""
    found = [
        (number, path, path.relative_to(shard.folder))
        for number, shard in enumerate(shards, start=1)
        if shard.folder != into
        for name in _COPIED
        for path in sorted((shard.folder / name).rglob("*"))
        if path.is_file()
    ]
    names = Counter(name for _, _, name in found)
    for number, path, name in found:
        own = name.with_stem(f"{name.stem}-{number}") if names[name] > 1 else name
        (into / own).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, into / own)


def open_merged(root: Path, shards: Sequence[ShardRun], into: Path) -> Suite:
    """The run that shards are of, in a folder of its own.

    Raises:
        SpecregError: the repository isn't at the commit, or hasn't the cases, that they are of.
    """
    check_alike(shards)
    if any(shard.folder.resolve() == into for shard in shards):
        raise SpecregError(f"--into '{into}': it is one of the shards; name a folder of its own")
    plan = shards[0].plan
    options = dataclasses.replace(Options(**plan.options), shard=None, resume=False)
    if not (root / options.runs).exists():  # of another machine
        options = dataclasses.replace(options, runs=Options().runs)
    runs = root / options.runs
    tier = load_cases(root, options, plan.tier).chosen(plan.gpus_gib)
    here = {"commit": commit_of(root), "matrix_sha256": matrix_sha256(tier)}
    for name, value in here.items():
        if value != getattr(plan, name):
            message = (
                f"{name} differs: the shards have '{getattr(plan, name)}', '{root}' '{value}';"
                " check out the commit that they are of"
            )
            raise SpecregError(message)
    for name in _COPIED:
        shutil.rmtree(into / name, ignore_errors=True)  # merged again
    (into / _JOURNAL).unlink(missing_ok=True)
    return Suite(
        merged_run=re.sub(r"-\d+of\d+$", "", plan.run),
        options=options,
        root=root,
        tier=tier,
        store=BaselineStore(
            folder=root / options.baselines,
            environment=plan.environment,
            options=options_to_repeat(options, tier.name),
        ),
        launches=plan.launches,
        update_reason=plan.reason,
        began_at=min(dt.datetime.fromisoformat(shard.plan.began_at) for shard in shards),
        ended_at=max(
            shard.report.ended_at if shard.report else shard.plan.began_at for shard in shards
        ),
        provision=provision_of(options, tier, print, print),
        run_folder=into,
        history=root / options.history if options.history else runs.parent / "history",
        softened=softened_of(options),
        journal=Journal(into / _JOURNAL),
        earlier={},
        show=print,
        measure_further=take_further,
    )


def _judge(suite: Suite, case: Case, control: Launch, server: Launch, *, whole: bool) -> None:
    """Judge what was measured of a case on a launch; say why of what wasn't."""

    def never() -> Never:
        raise SpecregError(f"{case.id}: a merge starts no server")

    ours = Starting(launch=server, start=never)
    beside = Starting(launch=control, start=never) if case.control else None
    metrics = suite.asked_of(case)
    made = checks_of(case, with_torch=True) if server.number == 1 else ()
    with _noting(suite, case, [metric.name for metric in metrics], whole=whole):
        if metrics:
            suite.measure(case, ours, beside)
        for metric in metrics:
            suite.judge(metric, case, ours, beside)
    for check in made:
        if check.name in suite.asked[case.id]:
            with _noting(suite, case, [check.name], whole=whole):
                suite.check(check, case, ours, beside)


@contextlib.contextmanager
def _noting(suite: Suite, case: Case, names: Sequence[str], *, whole: bool) -> Iterator[None]:
    """Note of what wasn't measured why, where the run is to be whole."""
    try:
        yield
    except SpecregError as error:
        for name in names if whole else ():
            suite.note_failure(case, name, str(error).splitlines()[0])
