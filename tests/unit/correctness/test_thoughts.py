"""Servers that think aloud in a channel of their own, and say otherwise with speculation."""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from specreg.compare.answers import ask_a, compare_answers, were_all_equal
from specreg.compare.pairs import Pair, Side
from specreg.correctness.checks import RunningCase, check_answers
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.arm import Arm
from specreg.measurement.measure import (
    Measurement,
    Plan,
    combine_with_control,
    measure,
    workload_of,
)
from specreg.runs.ledger import LEDGER, Ledger, MeasuredLaunch
from specreg.servers.server import StartedServer
from specreg.verdicts.verdict import Outcome
from tests.doubles.vllm.script import Script
from tests.unit import builders
from tests.unit.builders.started_servers import start

THINKING = Script(thought_tokens=20)
"""The thought takes all tokens that an answer may have."""
OTHERWISE = msgspec.structs.replace(THINKING, otherwise_from_token=6)
CASE = dataclasses.replace(builders.CASE, control=builders.PLAIN_SPEC)
PLAN = Plan(show=lambda _: None)
PROMPTS = load_case_prompts(builders.ROOT, CASE)[: CASE.request.prompts]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, StartedServer]]:
    """By what they do: servers that speculate, and a control."""
    scripts = {"same": THINKING, "otherwise": OTHERWISE, "control": THINKING}
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                start(
                    tmp_path_factory.mktemp(name),
                    script,
                    spec=builders.PLAIN_SPEC if name == "control" else builders.SPEC,
                )
            )
            for name, script in scripts.items()
        }


def measured(case: StartedServer, control: StartedServer) -> Measurement:
    plain: Case = dataclasses.replace(CASE, server=builders.PLAIN_SPEC, control=None)
    arms = [Arm(case=CASE, server=case), Arm(case=plain, server=control)]
    return combine_with_control(*measure(arms, workload_of(CASE, PROMPTS), PLAN))


@pytest.mark.parametrize(
    ("name", "outcome", "value"), [("same", Outcome.PASS, 1.0), ("otherwise", Outcome.WRONG, 0.0)]
)
def test_a_thought_that_speculation_changes_is_wrong(
    servers: dict[str, StartedServer], name: str, outcome: Outcome, value: float
) -> None:
    measurement = measured(servers[name], servers["control"])
    assert measurement.replay is not None
    assert {trace.tokens for trace in measurement.replay.traces} == {20}
    running = RunningCase(
        case=CASE,
        server=servers[name],
        control=servers["control"],
        prompts=PROMPTS,
        predict_drafts=lambda _: pytest.fail("nothing asks the models"),
        models=("target", None),
        replay=measurement.replay,
    )
    verdict = check_answers(running)
    assert (verdict.outcome, verdict.value) == (outcome, value)
    assert ("token 6: " in verdict.explanation) == (outcome is Outcome.WRONG)


@pytest.mark.parametrize(
    ("name", "outcome"), [("same", Outcome.PASS), ("otherwise", Outcome.WRONG)]
)
def test_a_thought_that_differs_between_the_sides_of_a_gate_is_wrong(
    servers: dict[str, StartedServer], tmp_path: Path, name: str, outcome: Outcome
) -> None:
    alone = dataclasses.replace(CASE, control=None)
    pair = Pair(a=alone, b=alone)
    sides = {Side.A: servers["same"], Side.B: servers[name]}
    arms = [Arm(case=alone, server=server) for server in sides.values()]
    measurement = measure(arms, workload_of(alone, PROMPTS), PLAN)
    measurement_of_a, measurement_of_b = measurement
    ledger = Ledger(tmp_path / LEDGER)
    for side, measured_side in ((Side.A, measurement_of_a), (Side.B, measurement_of_b)):
        ledger.add(MeasuredLaunch(case_id=pair.id, arm=side, number=1, measurement=measured_side))
    were_equal = were_all_equal(pair, 1, PROMPTS, ledger)
    assert were_equal == (outcome is Outcome.PASS)
    answers_of_a = ask_a(pair, sides[Side.A], PROMPTS)
    verdict = compare_answers(pair, sides, PROMPTS, answers_of_a)
    assert verdict.outcome is outcome, verdict.reason
