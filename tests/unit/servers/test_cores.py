"""Servers that take turns compute on the same cores, and nobody else is there."""

import contextlib
import os
from pathlib import Path

import pytest

from specreg.servers.cores import cores_apart, split_cores
from specreg.servers.server import StartedServer
from specreg.servers.start import ServerStart
from tests.doubles.vllm.script import Script
from tests.unit import builders
from tests.unit.compare.test_answers import ENVIRONMENT

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
    assert split_cores(cores) == (computing, rest)


@pytest.mark.skipif(len(WHOLE) < 2, reason="a core alone can't be shared out")
def test_what_computes_has_cores_of_its_own_and_what_is_bound_stays(tmp_path: Path) -> None:
    computing, rest = map(set, split_cores(sorted(WHOLE)))
    own = {max(WHOLE)}
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(up(tmp_path / name)) for name in ("a", "b", "bound")]
        (bound,) = servers[2].pids()
        os.sched_setaffinity(bound, own)
        with cores_apart(servers):
            assert os.sched_getaffinity(0) == rest
            assert [cores_of(one) for one in servers] == [computing, computing, own]
        assert os.sched_getaffinity(0) == WHOLE
        assert [cores_of(one) for one in servers] == [WHOLE, WHOLE, own]


def up(folder: Path) -> contextlib.AbstractContextManager[StartedServer]:
    """A scripted server."""
    folder.mkdir()
    return ServerStart(
        spec=builders.scripted(builders.SPEC, Script(), folder),
        environment=ENVIRONMENT,
        root=folder,
        log_path=folder / "server.log",
        on_gpu=False,
        ready_within_s=30.0,
        show=lambda _: None,
    ).running()


def cores_of(server: StartedServer) -> set[int]:
    (pid,) = server.pids()
    return os.sched_getaffinity(pid)
