"""Estimate how long a case takes, from what was recorded of it or else as a rough guess.

It cuts a run into shards of about the same length, and is shown by `specreg matrix`.
"""

import dataclasses
import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from specreg.baselines.schema import read_baselines
from specreg.baselines.store import BaselineStore
from specreg.datasets.table import dataset_named
from specreg.matrix.case import Case
from specreg.measurement.metrics import METRICS

START_S = {"cpu": 30.0, "gpu": 120.0}
"""How long a server takes to start, by machine. Seen on a CPU; a guess on a GPU, where kernels are
compiled and graphs captured."""
READ_GIB_PER_S = 1560.0
"""How fast a step is guessed to read its weights: half of an H100's 3.35 TB/s."""
_LEAST_STEP_S = {"cpu": 0.02, "gpu": 0.003}
"""The least time of a step, however small the model: the engine's own work."""
_WARM_UP_BATCHES = 7
"""The fewest batches of a warm-up, each of as many requests as are in flight."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """About how long one launch of a case takes, without its start; `source`: known from what."""

    case_s: float
    source: str


def estimate_of(
    case: Case, store: BaselineStore, kind: str, among: Collection[Path] | None = None
) -> Estimate:
    """An estimate of a case: warm-up, rounds and power on server and control, then the checks.

    The tier is for a `kind` of machine, "cpu" or "gpu"; `among` are the files of baselines that
    count, None for all.
    """
    alone = dataclasses.replace(case, server=case.control, control=None) if case.control else None
    paces_s, sources = [], []
    for one in filter(None, (case, alone)):
        pace_s, source = _pace(one, store, kind, among)
        rate = case.load.requests_per_s
        paces_s.append(max(pace_s, 1 / rate if rate else 0.0))  # the next isn't sent before
        sources.append(source)
    warm_up = _WARM_UP_BATCHES * (case.load.concurrency or 1)
    rounds_s = len(paces_s) * case.rounds * (case.load.duration_s or 0.0)
    once = 2 if case.control and case.rounds == 1 else 1  # so that each arm is first once
    passes = max(once, math.ceil(case.least_s / (min(paces_s) * case.prompts)))
    seconds = sum(paces_s) * warm_up + (rounds_s or sum(paces_s) * case.prompts * passes)
    seconds += len(paces_s) * case.power_s + paces_s[0] * case.prompts
    return Estimate(seconds, " and ".join(dict.fromkeys(sources)))


def _pace(
    case: Case, store: BaselineStore, kind: str, among: Collection[Path] | None
) -> tuple[float, str]:
    """Return the seconds that a prompt takes, and their source: a baseline, else `guess`."""
    tokens = case.output_cap_tokens * min(dataset_named(case.dataset).turns, case.turns or math.inf)
    paths = sorted(store.folder.glob(f"*/{case.id}.json"))
    found, _ = read_baselines(path for path in paths if among is None or path in among)
    for one in sorted(found.values(), key=lambda one: one.environment != store.environment):
        speeds = one.launch_values(METRICS["throughput_tokens_per_s"])
        if one.environment.kind == kind and speeds:
            here = one.environment == store.environment
            source = "recorded" if here else f"recorded on {one.environment.name}"
            answers = one.acceptance.prompts if one.acceptance else ()
            if conversations := sum(answer.turn == 1 for answer in answers):
                tokens = sum(answer.completion_tokens for answer in answers) / conversations
            return tokens / statistics.median(speeds), source
    server, sizes = case.server, case.server.sizes
    weights_gib = sizes.target_gib + server.draft_tokens * (sizes.draft_gib or 0) if sizes else 0.0
    step_s = max(weights_gib / server.parallel.tensor / READ_GIB_PER_S, _LEAST_STEP_S[kind])
    return tokens * step_s / case.in_flight, "guess"  # as if no draft were accepted


def run_s(cases: Collection[Case], estimates: Mapping[str, Estimate], kind: str) -> float:
    """How long a run of cases takes, each counted on all GPUs that it takes."""
    servers = {server for case in cases for server in (case.server, case.control) if server}
    fresh = [case.server for case in cases if case.needs_fresh_server]
    starts = [*servers.difference(fresh), *fresh]
    return sum(START_S[kind] * server.parallel.gpus for server in starts) + sum(
        estimates[case.id].case_s * case.server.parallel.gpus for case in cases
    )
