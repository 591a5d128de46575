"""Send simulated measurements through the real judging, and count how often it errs."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specreg.baselines.comparison import CaseBaselines
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric
from specreg.verdicts.confirmation import Confirmation
from specreg.verdicts.judge import GOOD, Outcome, Verdict
from specreg.verdicts.simulation import (
    NO_LOSS,
    PROMPTS,
    Loss,
    World,
    simulated_case,
    simulated_metrics,
)

_NIGHTS_PER_BASELINE = 10
_ONCE_IN_A_THOUSAND = 0.001

CASES = 72
"""Cases of a night."""
MOST_ALARMS_FRAC = 0.02
"""How many identical nights may raise an alarm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A change that is planted in every case, and what must come of it.

    Attributes:
        loss: of acceptance or speed.
        tolerances: of the case, by metric.
        metric: whose verdict counts.
        most_passed_frac, most_undecided_frac, most_regressed_frac, least_regressed_frac: shares of
            the verdicts.
        most_used_frac: prompts measured, as a share of the case's.
    """

    name: str
    loss: Loss = NO_LOSS
    tolerances: tuple[tuple[str, float], ...] = ()
    metric: str = "acceptance_length_tokens"
    most_passed_frac: float = 0.01
    most_undecided_frac: float = 1.0
    most_regressed_frac: float = 1.0
    least_regressed_frac: float = 0.0
    most_used_frac: float = 2.0


_SPEED = "throughput_tokens_per_s"

PLANTS = (
    Plant(
        name="nothing",
        most_passed_frac=1.0,
        most_undecided_frac=0.01,
        most_regressed_frac=0.001,
        most_used_frac=1.03,
    ),
    Plant(name="AL - 1: -5 % (AL: -3 %)", loss=Loss(acceptance_frac=0.05)),
    Plant(name="AL - 1: -7.5 %", loss=Loss(acceptance_frac=0.075), least_regressed_frac=0.95),
    Plant(
        name="AL - 1: -8.1 % (AL: -5 %)",
        loss=Loss(acceptance_frac=0.081),
        least_regressed_frac=0.95,
    ),
    Plant(
        name="AL - 1: -15 %",
        loss=Loss(acceptance_frac=0.15),
        least_regressed_frac=0.95,
        most_used_frac=0.5,
    ),
    Plant(
        name="AL - 1: -16 % (AL: -10 %)",
        loss=Loss(acceptance_frac=0.1625),
        least_regressed_frac=0.95,
    ),
    Plant(
        name="speed: -3 %, at a tolerance of 3 %",
        loss=Loss(speed_frac=0.03),
        tolerances=((_SPEED, 0.03),),
        metric=_SPEED,
    ),
    Plant(name="speed: -5 %", loss=Loss(speed_frac=0.05), metric=_SPEED),
    Plant(name="speed: -10 %", loss=Loss(speed_frac=0.1), metric=_SPEED, least_regressed_frac=0.95),
)
"""What must come of it, at a tolerance of 5 % unless it says otherwise."""


def run_selftest(nights: int, trials: int = 300) -> tuple[str, bool]:
    """Plants changes and simulates identical nights.

    Args:
        nights: identical nights of 72 cases of 80 prompts; a quarter as many of 20 prompts.
        trials: cases for each planted change.

    Returns:
        The table of what was caught, and whether the error rates are kept.
    """
    lines = [f"{'planted':36}{'PASS':>7}{'INCONCLUSIVE':>14}{'REGRESSED':>11}{'prompts':>9}"]
    kept = True
    for seed, plant in enumerate(PLANTS, start=1):
        outcomes, used_frac = try_plant(plant, trials, seed=seed)
        kept = kept and is_kept(plant, outcomes, used_frac)
        passed, undecided, regressed = _shares(outcomes)
        lines.append(
            f"{plant.name:36}{passed:>7.1%}{undecided:>14.1%}{regressed:>11.1%}{used_frac:>9.0%}"
        )
    lines.append("")
    for prompts, many in ((PROMPTS, nights), (20, math.ceil(nights / 4))):
        alarms, undecided, verdicts = try_nights(many, prompts=prompts, seed=0)
        kept = kept and alarms <= MOST_ALARMS_FRAC * many
        lines.append(
            f"{many} identical nights of {CASES} cases of {prompts} prompts: {alarms} raised an"
            f" alarm (at most {MOST_ALARMS_FRAC:.0%} may); {undecided / verdicts:.2%} of"
            f" {verdicts} verdicts were inconclusive"
        )
    lines.append("the error rates are kept" if kept else "THE ERROR RATES ARE NOT KEPT")
    return "\n".join(lines), kept


def is_kept(plant: Plant, outcomes: Mapping[Outcome, int], used_frac: float) -> bool:
    """Whether what came of a plant is what must, allowing for chance in so many trials."""
    trials = sum(outcomes.values())
    passed, undecided, regressed = (round(share * trials) for share in _shares(outcomes))
    chances = (
        (passed, plant.most_passed_frac),
        (undecided, plant.most_undecided_frac),
        (regressed, plant.most_regressed_frac),
        (trials - regressed, 1 - plant.least_regressed_frac),
        # Each that was extended took as many prompts more.
        (round((used_frac - 1) * trials), max(plant.most_used_frac - 1, 0.0)),
    )
    within = all(seen <= most_by_chance(trials, frac) for seen, frac in chances)
    return within and (plant.most_used_frac > 1 or used_frac <= plant.most_used_frac)


def most_by_chance(trials: int, frac: float) -> int:
    """How many of some trials chance takes, but once in a thousand times, at a rate of `frac`."""
    if frac in {0.0, 1.0}:
        return round(frac * trials)
    tail, most = 1.0, -1
    while tail > _ONCE_IN_A_THOUSAND and most < trials:
        most += 1
        # By logarithms: the ways to choose so many of thousands are beyond a float.
        ways = math.lgamma(trials + 1) - math.lgamma(most + 1) - math.lgamma(trials - most + 1)
        chance = most * math.log(frac) + (trials - most) * math.log1p(-frac)
        tail -= math.exp(ways + chance)
    return most


def _shares(outcomes: Mapping[Outcome, int]) -> tuple[float, float, float]:
    """Of all verdicts, those that passed, that were inconclusive, and that regressed."""
    trials = sum(outcomes.values())
    passed = sum(outcomes.get(outcome, 0) for outcome in GOOD)
    told = (passed, outcomes.get(Outcome.INCONCLUSIVE, 0), outcomes.get(Outcome.REGRESSED, 0))
    return told[0] / trials, told[1] / trials, told[2] / trials


def try_plant(plant: Plant, trials: int, *, seed: int) -> tuple[Counter[Outcome], float]:
    """The outcomes of a planted change, and the mean share of a case's prompts that they took."""
    world = World(np.random.default_rng(seed))
    outcomes: Counter[Outcome] = Counter()
    used_frac = 0.0
    for number in range(trials):
        case = simulated_case(number, tolerances=plant.tolerances)
        known = world.known_of(case)
        launch = world.launch(case, known, plant.loss, asked=[METRICS[plant.metric]])
        used_frac += len(launch.acceptance.prompts if launch.acceptance else ()) / case.prompts
        metrics = [METRICS[plant.metric]]
        verdicts = _judged(world, [launch], {case.id: known}, plant.loss, metrics, among=_NIGHT)
        outcomes.update(verdict.outcome for verdict in verdicts if verdict.case_id == case.id)
    return outcomes, used_frac / trials


def try_nights(nights: int, *, prompts: int, seed: int) -> tuple[int, int, int]:
    """How many identical nights raised an alarm; inconclusive verdicts, and all verdicts."""
    world = World(np.random.default_rng(seed))
    cases = [simulated_case(number, prompts=prompts) for number in range(CASES)]
    metrics = simulated_metrics(cases[0])
    alarms = undecided = judged = 0
    knowns: Mapping[str, CaseBaselines] = {}
    for night in range(nights):
        if night % _NIGHTS_PER_BASELINE == 0:
            knowns = {case.id: world.known_of(case) for case in cases}
        launches = [world.launch(case, knowns[case.id], NO_LOSS, asked=metrics) for case in cases]
        verdicts = _judged(world, launches, knowns, NO_LOSS, metrics)
        outcomes = [verdict.outcome for verdict in verdicts]
        alarms += Outcome.REGRESSED in outcomes
        undecided += outcomes.count(Outcome.INCONCLUSIVE)
        judged += len(outcomes)
    return alarms, undecided, judged


def _judged(
    world: World,
    launches: Sequence[Measurement],
    knowns: Mapping[str, CaseBaselines],
    loss: Loss,
    metrics: Sequence[Metric],
    *,
    among: Iterable[Verdict] = (),
) -> Sequence[Verdict]:
    """The verdicts on launches, after second looks at what needs them; among others."""
    firsts = {launch.case.id: launch for launch in launches}
    confirmation = Confirmation(
        known_of=lambda case: knowns[case.id],
        measure_afresh=lambda cases, _: {
            case.id: world.again(firsts[case.id], loss) for case in cases
        },
    )
    for verdict in among:
        confirmation.add(verdict)
    for launch in launches:
        for metric in metrics:
            confirmation.judge(metric, (launch,))
    confirmation.confirm()
    confirmation.conclude()
    return confirmation.verdicts


_NIGHT = tuple(
    Verdict(case_id=f"other-{number}", metric=metric.name, outcome=Outcome.PASS, p_worse=0.5)
    for number in range(CASES - 1)
    for metric in simulated_metrics(simulated_case(0))
)
"""The other figures of a night, among which a loss must stand out."""
