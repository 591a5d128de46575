"""How two arms best take turns: real vLLM with EAGLE-3 and without, in several ways, time alike.

`python -m tests.bench.turns FOLDER` records FOLDER/turns.jsonl, a line for each trial, an hour for
ten of each; `python -m tests.bench.turns FOLDER --table` makes the table of docs/performance.md.
"""

import argparse
import contextlib
import dataclasses
import itertools
import math
import os
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import psutil

from specreg.acceptance.trace import RequestTrace
from specreg.load.rounds import Round
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.matrix.tier import load_tier
from specreg.measurement.arm import Arm, control_of
from specreg.measurement.measure import Plan, Workload, measure
from specreg.measurement.metrics import Replay, round_ratios, speedup_ratio
from specreg.servers.launch import Servers, launches_of
from specreg.servers.provision import Provision
from specreg.servers.server import Server

ROOT = Path(__file__).parents[2]
CASES = ("vllm-eagle3-tiny-toy-c1", "vllm-eagle3-tiny-toy-c4")
WAYS = ("rounds", "turns", "both at once")
WALL_S = 60.0
_RESAMPLES = 2000


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of an arm: its requests, and the processor time of its server meanwhile."""

    arm: int
    started_ns: int
    ended_ns: int
    traces: tuple[RequestTrace, ...]
    cpu_s: float


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of both arms; arm 0 speculates."""

    case_id: str
    way: str
    repeat: int
    turns: tuple[Turn, ...]


def processor_s(server: Server) -> float:
    """The processor time of a server so far."""
    total = 0.0
    for pid in server.pids():
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def replay(case: Case, servers: Sequence[Server], parts: int, least_s: float) -> list[list[Turn]]:
    """Measure servers of a case in turn; by arm, its turns."""
    arms = [Arm(case=case, server=servers[0])]
    arms += [Arm(case=control_of(case), server=one, required=False) for one in servers[1:]]
    began: list[tuple[int, float]] = []

    def record(arm: int, number: int) -> Callable[[object], None]:
        del number
        began.append((arm, processor_s(servers[arm])))
        return lambda _: None

    prompts = load_case_prompts(ROOT, case)[: case.prompts]
    plan = Plan(show=lambda _: None, parts=parts, least_s=least_s, warms_up=False, record=record)
    found = measure(arms, Workload(prompts=prompts, warm_up=prompts), plan)
    turns: list[list[Turn]] = []
    for place, one in enumerate(found):
        assert one.replay is not None, one.invalid
        used = [cpu_s for arm, cpu_s in began if arm == place] + [processor_s(servers[place])]
        turns.append(
            [
                Turn(
                    arm=place,
                    started_ns=part.started_ns,
                    ended_ns=part.ended_ns,
                    traces=part.traces,
                    cpu_s=after - before,
                )
                for part, (before, after) in zip(
                    one.replay.rounds, itertools.pairwise(used), strict=True
                )
            ]
        )
    return turns


def trial(case: Case, way: str, repeat: int, pair: Sequence[Server]) -> Trial:
    """Measure both arms in one of the ways."""
    if way != "both at once":
        size = case.load.concurrency * (4 if case.load.concurrency > 1 else 1)
        parts = math.ceil(case.prompts / (20 if way == "rounds" else size))
        turns = replay(case, pair, parts, WALL_S / 3)
        return Trial(case_id=case.id, way=way, repeat=repeat, turns=tuple(itertools.chain(*turns)))
    found: dict[int, list[Turn]] = {}

    def alone(place: int) -> None:
        own = case if place == 0 else control_of(case)
        (turns,) = replay(own, [pair[place]], 1, WALL_S)
        found[place] = [msgspec.structs.replace(one, arm=place) for one in turns]

    with on_a_core_each(pair):
        threads = [threading.Thread(target=alone, args=(place,)) for place in (0, 1)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    return Trial(
        case_id=case.id, way=way, repeat=repeat, turns=tuple(itertools.chain(*found.values()))
    )


@contextlib.contextmanager
def on_a_core_each(pair: Sequence[Server]) -> Iterator[None]:
    """Bind the processes of each server to a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    threads = [
        (thread.id, core)
        for server, core in zip(pair, cores, strict=False)
        for pid in server.pids()
        for thread in psutil.Process(pid).threads()
    ]
    for thread, core in threads:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, {core})
    try:
        yield
    finally:
        for thread, _ in threads:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, cores)


def record_trials(folder: Path, repeats: int) -> None:
    """Measure all cases in all ways, the ways in another order each time."""
    tier = load_tier(ROOT / "fixtures/matrix", "cpu")
    cases = [dataclasses.replace(case, prompts=40) for case in tier.cases if case.id in CASES]
    servers = Servers(
        root=ROOT,
        provision=Provision(on_gpu=False, show=print),
        ready_within_s=600.0,
        logs=folder / "logs",
        show=print,
    )
    control, server = launches_of(cases[0], 1)
    with servers.start(control) as plain, servers.start(server) as drafting:
        servers.start_all([plain, drafting])
        pair = (drafting.server, plain.server)
        for case in cases:
            replay(case, pair, 2, 1.0)  # the warm-up
        orders = itertools.cycle(itertools.permutations(WAYS))
        with (folder / "turns.jsonl").open("ab") as file:
            for repeat in range(repeats):
                for case in cases:
                    for way in next(orders):
                        found = trial(case, way, repeat, pair)
                        file.write(msgspec.json.encode(found) + b"\n")
                        file.flush()
                        print(case.id, way, repeat, f"{speedup_ratio(replay_of(found)):.3f}")  # noqa: T201


def of_arms(one: Trial) -> tuple[list[Turn], list[Turn]]:
    """The turns of each arm."""
    first = [turn for turn in one.turns if turn.arm == 0]
    return first, [turn for turn in one.turns if turn.arm == 1]


def replay_of(one: Trial, *, drains: bool = False) -> Replay:
    """The same as a measurement has it; what it `drains` counts as well, as if it were a rate."""
    ours, theirs = (
        tuple(
            Round(traces=turn.traces, started_ns=turn.started_ns, ended_ns=turn.ended_ns)
            for turn in turns
        )
        for turns in of_arms(one)
    )
    in_flight = 0 if drains else int(one.case_id.rpartition("-c")[2])
    return Replay(rounds=ours, control_rounds=theirs, concurrency=in_flight)


def by_processor(one: Trial) -> float:
    """How much less processor time a token takes."""
    ours, theirs = (
        sum(turn.cpu_s for turn in turns)
        / sum(trace.tokens for turn in turns for trace in turn.traces)
        for turns in of_arms(one)
    )
    return theirs / ours


ESTIMATES: Mapping[str, Callable[[Trial], float]] = {
    "all over all, the load full": lambda one: speedup_ratio(replay_of(one)) or math.nan,
    "all over all": lambda one: speedup_ratio(replay_of(one, drains=True)) or math.nan,
    "mean of turns": lambda one: statistics.geometric_mean(round_ratios(replay_of(one))),
    "median of turns": lambda one: statistics.median(round_ratios(replay_of(one))),
    "processor time": by_processor,
}


def print_table(folder: Path) -> None:
    """Each way's speedup and how it spreads over the trials, with the 95 % interval of that."""
    lines = (folder / "turns.jsonl").read_bytes().splitlines()
    trials = [msgspec.json.decode(line, type=Trial) for line in lines]
    draw = np.random.default_rng(0)
    print("| case | way | estimate | speedup | σ of its logarithm | 95 % |")  # noqa: T201
    print("| --- | --- | --- | --- | --- | --- |")  # noqa: T201
    for case_id, way, (name, estimate) in itertools.product(CASES, WAYS, ESTIMATES.items()):
        some = [one for one in trials if (one.case_id, one.way) == (case_id, way)]
        logs = np.log([estimate(one) for one in some])
        if len(logs) > 1:
            again = draw.choice(logs, size=(_RESAMPLES, len(logs))).std(axis=1, ddof=1)
            low, high = np.quantile(again, (0.025, 0.975))
            print(  # noqa: T201
                f"| {case_id} | {way} | {name} | {math.exp(logs.mean()):.3f} |"
                f" {logs.std(ddof=1):.1%} | {low:.1%} to {high:.1%} |"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.table:
        print_table(asked.folder)
    else:
        record_trials(asked.folder, asked.repeats)
