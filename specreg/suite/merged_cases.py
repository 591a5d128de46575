"""What other processes measured and checked, in place of measuring and checking it here."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.core.errors import InvalidMeasurementError, SpecregError
from specreg.core.timeline import RunTime
from specreg.correctness.checks import CorrectnessCheck
from specreg.matrix.case import Case
from specreg.matrix.models import served_models
from specreg.measurement.measure import Measurement
from specreg.suite.plan import RunPlan
from specreg.suite.shard_runs import ShardRun
from specreg.verdicts.verdict import Verdict

_SHARD_MISSING = "SHARD_MISSING"


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
