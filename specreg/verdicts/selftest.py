"""Send simulated measurements through the real judging, and count how often it errs.

They look like those of real drafters: three positions are accepted with 0.73, 0.71 and 0.68 each
given the one before (AL 2.6), prompts differ by 0.55 in logit and have 98 steps each, and a run
shares no text with its baseline, which is the worst case. Launches differ by 1 %.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import msgspec
import numpy as np

from specreg.acceptance.record import AcceptanceRecord, PromptAcceptance, Source, StepCounts, View
from specreg.baselines.comparison import CaseBaselines, spreads_of
from specreg.baselines.schema import (
    SCHEMA_VERSION,
    Baseline,
    Provenance,
    StoredAcceptance,
    stored_acceptance,
)
from specreg.baselines.store import settings_of
from specreg.matrix.case import Case, Load, ServerSpec
from specreg.measurement.measure import Measurement, has_all_prompts
from specreg.measurement.metrics import METRICS, Metric
from specreg.stats.intervals import PARTS, Column, Look
from specreg.telemetry.identity import Environment
from specreg.verdicts.confirmation import Confirmation, enough_for, measured_prompts
from specreg.verdicts.detection import detects_against
from specreg.verdicts.verdict import GOOD, Comparison, Outcome, Verdict

RATES = (0.73, 0.71, 0.68)
PROMPTS = 80
PROMPT_SPREAD = 0.55
STEPS = 98
LAUNCH_SPREAD_FRAC = 0.01
_CASES = 72
"""How many cases a night has, and the machine whose launches give the spread."""
_MOST_ALARMS_FRAC = 0.02
"""How many identical nights may raise an alarm."""
_NIGHTS_PER_BASELINE = 10
_ONCE_IN_A_THOUSAND = 0.001
_THROUGHPUT = METRICS["throughput_tokens_per_s"]
_SPEEDS = {_THROUGHPUT.name: 1000.0, "ttft_p50_ms": 40.0, "tpot_p50_ms": 8.0}


@dataclass(frozen=True, slots=True)
class Plant:
    """A change that is planted in every case, and what must come of it.

    Attributes:
        acceptance_frac, speed_frac: by how much AL - 1 and throughput fall, 0..1.
        metric: whose verdict counts; tolerance_frac: what it may lose, None for its own 5 %.
        most_used_frac: prompts measured, as a share of the case's; the others are shares of the
            verdicts.
    """

    name: str
    acceptance_frac: float = 0.0
    speed_frac: float = 0.0
    metric: Metric = METRICS["acceptance_length_tokens"]
    tolerance_frac: float | None = None
    most_passed_frac: float = 0.01
    most_undecided_frac: float = 1.0
    most_regressed_frac: float = 1.0
    least_regressed_frac: float = 0.0
    most_used_frac: float = 2.0


NOTHING = Plant(
    "nothing",
    most_passed_frac=1.0,
    most_undecided_frac=0.01,
    most_regressed_frac=0.001,
    most_used_frac=1.03,
)
PLANTS = (
    NOTHING,
    Plant("AL - 1: -5 % (AL: -3 %)", acceptance_frac=0.05),
    Plant("AL - 1: -7.5 %", acceptance_frac=0.075, least_regressed_frac=0.95),
    Plant("AL: -5 % (AL - 1: -8.1 %)", acceptance_frac=0.081, least_regressed_frac=0.95),
    Plant("AL - 1: -15 %", acceptance_frac=0.15, least_regressed_frac=0.95, most_used_frac=0.5),
    Plant("speed: -3 %, tolerated 3 %", speed_frac=0.03, metric=_THROUGHPUT, tolerance_frac=0.03),
    Plant("speed: -5 %", speed_frac=0.05, metric=_THROUGHPUT),
    Plant("speed: -10 %", speed_frac=0.1, metric=_THROUGHPUT, least_regressed_frac=0.95),
)
"""No more than 1 % may pass with a loss as large as tolerated, or larger."""


def run_selftest(nights: int, trials: int = 300) -> tuple[str, bool]:
    """The table of what is caught of planted changes, and whether the error rates are kept.

    Args:
        nights: identical nights of 72 cases of 80 prompts; a quarter as many of 20 prompts.
        trials: cases for each planted change.
    """
    lines = [f"{'planted':36}{'PASS':>7}{'undecided':>14}{'REGRESSED':>11}{'prompts':>9}"]
    kept = True
    for seed, plant in enumerate(PLANTS, start=1):
        outcomes, used_frac = try_plant(plant, trials, World(seed))
        kept = kept and is_kept(plant, outcomes, used_frac)
        passed, undecided, regressed = (count / trials for count in _counts(outcomes))
        lines.append(
            f"{plant.name:36}{passed:>7.1%}{undecided:>14.1%}{regressed:>11.1%}{used_frac:>9.0%}"
        )
    lines.append("")
    for prompts, many in ((PROMPTS, nights), (20, math.ceil(nights / 4))):
        alarms, verdicts = try_nights(many, prompts=prompts, seed=0)
        kept = kept and alarms <= _MOST_ALARMS_FRAC * many
        undecided_frac = _counts(verdicts)[1] / verdicts.total()
        lines.append(
            f"{many} identical nights of {_CASES} cases of {prompts} prompts: {alarms} raised an"
            f" alarm (at most {_MOST_ALARMS_FRAC:.0%} may); {undecided_frac:.2%} of"
            f" {verdicts.total()} verdicts were undecided"
        )
    lines.append("the error rates are kept" if kept else "THE ERROR RATES ARE NOT KEPT")
    return "\n".join(lines), kept


def is_kept(plant: Plant, outcomes: Mapping[Outcome, int], used_frac: float) -> bool:
    """Whether the outcomes of a plant are within its limits, allowing for chance."""
    trials = sum(outcomes.values())
    passed, undecided, regressed = _counts(outcomes)
    chances = (
        (passed, plant.most_passed_frac),
        (undecided, plant.most_undecided_frac),
        (regressed, plant.most_regressed_frac),
        (trials - regressed, 1 - plant.least_regressed_frac),
        # An extended case took as many prompts again.
        (round((used_frac - 1) * trials), max(plant.most_used_frac - 1, 0.0)),
    )
    within = all(seen <= most_by_chance(trials, frac) for seen, frac in chances)
    return within and (plant.most_used_frac > 1 or used_frac <= plant.most_used_frac)


def most_by_chance(trials: int, frac: float) -> int:
    """How many of some trials chance exceeds once in a thousand times, at a rate of `frac`."""
    below = 0.0
    for hits in range(trials):
        below += math.comb(trials, hits) * frac**hits * (1 - frac) ** (trials - hits)
        if below >= 1 - _ONCE_IN_A_THOUSAND:
            return hits
    return trials


def _counts(outcomes: Mapping[Outcome, int]) -> tuple[int, int, int]:
    """How many passed, were inconclusive, and regressed."""
    passed = sum(outcomes.get(one, 0) for one in GOOD)
    undecided = sum(outcomes.get(one, 0) for one in (Outcome.INCONCLUSIVE, Outcome.UNDECIDABLE))
    return passed, undecided, outcomes.get(Outcome.REGRESSED, 0)


def try_plant(plant: Plant, trials: int, world: "World") -> tuple[Counter[Outcome], float]:
    """The outcomes of a planted change, and the mean share of a case's prompts that they took.

    Each is judged among the other figures of a night, among which it must stand out.
    """
    outcomes, used_frac = Counter[Outcome](), 0.0
    night = [
        Verdict(
            case_id=f"other-{number}",
            metric=metric.name,
            outcome=Outcome.PASS,
            comparison=Comparison(p_worse=0.5),
        )
        for number in range(world.cases - 1)
        for metric in _metrics_of(simulated_case(0))
    ]
    for number in range(trials):
        case = simulated_case(number)
        if plant.tolerance_frac is not None:
            allowed = (plant.metric.name, plant.tolerance_frac)
            case = dataclasses.replace(case, tolerances=(allowed,))
        knowns = {case.id: world.known_of(case)}
        launch = world.launch(case, knowns[case.id], plant, asked=[plant.metric])
        used_frac += len(launch.acceptance.prompts if launch.acceptance else ()) / case.prompts
        *_, verdict = world.judged([launch], knowns, plant, [plant.metric], night)
        outcomes[verdict.outcome] += 1
    return outcomes, used_frac / trials


def try_nights(nights: int, *, prompts: int, seed: int) -> tuple[int, Counter[Outcome]]:
    """How many identical nights raised an alarm, and the outcomes of all verdicts."""
    world = World(seed)
    cases = [simulated_case(number, prompts=prompts) for number in range(_CASES)]
    metrics = _metrics_of(cases[0])
    alarms, outcomes = 0, Counter[Outcome]()
    knowns: Mapping[str, CaseBaselines] = {}
    for night in range(nights):
        if night % _NIGHTS_PER_BASELINE == 0:
            knowns = {case.id: world.known_of(case) for case in cases}
        launches = [world.launch(case, knowns[case.id], NOTHING, asked=metrics) for case in cases]
        found = Counter(one.outcome for one in world.judged(launches, knowns, NOTHING, metrics))
        alarms += Outcome.REGRESSED in found
        outcomes += found
    return alarms, outcomes


class World:
    """Draws measurements on a machine, and the baselines that they are compared with.

    Launches differ by `launch_spread_frac`, a standard deviation of logarithms, which is told by
    those of so many `cases` as a night has; `launches` is how many each baseline has.
    """

    def __init__(
        self,
        seed: int,
        *,
        launch_spread_frac: float = LAUNCH_SPREAD_FRAC,
        launches: int = 3,
        cases: int = _CASES,
    ) -> None:
        self.cases = cases
        self._random = np.random.default_rng(seed)
        self._launch_spread_frac, self._launches = launch_spread_frac, launches
        self._hardness: dict[str, Column] = {}
        self._spreads = spreads_of(self._baseline() for _ in range(cases))

    def known_of(self, case: Case) -> CaseBaselines:
        """A fresh baseline of a case, of twice its prompts."""
        hardness = self._random.normal(0, PROMPT_SPREAD, 2 * case.prompts)
        self._hardness[case.id] = hardness
        baseline = self._baseline(stored_acceptance(self._acceptance(hardness, 0.0)))
        detects = detects_against(baseline, case, self._spreads)
        baseline = msgspec.structs.replace(baseline, detects=detects)
        return CaseBaselines(
            environment=_ENVIRONMENT, settings=_SETTINGS, exact=baseline, spreads=self._spreads
        )

    def _baseline(self, acceptance: StoredAcceptance | None = None) -> Baseline:
        return Baseline(
            schema_version=SCHEMA_VERSION,
            case=_SETTINGS,
            environment=_ENVIRONMENT,
            provenance=_PROVENANCE,
            acceptance=acceptance,
            launches=tuple(self._speeds(1.0) for _ in range(self._launches)),
        )

    def launch(
        self, case: Case, known: CaseBaselines, plant: Plant, *, asked: Sequence[Metric]
    ) -> Measurement:
        """One launch of a case, measured until it is enough for what is asked."""
        record = self._acceptance(self._hardness[case.id], shift_of(plant.acceptance_frac))
        metrics = [metric for metric in asked if not metric.by_launch]
        alone = len(metrics) == len(asked)
        enough = (
            enough_for(case, metrics, known, may_stop_early=alone) if metrics else has_all_prompts
        )
        look = Look.EXTENDED
        for part in range(1, PARTS + 1):
            now = Look.FULL if part == PARTS else Look.EARLY
            so_far = _record(record.prompts[: case.prompts * part // PARTS])
            if enough(so_far, now):
                look, record = now, so_far
                break
        measurement = dataclasses.replace(measured_prompts(case, record), look=look)
        return self.again(measurement, plant)

    def again(self, first: Measurement, plant: Plant) -> Measurement:
        """A fresh launch: other speeds, and the same text, as greedy answers have."""
        speeds = self._speeds(1 - plant.speed_frac)
        return dataclasses.replace(first, values={**first.values, **speeds})

    def judged(
        self,
        launches: Sequence[Measurement],
        knowns: Mapping[str, CaseBaselines],
        plant: Plant,
        metrics: Sequence[Metric],
        among: Sequence[Verdict] = (),
    ) -> Sequence[Verdict]:
        """Other verdicts, and those on launches after second looks at what needs them."""
        firsts = {launch.case.id: launch for launch in launches}
        confirmation = Confirmation(
            known_of=lambda case: knowns[case.id],
            measure_afresh=lambda cases, _: {
                case.id: self.again(firsts[case.id], plant) for case in cases
            },
            verdicts=list(among),
        )
        for launch in launches:
            for metric in metrics:
                confirmation.judge(metric, (launch,))
        confirmation.confirm()
        confirmation.conclude()
        return confirmation.verdicts

    def _acceptance(self, hardness: Column, shift: float) -> AcceptanceRecord:
        """Draw what prompts of some hardness (in logits) do; no two draws share a word."""
        columns = []
        alive = np.full(len(hardness), STEPS)
        for rate in RATES:
            alive = self._random.binomial(alive, accepted_frac(rate, hardness, shift))
            columns.append(alive.tolist())
        prompts = [
            PromptAcceptance(
                prompt_id=f"prompt-{number}",
                category="",
                counts=_step_counts(row, prompts=1),
                completion_tokens=1 + STEPS + sum(row),
            )
            for number, row in enumerate(zip(*columns, strict=True))
        ]
        return _record(prompts)

    def _speeds(self, speed: float) -> dict[str, float]:
        """The speeds of a launch that is so many times as fast as usual."""
        return {
            name: value
            * (speed if METRICS[name].sign > 0 else 1 / speed)
            * math.exp(self._random.normal(0, self._launch_spread_frac))
            for name, value in _SPEEDS.items()
        }


def _record(prompts: Sequence[PromptAcceptance]) -> AcceptanceRecord:
    columns = zip(*(prompt.counts.position_counts for prompt in prompts), strict=True)
    return AcceptanceRecord(
        source=Source.VLLM_REQUEST,
        view=View.VERIFIER,
        total=_step_counts(tuple(map(sum, columns)), prompts=len(prompts)),
        prompts=tuple(prompts),
    )


def _step_counts(positions: tuple[int, ...], *, prompts: int) -> StepCounts:
    steps = prompts * STEPS
    return StepCounts(
        steps=steps, accepted=sum(positions), proposed=steps * len(RATES), position_counts=positions
    )


def accepted_frac(rate: float, hardness: Column, shift: float) -> Column:
    """The conditional acceptance of prompts, 0..1."""
    return np.asarray(1 / (1 + np.exp(-(math.log(rate / (1 - rate)) + hardness + shift))))


@functools.cache
def shift_of(loss_frac: float) -> float:
    """How far all logits must fall for AL - 1 to fall by a share, 0 or less."""
    levels = (np.arange(2000) + 0.5) / 2000
    hardness = np.array([NormalDist(0, PROMPT_SPREAD).inv_cdf(level) for level in levels])

    def accepted(shift: float) -> float:
        alive = [accepted_frac(rate, hardness, shift) for rate in RATES]
        return float(sum(np.mean(np.prod(alive[:k], axis=0)) for k in range(1, len(alive) + 1)))

    low, high = -5.0, 0.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = accepted(middle) / accepted(0.0) > 1 - loss_frac
        low, high = (low, middle) if enough else (middle, high)
    return high


def _metrics_of(case: Case) -> tuple[Metric, ...]:
    """What a simulated case can be judged by."""
    found = (metric for metric in METRICS.values() if metric.is_judged(case))
    return tuple(metric for metric in found if not metric.by_launch or metric.name in _SPEEDS)


def simulated_case(number: int, *, prompts: int = PROMPTS) -> Case:
    """One of the cases, which differ in nothing but their names."""
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
        control=None,
        dataset="simulated",
        prompts=prompts,
        load=Load(concurrency=4),
        output_cap_tokens=256,
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
