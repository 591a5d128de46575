"""The servers of a run: shared where they are the same, and none that nobody asks for."""

import contextlib
import dataclasses
from pathlib import Path

from specreg.launch import Launch, Starting
from specreg.provision import Provision
from specreg.server import Server
from specreg.servers import Servers
from tests.unit import builders

LAUNCH = Launch(spec=builders.SPEC, number=1)


def servers(folder: Path) -> Servers:
    """Those of a run in a folder."""
    return Servers(
        root=builders.ROOT,
        provision=Provision(on_gpu=False, version=None, python=None, url=None, show=lambda _: None),
        ready_within_s=1.0,
        logs=folder / "logs",
        show=lambda _: None,
    )


def unneeded() -> contextlib.AbstractContextManager[Server]:
    """A server that nobody should start."""
    raise AssertionError


def test_the_same_server_beside_it_is_taken(tmp_path: Path) -> None:
    beside = Starting(launch=LAUNCH, start=unneeded)
    with servers(tmp_path).start(LAUNCH, beside=beside) as started:
        assert started is beside
    with servers(tmp_path).start(dataclasses.replace(LAUNCH, number=2), beside=beside) as started:
        assert started is not beside


def test_a_server_that_nobody_asks_for_does_not_start(tmp_path: Path) -> None:
    with servers(tmp_path).start(LAUNCH) as started:
        assert started.launch == LAUNCH
    assert list(tmp_path.iterdir()) == []
