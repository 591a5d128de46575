"""Estimate how long a case takes, from what was recorded of it or else as a rough guess.

A run is cut by it into shards of about the same length, and `specreg matrix` shows it.
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
from specreg.matrix.case import Case, ServerSpec, companions_of, in_run_order
from specreg.measurement.metrics import METRICS

START_S = {"cpu": 30.0, "gpu": 120.0}
"""How long a server takes to start, by machine. Seen on a CPU; a guess on a GPU, where kernels are
compiled and graphs captured."""
_RECORDED_HERE = "recorded"
"""The source of an estimate from this machine's own baseline."""
READ_GIB_PER_S = 1560.0
"""How fast a step is guessed to read its weights: half of an H100's 3.35 TB/s."""
_LEAST_STEP_S = {"cpu": 0.02, "gpu": 0.003}
"""The least time of a step, however small the model: the engine's own work."""
Fit = Callable[[Sequence[ServerSpec]], bool]
"""Returns whether servers may take their memory at the same time."""
_WARM_UP_BATCHES = 7
"""The fewest batches of a warm-up, each of as many requests as are in flight."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """About how long one launch of a case takes, without its start.

    Attributes:
        case_s: the time in seconds.
        source: what it was derived from: a recording, or a guess.
        control_s: the part of `case_s` that is spent on the control, in seconds.
    """

    case_s: float
    source: str
    control_s: float = 0.0

    @property
    def is_of_this_machine(self) -> bool:
        """Whether all of it was recorded on this machine."""
        return self.source == _RECORDED_HERE


def estimate_of(
    case: Case, store: BaselineStore, kind: str, among: Collection[Path] | None = None
) -> Estimate:
    """Estimate a case: warm-up, rounds and power on server and control, then the checks.

    Args:
        case: the case.
        store: the baselines.
        kind: the kind of machine that the tier is for, "cpu" or "gpu".
        among: the files of baselines that count; None for all.
    """
    cases = [case]
    if case.control:
        cases.append(dataclasses.replace(case, server=case.control, control=None))
    rate = case.load.requests_per_s
    least_pace_s = 1 / rate if rate else 0.0  # the next request isn't sent before
    paces = [_pace(case, store, kind, among) for case in cases]
    paces_s = [max(seconds, least_pace_s) for seconds, _ in paces]
    sources = dict.fromkeys(source for _, source in paces)

    warm_up_requests = _WARM_UP_BATCHES * (case.load.concurrency or 1)
    fewest_passes = (
        2 if case.control and case.rounds == 1 else 1
    )  # so that each server goes first once
    passes = max(fewest_passes, math.ceil(case.least_s / (min(paces_s) * case.prompts)))
    arms_s = []
    for pace_s in paces_s:
        timed_s = pace_s * case.prompts * passes
        if case.load.duration_s:
            timed_s = case.rounds * case.load.duration_s
        arms_s.append(pace_s * warm_up_requests + timed_s + case.power_s)
    case_s, *control_s = arms_s
    if case.control:
        # Answers that differ from the control's are asked for again; these may be all of them.
        case_s += paces_s[0] * case.prompts
    return Estimate(case_s + sum(control_s), " and ".join(sources), sum(control_s))


def _pace(
    case: Case, store: BaselineStore, kind: str, among: Collection[Path] | None
) -> tuple[float, str]:
    """Return the seconds that a prompt takes, and their source: a baseline, or else `guess`."""
    turns = min(dataset_named(case.dataset).turns, case.turns or math.inf)
    most_tokens = case.output_cap_tokens * turns
    paths = sorted(store.folder.glob(f"*/{case.id}.json"))
    baselines, _ = read_baselines(path for path in paths if among is None or path in among)
    # This machine's comes first.
    ordered = sorted(
        baselines.values(), key=lambda baseline: baseline.environment != store.environment
    )
    for baseline in ordered:
        speeds = baseline.launch_values(METRICS["throughput_tokens_per_s"])
        if baseline.environment.kind == kind and speeds:
            source = _RECORDED_HERE
            if baseline.environment != store.environment:
                source = f"recorded on {baseline.environment.name}"
            tokens = _tokens_per_prompt(baseline) or most_tokens
            return tokens / statistics.median(speeds), source
    return most_tokens * _guessed_step_s(case, kind) / case.in_flight, "guess"


def _tokens_per_prompt(baseline: Baseline) -> float | None:
    """Return how many tokens the answers to a prompt had on average, all its turns together."""
    answers = baseline.acceptance.prompts if baseline.acceptance else ()
    conversations = sum(answer.turn == 1 for answer in answers)
    if not conversations:
        return None
    return sum(answer.completion_tokens for answer in answers) / conversations


def _guessed_step_s(case: Case, kind: str) -> float:
    """Guess the time of a step by the weights that it reads, as if no draft were accepted."""
    server = case.server
    weights_gib = 0.0
    if server.sizes:
        drafts_gib = server.draft_tokens * (server.sizes.draft_gib or 0)
        weights_gib = server.sizes.target_gib + drafts_gib
    read_s = weights_gib / server.parallel.tensor / READ_GIB_PER_S
    return max(read_s, _LEAST_STEP_S[kind])


def run_on_gpus_s(cases: Collection[Case], estimates: Mapping[str, Estimate], gpus: int) -> float:
    """Return how long a run takes if each GPU runs one server group at a time, the longest first.

    Args:
        cases: the cases, none of which takes more GPUs than there are.
        estimates: by case's id, how long it takes.
        gpus: how many GPUs there are.
    """
    cases_by_servers: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        own_id = case.id if case.needs_fresh_server else ""
        cases_by_servers.setdefault((case.control, case.server, own_id), []).append(case)
    groups = [
        (START_S["gpu"] + sum(estimates[case.id].case_s for case in group), group[0].server)
        for group in cases_by_servers.values()
    ]
    busy_s = [0.0] * gpus
    for duration_s, server in sorted(groups, key=lambda group: group[0], reverse=True):
        # A group takes the GPUs that become free first, and begins when the last of them is free.
        busy_s.sort()
        taken = min(server.parallel.gpus, gpus)
        busy_s[:taken] = [busy_s[taken - 1] + duration_s] * taken
    return max(busy_s)


def measured_together(cases: Sequence[Case], fit: Fit) -> list[tuple[Case, ...]]:
    """Return the cases of a run in groups that are measured side by side, beside one control.

    Args:
        cases: in the order of the run.
        fit: whether servers may take their memory at the same time.
    """
    groups: list[tuple[Case, ...]] = []
    left = dict.fromkeys(cases)
    for index, case in enumerate(cases):
        if case not in left:
            continue
        companions = companions_of(case, cases[index + 1 :], may_join=left.__contains__, fit=fit)
        group = (case, *companions)
        groups.append(group)
        for measured_case in group:
            del left[measured_case]
    return groups


def group_s(group: Sequence[Case], estimates: Mapping[str, Estimate]) -> float:
    """Return how long cases take that are measured side by side, whose control is asked once.

    A case without speculation is the control itself.
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
    """Return how long a run of cases takes, in seconds times the GPUs that each case takes.

    Args:
        cases: the cases.
        estimates: by case's id, how long it takes.
        kind: the kind of machine, "cpu" or "gpu".
        fit: whether servers may take their memory at the same time.
    """
    servers = {server for case in cases for server in (case.server, case.control) if server}
    fresh = [case.server for case in cases if case.needs_fresh_server]
    starts = [*servers.difference(fresh), *fresh]
    starts_s = sum(START_S[kind] * server.parallel.gpus for server in starts)
    groups = measured_together(in_run_order(cases), fit)
    groups_s = sum(group_s(group, estimates) * group[0].server.parallel.gpus for group in groups)
    return starts_s + groups_s
