"""The verdicts of a night, as a function of what its ledger has and of what that is compared with.

The acceptance of a case is judged as soon as it is measured. Speeds are judged together, once
everything is measured.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from specreg.baselines.comparison import BaselineComparison
from specreg.core.errors import SpecregError
from specreg.core.reasons import Reason
from specreg.core.timeline import Phase, Timeline
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS
from specreg.runs.goals import ATTEMPTS, CaseGoal, CaseLaunch
from specreg.runs.ledger import Ledger, MeasuredLaunch
from specreg.runs.plan import is_tried
from specreg.stats.intervals import MORE_LAUNCHES
from specreg.verdicts.references import References
from specreg.verdicts.run_verdicts import acceptance_on_launch, confirmed, wants_fresh_launch
from specreg.verdicts.speeds import Speed, SpeedJudge, compare_speed
from specreg.verdicts.verdict import Outcome, Verdict


class Asked(NamedTuple):
    """A metric of a case on a launch, or a check of it, of which a verdict is asked."""

    case_id: str
    name: str
    number: int


@dataclass(slots=True, kw_only=True)
class LedgerJudge:
    """Judges what the ledger of a night has.

    The verdicts follow from the ledger whenever they are asked for. What is slow to compute is
    kept.

    Attributes:
        ledger: what was measured and checked.
        goals: what the night wants to know of its cases, in the order of the run.
        launches: the number of planned launches of each server.
        references: what the night is compared with.
        is_recording: whether baselines are recorded, and nothing is judged.
        is_part: whether this process measures a part of a run, so that it can't judge speeds.
        attempts: how often a case is tried if its server dies.
        timeline: records how long judging takes.
        asked: the cases and launches of which verdicts are asked. A test may also measure a case,
            and judge by itself.
        _goals: the goals, by case id.
        _on_launch: the verdicts on acceptance on planned launches.
        _speed_judge: has gone through the nights before, for the speeds that can be compared.
        _speeds: the verdicts on speeds, with the number of launches and of what was asked then.
    """

    ledger: Ledger
    goals: Sequence[CaseGoal]
    launches: int
    references: References
    is_recording: bool = False
    is_part: bool = False
    attempts: int = ATTEMPTS
    timeline: Timeline = field(default_factory=Timeline)
    asked: set[tuple[str, int]] = field(default_factory=set)
    _goals: Mapping[str, CaseGoal] = field(init=False)
    _on_launch: dict[Asked, Verdict] = field(default_factory=dict)
    _speed_judge: tuple[set[tuple[str, str]], SpeedJudge] | None = None
    _speeds: tuple[tuple[int, int], Mapping[Asked, Verdict]] | None = None

    def __post_init__(self) -> None:
        self._goals = {goal.case.id: goal for goal in self.goals}

    def ask(self, cases: Iterable[Case], number: int) -> None:
        """Ask for the verdicts on cases on a launch."""
        self.asked.update((case.id, number) for case in cases)

    def ask_all(self) -> None:
        """Ask for the verdicts on all cases on their planned launches."""
        for number in range(1, self.launches + 1):
            self.ask((goal.case for goal in self.goals), number)

    def verdicts(self, *, is_over: bool, case_id: str = "") -> Mapping[Asked, Verdict]:
        """Return the verdicts so far that are asked for, in the order of the run.

        Args:
            is_over: whether nothing more is measured, so that speeds can be judged.
            case_id: the id of the only case that is wanted; empty for all.
        """
        verdicts = {}
        for asked in self._all_asked():
            if case_id in {"", asked.case_id}:
                verdict = self._verdict(asked, is_over=is_over)
                if verdict is not None:
                    verdicts[asked] = verdict
        return verdicts

    def _all_asked(self) -> Iterator[Asked]:
        """Yield what is asked of the night, in the order of the run."""
        for number in range(1, self.launches + 1):
            for goal in self.goals:
                yield from self._asked_of(goal, number)

    def _asked_of(self, goal: CaseGoal, number: int) -> Iterator[Asked]:
        """Yield what is asked of a case on a launch."""
        if (goal.case.id, number) not in self.asked:
            return
        for metric in goal.metrics:
            yield Asked(goal.case.id, metric.name, number)
        for check in goal.checks if number == 1 else ():
            yield Asked(goal.case.id, check, number)

    def _verdict(self, asked: Asked, *, is_over: bool) -> Verdict | None:
        """Return the verdict on a metric or a check; None if nothing is known of it yet."""
        if asked.name not in METRICS:
            return self._check_verdict(asked)
        launch = self.ledger.find(asked.case_id, asked.number)
        if launch is None:
            return self._failure(asked, check="")
        try:
            return self._metric_verdict(asked, launch, is_over=is_over)
        except SpecregError as error:
            return _invalid(asked, error.reason)

    def _check_verdict(self, asked: Asked) -> Verdict | None:
        line = self.ledger.check(asked.case_id, asked.name)
        if line is None:
            return self._failure(asked, check=asked.name)
        verdict = msgspec.convert(line.verdict, Verdict)
        return dataclasses.replace(verdict, case_id=asked.case_id, metric=asked.name)

    def _failure(self, asked: Asked, check: str) -> Verdict | None:
        """Return the verdict on what couldn't be measured or checked; None if it is still tried."""
        failures = self.ledger.failures_of(asked.case_id, asked.number, check)
        if is_tried(failures, self.attempts):
            return None
        return _invalid(asked, failures[-1].reason)

    def _metric_verdict(
        self, asked: Asked, launch: MeasuredLaunch, *, is_over: bool
    ) -> Verdict | None:
        """Return the verdict on a metric of a launch; None on a speed that can't be judged yet.

        A speed is judged once, at the last planned launch and on all valid launches together. At
        the launches before, its valid measurements get the outcome MEASURED. While recording, the
        valid measurements of all metrics get this outcome at each launch.
        """
        metric = METRICS[asked.name]
        value = launch.measurement.values.get(metric.name)
        is_early = metric.by_launch and asked.number < self.launches
        if value is not None and (self.is_recording or is_early):
            return _measured(asked, value)
        if not metric.by_launch:
            fresh = self._fresh_launch(launch.case)
            return confirmed(self._acceptance(asked, launch), fresh, self.references)
        if self.is_recording or self.is_part or is_early:
            compared = self._compare_speed(asked, launch)
            if isinstance(compared, Verdict):
                return compared
            return _measured(asked, value, Reason.of("JUDGED_LATER"))

        return self._speed_verdicts()[asked] if is_over else None

    def _acceptance(self, asked: Asked, launch: MeasuredLaunch) -> Verdict:
        """Return the verdict on acceptance on a planned launch."""
        if asked not in self._on_launch:
            pair_id = CaseLaunch.of(launch.case, asked.number).server.id
            with self.timeline.during(Phase.JUDGING, pair_id):
                try:
                    verdict = acceptance_on_launch(
                        METRICS[asked.name], launch.measurement, self.references
                    )
                except SpecregError:
                    raise
                except Exception as error:  # noqa: BLE001 - raised again if the launch is ours
                    verdict = _bug(asked, launch, error)
            self._on_launch[asked] = verdict
        return self._on_launch[asked]

    def _fresh_launch(self, case: Case) -> Measurement | Reason | None:
        """Return the launch that confirms a loss of acceptance, or why there is none."""
        number = self.launches + 1
        launch = self.ledger.find(case.id, number)
        if launch is not None:
            return launch.measurement
        failures = self.ledger.failures_of(case.id, number)
        return failures[-1].reason if failures else None

    def unconfirmed(self, ledger: Ledger, cases: Sequence[Case]) -> Sequence[Case]:
        """Return the cases with a loss of acceptance that a fresh launch has to confirm.

        While recording, no loss is confirmed.
        """
        del ledger  # It is the one whose verdicts these are.
        if self.is_recording:
            return ()
        goals = [self._goals[case.id] for case in cases]
        lost_cases = [goal.case for goal in goals if self._has_lost(goal)]
        return [case for case in lost_cases if self._fresh_launch(case) is None]

    def _has_lost(self, goal: CaseGoal) -> bool:
        """Return whether the acceptance of a case looks lost on a planned launch."""
        return any(
            self._looks_lost(asked)
            for number in range(1, self.launches + 1)
            for asked in self._asked_of(goal, number)
        )

    def _looks_lost(self, asked: Asked) -> bool:
        """Return whether acceptance looks lost on a planned launch."""
        launch = self.ledger.find(asked.case_id, asked.number)
        if launch is None or asked.name not in METRICS or METRICS[asked.name].by_launch:
            return False
        try:
            return wants_fresh_launch(self._acceptance(asked, launch))
        except SpecregError:
            # The verdict says so.
            return False

    def slower(self, ledger: Ledger, cases: Sequence[Case]) -> Sequence[Case]:
        """Return the cases whose speeds look lost, so that a further launch would help."""
        del ledger  # It is the one whose verdicts these are.
        with self.timeline.during(Phase.JUDGING):
            speeds, _ = self._comparable_speeds()
            lost_ids = self._lost_ids(speeds)
        lost_cases = [case for case in cases if case.id in lost_ids]
        return [case for case in lost_cases if self._why_no_launch(case) is None]

    def _speed_verdicts(self) -> Mapping[Asked, Verdict]:
        """Return the verdicts on the speeds of what has been measured."""
        state = (len(self.ledger.launches), len(self.asked))
        if self._speeds is not None and self._speeds[0] == state:
            return self._speeds[1]
        with self.timeline.during(Phase.JUDGING):
            speeds, verdicts = self._comparable_speeds()
            lost_ids = self._lost_ids(speeds) if self.ledger.failures else ()
            speeds = [
                dataclasses.replace(speed, failure=self._why_no_launch(speed.case))
                if speed.case.id in lost_ids
                else speed
                for speed in speeds
            ]
            judged = self._judge_of(speeds).judge(speeds)

        asked = [Asked(speed.case.id, speed.metric.name, self.launches) for speed in speeds]
        self._speeds = (state, {**verdicts, **dict(zip(asked, judged, strict=True))})
        return self._speeds[1]

    def _lost_ids(self, speeds: Sequence[Speed]) -> set[str]:
        """Return the ids of the cases whose speeds look lost."""
        return {case.id for case in self._judge_of(speeds).wanted(speeds)}

    def _judge_of(self, speeds: Sequence[Speed]) -> SpeedJudge:
        """Return the judge of these speeds, which goes through the nights before only once."""
        keys = {speed.key for speed in speeds}
        if self._speed_judge is None or self._speed_judge[0] != keys:
            self._speed_judge = (keys, SpeedJudge(speeds, self.references))
        return self._speed_judge[1]

    def _comparable_speeds(self) -> tuple[list[Speed], dict[Asked, Verdict]]:
        """Return the speeds that can be compared, and the verdicts on the others."""
        speeds = []
        verdicts: dict[Asked, Verdict] = {}
        for asked in self._all_asked():
            launch = self.ledger.find(asked.case_id, asked.number)
            metric = METRICS.get(asked.name)
            if launch is None or metric is None or not metric.by_launch:
                continue
            if asked.number < self.launches:
                continue
            try:
                compared = self._compare_speed(asked, launch)
            except SpecregError as error:
                compared = _invalid(asked, error.reason)
            if isinstance(compared, Verdict):
                verdicts[asked] = compared
            else:
                speeds.append(Speed(metric=metric, comparison=compared))

        return speeds, verdicts

    def _compare_speed(self, asked: Asked, launch: MeasuredLaunch) -> BaselineComparison | Verdict:
        """Return the launches of a speed beside its baselines, or its verdict without them."""
        last = asked.number
        if last == self.launches and not self.is_recording:
            last += MORE_LAUNCHES
        launches = [self.ledger.find(asked.case_id, number) for number in range(1, last + 1)]

        # A launch that failed has no measurement.
        measurements = [found.measurement for found in launches if found is not None]
        try:
            return compare_speed(METRICS[asked.name], measurements, self.references)
        except SpecregError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again if the launch is ours
            return _bug(asked, launch, error)

    def _why_no_launch(self, case: Case) -> Reason | None:
        """Return why a launch beyond the planned ones has no measurement; None if none failed."""
        for failure in self.ledger.failures:
            is_further = failure.case_id == case.id and failure.number > self.launches
            if is_further and self.ledger.find(case.id, failure.number) is None:
                return failure.reason
        return None


def _bug(asked: Asked, launch: MeasuredLaunch, error: Exception) -> Verdict:
    """Return the verdict on a measurement that can't be calculated with.

    What another process wrote may be something that no calculation is prepared for. The verdicts
    on the other metrics and cases must not be lost with it.

    Raises:
        Exception: the error, if this process measured the launch.
    """
    if launch.read_from is None:
        raise error
    described = f"{type(error).__name__}: {error}"
    reason = Reason.of("bug", ledger=launch.read_from, error=described)
    return _invalid(asked, reason)


def _invalid(asked: Asked, reason: Reason) -> Verdict:
    return Verdict(case_id=asked.case_id, metric=asked.name, outcome=Outcome.INVALID, reason=reason)


def _measured(asked: Asked, value: float | None, reason: Reason | None = None) -> Verdict:
    return Verdict(
        case_id=asked.case_id,
        metric=asked.name,
        outcome=Outcome.MEASURED,
        value=value,
        reason=reason,
    )
