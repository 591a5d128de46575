"""The self-test: simulated measurements through the real judging, and how often it errs, out.

Prompts are drawn as real drafters' look: three positions accepted with 0.73, 0.71 and 0.68 each
given the one before (AL 2.6), prompts that differ by 0.55 in logit, 98 steps each, and no text that
a run shares with its baseline, which is the worst case. Launches differ by 1 %.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType

import numpy as np

from specreg.acceptance.record import (
    AcceptanceRecord,
    PromptAcceptance,
    Source,
    StepCounts,
    View,
    Weighting,
)
from specreg.acceptance.table import Column
from specreg.arrivals import Load
from specreg.baseline import (
    SCHEMA_VERSION,
    Baseline,
    CaseSettings,
    LaunchesOnly,
    Provenance,
    stored_acceptance,
)
from specreg.comparison import Known, spreads_of
from specreg.docket import Docket
from specreg.identity import Environment
from specreg.matrix import Case, ServerSpec
from specreg.measurement import Measurement, all_prompts, values_of
from specreg.metrics import METRICS, Direction, Metric, Replay
from specreg.sequential import PARTS, Look
from specreg.stopping import enough_for
from specreg.verdict import Outcome, Verdict

_RATES = (0.73, 0.71, 0.68)
_PROMPT_SPREAD = 0.55
_STEPS = 98
_LAUNCH_SPREAD_FRAC = 0.01
_BASELINE_LAUNCHES = 3
_NIGHTS_PER_BASELINE = 10
_ONCE_IN_A_THOUSAND = 0.001

PROMPTS = 80
CASES = 72
"""Cases of a night."""
MOST_ALARMS_FRAC = 0.02
"""How many identical nights may raise an alarm."""

_SPEEDS = {"throughput_tokens_per_s": 1000.0, "ttft_p50_ms": 40.0, "tpot_p50_ms": 8.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A change that is planted in every case, and what must come of it.

    Attributes:
        acceptance_frac: by how much AL - 1 falls, 0..1; speed_frac: by how much throughput does.
        tolerances: of the case, by metric.
        metric: whose verdict counts.
        most_passed_frac, most_undecided_frac, most_regressed_frac, least_regressed_frac: shares of
            the verdicts.
        most_used_frac: prompts measured, as a share of the case's.
    """

    name: str
    acceptance_frac: float = 0.0
    speed_frac: float = 0.0
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
    Plant(name="AL - 1: -5 % (AL: -3 %)", acceptance_frac=0.05),
    Plant(name="AL - 1: -7.5 %", acceptance_frac=0.075, least_regressed_frac=0.95),
    Plant(name="AL - 1: -8.1 % (AL: -5 %)", acceptance_frac=0.081, least_regressed_frac=0.95),
    Plant(
        name="AL - 1: -15 %", acceptance_frac=0.15, least_regressed_frac=0.95, most_used_frac=0.5
    ),
    Plant(name="AL - 1: -16 % (AL: -10 %)", acceptance_frac=0.1625, least_regressed_frac=0.95),
    Plant(
        name="speed: -3 %, at a tolerance of 3 %",
        speed_frac=0.03,
        tolerances=((_SPEED, 0.03),),
        metric=_SPEED,
    ),
    Plant(name="speed: -5 %", speed_frac=0.05, metric=_SPEED),
    Plant(name="speed: -10 %", speed_frac=0.1, metric=_SPEED, least_regressed_frac=0.95),
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
    tail, most = 1.0, -1
    while tail > _ONCE_IN_A_THOUSAND and most < trials:
        most += 1
        tail -= math.comb(trials, most) * frac**most * (1 - frac) ** (trials - most)
    return most


def _shares(outcomes: Mapping[Outcome, int]) -> tuple[float, float, float]:
    """Of all verdicts, those that passed, that nobody could tell, and that regressed."""
    trials = sum(outcomes.values())
    passed = outcomes.get(Outcome.PASS, 0) + outcomes.get(Outcome.IMPROVED, 0)
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
        launch = world.launch(case, known, plant, asked=[METRICS[plant.metric]])
        used_frac += len(launch.acceptance.prompts if launch.acceptance else ()) / case.prompts
        metrics = [METRICS[plant.metric]]
        verdicts = _judged(world, [launch], {case.id: known}, plant, metrics, among=_NIGHT)
        outcomes.update(verdict.outcome for verdict in verdicts if verdict.case_id == case.id)
    return outcomes, used_frac / trials


def try_nights(nights: int, *, prompts: int, seed: int) -> tuple[int, int, int]:
    """How many identical nights raised an alarm; inconclusive verdicts, and all verdicts."""
    world = World(np.random.default_rng(seed))
    cases = [simulated_case(number, prompts=prompts) for number in range(CASES)]
    metrics = _metrics(cases[0])
    alarms = undecided = judged = 0
    knowns: Mapping[str, Known] = {}
    for night in range(nights):
        if night % _NIGHTS_PER_BASELINE == 0:
            knowns = {case.id: world.known_of(case) for case in cases}
        launches = [world.launch(case, knowns[case.id], PLANTS[0], asked=metrics) for case in cases]
        verdicts = _judged(world, launches, knowns, PLANTS[0], metrics)
        outcomes = [verdict.outcome for verdict in verdicts]
        alarms += Outcome.REGRESSED in outcomes
        undecided += outcomes.count(Outcome.INCONCLUSIVE)
        judged += len(outcomes)
    return alarms, undecided, judged


class World:
    """Draws measurements, and the baselines that they are compared with."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._hardness: dict[str, Column] = {}
        self._spreads = spreads_of(LaunchesOnly(launches=self._launches(1.0)) for _ in range(CASES))

    def known_of(self, case: Case) -> Known:
        """A fresh baseline of a case, of twice its prompts."""
        hardness = self._random.normal(0, _PROMPT_SPREAD, 2 * case.prompts)
        self._hardness[case.id] = hardness
        baseline = Baseline(
            schema_version=SCHEMA_VERSION,
            case=_SETTINGS,
            environment=_ENVIRONMENT,
            provenance=_PROVENANCE,
            acceptance=stored_acceptance(self._acceptance(hardness, 0.0)),
            launches=self._launches(1.0),
        )
        return Known(
            environment=_ENVIRONMENT, settings=_SETTINGS, exact=baseline, spreads=self._spreads
        )

    def launch(
        self, case: Case, known: Known, plant: Plant, *, asked: Sequence[Metric]
    ) -> Measurement:
        """One launch of a case, measured until it is enough for what is asked."""
        whole = self._acceptance(self._hardness[case.id], _shift_of(plant.acceptance_frac))
        metrics = [metric for metric in asked if not metric.by_launch]
        alone = len(metrics) == len(asked)
        enough = enough_for(case, metrics, known, may_stop_early=alone) if metrics else all_prompts
        look, taken = Look.EXTENDED, whole.prompts
        for part in range(1, PARTS + 1):
            now = Look.FULL if part == PARTS else Look.EARLY
            so_far = whole.prompts[: case.prompts * part // PARTS]
            if enough(_record(so_far), now):
                look, taken = now, so_far
                break
        replay = Replay(rounds=(), control_rounds=(), acceptance=_record(taken))
        measurement = Measurement(
            case=case,
            engine_version="",
            target="",
            draft=None,
            replay=replay,
            values=values_of(case, replay),
            look=look,
        )
        return self.again(measurement, plant)

    def again(self, first: Measurement, plant: Plant) -> Measurement:
        """A fresh launch: other speeds, and the same text, as greedy answers have."""
        speeds = self._launches(1 - plant.speed_frac, launches=1)[0]
        return dataclasses.replace(first, values=MappingProxyType({**first.values, **speeds}))

    def _acceptance(self, hardness: Column, shift: float) -> AcceptanceRecord:
        """What prompts of some hardness do, in logits; no two draws share a word."""
        columns = []
        alive = np.full(len(hardness), _STEPS)
        for rate in _RATES:
            alive = self._random.binomial(alive, _accepted(rate, hardness, shift))
            columns.append(alive.tolist())
        return _record(
            PromptAcceptance(
                prompt_id=f"prompt-{number}",
                category="",
                counts=StepCounts(
                    steps=_STEPS,
                    accepted=sum(positions),
                    proposed=_STEPS * len(_RATES),
                    position_counts=positions,
                ),
                completion_tokens=1 + _STEPS + sum(positions),
            )
            for number, positions in enumerate(zip(*columns, strict=True))
        )

    def _launches(
        self, speed: float, launches: int = _BASELINE_LAUNCHES
    ) -> tuple[dict[str, float], ...]:
        return tuple(
            {
                name: value
                * (speed if METRICS[name].direction is Direction.UP else 1 / speed)
                * math.exp(self._random.normal(0, _LAUNCH_SPREAD_FRAC))
                for name, value in _SPEEDS.items()
            }
            for _ in range(launches)
        )


def _judged(
    world: World,
    launches: Sequence[Measurement],
    knowns: Mapping[str, Known],
    plant: Plant,
    metrics: Sequence[Metric],
    *,
    among: Iterable[Verdict] = (),
) -> Sequence[Verdict]:
    """The verdicts on launches, after second looks at what needs them; among others."""
    firsts = {launch.case.id: launch for launch in launches}
    docket = Docket(
        known_of=lambda case: knowns[case.id],
        measure_afresh=lambda cases, _: {
            case.id: world.again(firsts[case.id], plant) for case in cases
        },
    )
    for verdict in among:
        docket.note(verdict)
    postponed = [
        (metric, launch)
        for launch in launches
        for metric in metrics
        if docket.judge(metric, (launch,)) is None
    ]
    for metric, launch in postponed:
        docket.judge(metric, (launch,))
    return docket.verdicts


def _record(prompts: Iterable[PromptAcceptance]) -> AcceptanceRecord:
    prompts = tuple(prompts)
    return AcceptanceRecord(
        source=Source.VLLM_REQUEST,
        view=View.VERIFIER,
        weighting=Weighting.STEP,
        total=_total(prompts),
        prompts=prompts,
    )


def _total(prompts: Sequence[PromptAcceptance]) -> StepCounts:
    columns = zip(*(prompt.counts.position_counts for prompt in prompts), strict=True)
    positions = tuple(sum(column) for column in columns)
    steps = len(prompts) * _STEPS
    return StepCounts(
        steps=steps,
        accepted=sum(positions),
        proposed=steps * len(_RATES),
        position_counts=positions,
    )


def _accepted(rate: float, hardness: Column, shift: float) -> Column:
    """The conditional acceptance of prompts, 0..1."""
    return np.asarray(1 / (1 + np.exp(-(math.log(rate / (1 - rate)) + hardness + shift))))


@functools.cache
def _shift_of(loss_frac: float) -> float:
    """How far all logits must fall for AL - 1 to fall by a share, 0 or less."""
    levels = (np.arange(2000) + 0.5) / 2000
    hardness = np.array([NormalDist(0, _PROMPT_SPREAD).inv_cdf(level) for level in levels])

    def accepted(shift: float) -> float:
        alive = [_accepted(rate, hardness, shift) for rate in _RATES]
        return float(sum(np.mean(np.prod(alive[:k], axis=0)) for k in range(1, len(alive) + 1)))

    low, high = -5.0, 0.0
    for _ in range(50):
        middle = (low + high) / 2
        if accepted(middle) / accepted(0.0) > 1 - loss_frac:
            high = middle
        else:
            low = middle
    return high


def _metrics(case: Case) -> tuple[Metric, ...]:
    return tuple(
        metric
        for metric in METRICS.values()
        if metric.applies_to(case) and (not metric.by_launch or metric.name in _SPEEDS)
    )


def simulated_case(
    number: int, *, prompts: int = PROMPTS, tolerances: tuple[tuple[str, float], ...] = ()
) -> Case:
    """One of the cases, which differ in nothing but their names."""
    server = dataclasses.replace(_CASE.server, models=str(number))
    return dataclasses.replace(_CASE, tolerances=tolerances, server=server, prompts=prompts)


_ENVIRONMENT = Environment(kind="gpu", gpus=("simulated",), gpu_memory_gb=80)
_PROVENANCE = Provenance(
    engine_version="",
    draft_sha256="",
    specreg_version="",
    commit="",
    recorded_on="",
    reason="simulated",
)
_CASE = Case(
    server=ServerSpec(
        engine="vllm",
        method="eagle3",
        models="0",
        target="",
        draft="",
        padding_layers=0,
        draft_tokens=len(_RATES),
        dtype="auto",
        max_model_len_tokens=1024,
        max_sequences=8,
        gpu_memory_frac=0.4,
    ),
    control=None,
    dataset="simulated",
    prompts=PROMPTS,
    load=Load(concurrency=4),
    rounds=4,
    output_cap_tokens=256,
    temperature=0.0,
)
_SETTINGS = CaseSettings(
    engine="vllm",
    method="eagle3",
    draft_tokens=len(_RATES),
    target_sha256="",
    target="",
    prompts_sha256="",
    output_cap_tokens=256,
    temperature=0.0,
    concurrency=4,
    rounds=4,
    dtype="auto",
    max_model_len_tokens=1024,
    max_sequences=8,
    engine_args=(),
    engine_env=(),
)
_NIGHT = tuple(
    Verdict(case_id=f"other-{number}", metric=metric.name, outcome=Outcome.PASS, p_worse=0.5)
    for number in range(CASES - 1)
    for metric in _metrics(_CASE)
)
"""The other figures of a night, among which a loss must stand out."""
