"""Estimate how long a case takes, from what was recorded of it or else as a rough guess.

An estimate chooses how many prompts a budget leaves, and is shown as one. It never judges.
"""

import contextlib
import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specreg.baselines.schema import Baseline, load_baseline, load_baselines
from specreg.baselines.store import BaselineStore
from specreg.core.errors import BaselineError, SpecregError
from specreg.core.timeline import Phase
from specreg.datasets.table import dataset_named
from specreg.matrix.case import Case, Tier
from specreg.matrix.prompts import load_case_prompts
from specreg.telemetry.identity import Gpus

START_S = {"cpu": 30.0, "gpu": 120.0}
"""Of a server, by the kind of machine. Seen on a CPU; a guess on a GPU, where kernels are compiled
and graphs captured."""
USUAL_BANDWIDTH_GIB_PER_S = 3120.0
"""An H100's 3.35 TB/s, where no GPU is there to tell its own."""
REACHED_FRAC = 0.5
"""Of the bandwidth, what a step is guessed to reach."""
LEAST_STEP_S = 0.003
"""Of a step, however small the model: what surrounds it."""
PREFILL_FLOP_PER_S = 2e14
"""What one GPU is guessed to reach on a prompt; two operations for each parameter and token."""
_BYTES_PER_GIB = 2**30
_BYTES_PER_PARAMETER = 2
_WARM_UP_BATCHES = 7
"""Of as many requests as are in flight; that is the fewest that a measurement takes."""
_S_PER_MIN = 60.0
_STEPS = 100
"""Into how many steps the prompts of a case are divided to lower them evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """About how long a case takes.

    Attributes:
        own_s: what a prompt takes on the case's server; beside_s: on the one beside it.
        fixed_s: what the rounds take whatever there is to replay; 0 where the prompts say it.
        extra_prompts: how many more than its own are replayed, to warm up.
        source: `recorded`, `recorded on` another machine, or `guess`.
        power_s: the time under load for power alone.
    """

    own_s: float
    beside_s: float
    fixed_s: float
    extra_prompts: int
    source: str
    power_s: float = 0.0

    def case_s(self, prompts: int) -> float:
        """What so many prompts take, without the start of a server."""
        return sum(self.phase_s(phase, prompts) or 0.0 for phase in Phase)

    def phase_s(self, phase: Phase, prompts: int) -> float | None:
        """What a phase takes for so many prompts; None of one that asks a server nothing."""
        both_s = self.own_s + self.beside_s
        return {
            Phase.WARMING_UP: both_s * self.extra_prompts,
            Phase.MEASURING: (self.fixed_s or both_s * prompts) + self.power_s,
            Phase.CHECKING: self.own_s * prompts,
        }.get(phase)


Estimates = Mapping[str, Estimate | None]
"""By case's id; None where nothing was recorded and nothing can be guessed."""


def estimates_of(tier: Tier, store: BaselineStore, gpus: Gpus, root: Path) -> Estimates:
    """An estimate of each case of a tier; `root` is the repository's, for the prompts."""
    return {case.id: estimate_of(case, tier, store, gpus, root) for case in tier.cases}


def estimate_of(
    case: Case, tier: Tier, store: BaselineStore, gpus: Gpus, root: Path
) -> Estimate | None:
    """The same of one case of a tier; None where nothing was recorded or can be guessed."""
    bandwidth = gpus.bandwidth_gib_per_s or USUAL_BANDWIDTH_GIB_PER_S
    kind = "gpu" if tier.needs_gpus else "cpu"
    turns = turns_of(root, case)
    alone = dataclasses.replace(case, server=case.control, control=None) if case.control else None
    found = []
    for one in filter(None, (case, alone)):
        pace = _recorded_pace(one, store, kind, turns)
        if pace is None and kind == "gpu":
            pace = _guessed_pace(one, bandwidth, turns)
        if pace is None:
            return None
        found.append(pace)
    rate, duration_s = case.load.requests_per_s, case.load.duration_s or 0.0
    due_s = 1 / rate if rate else 0.0  # the next isn't sent before
    paces_s = [max(pace_s, due_s) for pace_s, _ in found]
    sources = dict.fromkeys(source for _, source in found)
    return Estimate(
        own_s=paces_s[0],
        beside_s=sum(paces_s[1:]),
        fixed_s=len(found) * case.rounds * duration_s,
        extra_prompts=_WARM_UP_BATCHES * (case.load.concurrency or 1),
        source=" and ".join(sources),
        power_s=len(found) * case.power_s,
    )


def turns_of(root: Path, case: Case) -> float:
    """How many turns a conversation has on average; as published where no prompts are there."""
    try:
        prompts = load_case_prompts(root, case)[: case.prompts]
    except SpecregError:
        published = dataset_named(case.dataset).turns
        return min(published, case.turns or published)
    return statistics.fmean(max(len(prompt.turns[: case.turns]), 1) for prompt in prompts)


def run_min(
    cases: Iterable[Case], estimates: Estimates, environment_kind: str, *, launches: int = 1
) -> float:
    """How many minutes a run of cases takes, each counted on all GPUs that it takes.

    A case without an estimate counts as none. `environment_kind` is "cpu" or "gpu".
    """
    cases = tuple(cases)
    seconds = 0.0
    for case in cases:
        estimate = estimates[case.id]
        if estimate is not None:
            seconds += estimate.case_s(case.prompts) * case.server.parallel.gpus
    servers = {server for case in cases for server in (case.server, case.control) if server}
    fresh = [case.server for case in cases if case.needs_fresh_server]
    starts = [*servers.difference(fresh), *fresh]
    seconds += sum(START_S[environment_kind] * server.parallel.gpus for server in starts)
    return launches * seconds / _S_PER_MIN


def within_budget(
    cases: Iterable[Case],
    estimates: Estimates,
    environment_kind: str,
    *,
    budget_min: float,
    launches: int = 1,
) -> tuple[Case, ...]:
    """The cases with as many of their prompts, evenly, as a budget allows.

    Never fewer than a case has rounds, never more than it declares. The budget is of minutes of a
    GPU; of the machine where the cases take none.

    Raises:
        SpecregError: how long one of them takes isn't known, or the least takes longer.
    """
    cases = tuple(cases)
    unknown = [case.id for case in cases if estimates[case.id] is None]
    if unknown:
        message = (
            f"--specreg-budget-gpu-min: nothing tells how long {', '.join(unknown)} takes: no speed"
            " was recorded, and its model pair doesn't say target_gib; leave it out with -k"
        )
        raise SpecregError(message)
    least_min = 0.0
    for step in range(_STEPS, -1, -1):
        fewer = tuple(
            case.replaying(max(case.rounds, case.prompts * step // _STEPS)) for case in cases
        )
        least_min = run_min(fewer, estimates, environment_kind, launches=launches)
        if least_min <= budget_min:
            return fewer
    message = (
        f"--specreg-budget-gpu-min {budget_min:g}: the run takes about {least_min:.1f} at least,"
        " with a prompt for each round; give that, or choose fewer cases with -k"
    )
    raise SpecregError(message)


def _recorded_pace(
    case: Case, store: BaselineStore, kind: str, turns: float
) -> tuple[float, str] | None:
    """What a prompt took when the case was recorded, and where: here, or else elsewhere."""
    own = None
    with contextlib.suppress(BaselineError):
        own = load_baseline(store.found(case.id))
    others = load_baselines(store.folder, f"*/{case.id}.json")
    for found in (own, *others):
        seconds = _prompt_s(found, turns) if found and found.environment.kind == kind else None
        if found is not None and seconds is not None:
            here = found.environment == store.environment
            return seconds, "recorded" if here else f"recorded on {found.environment.name}"
    return None


def _prompt_s(baseline: Baseline, turns: float) -> float | None:
    """Tokens of a prompt's answers / tokens per second; None where no speed was recorded."""
    name = "throughput_tokens_per_s"
    speeds = [launch[name] for launch in baseline.launches if name in launch]
    if not speeds:
        return None
    answers = baseline.acceptance.prompts if baseline.acceptance else ()
    conversations = sum(one.turn == 1 for one in answers)
    tokens: float = baseline.case.output_cap_tokens * turns
    if conversations:
        tokens = sum(one.completion_tokens for one in answers) / conversations
    return tokens / statistics.median(speeds)


def _guessed_pace(case: Case, bandwidth_gib_per_s: float, turns: float) -> tuple[float, str] | None:
    """As if no draft were accepted, and each prompt as long as the context takes.

    A step reads all weights once, the draft's for each token drafted.
    """
    server, sizes = case.server, case.server.sizes
    if sizes is None or sizes.draft_gib is None:
        return None
    gpus = server.parallel.tensor
    read_gib = sizes.target_gib + server.draft_tokens * sizes.draft_gib
    step_s = max(read_gib / gpus / (bandwidth_gib_per_s * REACHED_FRAC), LEAST_STEP_S)
    operations = 2 * sizes.target_gib * _BYTES_PER_GIB / _BYTES_PER_PARAMETER
    prompt_tokens = max(server.max_model_len_tokens - case.output_cap_tokens, 0)
    prefill_s = operations * prompt_tokens / gpus / PREFILL_FLOP_PER_S
    in_flight = case.load.concurrency or server.max_sequences
    answer_s = case.output_cap_tokens * step_s / in_flight
    return turns * (prefill_s + answer_s), "guess"
