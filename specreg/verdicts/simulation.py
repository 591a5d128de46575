"""Draw measurements at random that look like those of real drafters and launches.

Three positions are accepted with 0.73, 0.71 and 0.68 each given the one before (AL 2.6), prompts
differ by 0.55 in logit and have 98 steps each, and a run shares no text with its baseline, which is
the worst case. Launches differ by 1 %.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
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
from specreg.baselines.comparison import CaseBaselines, spreads_of
from specreg.baselines.schema import (
    SCHEMA_VERSION,
    Baseline,
    Provenance,
    StoredAcceptance,
    stored_acceptance,
)
from specreg.matrix.case import Case, ServerSpec
from specreg.matrix.schema import CaseSettings, Load
from specreg.measurement.measure import Measurement, all_prompts, values_of
from specreg.measurement.metrics import METRICS, Direction, Metric, Replay
from specreg.stats.alpha_spending import PARTS, Look
from specreg.telemetry.identity import Environment
from specreg.verdicts.confirmation import enough_for

RATES = (0.73, 0.71, 0.68)
PROMPT_SPREAD = 0.55
STEPS = 98
LAUNCH_SPREAD_FRAC = 0.01
_BASELINE_LAUNCHES = 3

_NEIGHBOURS = 72
"""Cases of the machine, whose launches tell its spread."""

PROMPTS = 80
_SPEEDS = {"throughput_tokens_per_s": 1000.0, "ttft_p50_ms": 40.0, "tpot_p50_ms": 8.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """By how much AL - 1 falls, and by how much throughput does, 0..1."""

    acceptance_frac: float = 0.0
    speed_frac: float = 0.0


NO_LOSS = Loss()


class World:
    """Draws measurements, and the baselines that they are compared with."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._hardness: dict[str, Column] = {}
        self._spreads = spreads_of(self._baseline() for _ in range(_NEIGHBOURS))

    def known_of(self, case: Case) -> CaseBaselines:
        """A fresh baseline of a case, of twice its prompts."""
        hardness = self._random.normal(0, PROMPT_SPREAD, 2 * case.prompts)
        self._hardness[case.id] = hardness
        baseline = self._baseline(stored_acceptance(self._acceptance(hardness, 0.0)))
        return CaseBaselines(
            environment=_ENVIRONMENT, settings=_SETTINGS, exact=baseline, spreads=self._spreads
        )

    def _baseline(self, acceptance: StoredAcceptance | None = None) -> Baseline:
        """One of launches that are drawn."""
        return Baseline(
            schema_version=SCHEMA_VERSION,
            case=_SETTINGS,
            environment=_ENVIRONMENT,
            provenance=_PROVENANCE,
            acceptance=acceptance,
            launches=self._launches(1.0),
        )

    def launch(
        self, case: Case, known: CaseBaselines, loss: Loss, *, asked: Sequence[Metric]
    ) -> Measurement:
        """One launch of a case, measured until it is enough for what is asked."""
        whole = self._acceptance(self._hardness[case.id], shift_of(loss.acceptance_frac))
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
        return self.again(measurement, loss)

    def again(self, first: Measurement, loss: Loss) -> Measurement:
        """A fresh launch: other speeds, and the same text, as greedy answers have."""
        speeds = self._launches(1 - loss.speed_frac, launches=1)[0]
        return dataclasses.replace(first, values=MappingProxyType({**first.values, **speeds}))

    def _acceptance(self, hardness: Column, shift: float) -> AcceptanceRecord:
        """What prompts of some hardness do, in logits; no two draws share a word."""
        columns = []
        alive = np.full(len(hardness), STEPS)
        for rate in RATES:
            alive = self._random.binomial(alive, accepted_frac(rate, hardness, shift))
            columns.append(alive.tolist())
        return _record(
            PromptAcceptance(
                prompt_id=f"prompt-{number}",
                category="",
                counts=StepCounts(
                    steps=STEPS,
                    accepted=sum(positions),
                    proposed=STEPS * len(RATES),
                    position_counts=positions,
                ),
                completion_tokens=1 + STEPS + sum(positions),
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
                * math.exp(self._random.normal(0, LAUNCH_SPREAD_FRAC))
                for name, value in _SPEEDS.items()
            }
            for _ in range(launches)
        )


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
    steps = len(prompts) * STEPS
    return StepCounts(
        steps=steps,
        accepted=sum(positions),
        proposed=steps * len(RATES),
        position_counts=positions,
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
        if accepted(middle) / accepted(0.0) > 1 - loss_frac:
            high = middle
        else:
            low = middle
    return high


def simulated_metrics(case: Case) -> tuple[Metric, ...]:
    """What a simulated case can be judged by."""
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
        draft_tokens=len(RATES),
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
    draft_tokens=len(RATES),
    target_sha256="",
    target="",
    prompts_sha256="",
    output_cap_tokens=256,
    temperature=0.0,
    concurrency=4,
    dtype="auto",
    max_model_len_tokens=1024,
    max_sequences=8,
    engine_args=(),
    engine_env=(),
)
