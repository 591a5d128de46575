"""Join what other processes have measured and checked, and say what is missing."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from specreg.core.errors import SpecregError
from specreg.core.reasons import Reason
from specreg.core.timeline import RunTime
from specreg.matrix.case import Case
from specreg.matrix.models import served_models
from specreg.runs.ledger import LEDGER, FailedLaunch, Ledger, LedgerEntry, MeasuredLaunch
from specreg.runs.plan import NightStep
from specreg.suite.context import RunContext
from specreg.suite.plan import RunPlan
from specreg.suite.selection import Selection
from specreg.suite.shard_runs import MeasuredShard
from specreg.verdicts.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedShards:
    """The shards or workers of a run, with their ledgers.

    Attributes:
        shards: the shards, of which the first that measured or checked something counts.
        ended_at: when the last one ended, as ISO 8601; empty if the run ends in this process.
    """

    shards: Sequence[MeasuredShard]
    ended_at: str = ""

    @property
    def plan(self) -> RunPlan:
        """The plan of the first shard. What it says about the whole run is equal in all shards."""
        return self.shards[0].plan

    def machine_of(self, case_id: str) -> str:
        """Return the identity of the machine that measured a case; empty if unknown."""
        for shard in self.shards:
            if any(case_id == key.case_id for key in shard.recorded.measured):
                return shard.plan.machines.get(case_id, shard.plan.machine)
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

    def torch_version(self, case: Case) -> str:
        """Return the version of torch that a case's engine ran with; empty if no report has it."""
        # The interpreter of the engine is on another machine, so only a report can have it.
        for shard in self.shards:
            for case_report in shard.report.cases if shard.report else ():
                if case_report.case_id == case.id and case_report.torch_version:
                    return case_report.torch_version
        return ""

    def whole_plan(self, context: RunContext, selection: Selection) -> RunPlan:
        """Return the plan of the merged run, by which it can be judged anew.

        Args:
            context: the merged run.
            selection: what the tests of all shards needed.
        """
        machines = {case_id: self.machine_of(case_id) for case_id in selection.names}
        return msgspec.structs.replace(
            self.plan,
            run=context.name,
            began_at=context.clock.began_at.replace(microsecond=0),
            machines={
                case_id: machine
                for case_id, machine in machines.items()
                if machine != self.plan.machine
            },
            shard_number=0,
            shards_in_all=0,
            shards=(),
            names={case_id: tuple(sorted(names)) for case_id, names in selection.names.items()},
            skipped=dict(selection.skipped),
        )

    def fill(
        self, ledger: Ledger, cases: Sequence[Case], root: Path, *, newest_counts: bool
    ) -> None:
        """Add what the shards measured and checked to what a ledger has, and not to its file.

        Args:
            ledger: the ledger of the merged run.
            cases: the cases that are judged. Launches of other cases are left out.
            root: the root of this machine's repository, whose models the measurements get.
            newest_counts: whether the newest of several measurements of a launch counts, whichever
                shard made it; otherwise that of the first shard counts.
        """
        by_id = {case.id: case for case in cases}
        ranked = [
            (0 if newest_counts else position, -shard.recorded.begun_s.get(key, 0.0), shard, key)
            for position, shard in enumerate(self.shards)
            for key in shard.recorded.keys
            if key.case_id in by_id
        ]
        for _, _, shard, key in sorted(ranked, key=lambda ranked_key: ranked_key[:2]):
            measurement = shard.recorded.measured.get(key)
            if measurement is not None and ledger.find(key.case_id, key.launch) is None:
                launch = MeasuredLaunch(
                    case_id=key.case_id,
                    number=key.launch,
                    measurement=measurement,
                    read_from=shard.folder / LEDGER,
                )
                ledger.add(_with_models_here(launch, by_id[key.case_id], root))
            for (checked_key, check), line in shard.recorded.checked.items():
                if checked_key == key and ledger.check(key.case_id, check) is None:
                    ledger.add(line)

    def why_missing(self, step: NightStep) -> FailedLaunch:
        """Return the entry that says why no shard has taken a step of the night."""
        (launch,) = step.launches
        reason = self._reason(launch.case, step.check, step.number)
        return FailedLaunch(
            case_id=launch.case.id, number=step.number, check=step.check, reason=reason
        )

    def _reason(self, case: Case, check: str, number: int) -> Reason:
        """Return why no shard has measured a case on a launch, or made a check of it."""
        planned = [shard for shard in self.shards if case.id in shard.plan.names]
        if not planned:
            # No plan names the case, so it is one of a missing shard.
            numbers = [shard for shard, ids in self.missing.items() if case.id in ids]
            return self._not_there(numbers[0])

        shard = planned[-1]
        reason = shard.why_failed(case.id, check, number)
        if reason is None and shard.report is not None:
            reason = _reason_of(shard.report.run.verdicts, case.id, check)
        if reason is not None:
            return reason
        if shard.report is None:
            return Reason.of("SHARD_DIED", shard=shard.plan.name, folder=shard.folder)
        return Reason.of("SHARD_INCOMPLETE", shard=shard.plan.name)

    @property
    def missing(self) -> Mapping[int, Sequence[str]]:
        """The cases of the shards that weren't merged, by the number of the shard."""
        merged = {shard.plan.shard_number for shard in self.shards}
        return {
            number: case_ids
            for number, case_ids in enumerate(self.plan.shards, start=1)
            if case_ids and number not in merged
        }

    def _not_there(self, number: int) -> Reason:
        return Reason.of("SHARD_MISSING", shard=f"{number}/{self.plan.shards_in_all}")

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
            yield str(self._not_there(number))

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
            for case_id in dict.fromkeys(key.case_id for key in shard.recorded.measured):
                names.setdefault(case_id, []).append(shard.plan.name)
        return names


def _with_models_here(launch: MeasuredLaunch, case: Case, root: Path) -> LedgerEntry:
    """Return a launch with the models of this repository, or why they can't be read."""
    try:
        target, draft = served_models(root, case.server)
    except SpecregError as error:
        return FailedLaunch(case_id=case.id, number=launch.number, reason=error.reason, error=error)
    measurement = dataclasses.replace(launch.measurement, target=target, draft=draft)
    return dataclasses.replace(launch, measurement=measurement)


def _reason_of(verdicts: Sequence[Verdict], case_id: str, metric: str) -> Reason | None:
    """Return the reason of the verdict on a metric, or else of another verdict on the case."""
    with_reason = [verdict for verdict in verdicts if verdict.case_id == case_id and verdict.reason]
    for verdict in with_reason:
        if verdict.metric == metric:
            return verdict.reason
    return with_reason[0].reason if with_reason else None
