"""Servers that take turns compute on the same cores, and nobody else is there."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from specreg.compare.gate.cores import split
from specreg.compare.gate.launched import Arm
from specreg.servers.server import StartedServer
from tests.doubles.vllm.script import Script
from tests.unit.compare.test_gate_beside import measured, up

WHOLE = os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("cores", "computing", "rest"),
    [
        ((0,), (), ()),
        ((0, 1), (0,), (1,)),
        ((2, 3, 6, 7), (2, 3, 6), (7,)),
        (tuple(range(32)), tuple(range(28)), tuple(range(28, 32))),
    ],
)
def test_an_eighth_of_the_cores_is_for_the_rest(
    cores: tuple[int, ...], computing: tuple[int, ...], rest: tuple[int, ...]
) -> None:
    assert split(cores) == (computing, rest)


@pytest.mark.skipif(len(WHOLE) < 2, reason="a core alone can't be shared out")
def test_what_computes_has_cores_of_its_own_while_it_is_measured(tmp_path: Path) -> None:
    computing, rest = map(set, split(sorted(WHOLE)))
    with up(tmp_path, [Script()] * 2) as servers:
        during = _cores_during(servers)
        after = _cores_of(servers)
    assert during == {"us": rest, Arm.A: computing, Arm.B: computing}
    assert after == {"us": WHOLE, Arm.A: WHOLE, Arm.B: WHOLE}


@pytest.mark.skipif(len(WHOLE) < 2, reason="a core alone can't be shared out")
def test_what_its_engine_has_bound_stays_where_it_is(tmp_path: Path) -> None:
    own = {max(WHOLE)}
    with up(tmp_path, [Script()] * 2) as servers:
        (bound,) = servers[Arm.B].pids()
        os.sched_setaffinity(bound, own)
        during = _cores_during(servers)
        after = _cores_of(servers)
    assert during[Arm.B] == own
    assert after[Arm.B] == own


def _cores_during(servers: Mapping[Arm, StartedServer]) -> Mapping[str, set[int]]:
    """While the servers are measured, by whose they are."""
    found: list[Mapping[str, set[int]]] = []

    def look(told: str) -> None:
        if told.endswith("measuring"):
            found.append(_cores_of(servers))

    measured(servers, show=look)
    (during,) = found
    return during


def _cores_of(servers: Mapping[Arm, StartedServer]) -> Mapping[str, set[int]]:
    cores: dict[str, set[int]] = {"us": os.sched_getaffinity(0)}
    for arm, server in servers.items():
        (pid,) = server.pids()
        cores[arm] = os.sched_getaffinity(pid)
    return cores
