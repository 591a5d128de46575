"""Sides beside one another: scripted servers, a round here and a round there."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from specreg.compare.gate import beside
from specreg.compare.gate.beside import SideError, measure_beside
from specreg.compare.gate.launched import Arm
from specreg.matrix.case import Case
from specreg.measurement.metrics import Replay
from specreg.servers.server import StartedServer
from tests.doubles.vllm.script import BEFORE_ROUNDS, SLOWING, Fault, Script
from tests.unit import builders
from tests.unit.measurement.test_measure import start

CASE = dataclasses.replace(builders.with_concurrency(1), prompts=4, rounds=2)


@contextlib.contextmanager
def up(folder: Path, scripts: Sequence[Script]) -> Iterator[dict[Arm, StartedServer]]:
    """A server for each script: A, B, and A once more."""
    with contextlib.ExitStack() as stack:
        servers = {}
        for arm, script in zip((Arm.A, Arm.B, Arm.A2), scripts, strict=False):
            (folder / arm).mkdir()
            servers[arm] = stack.enter_context(start(folder / arm, script))
        yield servers


def measured(
    servers: Mapping[Arm, StartedServer],
    case: Case = CASE,
    least_s: float = 0.0,
    show: Callable[[str], None] = lambda _: None,
) -> Mapping[Arm, Replay]:
    sides = {arm: (case, server) for arm, server in servers.items()}
    return measure_beside(sides, builders.PROMPTS, least_s=least_s, apart=True, show=show)


def test_rounds_of_three_sides_never_overlap_and_nobody_always_follows_another(
    tmp_path: Path,
) -> None:
    with up(tmp_path, [Script()] * 3) as servers:
        found = measured(servers, dataclasses.replace(CASE, prompts=6, rounds=6))
    spans = sorted(
        (part.started_ns, part.ended_ns, arm)
        for arm, replay in found.items()
        for part in replay.rounds
    )
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    order = [arm for *_, arm in spans]
    turns = {tuple(order[place : place + 3]) for place in range(0, len(order), 3)}
    assert len(turns) == 6


def test_it_goes_on_until_each_side_had_enough_and_accepts_only_once(tmp_path: Path) -> None:
    with up(tmp_path, [Script()] * 2) as servers:
        once, often = measured(servers), measured(servers, least_s=0.5)
        untimed = measured(servers, dataclasses.replace(CASE, speed=False), least_s=60.0)
    for arm in (Arm.A, Arm.B):
        assert len(once[arm].traces) == len(untimed[arm].traces) == CASE.prompts
        spans = [part.ended_ns - part.started_ns for part in often[arm].rounds]
        assert sum(spans) >= 0.5e9
        accepted = often[arm].acceptance
        assert accepted is not None
        assert len(accepted.prompts) == CASE.prompts


def test_a_drafter_that_learns_is_asked_once(tmp_path: Path) -> None:
    spec = dataclasses.replace(builders.SPEC, method="suffix", draft=None)
    learning = dataclasses.replace(CASE, server=spec)
    assert learning.needs_fresh_server
    with up(tmp_path, [Script()]) as servers:
        found = measured(servers, learning, least_s=60.0)
    assert len(found[Arm.A].traces) == CASE.prompts


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.HTTP_500, "REQUEST_FAILED"),
        (Fault.SPEC_DISABLED, "SPEC_DISABLED"),
        (Fault.CRASH_MID_RUN, "ended with status"),
    ],
)
@pytest.mark.parametrize("broken", [Arm.A, Arm.B])
def test_what_breaks_says_on_which_side(
    tmp_path: Path, fault: Fault, words: str, broken: Arm
) -> None:
    planted = Script(
        fault=fault, fault_after_requests=BEFORE_ROUNDS, step_ms=4.0, stretches=SLOWING
    )
    scripts = [planted if arm is broken else Script() for arm in (Arm.A, Arm.B)]
    with up(tmp_path, scripts) as servers, pytest.raises(SideError, match=words) as error:
        measured(servers)
    assert error.value.arm is broken


def test_a_round_beside_others_is_short_and_alone_it_is_the_cases_own() -> None:
    case = dataclasses.replace(builders.with_concurrency(2), prompts=40, rounds=5)
    assert beside.rounds_of(case, sides=2) == 10
    assert beside.rounds_of(case, sides=1) == 5
