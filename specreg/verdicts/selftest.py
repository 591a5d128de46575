"""Simulate drafters, judge them with the real code, and count how often the verdicts are wrong.

Simulated drafters accept about as many drafts as real ones. Three draft positions have a
conditional acceptance of 0.73, 0.71 and 0.68 (AL 2.6), prompts vary with a standard deviation of
0.55 in their logits, and the answer to each prompt has 98 steps, or 27 as those recorded on an H200
had. A run has no text in common with its baseline, which is the worst case. A night has 72 cases.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from specreg.acceptance.record import AcceptanceRecord, PromptAcceptance, Source, StepCounts, View
from specreg.baselines.comparison import CaseBaselines
from specreg.baselines.schema import (
    BASELINE_SCHEMA_VERSION,
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
from specreg.verdicts.references import References
from specreg.verdicts.run_verdicts import acceptance_on_launch, confirmed
from specreg.verdicts.stopping import enough_for, measured_prompts
from specreg.verdicts.verdict import GOOD, Outcome, Verdict

RATES = (0.73, 0.71, 0.68)
"""The conditional acceptance of each draft position."""
PROMPTS = 80
"""How many prompts a case has."""
PROMPT_SPREAD = 0.55
"""The standard deviation of the prompts' logits."""
STEPS = 98
"""How many steps a long answer to a prompt has."""
SHORT_STEPS = 27
"""How many steps the answers in `baselines/h200-141gb-x1` have on average."""
CASES = 72
"""How many cases a night has."""
_ONCE_IN_A_THOUSAND = 0.001
_ACCEPTANCE_LENGTH = METRICS["acceptance_length_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceLoss:
    """A loss of acceptance that is planted in a case, and the limits for the verdicts on it.

    Attributes:
        name: what is planted.
        loss_frac: by how much AL - 1 falls, 0..1.
        steps: how many steps the answer to a prompt has.
        most_passed_frac: the largest share of the verdicts that may pass.
        most_undecided_frac: the largest share of the verdicts that may be INCONCLUSIVE.
        most_regressed_frac: the largest share of the verdicts that may be REGRESSED.
        least_regressed_frac: the smallest share of the verdicts that must be REGRESSED.
        most_used_frac: the most prompts that may be measured on average, as a share of the prompts
            that the case has.
    """

    name: str
    loss_frac: float = 0.0
    steps: int = STEPS
    most_passed_frac: float = 0.01
    most_undecided_frac: float = 1.0
    most_regressed_frac: float = 1.0
    least_regressed_frac: float = 0.0
    most_used_frac: float = 2.0


NO_LOSS = AcceptanceLoss(
    name="nothing",
    most_passed_frac=1.0,
    most_undecided_frac=0.01,
    most_regressed_frac=0.0005,
    most_used_frac=1.03,
)
LOSSES = (
    NO_LOSS,
    AcceptanceLoss(name="AL - 1: -5 % (AL: -3 %)", loss_frac=0.05),
    AcceptanceLoss(name="AL - 1: -7.5 %", loss_frac=0.075, least_regressed_frac=0.8),
    AcceptanceLoss(name="AL - 1: -10 %", loss_frac=0.1, least_regressed_frac=0.95),
    AcceptanceLoss(
        name="AL - 1: -15 %", loss_frac=0.15, least_regressed_frac=0.95, most_used_frac=0.6
    ),
    # What one night leaves undecided, the nights decide.
    AcceptanceLoss(
        name=f"nothing, {SHORT_STEPS} steps",
        steps=SHORT_STEPS,
        most_passed_frac=1.0,
        most_undecided_frac=0.45,
        most_regressed_frac=0.0005,
        most_used_frac=1.65,
    ),
    AcceptanceLoss(name=f"AL - 1: -5 %, {SHORT_STEPS} steps", steps=SHORT_STEPS, loss_frac=0.05),
    AcceptanceLoss(
        name=f"AL - 1: -7.5 %, {SHORT_STEPS} steps",
        steps=SHORT_STEPS,
        loss_frac=0.075,
        least_regressed_frac=0.5,
    ),
    AcceptanceLoss(
        name=f"AL - 1: -10 %, {SHORT_STEPS} steps",
        steps=SHORT_STEPS,
        loss_frac=0.1,
        least_regressed_frac=0.95,
    ),
)
"""With a loss as large as the tolerance, or larger, no more than 1 % may pass."""


def run_selftest(trials: int = 300) -> tuple[str, bool]:
    """Judge planted losses of acceptance, and render a table of the verdicts.

    Each row draws from a generator of its own, so the rows are simulated in as many processes as
    there are CPUs.

    Args:
        trials: how many cases of each planted loss are simulated.

    Returns:
        The table, and whether all error rates are within their limits.
    """
    # Each loss has a seed of its own, so that adding one leaves the rates of the others alone.
    losses = [(loss, trials, World(seed, loss.steps)) for seed, loss in enumerate(LOSSES, start=1)]
    with new_pool() as pool:
        outcomes_of_losses = pool.starmap(try_loss, losses, chunksize=1)

    is_within = True
    lines = [f"{'planted':44}{'PASS':>7}{'undecided':>14}{'REGRESSED':>11}{'prompts':>9}"]
    for loss, (outcomes, used_frac) in zip(LOSSES, outcomes_of_losses, strict=True):
        if not is_within_limits(loss, outcomes, used_frac):
            is_within = False
        passed, undecided, regressed = (count / trials for count in _counts(outcomes))
        lines.append(
            f"{loss.name:44}{passed:>7.1%}{undecided:>14.1%}{regressed:>11.1%}{used_frac:>9.0%}"
        )

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


def _baseline(acceptance: StoredAcceptance | None) -> Baseline:
    return Baseline(
        schema_version=BASELINE_SCHEMA_VERSION,
        case=_SETTINGS,
        environment=_ENVIRONMENT,
        provenance=_PROVENANCE,
        acceptance=acceptance,
        launches=(),
    )


class World:
    """A source of simulated acceptance, and of the baselines that it is compared with.

    Args:
        seed: the seed of its random numbers.
        steps: how many steps the answer to a prompt has.
    """

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        self._steps = steps
        self._random = np.random.default_rng(seed)
        self._logit_offsets: dict[str, Column] = {}

    def baselines_of(self, case: Case) -> CaseBaselines:
        """Draw a new baseline of a case. It has twice the case's prompts, for an extension."""
        logit_offsets = self._random.normal(0, PROMPT_SPREAD, 2 * case.request.prompts)
        self._logit_offsets[case.id] = logit_offsets
        acceptance = stored_acceptance(self._acceptance(logit_offsets, 0.0))
        return CaseBaselines(
            environment=_ENVIRONMENT, settings=_SETTINGS, exact=_baseline(acceptance)
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
        references = References(
            baselines_of=lambda _: baselines, run="20260101T000000", cases=CASES
        )
        verdict = acceptance_on_launch(_ACCEPTANCE_LENGTH, launch, references)
        return confirmed(verdict, launch, references)

    def _acceptance(self, logit_offsets: Column, shift: float) -> AcceptanceRecord:
        """Draw the acceptance of prompts. Each draw is independent, as if no text repeated.

        Args:
            logit_offsets: by how much the logit of each prompt differs from the usual one.
            shift: by how much all logits differ, 0 or less for a loss.
        """
        columns = []

        # For each prompt, the number of steps that have accepted all drafts so far.
        alive = np.full(len(logit_offsets), self._steps)
        for rate in RATES:
            # A draft can only be accepted in a step that has accepted all drafts before it.
            alive = self._random.binomial(alive, accepted_frac(rate, logit_offsets, shift))
            columns.append(alive.tolist())

        prompts = []
        for number, position_counts in enumerate(zip(*columns, strict=True)):
            prompt = PromptAcceptance(
                prompt_id=f"prompt-{number}",
                category="",
                counts=_step_counts(position_counts, self._steps),
                # The prefill's token, the target's token of each step, and the accepted drafts.
                completion_tokens=1 + self._steps + sum(position_counts),
            )
            prompts.append(prompt)

        return _record(prompts)


def _record(prompts: Sequence[PromptAcceptance]) -> AcceptanceRecord:
    counts_by_prompt = [prompt.counts.position_counts for prompt in prompts]
    totals = [sum(column) for column in zip(*counts_by_prompt, strict=True)]
    return AcceptanceRecord(
        source=Source.VLLM_REQUEST,
        view=View.VERIFIER,
        total=_step_counts(tuple(totals), sum(prompt.counts.steps for prompt in prompts)),
        prompts=tuple(prompts),
    )


def _step_counts(positions: tuple[int, ...], steps: int) -> StepCounts:
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
