"""Estimate how long a case takes, from its recorded baselines or else by a rough guess.

The estimate is used to cut a run into shards of about the same length, and to show the progress of
a run. `specreg matrix` prints it.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.baselines.schema import Baseline, read_baselines
from specreg.baselines.store import BaselineStore
from specreg.datasets.table import dataset_named
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Case, companions_of, in_run_order
from specreg.measurement.metrics import METRICS
from specreg.servers.launch import cases_by_server

START_S = {"cpu": 30.0, "gpu": 120.0}
"""How long a server takes to start, by kind of machine, in seconds. The value for CPUs was
measured. The value for GPUs, where kernels are compiled and graphs captured, is a guess."""
_RECORDED_HERE = "recorded"
"""The source of an estimate that comes from a baseline of this machine."""
READ_GIB_PER_S = 1560.0
"""The assumed bandwidth at which a step reads its weights: half of an H100's 3.35 TB/s."""
_LEAST_STEP_S = {"cpu": 0.02, "gpu": 0.003}
"""The least time of a step, by kind of machine. Even for a tiny model the engine has some work."""
Fit = Callable[[Sequence[ServerSpec]], bool]
"""Returns whether these servers fit into memory at the same time."""
_WARM_UP_BATCHES = 7
"""The fewest batches of a warm-up. A batch has as many requests as are in flight."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated time of one launch of a case, without the start of its servers.

    Attributes:
        case_s: the time in seconds.
        source: what the estimate is derived from: a recording, or a guess.
        control_s: the part of `case_s` that is spent on the control, in seconds.
    """

    case_s: float
    source: str
    control_s: float = 0.0

    @property
    def is_of_this_machine(self) -> bool:
        """Whether the whole estimate comes from recordings on this machine."""
        return self.source == _RECORDED_HERE


def estimate_of(
    case: Case, store: BaselineStore, kind: str, among: Collection[Path] | None = None
) -> Estimate:
    """Estimate how long a launch of a case takes.

    The time consists of the warm-up, the rounds, the power sampling and the checks of both servers.

    Args:
        kind: the kind of machine that the tier is for, "cpu" or "gpu".
        among: the baseline files that are used; None for all.
    """
    # Find out how long a prompt takes on the server, and on the control if there is one.
    cases = [case]
    if case.control:
        cases.append(dataclasses.replace(case, server=case.control, control=None))
    paces = [_pace(arm_case, store, kind, among) for arm_case in cases]

    # With a fixed request rate, the next prompt isn't sent before its time.
    rate = case.load.requests_per_s
    least_pace_s = 1 / rate if rate else 0.0
    paces_s = [max(seconds, least_pace_s) for seconds, _ in paces]
    sources = dict.fromkeys(source for _, source in paces)

    # Count how often each server replays its prompts. Each of two servers has to go first once.
    warm_up_requests = _WARM_UP_BATCHES * (case.load.concurrency or 1)
    fewest_passes = 1
    if case.control and case.rounds == 1:
        fewest_passes = 2
    passes_for_time = math.ceil(case.judging.least_s / (min(paces_s) * case.request.prompts))
    passes = max(fewest_passes, passes_for_time)
    arms_s = []
    for pace_s in paces_s:
        timed_s = pace_s * case.request.prompts * passes
        if case.load.duration_s:
            timed_s = case.rounds * case.load.duration_s
        arms_s.append(pace_s * warm_up_requests + timed_s + case.judging.power_s)

    case_s, *control_s = arms_s
    if case.control:
        # Answers that differ from the control's are requested again. All of them may differ.
        case_s += paces_s[0] * case.request.prompts
    return Estimate(case_s + sum(control_s), " and ".join(sources), sum(control_s))


def _pace(
    case: Case, store: BaselineStore, kind: str, among: Collection[Path] | None
) -> tuple[float, str]:
    """Return how many seconds a prompt takes, and the source: a baseline, or else `guess`."""
    # Each turn of a conversation has an answer.
    turns = min(dataset_named(case.request.dataset).turns, case.request.turns or math.inf)
    most_tokens = case.request.output_cap_tokens * turns
    paths = sorted(store.folder.glob(f"*/{case.id}.json"))
    if among is not None:
        paths = [path for path in paths if path in among]
    baselines, _ = read_baselines(paths)

    # The baseline of this machine comes first, because False is less than True.
    ordered = sorted(
        baselines.values(), key=lambda baseline: baseline.environment != store.environment
    )
    throughput = METRICS["throughput_tokens_per_s"]
    for baseline in ordered:
        speeds = baseline.launch_values(throughput)
        if baseline.environment.kind == kind and speeds:
            source = _RECORDED_HERE
            if baseline.environment != store.environment:
                source = f"recorded on {baseline.environment.name}"
            tokens = _tokens_per_prompt(baseline) or most_tokens
            return tokens / statistics.median(speeds), source

    # The requests in flight share each step, so a prompt takes only a part of its steps' time.
    guessed_s = most_tokens * _guessed_step_s(case, kind) / case.in_flight
    return guessed_s, "guess"


def _tokens_per_prompt(baseline: Baseline) -> float | None:
    """Return the mean number of tokens of a conversation's answers; None if none is recorded."""
    answers = baseline.acceptance.prompts if baseline.acceptance else ()
    conversations = sum(answer.turn == 1 for answer in answers)
    if not conversations:
        return None
    tokens = sum(answer.completion_tokens for answer in answers)
    return tokens / conversations


def _guessed_step_s(case: Case, kind: str) -> float:
    """Guess the time of a step by the size of the weights that it reads.

    The caller assumes one token per step, so the guess is too long if drafts are accepted.
    """
    server = case.server
    weights_gib = 0.0
    if server.sizes:
        # Each drafted token is assumed to read the weights of the draft once.
        drafts_gib = server.draft_tokens * (server.sizes.draft_gib or 0)
        weights_gib = server.sizes.target_gib + drafts_gib

    read_s = weights_gib / server.parallel.tensor / READ_GIB_PER_S
    return max(read_s, _LEAST_STEP_S[kind])


def run_on_gpus_s(cases: Collection[Case], estimates: Mapping[str, Estimate], gpus: int) -> float:
    """Return how long a run takes on several GPUs, in seconds.

    A GPU has one server group at a time, and the longest groups start first.

    Args:
        cases: the cases, none of which takes more GPUs than there are.
        estimates: how long each case takes, by its id.
        gpus: how many GPUs there are.
    """
    groups = []
    for launch, group in cases_by_server(cases).items():
        group_time_s = START_S["gpu"] + sum(estimates[case.id].case_s for case in group)
        groups.append((group_time_s, launch.spec))
    groups.sort(key=lambda timed_group: timed_group[0], reverse=True)
    busy_s = [0.0] * gpus
    for duration_s, server in groups:
        # A group takes the GPUs that become free first, and begins when the last of them is free.
        busy_s.sort()
        group_gpus = min(server.parallel.gpus, gpus)
        ended_s = busy_s[group_gpus - 1] + duration_s
        busy_s[:group_gpus] = [ended_s] * group_gpus

    return max(busy_s)


def measured_together(cases: Sequence[Case], fit: Fit) -> list[tuple[Case, ...]]:
    """Group the cases of a run that are measured side by side with one control.

    Args:
        cases: the cases in the order of the run.
        fit: returns whether servers fit into memory at the same time.
    """
    groups: list[tuple[Case, ...]] = []
    ungrouped = dict.fromkeys(cases)
    for index, case in enumerate(cases):
        if case not in ungrouped:
            continue
        later_cases = cases[index + 1 :]
        companions = companions_of(case, later_cases, may_join=ungrouped.__contains__, fit=fit)
        group = (case, *companions)
        groups.append(group)
        for grouped_case in group:
            del ungrouped[grouped_case]

    return groups


def group_s(group: Sequence[Case], estimates: Mapping[str, Estimate]) -> float:
    """Return how many seconds a group of cases takes. Their control is measured only once.

    Args:
        group: cases that are measured side by side. A case without speculation is the control
            itself.
        estimates: how long each case takes, by its id.
    """
    own_s = 0.0
    controls_s = []
    for case in group:
        estimate = estimates[case.id]
        if case.control is None:
            controls_s.append(estimate.case_s)
        else:
            own_s += estimate.case_s - estimate.control_s
            controls_s.append(estimate.control_s)

    return own_s + max(controls_s)


def run_s(cases: Sequence[Case], estimates: Mapping[str, Estimate], kind: str, fit: Fit) -> float:
    """Return how long a run takes, in GPU-seconds (on a CPU in seconds).

    The time of each server's start, and of each group of cases that are measured together, is
    multiplied by the GPUs that it keeps busy.

    Args:
        estimates: how long each case takes, by its id.
        kind: the kind of machine, "cpu" or "gpu".
        fit: returns whether servers fit into memory at the same time.
    """
    # A shared server starts once, and a fresh server starts for each case that needs one.
    servers = {case.server for case in cases}
    servers |= {case.control for case in cases if case.control}
    fresh = [case.server for case in cases if case.needs_fresh_server]
    starts = [*servers.difference(fresh), *fresh]
    starts_s = sum(START_S[kind] * server.parallel.gpus for server in starts)
    groups_s = 0.0
    for group in measured_together(in_run_order(cases), fit):
        gpus = group[0].server.parallel.gpus
        groups_s += group_s(group, estimates) * gpus
    return starts_s + groups_s
