"""Launches of a gate whose figures are known, and gates that are made of such."""

import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from specreg.acceptance.record import AcceptanceRecord
from specreg.compare.judging import Decision, Rules, decide
from specreg.compare.pairs import COMPARED, CONTROL, Group, Pair, Side
from specreg.compare.plan import Goal, next_step
from specreg.core.reasons import Reason
from specreg.load.rounds import Round
from specreg.measurement.measure import values_of
from specreg.measurement.metrics import Replay
from specreg.runs.ledger import ArmLaunch, FailedLaunch, Ledger, MeasuredLaunch
from specreg.stats.percentiles import TimeHistogram
from tests.doubles.vllm.script import Script, record_script
from tests.unit import builders

PAIR = Pair(a=builders.CASE, b=builders.CASE)
TOKENS = 1000


def launch(
    side: Side,
    number: int,
    *,
    pair: Pair = PAIR,
    tokens_per_s: float = 100.0,
    step_ms: float = 10.0,
    ttft_ms: float = 20.0,
    tokens_per_step: float = 1.5,
    acceptance: AcceptanceRecord | None = None,
    version: str = "0.32.0",
) -> MeasuredLaunch:
    """A launch whose only request has such figures; a step has one token or two."""
    lasted_ns = round(TOKENS / tokens_per_s * 1e9)
    trace = builders.trace(
        builders.chunk(round(ttft_ms * 1e6)), builders.chunk(lasted_ns, TOKENS - 1)
    )
    chunks = round((TOKENS - 1) / tokens_per_step)
    of_two = TOKENS - 1 - chunks
    trace = msgspec.structs.replace(trace, chunk_sizes=(0, chunks - of_two, of_two))
    gaps = TimeHistogram()
    gaps.add_all((round(step_ms * 1e6),))
    part = Round(traces=(trace,), started_ns=0, ended_ns=lasted_ns, gaps=gaps)
    replay = Replay(rounds=(part,), control_rounds=(), acceptance=acceptance or accepted())
    measured = builders.measurement(values_of(pair.of(side), replay), case=pair.of(side))
    measured = dataclasses.replace(measured, engine_version=version, replay=replay)
    return MeasuredLaunch(case_id=pair.id, arm=side, number=number, measurement=measured)


def accepted(*histogram: int) -> AcceptanceRecord:
    """Six prompts that all did the same."""
    return builders.acceptance(builders.counts(*(histogram or (2, 3, 4, 1))), prompts=6)


def failed(side: Side, number: int, *, pair: Pair = PAIR) -> FailedLaunch:
    return FailedLaunch(case_id=pair.id, arm=side, number=number, reason=Reason(text="it died"))


def scripted_sides(folder: Path) -> dict[str, Any]:
    """Options of a gate whose sides are the scripted server, which this interpreter has as vLLM."""
    there = f"engine_env.PYTHONPATH={record_script(Script(), folder)['PYTHONPATH']}"
    side = f"vllm@{sys.executable}"
    return {"a": side, "b": side, "a_overrides": [there], "b_overrides": [there]}


NOISE = (0.004, -0.003, 0.003, -0.004)
"""Of each launch, as logarithms; nothing of it is of a side."""


def launches(
    change_frac: float = 0.0,
    *,
    noise: float = 1.0,
    count: int = 8,
    sides: tuple[Side, Side] = COMPARED,
    pair: Pair = PAIR,
    **of_second: Any,  # noqa: ANN401 - of any field
) -> Sequence[ArmLaunch]:
    """Launches of both sides, of which the second has another throughput and other figures."""
    return [
        launch(
            side,
            number,
            pair=pair,
            tokens_per_s=100
            * (1 if side is sides[0] else 1 + change_frac)
            * math.exp(noise * NOISE[(number + (side is sides[0])) % 4]),
            **(of_second if side is sides[1] else {}),
        )
        for number in range(1, count + 1)
        for side in sides
    ]


def decision_of(
    groups: Sequence[Group],
    rules: Rules,
    launched: Callable[[Group, int, tuple[Side, Side]], Sequence[ArmLaunch]],
) -> Decision:
    """A whole gate, stopped as a real one is, of launches that a function makes."""
    pairs = [pair for group in groups for pair in group]
    ledger = Ledger(Path("unused"))
    goal = Goal(
        groups=groups, rules=rules, together=True, decide=lambda some: decide(pairs, some, rules)
    )
    while (step := next_step(ledger, goal)) is not None:
        sides = CONTROL if Side.A1 in step.sides else COMPARED
        for made in launched(step.group, step.number, sides):
            ledger.add(made)
    return decide(pairs, ledger.launches, rules)
