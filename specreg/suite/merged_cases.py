"""Read the measurements and checks that other processes have made, instead of making them here."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specreg.core.errors import InvalidMeasurementError, SpecregError
from specreg.core.reasons import Reason
from specreg.core.timeline import RunTime
from specreg.correctness.checks import CorrectnessCheck
from specreg.matrix.case import Case
from specreg.matrix.models import served_models
from specreg.measurement.measure import Measurement
from specreg.runs.goals import CaseLaunch
from specreg.runs.ledger import LEDGER, Ledger, MeasuredLaunch
from specreg.suite.plan import RunPlan
from specreg.suite.server_set import ServerSet
from specreg.suite.shard_runs import ShardRun
from specreg.verdicts.verdict import Verdict

_SHARD_MISSING = "SHARD_MISSING"


@dataclass(slots=True, kw_only=True)
class MergedCases:
    """The `CaseSource` of a merged run, which reads the measurements and checks of its shards.

    Attributes:
        shards: The shards with their ledgers.
        root: The root of this machine's repository, whose models are used.
        ledger: The ledger of the merged run, which gets the launches that were read so far.
        retried: Always empty, because the shards' own reports say which cases they measured twice.
    """

    shards: Sequence[ShardRun]
    root: Path
    ledger: Ledger
    retried: list[str] = field(default_factory=list)

    @property
    def plan(self) -> RunPlan:
        """The plan of the first shard. What it says about the whole run is equal in all shards."""
        return self.shards[0].plan

    def machine_of(self, case_id: str) -> str:
        """Return the identity of the machine that measured a case; empty if unknown."""
        for shard in self.shards:
            if any(case_id == measured_id for measured_id, _ in shard.measured):
                return shard.plan.machine
        return ""

    @property
    def time(self) -> RunTime:
        """How the time was spent in the shards that have ended and written a report."""
        times = [shard.report.time for shard in self.shards if shard.report and shard.report.time]
        return RunTime(
            pairs=tuple(pair for time in times for pair in time.pairs),
            idle_s=sum(time.idle_s for time in times),
            wall_s=sum(time.wall_s for time in times),
        )

    @property
    def driver_version(self) -> str:
        """The version of the GPUs' driver on the first shard's machine; empty without a GPU."""
        return self.plan.driver_version

    def torch_version(self, case: Case) -> str:
        """Return the version of torch that a case's engine ran with; empty if no report has it."""
        # The interpreter of the engine is on another machine, so only a report can have it.
        for shard in self.shards:
            for case_report in shard.report.cases if shard.report else ():
                if case_report.case_id == case.id and case_report.torch_version:
                    return case_report.torch_version
        return ""

    def measure(self, case: Case, servers: ServerSet) -> Measurement:
        """Return the measurement of a case on a launch, from the first shard that has one.

        Raises:
            SpecregError: No shard has measured it, and the message says why; or its models can't be
                read here.
        """
        return self._read(case, servers.launch.number)

    def ledger_of(self, case: Case, number: int) -> Path:
        """Return the ledger from which a case's measurement on a launch was read."""
        return self._shard_with(case, number).folder / LEDGER

    def _read(self, case: Case, number: int) -> Measurement:
        """Return the measurement of a case on a launch, and keep it in the ledger."""
        launch = self.ledger.find(case.id, number)
        if launch is None:
            measurement = self._find(case, number)
            launch = MeasuredLaunch(case_id=case.id, number=number, measurement=measurement)
            self.ledger.add(launch)
        return launch.measurement

    def _find(self, case: Case, number: int) -> Measurement:
        """Return the measurement of a case on a launch, from the first shard that has one.

        The models in it are those of this repository.

        Raises:
            SpecregError: No shard has measured it, or its models can't be read here.
        """
        measurement = self._shard_with(case, number).measured[case.id, number]
        target, draft = served_models(self.root, case.server)
        return dataclasses.replace(measurement, target=target, draft=draft)

    def _shard_with(self, case: Case, number: int) -> ShardRun:
        """Return the first shard that measured a case on a launch.

        Raises:
            SpecregError: No shard has measured it.
        """
        for shard in self.shards:
            if (case.id, number) in shard.measured:
                return shard
        raise self._error(case.id)

    def measure_afresh(
        self, cases: Sequence[Case], number: int
    ) -> Mapping[str, Measurement | Reason]:
        """Return the measurement of each case on a further launch, or why there is none."""
        results: dict[str, Measurement | Reason] = {}
        for case in cases:
            try:
                results[case.id] = self._read(case, number)
            except SpecregError as error:
                results[case.id] = error.reason
        return results

    def measure_remaining(self, case_launches: Sequence[CaseLaunch], servers: ServerSet) -> None:
        """Read the measurements of cases on planned launches, as far as a shard has them."""
        del servers  # A merge starts no servers.
        for case_launch in case_launches:
            with contextlib.suppress(SpecregError):
                self._read(case_launch.case, case_launch.server.number)

    def stop(self) -> None:
        """Do nothing, because a merge starts no servers."""

    def check(self, check: CorrectnessCheck, case: Case, servers: ServerSet) -> Verdict:
        """Return the verdict of a check, from the first shard that made it.

        Raises:
            SpecregError: No shard made the check; the message says why.
        """
        del servers  # A merge starts no servers.
        for shard in self.shards:
            verdict = shard.checked.get((case.id, check.name))
            if verdict is not None:
                return dataclasses.replace(verdict, case_id=case.id, metric=check.name)
        raise self._error(case.id, check.name)

    def _error(self, case_id: str, metric: str = "") -> SpecregError:
        """Return the error that says why no shard has measured or checked a case."""
        planned = [shard for shard in self.shards if case_id in shard.plan.names]
        if not planned:
            # No plan names the case, so it is one of a missing shard.
            numbers = [number for number, ids in self.missing.items() if case_id in ids]
            return InvalidMeasurementError(_SHARD_MISSING, self._why_missing(numbers[0]))
        shard = planned[-1]
        if shard.report is None:
            message = f"{shard.plan.name} died before it was done, see '{shard.folder}'"
            return InvalidMeasurementError(_SHARD_MISSING, message)
        reason = _reason_of(shard.report.run.verdicts, case_id, metric)
        if reason is None:
            message = f"{shard.plan.name} ended without having measured it"
            return InvalidMeasurementError(_SHARD_MISSING, message)
        if reason.code:
            return InvalidMeasurementError(reason.code, reason.text)
        return SpecregError(str(reason))

    @property
    def missing(self) -> Mapping[int, Sequence[str]]:
        """The cases of the shards that weren't merged, by the number of the shard."""
        merged = {shard.plan.shard_number for shard in self.shards}
        return {
            number: case_ids
            for number, case_ids in enumerate(self.plan.shards, start=1)
            if case_ids and number not in merged
        }

    def _why_missing(self, number: int) -> str:
        shard = f"{number}/{self.plan.shards_in_all}"
        return f"shard {shard} isn't there: run it with --specreg-shard={shard}, and merge again"

    @property
    def is_whole(self) -> bool:
        """True if no shard is missing, and all shards have ended and written a report."""
        return not self.missing and all(shard.report is not None for shard in self.shards)

    def remarks(self) -> Iterator[str]:
        """Yield lines about what the verdicts don't show.

        There is a line for each shard that is missing, died or failed for another reason than its
        verdicts, and for each case that several shards measured.
        """
        for number in self.missing:
            yield f"{_SHARD_MISSING}: {self._why_missing(number)}"
        for shard in self.shards:
            if shard.report is None:
                yield f"{shard.plan.name} died before it was done: '{shard.folder}'"
            elif shard.failed_otherwise:
                status = f"{shard.plan.name} ended with status {shard.report.run.exit_status}"
                cause = "a test failed for another reason there, or the shard was cut short"
                yield f"{status}, which its verdicts don't explain: {cause}"
        for case_id, names in self._measured_by().items():
            if len(names) > 1:
                measured = f"{case_id}: measured by {' and '.join(names)}"
                yield f"{measured}; the first measurement counts"

    def _measured_by(self) -> Mapping[str, Sequence[str]]:
        """Return the names of the shards that measured each case, by case id."""
        names: dict[str, list[str]] = {}
        for shard in self.shards:
            for case_id in dict.fromkeys(case_id for case_id, _ in shard.measured):
                names.setdefault(case_id, []).append(shard.plan.name)
        return names


def _reason_of(verdicts: Sequence[Verdict], case_id: str, metric: str) -> Reason | None:
    """Return the reason of the verdict on a metric, or else of another verdict on the case."""
    with_reason = [verdict for verdict in verdicts if verdict.case_id == case_id and verdict.reason]
    for verdict in with_reason:
        if verdict.metric == metric:
            return verdict.reason
    return with_reason[0].reason if with_reason else None
