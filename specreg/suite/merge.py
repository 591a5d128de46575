"""Join the folders of a run's shards: what they measured is judged once more, all of it together.

A shard leaves `plan.json` before it starts anything and its journal while it measures, so one that
died is joined as far as it came.
"""

import hashlib
import platform
import shutil
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from specreg.baselines.record import commit_of
from specreg.core.errors import ReportError, SpecregError
from specreg.core.files import UNREADABLE, replace_file
from specreg.correctness.checks import CorrectnessCheck, checks_of
from specreg.matrix.case import Case, Tier
from specreg.measurement.journal import load_checks, load_journal
from specreg.measurement.measure import Measurement
from specreg.report.document import FILE_NAME, Report, load_report
from specreg.servers.launch import Starting, launches_of
from specreg.suite.run import Suite
from specreg.telemetry.identity import Environment
from specreg.verdicts.judge import Verdict

PLAN = "plan.json"
WORKERS_FOLDER = "shards"
"""In a run's folder, those of the processes that share it out among them."""
_COPIED = ("logs", "power")
_MUST_AGREE = ("commit", "tier", "matrix_sha256", "environment", "launches", "update_reason", "of")


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is about to do, written before it starts anything.

    Attributes:
        run: its folder's name; began_at: in UTC by ISO 8601.
        commit: of the repository; tier, matrix_sha256: its name and the checksum of its cases.
        environment: the machine's; host: its name.
        options: what repeats the run, beside the shard.
        update_reason: why baselines are recorded; None where they aren't.
        launches: of each server.
        number, of: which shard it is, and of how many; 0 where the run isn't cut.
        shards: the cases of each shard, by its place from 0.
        asked: by case of this run, the metrics and checks.
        skipped: by case that doesn't fit, what it needs; no_power: why power isn't measured.
    """

    run: str
    began_at: str
    commit: str
    tier: str
    matrix_sha256: str
    environment: Environment
    host: str
    options: tuple[str, ...]
    update_reason: str | None
    launches: int
    number: int = 0
    of: int = 0
    shards: tuple[tuple[str, ...], ...] = ()
    asked: dict[str, tuple[str, ...]]
    skipped: dict[str, str] = {}
    no_power: str = ""
    driver_version: str = ""
    python_version: str = platform.python_version()

    @property
    def name(self) -> str:
        """What people call it."""
        return f"shard {self.number}/{self.of}" if self.of else f"'{self.run}'"


def matrix_sha256(tier: Tier) -> str:
    """The checksum of all that the cases of a tier are."""
    return hashlib.sha256("\n".join(case.key for case in tier.cases).encode()).hexdigest()


def plan_of(
    suite: Suite, *, number: int = 0, shards: Sequence[Collection[str]] = ()
) -> RunPlan:
    """What a run whose tests are chosen is about to do."""
    return RunPlan(
        run=suite.run_folder.name,
        began_at=suite.began_at.isoformat(timespec="seconds"),
        commit=commit_of(suite.root),
        tier=suite.tier.name,
        matrix_sha256=matrix_sha256(suite.tier),
        environment=suite.environment,
        host=socket.gethostname(),
        options=suite.store.options,
        update_reason=suite.update_reason,
        launches=suite.launches,
        number=number,
        of=len(shards),
        shards=tuple(map(tuple, shards)),
        asked={case: tuple(sorted(names)) for case, names in suite.asked.items()},
        skipped=dict(suite.skipped),
        no_power=suite.no_power,
        driver_version=suite.provision.found_gpus.driver_version,
    )


def record_plan(folder: Path, plan: RunPlan) -> None:
    """Write a plan into a run's folder.

    Raises:
        ReportError: the disk refuses.
    """
    path = folder / PLAN
    try:
        replace_file(path, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
    except OSError as error:
        message = f"'{path}': not written, {error.strerror}; make room or mend its rights"
        raise ReportError(message) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRun:
    """What lies in the folder of a shard.

    Attributes:
        folder, plan: see there.
        measured: by case's id and launch.
        checked: by case's id and the check's name.
        report: None of a shard that didn't come to its end.
    """

    folder: Path
    plan: RunPlan
    measured: Mapping[tuple[str, int], Measurement]
    checked: Mapping[tuple[str, str], Mapping[str, Any]]
    report: Report | None

    def why_not(self, case_id: str, metric: str) -> str:
        """Why it hasn't measured a case that was its own."""
        if self.report is None:
            return f"{self.plan.name} died before it was done, see '{self.folder}'"
        for verdict in self.report.run.verdicts:
            if (verdict.case_id, verdict.metric) == (case_id, metric):
                return verdict.reason or f"{self.plan.name}: {verdict.outcome}"
        return f"{self.plan.name} ended without it"


def load_shard(folder: Path) -> ShardRun:
    """What lies in the folder of a shard.

    Raises:
        SpecregError: there is no plan, or it can't be read.
    """
    path = folder / PLAN
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=RunPlan)
    except OSError as error:
        message = f"'{folder}': {error.strerror}: {PLAN}; name the folder of a run"
        raise SpecregError(message) from error
    except UNREADABLE as error:
        raise SpecregError(f"'{path}': {error}; name the folder of another run") from error
    journal = folder / "journal.jsonl"
    there = journal.exists()
    measured = load_journal(journal) if there else {}
    checked = load_checks(journal) if there else {}
    report = folder / FILE_NAME
    return ShardRun(
        folder=folder,
        plan=plan,
        measured={(key.case_id, key.launch): one for key, one in measured.items()},
        checked={(key.case_id, check): one for (key, check), one in checked.items()},
        report=load_report(report) if report.exists() else None,
    )


def check_alike(shards: Sequence[ShardRun]) -> None:
    """Check that shards are of one run: commit, tier, matrix, machine and how they were cut.

    Raises:
        SpecregError: they aren't; it says which differ.
    """
    first = shards[0].plan
    for name in _MUST_AGREE:
        values = {shard.folder: getattr(shard.plan, name) for shard in shards}
        told = {
            folder: value.name if isinstance(value, Environment) else value
            for folder, value in values.items()
        }
        if any(value != getattr(first, name) for value in values.values()):
            each = "; ".join(f"'{folder}' has {value!r}" for folder, value in told.items())
            raise SpecregError(f"{name} differs: {each}; merge the shards of one run alone")


@dataclass(slots=True, kw_only=True)
class MergedShards:
    """What other processes measured and checked, in place of measuring and checking it here."""

    shards: Sequence[ShardRun]

    def measurement(self, case: Case, launch: int) -> Measurement:
        """What was measured of a case; of two shards that did, the first one's.

        Raises:
            SpecregError: none did; it says why.
        """
        for shard in self.shards:
            found = shard.measured.get((case.id, launch))
            if found is not None:
                return found
        raise SpecregError(self.why_not(case.id, ""))

    def verdict(self, check: CorrectnessCheck, case: Case) -> Verdict:
        """The verdict of a check.

        Raises:
            SpecregError: none was made.
        """
        for shard in self.shards:
            found = shard.checked.get((case.id, check.name))
            if found is not None:
                return msgspec.convert(dict(found), Verdict)
        raise SpecregError(self.why_not(case.id, check.name))

    def why_not(self, case_id: str, metric: str) -> str:
        """Why a case wasn't measured, in words."""
        own = [shard for shard in self.shards if case_id in shard.plan.asked]
        if own:
            return own[-1].why_not(case_id, metric or "acceptance_length_tokens")
        plan = self.shards[0].plan
        number = next(n for n, cases in enumerate(plan.shards, start=1) if case_id in cases)
        return f"shard {number}/{plan.of} is missing; run it, and merge again"

    def twice(self) -> Iterator[str]:
        """What was measured by two, in words."""
        names: dict[str, list[str]] = {}
        for shard in self.shards:
            for case_id in dict.fromkeys(case_id for case_id, _ in shard.measured):
                names.setdefault(case_id, []).append(shard.plan.name)
        for case_id, both in names.items():
            if len(both) > 1:
                yield f"{case_id}: measured by {' and '.join(both)}; the first one's counts"

    @property
    def hosts(self) -> Mapping[str, str]:
        """By case's id, the machine that measured it."""
        return {
            case_id: shard.plan.host
            for shard in reversed(self.shards)
            for case_id, _ in shard.measured
        }


def take_shards(suite: Suite, shards: Sequence[ShardRun], *, whole: bool) -> tuple[str, ...]:
    """Judge what shards measured, as if one process had.

    Args:
        suite: of the whole run; nothing is started.
        shards: one at least.
        whole: whether a case that no shard measured is INVALID; else it is left out.

    Returns:
        What is to be said of the shards.
    """
    merged = MergedShards(shards=shards)
    suite.merged = merged
    everything: dict[str, set[str]] = {}
    for shard in shards:
        for case_id, names in shard.plan.asked.items():
            everything.setdefault(case_id, set()).update(names)
    plan = shards[0].plan
    missing = [
        number
        for number in range(1, plan.of + 1)
        if number not in {shard.plan.number for shard in shards}
    ]
    some = sorted({name for names in everything.values() for name in names})
    for number in missing:
        for case_id in plan.shards[number - 1]:
            everything.setdefault(case_id, set()).update(some)
    suite.skipped.update(item for shard in shards for item in shard.plan.skipped.items())
    suite.asked = {
        case.id: everything[case.id]
        for case in suite.tier.cases
        if case.id in everything and case.id not in suite.skipped
    }
    suite.no_power = suite.no_power or plan.no_power
    for shard in shards:
        _copy(shard.folder, suite.run_folder)
    for case in suite.tier.cases:
        if case.id in suite.asked:
            _judge(suite, suite.budgeted(case), whole=whole)
    died = [
        f"{shard.plan.name} died before it was done: '{shard.folder}'"
        for shard in shards
        if shard.report is None
    ]
    gone = [f"shard {number}/{plan.of} is missing; run it, and merge again" for number in missing]
    return (*gone, *died, *merged.twice())


def _judge(suite: Suite, case: Case, *, whole: bool) -> None:
    """Judge what was measured of a case on each launch; say why of what wasn't."""

    def never() -> Any:  # noqa: ANN401 - it gives nothing
        raise SpecregError(f"{case.id}: a merge starts no server")

    for number in range(1, suite.launches + 1):
        control, server = (
            Starting(launch=launch, start=never) for launch in launches_of(case, number)
        )
        for metric in suite.asked_of(case):
            try:
                suite.judge(metric, case, server, control if case.control else None)
            except SpecregError as error:
                if whole:
                    suite.note_failure(case, metric.name, str(error).splitlines()[0])
        checks = checks_of(case, with_torch=True) if number == 1 else ()
        for check in checks:
            if check.name in suite.asked[case.id]:
                try:
                    suite.check(check, case, server, control if case.control else None)
                except SpecregError as error:
                    if whole:
                        suite.note_failure(case, check.name, str(error).splitlines()[0])


def _copy(folder: Path, into: Path) -> None:
    """Have what a shard's servers and devices said beside the others', and its journal's lines."""
    into.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        for path in sorted((folder / name).rglob("*")):
            if path.is_file():
                there = into / path.relative_to(folder)
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, there)
    journal = folder / "journal.jsonl"
    if journal.exists():
        with (into / "journal.jsonl").open("ab") as file:
            lines = journal.read_bytes()
            file.write(lines if lines.endswith(b"\n") or not lines else lines + b"\n")
