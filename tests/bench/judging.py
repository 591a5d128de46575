"""Measures the judging: a thousand cases of 880 prompts, from their files to the verdicts.

`python -m tests.bench.judging` prints its figures as JSON; it runs in a process of its own, so that
the memory is that of the judging.
"""

import dataclasses
import resource
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import msgspec

from specreg.acceptance.record import StepCounts
from specreg.baselines.schema import StoredAcceptance, record_baseline, stored_acceptance
from specreg.baselines.store import BaselineStore
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Replay
from specreg.verdicts.confirmation import Confirmation
from tests.unit import builders

CASES = 1_000
PROMPTS = 880
SPEEDS = {"throughput_tokens_per_s": 100.0, "ttft_p50_ms": 40.0, "tpot_p50_ms": 8.0}


class Judged(msgspec.Struct):
    """What it took; memory beyond what was there before."""

    cases: int
    prompts: int
    verdicts: int
    seconds: float
    grown_mb: float


def counts(random: Random) -> StepCounts:
    """What a prompt of 98 steps did, drafting three tokens each."""
    first = random.randint(50, 80)
    second = random.randint(30, first)
    third = random.randint(10, second)
    return StepCounts(
        steps=98,
        accepted=first + second + third,
        proposed=3 * 98,
        position_counts=(first, second, third),
    )


def measured(random: Random, case: Case) -> Measurement:
    """A launch of a case."""
    record = builders.acceptance_of(
        [
            builders.prompt_acceptance(counts(random), prompt_id=f"prompt-{number}")
            for number in range(PROMPTS)
        ]
    )
    replay = Replay(rounds=(), control_rounds=(), acceptance=record)
    plain = builders.measurement(SPEEDS, case=case)
    values = {
        name: metric.function(replay)
        for name, metric in METRICS.items()
        if not metric.by_launch and metric.applies_to(case)
    }
    known = {name: value for name, value in values.items() if value is not None}
    return dataclasses.replace(plain, replay=replay, values={**SPEEDS, **known})


def judge(folder: Path) -> Judged:
    """Records a baseline of each case, and judges a launch against it."""
    random = Random(0)  # noqa: S311 - no cryptography
    server = builders.CASE.server
    cases = [
        dataclasses.replace(
            builders.CASE, prompts=PROMPTS, server=dataclasses.replace(server, models=str(number))
        )
        for number in range(CASES)
    ]
    store = BaselineStore(folder=folder, environment=builders.ENVIRONMENT)
    launch = measured(random, cases[0])
    plain = builders.baseline(*(SPEEDS for _ in range(3)))
    stored = msgspec.structs.replace(plain, acceptance=_stored(launch))
    for case in cases:
        record_baseline(store.path(case.id), stored)
    confirmation = Confirmation(
        known_of=lambda case: store.look_up(case, builders.SETTINGS), measure_afresh=lambda *_: {}
    )
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    for case in cases:
        now = dataclasses.replace(launch, case=case)
        for metric in METRICS.values():
            if metric.name in now.values:
                confirmation.judge(metric, (now,))
    seconds = time.perf_counter() - began
    return Judged(
        cases=CASES,
        prompts=PROMPTS,
        verdicts=len(confirmation.verdicts),
        seconds=seconds,
        grown_mb=(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024,
    )


def _stored(launch: Measurement) -> StoredAcceptance:
    found = stored_acceptance(launch.acceptance)
    assert found is not None
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        sys.stdout.write(msgspec.json.encode(judge(Path(scratch))).decode() + "\n")
