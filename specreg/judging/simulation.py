"""Simulate the nights of machines, judge them, and count how often the judge errs.

A night has a speed of its own, of which all cases share two thirds of the variance; a third is each
case's own, and all its speeds share it. Launches vary beyond that. A level is recorded from three
launches of one night. A night has one launch, and up to three more for what looks lost.
"""

import functools
import math
import multiprocessing
import os
import signal
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.pool import Pool

import numpy as np

from specreg.judging.fold import NIGHT_LEVEL, Night
from specreg.judging.nights import CPU, GPU, MachineNights, Prior
from specreg.judging.rules import NightFinding, finding_of
from specreg.judging.samples import Figure
from specreg.judging.spread import Bools, Floats

SPEEDS_PER_CASE = 5
"""How many speeds of a case are judged independently."""
TOLERANCE_FRAC = 0.05
_SHARED = 2 / 3
_RECORDED_LAUNCHES = 3
_FURTHER_LAUNCHES = 3
_T_FREEDOM = 3
FIRST_SEED = 500_000
"""The thresholds were chosen on other seeds."""
_RED = frozenset({NightFinding.LOST, NightFinding.ENGINE_LOST, NightFinding.MACHINE_SLOW})
_NAMED = frozenset({NightFinding.LOST, NightFinding.ENGINE_LOST})
_TITLE = 62
_SHARE = 40
"""The widths of the table's columns."""
_CHANCE_ERRORS = 3.0
"""How many standard errors a share may exceed its limit by chance."""
_MENDED_NIGHTS = 3
"""After so many nights a mended loss should be green again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A change of speed that is planted.

    Attributes:
        change_frac: the change; -0.1 is a loss of 10 %.
        cases: how many cases it concerns, from the first one; None for the whole machine, with all
            its speeds. Of a case only the first speed changes.
        first: its first night, from 1.
        last: its last night.
    """

    change_frac: float
    cases: int | None = 1
    first: int = 1
    last: int = 1000

    def is_on(self, night: int) -> bool:
        """Return whether it is there on a night."""
        return self.first <= night <= self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A machine, and what is planted on it.

    Attributes:
        name: a name for the table.
        launch_frac: the spread of launches, as a standard deviation of logarithms.
        night_frac: the spread of nights.
        shared_frac: the share of their variance that all cases share.
        heavy_tails: whether nights have Student's distribution with three degrees of freedom.
        wanders: the correlation of a night with the one before it.
        cases: how many cases the machine has, by engine.
        speeds: how many speeds each case has.
        nights: how many nights there are.
        skipped: how many first nights aren't counted.
        planted: what is planted.
        prior: the spreads that the judge assumes at first.
        level: the probability of a false loss per night that the judge allows.
    """

    name: str
    launch_frac: float = 0.02
    night_frac: float = 0.02
    shared_frac: float = _SHARED
    heavy_tails: bool = False
    wanders: float = 0.0
    cases: tuple[int, ...] = (24,)
    speeds: int = SPEEDS_PER_CASE
    nights: int = 20
    skipped: int = 0
    planted: tuple[Planted, ...] = ()
    prior: Prior = GPU
    level: float = NIGHT_LEVEL


@dataclass(slots=True)
class ScenarioCounts:
    """How the nights of a scenario were judged, over all series.

    Attributes:
        series: how many series there were.
        healthy_nights: the nights of each series that were counted.
        red_nights: those with a red figure that had lost nothing.
        found: for each lost case, on which night of its loss it was first named; 0 for never.
        lost_figures: the figures with a planted loss, over all nights of the loss.
        passed: those that were said to have kept their level.
        open_figures: those that had been named on an earlier night.
        closed: those of them that weren't red.
        mended_figures: the figures whose loss was mended some nights ago.
        still_red: those that were red all the same.
        figures: all figures without a loss.
    """

    series: int = 0
    healthy_nights: int = 0
    red_nights: int = 0
    found: list[int] = field(default_factory=list)
    lost_figures: int = 0
    passed: int = 0
    open_figures: int = 0
    closed: int = 0
    mended_figures: int = 0
    still_red: int = 0
    figures: int = 0

    def found_by(self, night: int) -> float:
        """Return the share of the lost cases that were named by a night of their loss, 0..1."""
        return share(sum(0 < found <= night for found in self.found), len(self.found))


def share(part: int, whole: int) -> float:
    """Return a share; 0 of nothing."""
    return part / whole if whole else 0.0


class SimulatedMachine:
    """Draws the nights of a machine."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario

        # Scenarios that drew the same numbers would share the same unlucky series.
        name = zlib.crc32(scenario.name.encode())
        self._random = np.random.default_rng([seed, name])
        self._wandered = float(self._draw(1)[0])
        self._count = sum(scenario.cases)
        engines = [
            f"engine {number}" for number, cases in enumerate(scenario.cases) for _ in range(cases)
        ]
        self.figures = [
            Figure(case=f"case {number}", engine=engine, metric=f"speed {speed}")
            for speed in range(scenario.speeds)
            for number, engine in enumerate(engines)
        ]

    def _draw(self, count: int) -> Floats:
        """Draw values with the mean 0 and the standard deviation 1."""
        if self.scenario.heavy_tails:
            values = self._random.standard_t(_T_FREEDOM, count)
            return np.asarray(values / math.sqrt(_T_FREEDOM))
        return self._random.standard_normal(count)

    def speeds(self, night: int) -> Floats:
        """Draw the speed of each figure on a night; 0 is the recording."""
        scenario = self.scenario
        old_share = scenario.wanders
        new_share = math.sqrt(1 - old_share**2)
        self._wandered = old_share * self._wandered + new_share * float(self._draw(1)[0])
        common = self._wandered * math.sqrt(scenario.shared_frac)
        own = self._draw(self._count) * math.sqrt(1 - scenario.shared_frac)
        speeds = np.tile(scenario.night_frac * (common + own), scenario.speeds)
        for planted in scenario.planted:
            if planted.is_on(night):
                rows = slice(None) if planted.cases is None else slice(planted.cases)
                speeds[rows] += math.log1p(planted.change_frac)

        return speeds

    def launch(self, speeds: Floats) -> Floats:
        """Draw a launch of all figures."""
        return speeds + self.scenario.launch_frac * self._random.standard_normal(len(speeds))

    def lost(self, night: int) -> Bools:
        """Return which figures have a planted loss on a night."""
        lost = np.zeros(len(self.figures), bool)
        for planted in self.scenario.planted:
            if planted.is_on(night) and planted.change_frac < 0:
                lost[slice(None) if planted.cases is None else slice(planted.cases)] = True
        return lost


def recorded(machine: SimulatedMachine) -> Night:
    """Record a level from several launches of one night."""
    speeds = machine.speeds(0)
    launches = np.array([machine.launch(speeds) for _ in range(_RECORDED_LAUNCHES)])
    count = np.full(len(speeds), float(_RECORDED_LAUNCHES))
    return Night(
        levels=launches.mean(axis=0),
        launches=count,
        planned_levels=launches.mean(axis=0),
        planned=count,
        launch_squares=((launches - launches.mean(axis=0)) ** 2).sum(axis=0),
        restarts=np.ones(len(speeds), bool),
        controls=np.full(len(speeds), np.nan),
        lowest=launches.min(axis=0),
        highest=launches.max(axis=0),
    )


def measured(machine: SimulatedMachine, nights: MachineNights, night: int) -> Night:
    """Measure a night, with further launches of the cases that look lost."""
    speeds = machine.speeds(night)
    first = machine.launch(speeds)
    sums = first
    squares = first**2
    lowest = first
    highest = first
    launches = np.ones(len(speeds))
    for further in range(_FURTHER_LAUNCHES + 1):
        so_far = Night(
            levels=sums / launches,
            launches=launches,
            planned_levels=first,
            planned=np.ones(len(speeds)),
            launch_squares=np.maximum(squares - sums**2 / launches, 0.0),
            restarts=np.zeros(len(speeds), bool),
            controls=np.full(len(speeds), np.nan),
            lowest=lowest,
            highest=highest,
        )
        by_speed = nights.looks_lost(so_far).reshape(machine.scenario.speeds, -1)
        again = np.tile(by_speed.any(axis=0), machine.scenario.speeds)
        if further == _FURTHER_LAUNCHES or not again.any():
            break
        values = np.where(again, machine.launch(speeds), 0.0)
        lowest = np.where(again, np.minimum(lowest, values), lowest)
        highest = np.where(again, np.maximum(highest, values), highest)
        sums = sums + values
        squares = squares + values**2
        launches = launches + again

    return so_far


def judged_nights(
    scenario: Scenario, seed: int
) -> Iterator[tuple[int, SimulatedMachine, MachineNights]]:
    """Simulate a series, and yield after each night its number, the machine and its nights."""
    machine = SimulatedMachine(scenario, seed)
    tolerances_frac = np.full(len(machine.figures), TOLERANCE_FRAC)
    nights = MachineNights(machine.figures, tolerances_frac, scenario.prior, level=scenario.level)
    nights.add(recorded(machine))
    for night in range(1, scenario.nights + 1):
        nights.add(measured(machine, nights, night))
        yield night, machine, nights


def simulate(scenario: Scenario, series: int, seed: int = FIRST_SEED) -> ScenarioCounts:
    """Judge several series of a scenario, and count.

    Args:
        series: how many series there are.
        seed: the seed of the first of them. Each one has the next seed.
    """
    counts = ScenarioCounts(series=series)
    for number in range(series):
        _count_series(counts, scenario, seed + number)
    return counts


def _count_series(counts: ScenarioCounts, scenario: Scenario, seed: int) -> None:
    found: dict[int, int] = {}
    lost_cases: set[int] = set()
    mended_on: dict[int, int] = {}
    nights_lost = 0
    for night, machine, nights in judged_nights(scenario, seed):
        if night <= scenario.skipped:
            continue
        evidence = nights.evidence()
        findings = [finding_of(row) for row in evidence]
        lost = machine.lost(night)
        nights_lost += bool(lost.any())
        is_machine = any(finding is NightFinding.MACHINE_SLOW for finding in findings)
        is_red = False
        for figure, finding in enumerate(findings):
            undecidable = finding is NightFinding.UNDECIDED and not evidence[figure].needed_nights
            if lost[figure]:
                lost_cases.add(figure)
                mended_on.pop(figure, None)
                counts.lost_figures += 1
                counts.passed += finding in {NightFinding.KEPT, NightFinding.GAINED}
                if finding in _RED:
                    found.setdefault(figure, nights_lost)
                if figure in found:
                    counts.open_figures += 1
                    counts.closed += finding not in _RED
                continue
            if figure in lost_cases:
                since = mended_on.setdefault(figure, night)
                if night >= since + _MENDED_NIGHTS:
                    counts.mended_figures += 1
                    counts.still_red += finding in _NAMED
                continue
            counts.figures += 1
            is_red = is_red or finding in _NAMED or undecidable
        counts.healthy_nights += 1
        is_planted = any(planted.cases is None for planted in scenario.planted)
        is_red = is_red or (is_machine and not is_planted)
        counts.red_nights += is_red

    counts.found += [found.get(figure, 0) for figure in sorted(lost_cases)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A share that has to be small, or large.

    Attributes:
        name: what it is a share of.
        of: returns it.
        most_frac: the largest share that is allowed; None for a share that has to be large.
        least_frac: the smallest share that is allowed.
    """

    name: str
    of: Callable[[ScenarioCounts], float]
    most_frac: float | None = None
    least_frac: float = 0.0

    def is_kept(self, counts: ScenarioCounts) -> bool:
        """Return whether the share is within the limit, or exceeds it by chance.

        The nights of a series aren't independent: an unlucky recording concerns all of them. So
        chance is that of as many draws as there are series.
        """
        value = self.of(counts)
        limit_frac = self.least_frac if self.most_frac is None else self.most_frac
        error = math.sqrt(limit_frac * (1 - limit_frac) / counts.series)
        if self.most_frac is None:
            return value >= limit_frac - _CHANCE_ERRORS * error
        return value <= limit_frac + _CHANCE_ERRORS * error

    @property
    def reach(self) -> str:
        """The limit as text."""
        if self.most_frac is None:
            return f">= {self.least_frac:.0%}"
        return f"<= {self.most_frac:.1%}"


def _red(most_frac: float = 0.03) -> Limit:
    return Limit(
        name="nights with a healthy figure red",
        of=lambda counts: share(counts.red_nights, counts.healthy_nights),
        most_frac=most_frac,
    )


def _found(night: int, least_frac: float) -> Limit:
    return Limit(
        name=f"found by night {night}",
        of=lambda counts: counts.found_by(night),
        least_frac=least_frac,
    )


PASSED = Limit(
    name="lost figures that pass",
    of=lambda counts: share(counts.passed, counts.lost_figures),
    most_frac=0.015,
)
CLOSED = Limit(
    name="found, and green again while it lasts",
    of=lambda counts: share(counts.closed, counts.open_figures),
    most_frac=0.02,
)
MENDED = Limit(
    name="red three nights after mending",
    of=lambda counts: share(counts.still_red, counts.mended_figures),
    most_frac=0.01,
)

LimitedScenario = tuple[Scenario, tuple[Limit, ...]]
IDENTICAL: Sequence[LimitedScenario] = tuple(
    (scenario, (_red(),))
    for scenario in (
        Scenario(
            name="launches 2.6 %, nights 3.2 %, 72 cases, after five nights",
            launch_frac=0.026,
            night_frac=0.032,
            cases=(72,),
            skipped=5,
        ),
        Scenario(name="launches 1 %, nights 2 %", launch_frac=0.01),
        Scenario(name="launches 2 %, nights 2 %"),
        Scenario(name="launches 2 %, nights 2 % of each case", shared_frac=0.0),
        Scenario(name="launches 5 %, nights 7 %", launch_frac=0.05, night_frac=0.07),
        Scenario(name="launches 2 %, nights 2 % with heavy tails", heavy_tails=True),
        Scenario(
            name="launches 1 %, nights 2 %, wandering", launch_frac=0.01, wanders=0.8, nights=30
        ),
        Scenario(name="launches 2 %, nights 3.2 %, wandering", night_frac=0.032, wanders=0.8),
        Scenario(name="two engines, launches 2 %, nights 2 %", cases=(10, 6)),
        Scenario(
            name="two engines, launches 2 %, nights 2 % of each case",
            cases=(10, 6),
            shared_frac=0.0,
        ),
        Scenario(
            name="two engines, launches 5 %, nights 7 %",
            launch_frac=0.05,
            night_frac=0.07,
            cases=(10, 6),
        ),
        Scenario(
            name="six cases, launches 5 %, nights 7 % of each case",
            launch_frac=0.05,
            night_frac=0.07,
            shared_frac=0.0,
            cases=(6,),
            speeds=1,
        ),
        Scenario(name="two cases, two speeds", cases=(2,), speeds=2, prior=CPU),
        Scenario(
            name="two cases, two speeds, launches 5 %, nights 7 %",
            launch_frac=0.05,
            night_frac=0.07,
            cases=(2,),
            speeds=2,
            prior=CPU,
        ),
    )
)
"""Nothing is planted."""
CHANGED: Sequence[LimitedScenario] = (
    (
        Scenario(
            name="10 of 16 cases, one engine of two, -10 % on nights 8 to 15",
            cases=(10, 6),
            planted=(Planted(change_frac=-0.1, cases=10, first=8, last=15),),
        ),
        (_found(3, 0.9), PASSED, CLOSED, MENDED, _red(0.01)),
    ),
    (
        Scenario(
            name="4 of 24 cases gain 15 %", planted=(Planted(change_frac=0.15, cases=4, first=8),)
        ),
        (_red(0.03),),
    ),
    (
        Scenario(
            name="all cases -10 %, same version",
            planted=(Planted(change_frac=-0.1, cases=None, first=8),),
        ),
        (PASSED,),
    ),
    (
        Scenario(
            name="all cases -10 %, same version, launches 5 %, nights 7 %",
            launch_frac=0.05,
            night_frac=0.07,
            planted=(Planted(change_frac=-0.1, cases=None, first=8),),
        ),
        (PASSED,),
    ),
    (
        Scenario(
            name="all cases -15 % from night 10 on",
            nights=30,
            planted=(Planted(change_frac=-0.15, cases=None, first=10),),
        ),
        (_found(6, 0.9), PASSED, CLOSED),
    ),
    (
        Scenario(
            name="all cases lose 2 % more each night",
            nights=24,
            planted=tuple(Planted(change_frac=-0.02, cases=None, first=n) for n in range(1, 25)),
        ),
        (_found(16, 0.9), CLOSED),
    ),
    (
        Scenario(
            name="one case -5 % from its first night on",
            nights=12,
            planted=(Planted(change_frac=-0.05),),
        ),
        (PASSED, CLOSED),
    ),
    (
        Scenario(
            name="one case -10 % from its first night on, launches 1 %",
            launch_frac=0.01,
            nights=10,
            planted=(Planted(change_frac=-0.1),),
        ),
        (_found(10, 0.9), PASSED, CLOSED),
    ),
    (
        Scenario(
            name="one of six on a CPU -15 % from its first night, launches 1 %",
            launch_frac=0.01,
            cases=(6,),
            speeds=1,
            nights=10,
            planted=(Planted(change_frac=-0.15),),
            prior=CPU,
        ),
        (_found(10, 0.9), PASSED, CLOSED),
    ),
    (
        Scenario(
            name="one case -5 % from night 11 on",
            nights=25,
            planted=(Planted(change_frac=-0.05, first=11),),
        ),
        (_found(10, 0.6), CLOSED),
    ),
    (
        Scenario(
            name="one case -5 % from night 11 on, nights of each case",
            shared_frac=0.0,
            nights=25,
            planted=(Planted(change_frac=-0.05, first=11),),
        ),
        (_found(10, 0.3), CLOSED),
    ),
    (
        Scenario(
            name="one case -10 % from night 11 on",
            nights=25,
            planted=(Planted(change_frac=-0.1, first=11),),
        ),
        (_found(5, 0.9), CLOSED),
    ),
    (
        Scenario(
            name="one case -30 % on its first night, launches 5 %, nights 7 %",
            launch_frac=0.05,
            night_frac=0.07,
            shared_frac=1.0,
            nights=1,
            planted=(Planted(change_frac=-0.3),),
        ),
        (_found(1, 0.9),),
    ),
    (
        Scenario(
            name="one night at -40 %, then -15 % for all",
            nights=14,
            planted=(
                Planted(change_frac=-0.4, cases=None, first=9, last=9),
                Planted(change_frac=-0.15, cases=None, first=10),
            ),
        ),
        (_found(3, 0.9), PASSED),
    ),
    (
        Scenario(
            name="all cases +10 % on nights 5 to 12, then back",
            planted=(Planted(change_frac=0.1, cases=None, first=5, last=12),),
        ),
        (_red(0.03),),
    ),
)
"""A change is planted."""
ROWS: Sequence[LimitedScenario] = (*IDENTICAL, *CHANGED)


def render_scenario(row: LimitedScenario, counts: ScenarioCounts) -> tuple[list[str], bool]:
    """Render how a scenario was judged, and return whether all of its limits are kept."""
    scenario, limits = row
    lines = []
    is_kept = True
    title = scenario.name
    for limit in limits:
        mark = ""
        if not limit.is_kept(counts):
            is_kept = False
            mark = "  !"
        shown = f"{limit.of(counts):.1%}"
        lines.append(f"{title:{_TITLE}}{limit.name:{_SHARE}}{shown:>8}{limit.reach:>10}{mark}")
        title = ""

    return lines, is_kept


def simulate_rows(
    series: int, rows: Sequence[LimitedScenario] = ROWS, seed: int = FIRST_SEED
) -> tuple[str, bool]:
    """Simulate all rows, in as many processes as there are CPUs.

    Args:
        series: how many series of each row are simulated.
        rows: the scenarios with their limits.
        seed: the seed of the first series.

    Returns:
        The table, and whether all limits are kept.
    """
    scenarios = [scenario for scenario, _ in rows]
    with new_pool() as pool:
        simulated = functools.partial(simulate, series=series, seed=seed)
        all_counts = pool.map(simulated, scenarios, chunksize=1)
    lines = [f"{'simulated nights':{_TITLE}}{'share of':{_SHARE}}{'is':>8}{'reach':>10}"]
    is_kept = True
    for row, counts in zip(rows, all_counts, strict=True):
        lines_of_row, row_is_kept = render_scenario(row, counts)
        lines += lines_of_row
        is_kept = is_kept and row_is_kept

    return "\n".join(lines), is_kept


FRONTIER_LEVELS = (0.1, 0.03, NIGHT_LEVEL, 0.001)
"""The levels of the frontier. Each is the probability of a false loss per night."""
_FRONTIER_LOSSES = (-0.05, -0.1)
_FIRST_LOST = 11
_NIGHTS_OF_MONTH = 30


def _frontier_scenario(level: float, shared_frac: float, change_frac: float) -> Scenario:
    return Scenario(
        # Equal names draw equal numbers, so that only the level differs.
        name=f"frontier {shared_frac:g} {change_frac:g}",
        shared_frac=shared_frac,
        nights=25,
        planted=(Planted(change_frac=change_frac, first=_FIRST_LOST),),
        level=level,
    )


def simulate_frontier(series: int, seed: int = FIRST_SEED) -> str:
    """Render what fewer false alarms cost: how much later a loss of one case is found.

    Launches and nights vary by 2 %, and 24 cases have five speeds each.

    Args:
        series: how many series of each point are simulated.
        seed: the seed of the first series.
    """
    points = [(level, shared_frac) for shared_frac in (_SHARED, 0.0) for level in FRONTIER_LEVELS]
    scenarios = [
        _frontier_scenario(*point, change_frac)
        for point in points
        for change_frac in _FRONTIER_LOSSES
    ]
    with new_pool() as pool:
        simulated = functools.partial(simulate, series=series, seed=seed)
        all_counts = iter(pool.map(simulated, scenarios, chunksize=1))
    losses = [f"{change_frac:.0%} of one case is found" for change_frac in _FRONTIER_LOSSES]
    lines = [f"{'cases share':13}{'level':>7}{'red nights a month':>20}  {'  '.join(losses)}"]
    for level, shared_frac in points:
        of_point = [next(all_counts) for _ in _FRONTIER_LOSSES]
        red = sum(counts.red_nights for counts in of_point)
        nights = sum(counts.healthy_nights for counts in of_point)
        found = [
            f"{_median_found(counts):>10}, {counts.found_by(10):>4.0%} by the 10th"
            for counts in of_point
        ]
        mark = "  chosen" if level == NIGHT_LEVEL else ""
        monthly = _NIGHTS_OF_MONTH * share(red, nights)
        lines.append(f"{shared_frac:<13.0%}{level:>7g}{monthly:>20.2f}  {'  '.join(found)}{mark}")

    return "\n".join(lines)


def _median_found(counts: ScenarioCounts) -> str:
    """Return the night on which half of the losses are found: `night 4`."""
    found = sorted(night or math.inf for night in counts.found)
    middle = found[len(found) // 2] if found else math.inf
    return "never" if middle == math.inf else f"night {middle:.0f}"


def new_pool() -> Pool:
    """Start a process for each CPU. They end with their pool, also after Ctrl-C."""
    # A fork may hang if the process has threads, and NumPy starts some.
    context = multiprocessing.get_context("spawn")
    processes = len(os.sched_getaffinity(0))
    # The processes leave Ctrl-C to the one that started them.
    ignore_ctrl_c = (signal.SIGINT, signal.SIG_IGN)
    return context.Pool(processes, initializer=signal.signal, initargs=ignore_ctrl_c)
