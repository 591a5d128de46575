"""Simulate nights, judge them with the real code, and count how often the verdicts are wrong.

Simulated drafters accept about as many drafts as real ones. Three draft positions have a
conditional acceptance of 0.73, 0.71 and 0.68 (AL 2.6), prompts vary with a standard deviation of
0.55 in their logits, and the answer to each prompt has 98 steps. A run has no text in common with
its baseline, which is the worst case. Speeds vary from launch to launch, and from night to night
for all cases together or for each case on its own. A night has 72 cases by default.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import msgspec
import numpy as np

from specreg.acceptance.record import AcceptanceRecord, PromptAcceptance, Source, StepCounts, View
from specreg.baselines.comparison import CaseBaselines
from specreg.baselines.schema import (
    SCHEMA_VERSION,
    Baseline,
    Provenance,
    StoredAcceptance,
    stored_acceptance,
)
from specreg.baselines.store import settings_of
from specreg.engines.server_spec import ServerSpec
from specreg.judging.simulation import new_pool
from specreg.matrix.case import Case, Load, Request
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS
from specreg.stats.intervals import PARTS, Column, Look
from specreg.telemetry.identity import Environment
from specreg.verdicts.confirmation import Confirmation, enough_for, measured_prompts
from specreg.verdicts.history import History, RunOrigin, RunRecord, run_record
from specreg.verdicts.nights import MachineNights
from specreg.verdicts.verdict import GOOD, Outcome, Verdict

RATES = (0.73, 0.71, 0.68)
"""The conditional acceptance of each draft position."""
PROMPTS = 80
"""How many prompts a case has."""
PROMPT_SPREAD = 0.55
"""The standard deviation of the prompts' logits."""
STEPS = 98
"""How many steps the answer to a prompt has."""
CASES = 72
"""How many cases a night has."""
_ONCE_IN_A_THOUSAND = 0.001
_BASELINE_LAUNCHES = 3
_DATED_WITHIN_NIGHTS = 2
"""A loss is dated correctly if the date is off by no more than this."""
_ACCEPTANCE_LENGTH = METRICS["acceptance_length_tokens"]
_THROUGHPUT = METRICS["throughput_tokens_per_s"]
_TTFT = METRICS["ttft_p50_ms"]
_SPEEDS = {_THROUGHPUT.name: 1000.0, _TTFT.name: 40.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceLoss:
    """A loss of acceptance that is planted in a case, and the limits for the verdicts on it.

    Attributes:
        name: what is planted.
        loss_frac: by how much AL - 1 falls, 0..1.
        most_passed_frac: the largest share of the verdicts that may pass.
        most_undecided_frac: the largest share of the verdicts that may be INCONCLUSIVE.
        most_regressed_frac: the largest share of the verdicts that may be REGRESSED.
        least_regressed_frac: the smallest share of the verdicts that must be REGRESSED.
        most_used_frac: the most prompts that may be measured on average, as a share of the prompts
            that the case has.
    """

    name: str
    loss_frac: float = 0.0
    most_passed_frac: float = 0.01
    most_undecided_frac: float = 1.0
    most_regressed_frac: float = 1.0
    least_regressed_frac: float = 0.0
    most_used_frac: float = 2.0


NOTHING = AcceptanceLoss(
    name="nothing",
    most_passed_frac=1.0,
    most_undecided_frac=0.01,
    most_regressed_frac=0.0005,
    most_used_frac=1.03,
)
LOSSES = (
    NOTHING,
    AcceptanceLoss(name="AL - 1: -5 % (AL: -3 %)", loss_frac=0.05),
    AcceptanceLoss(name="AL - 1: -7.5 %", loss_frac=0.075, least_regressed_frac=0.8),
    AcceptanceLoss(name="AL - 1: -10 %", loss_frac=0.1, least_regressed_frac=0.95),
    AcceptanceLoss(
        name="AL - 1: -15 %", loss_frac=0.15, least_regressed_frac=0.95, most_used_frac=0.6
    ),
)
"""With a loss as large as the tolerance, or larger, no more than 1 % may pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nights:
    """A series of nights with their speeds, and the limits for the verdicts on them.

    Attributes:
        name: how the machine varies and what is planted.
        launch_frac: the spread of launches, as a standard deviation of logarithms.
        day_frac: the additional spread of nights that all cases share.
        own_frac: the additional spread of nights that each case has on its own.
        loss_frac: by how much the throughput of the first case falls, 0..1.
        everything_frac: by how much the throughput of all cases falls, 0..1.
        since: the first night with the loss, counted from 1.
        until: the last night with the loss of the first case; None if it is never mended.
        drift_frac: by how much the throughput falls on every night, instead of once; 0..1.
        nights: how many nights there are.
        rerecorded: whether the baseline is recorded again each night.
        most_red_frac: of the nights without a loss, the largest share that may have a failing test.
        named_by: the night, counted from the beginning of the loss, by which the throughput of the
            first case must be REGRESSED.
        least_named_frac: the smallest share of the series in which it must be REGRESSED by then.
    """

    name: str
    launch_frac: float
    day_frac: float = 0.0
    own_frac: float = 0.0
    loss_frac: float = 0.0
    everything_frac: float = 0.0
    since: int = 1
    until: int | None = None
    drift_frac: float = 0.0
    nights: int = 12
    rerecorded: bool = False
    most_red_frac: float = 0.01
    named_by: int = 10
    least_named_frac: float = 0.9

    @property
    def has_loss(self) -> bool:
        """Whether the first case loses throughput."""
        return bool(self.loss_frac or self.drift_frac)

    def left_frac(self, night: int) -> float:
        """Return the share of its throughput that the first case has left on a night, 0..1."""
        if self.drift_frac:
            return (1 - self.drift_frac) ** night
        if not self._is_within(night):
            return 1.0
        return 1 - self.loss_frac

    def is_lost_on(self, night: int) -> bool:
        """Return whether the first case has less throughput on a night."""
        return self.has_loss and self._is_within(night)

    def _is_within(self, night: int) -> bool:
        is_mended = self.until is not None and night > self.until
        return night >= self.since and not is_mended

    def all_left_frac(self, night: int) -> float:
        """Return the share of their throughput that all cases have left on a night, 0..1."""
        if night < self.since:
            return 1.0
        return 1 - self.everything_frac


IDENTICAL = (
    Nights(name="launches 1 %", launch_frac=0.01),
    Nights(name="launches 1 %, nights 2 %", launch_frac=0.01, day_frac=0.02),
    Nights(name="launches 2.6 %, nights 3.2 %", launch_frac=0.026, day_frac=0.032),
    Nights(name="launches 5 %, nights 7 %", launch_frac=0.05, day_frac=0.07),
    Nights(name="launches 2 %, nights 2 % of each case", launch_frac=0.02, own_frac=0.02),
    # The two nights with the loss aren't counted. The nights after them must be judged as before.
    Nights(
        name="launches 5 %, nights 7 %, two at -60 %",
        launch_frac=0.05,
        day_frac=0.07,
        loss_frac=0.6,
        since=4,
        until=5,
    ),
)
LOSSES_OF_SPEED = (
    Nights(
        name="-5 %, launches 2 %, nights 2 %",
        launch_frac=0.02,
        day_frac=0.02,
        loss_frac=0.05,
        since=11,
        nights=20,
    ),
    # If each case varies on its own, a small loss is often missed. Otherwise too many alarms would
    # be false, as judging.md explains. So it must be found in only a fifth of the series.
    Nights(
        name="-5 %, launches 2 %, nights 2 % of each case",
        launch_frac=0.02,
        own_frac=0.02,
        loss_frac=0.05,
        since=11,
        nights=20,
        least_named_frac=0.2,
    ),
    Nights(name="-10 %, launches 5 %", launch_frac=0.05, loss_frac=0.1, since=11, nights=20),
    Nights(
        name="-30 %, launches 1 %, nights 2 %",
        launch_frac=0.01,
        day_frac=0.02,
        loss_frac=0.3,
        nights=1,
        named_by=1,
        least_named_frac=0.95,
    ),
    Nights(
        name="-30 %, launches 5 %, nights 7 %",
        launch_frac=0.05,
        day_frac=0.07,
        loss_frac=0.3,
        nights=1,
        named_by=1,
        least_named_frac=0.95,
    ),
    Nights(
        name="-0.5 % a night, launches 1 %",
        launch_frac=0.01,
        drift_frac=0.005,
        nights=9,
        named_by=9,
        least_named_frac=0.5,
    ),
    Nights(
        name="-0.5 % a night, recorded anew each night",
        launch_frac=0.01,
        drift_frac=0.005,
        nights=15,
        rerecorded=True,
        named_by=15,
        least_named_frac=0.5,
    ),
)


@dataclass(slots=True)
class NightCounts:
    """How the nights of several series were judged.

    Attributes:
        series: the number of series.
        nights: the number of nights without a loss, over all series.
        red: how many of these nights had a test that failed.
        regressed: how many of these nights had a verdict that was REGRESSED.
        named_on: for each series in which the loss was found, the night on which it was found,
            counted from 1 at the beginning of the loss.
        dated: the number of series in which the loss was dated within two nights.
    """

    series: int = 0
    nights: int = 0
    red: int = 0
    regressed: int = 0
    named_on: list[int] = field(default_factory=list)
    dated: int = 0

    def named_by(self, night: int) -> float:
        """Return the share of the series in which the loss was found by a night, 0..1."""
        named_series = sum(named <= night for named in self.named_on)
        return named_series / max(self.series, 1)


def run_selftest(series: int, trials: int = 300, cases: int = CASES) -> tuple[str, bool]:
    """Judge the planted losses and the identical nights, and render a table of the verdicts.

    Each row draws from generators of its own, so the rows are simulated in as many processes as
    there are CPUs.

    Args:
        series: how many series of nights of each kind are simulated.
        trials: how many cases of each planted loss of acceptance are simulated.
        cases: how many cases a night has.

    Returns:
        The table, and whether all error rates are within their limits.
    """
    # Each loss has a seed of its own, so that adding one leaves the rates of the others alone.
    losses = [(loss, trials, World(seed)) for seed, loss in enumerate(LOSSES, start=1)]
    try_series = functools.partial(try_nights, series=series, cases=cases)
    with new_pool() as pool:
        # The rows that take longest come first, so that no process ends long before another.
        slower = pool.map_async(try_series, LOSSES_OF_SPEED, chunksize=1)
        identical = pool.map_async(try_series, IDENTICAL, chunksize=1)
        of_acceptance = pool.starmap_async(try_loss, losses, chunksize=1)
        outcomes_of_losses = of_acceptance.get()
        counts_of_identical = identical.get()
        counts_of_slower = slower.get()

    is_within = True
    # Losses of acceptance.
    lines = [f"{'planted':44}{'PASS':>7}{'undecided':>14}{'REGRESSED':>11}{'prompts':>9}"]
    for loss, (outcomes, used_frac) in zip(LOSSES, outcomes_of_losses, strict=True):
        if not is_within_limits(loss, outcomes, used_frac):
            is_within = False
        passed, undecided, regressed = (count / trials for count in _counts(outcomes))
        lines.append(
            f"{loss.name:44}{passed:>7.1%}{undecided:>14.1%}{regressed:>11.1%}{used_frac:>9.0%}"
        )

    # Nights without a loss, which show the false alarms.
    lines += ["", f"{'identical nights':44}{'nights':>7}{'red':>14}{'REGRESSED':>11}"]
    for nights, counts in zip(IDENTICAL, counts_of_identical, strict=True):
        most_red = most_by_chance(counts.nights, nights.most_red_frac)
        if counts.red > most_red:
            is_within = False
        red_frac = counts.red / counts.nights
        regressed_frac = counts.regressed / counts.nights
        lines.append(f"{nights.name:44}{counts.nights:>7}{red_frac:>14.1%}{regressed_frac:>11.1%}")

    # Losses of speed.
    column_titles = f"{'series':>7}{'named':>14}{'dated':>11}{'by night':>9}"
    lines += ["", f"{'a case that is slower':44}{column_titles}"]
    for nights, counts in zip(LOSSES_OF_SPEED, counts_of_slower, strict=True):
        named_frac = counts.named_by(nights.named_by)
        missed = counts.series - round(named_frac * counts.series)
        most_missed = most_by_chance(counts.series, 1 - nights.least_named_frac)
        if missed > most_missed:
            is_within = False
        dated_frac = counts.dated / counts.series
        lines.append(
            f"{nights.name:44}{counts.series:>7}{named_frac:>14.0%}"
            f"{dated_frac:>11.0%}{nights.named_by:>9}"
        )
    conclusion = "THE ERROR RATES ARE NOT KEPT"
    if is_within:
        conclusion = "the error rates are kept"
    lines.append(conclusion)
    return "\n".join(lines), is_within


def is_within_limits(
    loss: AcceptanceLoss, outcomes: Mapping[Outcome, int], used_frac: float
) -> bool:
    """Return whether the verdicts on a planted loss are within its limits, allowing for chance.

    Args:
        loss: the planted loss and its limits.
        outcomes: how many verdicts have each outcome.
        used_frac: the prompts measured on average, as a share of the prompts that a case has.
    """
    trials = sum(outcomes.values())
    passed, undecided, regressed = _counts(outcomes)
    # An extended case measures twice its prompts, so the excess is the number of extended cases.
    extended = round((used_frac - 1) * trials)
    counts_and_limits = (
        (passed, loss.most_passed_frac),
        (undecided, loss.most_undecided_frac),
        (regressed, loss.most_regressed_frac),
        (trials - regressed, 1 - loss.least_regressed_frac),
        (extended, max(loss.most_used_frac - 1, 0.0)),
    )
    is_within = all(count <= most_by_chance(trials, frac) for count, frac in counts_and_limits)
    # A limit above 1 is a limit on extended cases, which has been checked above.
    uses_few_prompts = loss.most_used_frac > 1 or used_frac <= loss.most_used_frac
    return is_within and uses_few_prompts


def most_by_chance(trials: int, frac: float) -> int:
    """Return the number of hits that chance exceeds only once in a thousand times.

    Args:
        trials: how many trials there are.
        frac: the probability of a hit in each trial, 0..1.
    """
    # The cumulative binomial distribution.
    below = 0.0
    for hits in range(trials):
        misses = trials - hits
        ways = math.comb(trials, hits)
        below += ways * frac**hits * (1 - frac) ** misses
        if below >= 1 - _ONCE_IN_A_THOUSAND:
            return hits
    return trials


def _counts(outcomes: Mapping[Outcome, int]) -> tuple[int, int, int]:
    """Return how many verdicts passed, were INCONCLUSIVE, and were REGRESSED."""
    passed = sum(outcomes.get(outcome, 0) for outcome in GOOD)
    undecided = outcomes.get(Outcome.INCONCLUSIVE, 0)
    return passed, undecided, outcomes.get(Outcome.REGRESSED, 0)


def try_loss(loss: AcceptanceLoss, trials: int, world: "World") -> tuple[Counter[Outcome], float]:
    """Judge a planted loss of acceptance many times.

    Args:
        loss: the planted loss.
        trials: how many times it is judged.
        world: what draws the acceptance.

    Returns:
        How many verdicts have each outcome, and the prompts measured on average, as a share of the
        prompts that a case has.
    """
    outcomes = Counter[Outcome]()
    used_frac = 0.0
    for number in range(trials):
        case = simulated_case(number)
        baselines = world.baselines_of(case)
        launch = world.launch(case, baselines, loss)
        if launch.acceptance is not None:
            used_frac += len(launch.acceptance.prompts) / case.request.prompts
        verdict = world.judged(launch, baselines)
        outcomes[verdict.outcome] += 1
    return outcomes, used_frac / trials


def try_nights(nights: Nights, series: int, *, cases: int) -> NightCounts:
    """Judge several series of nights, each of them on another simulated machine."""
    counts = NightCounts(series=series)
    for seed in range(series):
        machine = Machine(seed, nights, cases)
        for night in range(1, nights.nights + 1):
            verdicts = machine.night(night)
            if not nights.is_lost_on(night):
                counts.nights += 1
                if any(verdict.fails for verdict in verdicts):
                    counts.red += 1
                if any(verdict.outcome is Outcome.REGRESSED for verdict in verdicts):
                    counts.regressed += 1
                continue
            losses = [verdict for verdict in verdicts if machine.is_named(verdict)]
            if losses and nights.until is None:
                counts.named_on.append(night - nights.since + 1)
                if machine.is_dated(losses[0], night):
                    counts.dated += 1
                # The series ends when the loss is found.
                break
    return counts


class Machine:
    """A simulated machine, which draws the speeds of each night, judges them, and has a history.

    Attributes:
        nights: how the machine varies, and the loss that is planted in its first case.
        cases: the cases of a night.
    """

    def __init__(self, seed: int, nights: Nights, cases: int) -> None:
        self.nights = nights
        self.cases = [simulated_case(number) for number in range(cases)]
        self._random = np.random.default_rng(seed)
        self._records: dict[str, list[RunRecord]] = {case.id: [] for case in self.cases}
        self._day = self._random.normal(0, nights.day_frac)
        self._baselines = {
            case.id: _baseline(self._recorded_launches(nights.own_frac)) for case in self.cases
        }

    def _recorded_launches(self, own_frac: float) -> tuple[dict[str, float], ...]:
        """Draw the launches of a baseline, which are all measured in one night."""
        # All launches of the baseline share what that night did to the case.
        factor = math.exp(self._random.normal(0, own_frac))
        return tuple(self._speeds(factor) for _ in range(_BASELINE_LAUNCHES))

    def night(self, number: int) -> Sequence[Verdict]:
        """Measure and judge all cases on a night, and add them to the history.

        Args:
            number: the number of the night, from 1.
        """
        # Draw what tonight does to all cases, and to each case alone.
        self._day = self._random.normal(0, self.nights.day_frac)
        launches: dict[str, list[Measurement]] = {}
        own_levels = {case.id: self._random.normal(0, self.nights.own_frac) for case in self.cases}

        def measure(case: Case) -> Measurement:
            factor = self.nights.all_left_frac(number)
            if case == self.cases[0]:
                factor *= self.nights.left_frac(number)
            factor *= math.exp(own_levels[case.id])
            measurement = _measurement(case, self._speeds(factor))
            launches.setdefault(case.id, []).append(measurement)
            return measurement

        # Judge each case as a run does, with fresh launches for losses.
        history = History({key: tuple(rows) for key, rows in self._records.items()})
        machine_nights = MachineNights(
            baselines=self._baselines, history=history, cases=len(self.cases)
        )
        confirmation = Confirmation(
            baselines_of=self._baselines_of,
            measure_afresh=lambda cases, _number: {case.id: measure(case) for case in cases},
            nights=machine_nights,
        )
        for case in self.cases:
            first = measure(case)
            for name in _SPEEDS:
                confirmation.judge(METRICS[name], (first,))
            confirmation.confirm()
        confirmation.conclude()
        verdicts = confirmation.verdicts

        # Record the night.
        for case in self.cases:
            of_case = [verdict for verdict in verdicts if verdict.case_id == case.id]
            if self.nights.rerecorded:
                speeds = [dict(launch.values) for launch in launches[case.id]]
                while len(speeds) < _BASELINE_LAUNCHES:
                    speeds.append(dict(measure(case).values))
                self._baselines[case.id] = _baseline(tuple(speeds), f"{number:08}")
            # A night is named by its number, with eight digits, so that its name can be compared
            # with the date of a baseline.
            origin = RunOrigin(run=f"{number:08}", recorded=self.nights.rerecorded)
            record = run_record(
                origin, launches[case.id], of_case, _SETTINGS, self._baselines[case.id]
            )
            self._records[case.id].append(record)
        return verdicts

    def forget(self) -> None:
        """Delete the history, as cleaning the working folder does."""
        self._records = {case.id: [] for case in self.cases}

    def is_named(self, verdict: Verdict) -> bool:
        """Return whether a verdict reports the planted loss."""
        figure = (self.cases[0].id, _THROUGHPUT.name)
        return verdict.figure == figure and verdict.outcome is Outcome.REGRESSED

    def is_dated(self, verdict: Verdict, night: int) -> bool:
        """Return whether a verdict dates the loss within two nights.

        A verdict that one night proves has no date, so it says that the loss began on that night.
        """
        since = night
        if verdict.since.isdigit():
            since = int(verdict.since)
        nights_off = abs(since - self.nights.since)
        return nights_off <= _DATED_WITHIN_NIGHTS

    def _baselines_of(self, case: Case) -> CaseBaselines:
        return CaseBaselines(
            environment=_ENVIRONMENT, settings=_SETTINGS, exact=self._baselines[case.id]
        )

    def _speeds(self, factor: float) -> dict[str, float]:
        """Draw the speeds of a launch tonight.

        Args:
            factor: by what the usual throughput is multiplied. It doesn't change latencies.
        """
        speeds = {}
        for name, value in _SPEEDS.items():
            metric = METRICS[name]
            level = self._day + self._random.normal(0, self.nights.launch_frac)
            if metric is _THROUGHPUT:
                level += math.log(factor)
            speeds[name] = value * math.exp(metric.sign * level)
        return speeds


def _measurement(case: Case, speeds: Mapping[str, float]) -> Measurement:
    return Measurement(
        case=case, engine_version="simulated", target="", draft=None, replay=None, values=speeds
    )


def _baseline(
    launches: tuple[dict[str, float], ...],
    recorded_on: str = "0",
    acceptance: StoredAcceptance | None = None,
) -> Baseline:
    return Baseline(
        schema_version=SCHEMA_VERSION,
        case=_SETTINGS,
        environment=_ENVIRONMENT,
        provenance=msgspec.structs.replace(_PROVENANCE, recorded_on=recorded_on),
        acceptance=acceptance,
        launches=launches,
    )


class World:
    """A source of simulated acceptance, and of the baselines that it is compared with."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._logit_offsets: dict[str, Column] = {}

    def baselines_of(self, case: Case) -> CaseBaselines:
        """Draw a new baseline of a case. It has twice the case's prompts, for an extension."""
        logit_offsets = self._random.normal(0, PROMPT_SPREAD, 2 * case.request.prompts)
        self._logit_offsets[case.id] = logit_offsets
        acceptance = stored_acceptance(self._acceptance(logit_offsets, 0.0))
        return CaseBaselines(
            environment=_ENVIRONMENT, settings=_SETTINGS, exact=_baseline((), acceptance=acceptance)
        )

    def launch(self, case: Case, baselines: CaseBaselines, loss: AcceptanceLoss) -> Measurement:
        """Measure a launch of a case, until its prompts are enough to decide its acceptance."""
        record = self._acceptance(self._logit_offsets[case.id], shift_of(loss.loss_frac))
        is_enough = enough_for(
            case, _ACCEPTANCE_LENGTH, baselines, may_stop_early=True, cases=CASES
        )
        # If the case's own prompts don't decide it, the case is extended to all prompts drawn.
        look = Look.EXTENDED
        for part in range(1, PARTS + 1):
            part_look = Look.FULL if part == PARTS else Look.EARLY
            part_prompts = case.request.prompts * part // PARTS
            part_record = _record(record.prompts[:part_prompts])
            if is_enough(part_record, part_look):
                look = part_look
                record = part_record
                break
        return dataclasses.replace(measured_prompts(case, record), look=look)

    def judged(self, launch: Measurement, baselines: CaseBaselines) -> Verdict:
        """Return the verdict on a launch.

        If a loss has to be confirmed, the fresh launch gives the same answers as this one.
        """
        confirmation = Confirmation(
            baselines_of=lambda _: baselines,
            measure_afresh=lambda cases, _number: {case.id: launch for case in cases},
            nights=MachineNights(baselines={}, cases=CASES),
        )
        row = confirmation.judge(_ACCEPTANCE_LENGTH, (launch,))
        confirmation.confirm()
        confirmation.conclude()
        return confirmation.verdicts[row]

    def _acceptance(self, logit_offsets: Column, shift: float) -> AcceptanceRecord:
        """Draw the acceptance of prompts. Each draw is independent, as if no text repeated.

        Args:
            logit_offsets: by how much the logit of each prompt differs from the usual one.
            shift: by how much all logits differ, 0 or less for a loss.
        """
        columns = []
        # For each prompt, the number of steps that have accepted all drafts so far.
        alive = np.full(len(logit_offsets), STEPS)
        for rate in RATES:
            # A draft can only be accepted in a step that has accepted all drafts before it.
            alive = self._random.binomial(alive, accepted_frac(rate, logit_offsets, shift))
            columns.append(alive.tolist())
        prompts = []
        for number, position_counts in enumerate(zip(*columns, strict=True)):
            prompt = PromptAcceptance(
                prompt_id=f"prompt-{number}",
                category="",
                counts=_step_counts(position_counts, prompts=1),
                # The prefill's token, the target's token of each step, and the accepted drafts.
                completion_tokens=1 + STEPS + sum(position_counts),
            )
            prompts.append(prompt)
        return _record(prompts)


def _record(prompts: Sequence[PromptAcceptance]) -> AcceptanceRecord:
    counts_by_prompt = [prompt.counts.position_counts for prompt in prompts]
    totals = [sum(column) for column in zip(*counts_by_prompt, strict=True)]
    return AcceptanceRecord(
        source=Source.VLLM_REQUEST,
        view=View.VERIFIER,
        total=_step_counts(tuple(totals), prompts=len(prompts)),
        prompts=tuple(prompts),
    )


def _step_counts(positions: tuple[int, ...], *, prompts: int) -> StepCounts:
    steps = prompts * STEPS
    proposed = steps * len(RATES)
    return StepCounts(
        steps=steps, accepted=sum(positions), proposed=proposed, position_counts=positions
    )


def accepted_frac(rate: float, logit_offsets: Column, shift: float) -> Column:
    """Return the conditional acceptance of prompts at a draft position, 0..1.

    Args:
        rate: the usual conditional acceptance of the position.
        logit_offsets: by how much the logit of each prompt differs from the usual one.
        shift: by how much all logits differ.
    """
    usual_logit = math.log(rate / (1 - rate))
    logits = usual_logit + logit_offsets + shift
    odds_against = np.exp(-logits)
    return np.asarray(1 / (1 + odds_against))


@functools.cache
def shift_of(loss_frac: float) -> float:
    """Return by how much all logits must change for AL - 1 to fall by a share.

    Args:
        loss_frac: the share, 0..1.

    Returns:
        The change, 0 or less, found by bisection.
    """
    # Instead of random draws, take the middles of 2,000 equally likely parts of the distribution.
    levels = (np.arange(2000) + 0.5) / 2000
    distribution = NormalDist(0, PROMPT_SPREAD)
    logit_offsets = np.array([distribution.inv_cdf(level) for level in levels])

    def accepted(shift: float) -> float:
        """Return AL - 1, the sum of the marginal acceptance of all positions."""
        conditional = [accepted_frac(rate, logit_offsets, shift) for rate in RATES]
        total = 0.0
        for position in range(1, len(conditional) + 1):
            # A draft is accepted if all drafts up to it are.
            marginal = np.prod(conditional[:position], axis=0)
            total += np.mean(marginal)
        return float(total)

    low = -5.0
    high = 0.0
    # Each of the 50 steps halves the interval, so its ends differ by less than 1e-14 in the end.
    for _ in range(50):
        middle = (low + high) / 2
        left_frac = accepted(middle) / accepted(0.0)
        if left_frac > 1 - loss_frac:
            high = middle
        else:
            low = middle
    return high


def simulated_case(number: int, *, prompts: int = PROMPTS) -> Case:
    """Return one of the cases, which differ in their names only."""
    return Case(
        server=ServerSpec(
            engine="vllm",
            method="eagle3",
            models=str(number),
            target="simulated",
            draft="",
            padding_layers=0,
            draft_tokens=len(RATES),
            dtype="auto",
            max_model_len_tokens=1024,
            max_sequences=8,
            gpu_memory_frac=0.4,
        ),
        request=Request(dataset="simulated", prompts=prompts, output_cap_tokens=256),
        load=Load(concurrency=4),
    )


_ENVIRONMENT = Environment(kind="gpu", gpus=("simulated",), gpu_memory_gb=80)
_SETTINGS = settings_of(simulated_case(0), "simulated", ())
_PROVENANCE = Provenance(
    engine_version="simulated",
    draft_sha256="",
    specreg_version="simulated",
    commit="simulated",
    recorded_on="simulated",
    reason="simulated",
)
