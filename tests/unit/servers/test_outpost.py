"""A command on another node ends when it ends, when nobody wants it, and when we are killed."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import msgspec
import psutil
import pytest

from specreg.servers.outpost import LIVES_ON, Order
from tests.unit import builders

SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"
SAYS = "import json, os, sys; print(json.dumps(dict(os.environ)))"
UNKILLABLE = builders.ROOT / "tests/faults/unkillable"
Outpost = subprocess.Popen[bytes]


@contextlib.contextmanager
def outpost(
    *command: str,
    folder: Path = builders.ROOT,
    variables: Mapping[str, str] | None = None,
    **own: str,
) -> Iterator[Outpost]:
    """An outpost that has its order, and `own` in its environment; killed in the end."""
    order = Order(
        command=command, variables=dict(variables or {}), path="/of/engine", folder=str(folder)
    )
    with subprocess.Popen(
        (sys.executable, "-P", "-m", "specreg.servers.outpost"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(builders.ROOT), "PATH": "/usr/bin", "OF_THIS_NODE": "1"} | own,
    ) as process:
        stream(process.stdin).write(msgspec.json.encode(order) + b"\n")
        stream(process.stdin).flush()
        try:
            yield process
        finally:
            process.kill()


def stream(of: IO[bytes] | None) -> IO[bytes]:
    """A pipe that is there."""
    assert of is not None
    return of


def test_what_the_command_says_and_its_status_are_the_outposts() -> None:
    code = "import sys; print('said'); sys.stderr.write('and more'); sys.exit(7)"
    with outpost(sys.executable, "-c", code) as process:
        assert stream(process.stdout).read() == b"said\nand more"
        assert process.wait(timeout=10) == 7


def test_a_command_has_the_variables_of_its_node_and_those_of_its_order() -> None:
    with outpost(sys.executable, "-c", SAYS, variables={"OF_ENGINE": "2"}) as process:
        found = msgspec.json.decode(stream(process.stdout).read())
    assert (found["OF_THIS_NODE"], found["OF_ENGINE"]) == ("1", "2")
    assert found["PATH"] == "/of/engine:/usr/bin"
    assert "PYTHONPATH" not in found
    assert not Path(found["TMPDIR"]).exists()


@pytest.mark.parametrize("code", [SLEEPS, DEAF], ids=["asked", "killed"])
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda one: stream(one.stdin).close(), id="input-ends"),
        pytest.param(lambda one: one.send_signal(signal.SIGTERM), id="sigterm"),
        pytest.param(lambda one: one.send_signal(signal.SIGHUP), id="sighup"),
        pytest.param(lambda one: one.kill(), id="sigkill"),
    ],
)
def test_a_command_that_nobody_wants_any_more_is_ended(
    end: Callable[[Outpost], None], code: str
) -> None:
    with outpost(sys.executable, "-c", code) as process:
        command = psutil.Process(int(stream(process.stdout).readline()))
        assert command.is_running()
        end(process)
        gone, _ = psutil.wait_procs([command], timeout=8)
        assert gone == [command]
        assert process.wait(timeout=8) != 0


def test_a_command_that_cannot_be_killed_is_named() -> None:
    path = f"{UNKILLABLE}:{builders.ROOT}"
    with outpost(sys.executable, "-c", DEAF, PYTHONPATH=path, UNKILLABLE="SIG_IGN") as process:
        command = psutil.Process(int(stream(process.stdout).readline()))
        stream(process.stdin).close()
        try:
            assert process.wait(timeout=60) == LIVES_ON  # it waits for what is slow to go
            assert stream(process.stdout).readline().startswith(b"process %d (" % command.pid)
        finally:
            command.kill()


@pytest.mark.parametrize(
    ("command", "folder", "words"),
    [
        ("/no/such/python", builders.ROOT, "'/no/such/python': No such file or directory"),
        (sys.executable, Path("/no/such/folder"), "No such file or directory: '/no/such/folder'"),
    ],
    ids=["program", "folder"],
)
def test_what_a_node_lacks_is_named(command: str, folder: Path, words: str) -> None:
    with outpost(command, "-c", SAYS, folder=folder) as process:
        said = stream(process.stdout).read().decode()
        assert process.wait(timeout=10) == 127
    assert said.startswith("specreg: can't run ")
    assert words in said
    assert said.endswith("; needed on each node\n")
