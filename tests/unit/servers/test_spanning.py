"""Servers that span nodes: who is asked to start which part, and that none is left."""

import contextlib
import dataclasses
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specreg.core.errors import (
    ServerDiedError,
    ServerStartError,
    UnkillableError,
    UnsupportedError,
)
from specreg.engines._parallel import Part
from specreg.engines.registry import Parallel
from specreg.servers.environments import EngineEnvironment
from specreg.servers.outpost import LIVES_ON
from specreg.servers.server import StartedServer
from specreg.servers.spanning import Nodes, Surroundings, parse_nodes, running_parts
from specreg.servers.start import start_server
from tests.doubles.vllm.script import Script
from tests.unit import builders

HOSTS = ("127.0.0.1", "localhost")
"""Of two nodes that are one machine."""
ACROSS = Parallel(tensor=2, nodes=2)
BY_RAY = Parallel(tensor=2, nodes=2, ray=True)
RAY = """#!/bin/sh
exec {python} -m vllm.ray "$@"
"""
PYTHON = """#!/bin/sh
exec {python} "$@"
"""


def engine_folder(folder: Path) -> Path:
    """A folder of programs as that of an engine's environment, with a scripted Ray."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("ray", RAY), ("python", PYTHON)):
        (programs / name).write_text(text.format(python=sys.executable))
        (programs / name).chmod(0o755)
    return programs


@contextlib.contextmanager
def spanning(
    folder: Path, script: Script, *, engine: str = "vllm", parallel: Parallel = ACROSS
) -> Iterator[StartedServer]:
    """A scripted server of two parts, its script and logs in `folder`."""
    spec = dataclasses.replace(builders.SPEC, engine=engine, parallel=parallel)
    spec = builders.scripted(spec, script, folder)
    variables = dict(spec.engine_env)
    variables["PYTHONPATH"] += f":{builders.ROOT}"
    environment = EngineEnvironment(
        python=str(engine_folder(folder) / "python"), package="", version="", torch_source=""
    )
    with start_server(
        dataclasses.replace(spec, engine_env=tuple(variables.items())),
        environment,
        root=folder,
        log_path=folder / "logs" / "server.log",
        on_gpu=False,
        ready_within_s=30.0,
        show=lambda _: None,
        nodes=Nodes(hosts=HOSTS, reach=("env", "NODE={host}", f"OF_TEST={folder}")),
    ) as server:
        yield server


def away(folder: Path) -> list[psutil.Process]:
    """What runs on the other node."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("OF_TEST") == str(folder):
                found.append(process)
    return found


def left_of(folder: Path) -> list[psutil.Process]:
    """What runs on either."""
    found = away(folder)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in process.environ().get("SCRIPTED_SERVER", ""):
                found.append(process)
    return found


def part_of(folder: Path) -> psutil.Process:
    """The engine's process on the other node."""
    words = ("vllm.entrypoints.cli.main", "sglang.launch_server", "vllm.ray")
    (part,) = [
        one
        for one in away(folder)
        if any(word in one.cmdline() for word in words) and "-m" in one.cmdline()
    ]
    return part


def flag(command: list[str], name: str) -> str:
    """What follows a flag."""
    return command[command.index(name) + 1]


def test_a_vllm_that_joins_its_nodes_itself(tmp_path: Path) -> None:
    with spanning(tmp_path, Script()) as server:
        first, other = psutil.Process(server.process.popen.pid).cmdline(), part_of(tmp_path)
        command = other.cmdline()
        assert "vllm.entrypoints.openai.api_server" in first
        begin = command.index("vllm.entrypoints.cli.main")
        assert command[begin + 1 : begin + 4] == ["serve", "some/target", "--headless"]
        assert (flag(first, "--node-rank"), flag(command, "--node-rank")) == ("0", "1")
        for name in ("--nnodes", "--master-addr", "--master-port", "--tensor-parallel-size"):
            assert flag(first, name) == flag(command, name)
        assert (flag(first, "--nnodes"), flag(first, "--master-addr")) == ("2", HOSTS[0])
        assert flag(first, "--distributed-executor-backend") == "mp"
        assert flag(first, "--speculative-config") == flag(command, "--speculative-config")
        assert other.environ()["NODE"] == "localhost"
        assert f"a part with pid {other.pid}\n" in f"{server.parts[0].log_tail()}\n"
        assert [part.host for part in server.parts] == ["localhost"]
        assert server.parts[0].log_path == tmp_path / "logs" / "server-node1.log"
        server.check_alive()
    assert left_of(tmp_path) == []


def test_a_vllm_whose_nodes_ray_joins(tmp_path: Path) -> None:
    """Who comes before Ray's head listens is refused: the others are started after that."""
    with spanning(tmp_path, Script(), parallel=BY_RAY) as server:
        first = psutil.Process(server.process.popen.pid)
        address = first.environ()["RAY_ADDRESS"]
        assert flag(first.cmdline(), "--distributed-executor-backend") == "ray"
        assert "--nnodes" not in first.cmdline()
        assert [part.host for part in server.parts] == ["127.0.0.1", "localhost"]
        head = psutil.Process(server.parts[0].process.popen.pid)
        other = part_of(tmp_path)
        told = {"start", "--block", "--num-gpus=1"}
        assert told | {"--head", f"--port={address.split(':')[1]}"} <= set(head.cmdline())
        assert told | {f"--address={address}"} <= set(other.cmdline())
        assert not {"OF_TEST", "RAY_ADDRESS"} & set(head.environ())
        assert "RAY_ADDRESS" not in other.environ()
        assert head.pid in server.pids()
        server.check_alive()
    assert left_of(tmp_path) == []


def test_an_sglang_on_two_nodes(tmp_path: Path) -> None:
    with spanning(tmp_path, Script(), engine="sglang") as server:
        first = psutil.Process(server.process.popen.pid).cmdline()
        command = part_of(tmp_path).cmdline()
        rest = command.index("--node-rank")
        assert (flag(first, "--nnodes"), flag(first, "--node-rank")) == ("2", "0")
        assert flag(command, "--node-rank") == "1"
        assert flag(first, "--dist-init-addr") == flag(command, "--dist-init-addr")
        assert flag(first, "--dist-init-addr").startswith(f"{HOSTS[0]}:")
        assert int(flag(command, "--port")) == int(flag(first, "--port")) + 1
        # All else is the same.
        assert first[first.index("--node-rank") + 2 :] == command[rest + 2 :]
        server.check_alive()
    assert left_of(tmp_path) == []


@pytest.mark.parametrize("parallel", [ACROSS, BY_RAY], ids=["alone", "ray"])
def test_a_part_that_dies_at_the_start_ends_it_and_says_why(
    tmp_path: Path, parallel: Parallel
) -> None:
    script = Script(part_lives_s=0.0, exit_status=3, exit_log="torch.OutOfMemoryError: none left")
    with (
        pytest.raises(ServerStartError) as error,
        spanning(tmp_path, script, parallel=parallel),
    ):
        pytest.fail("it can't start")
    host = HOSTS[0] if parallel.ray else HOSTS[1]
    assert error.value.failure == f"its part on {host} ended with status 3: out of memory"
    assert "torch.OutOfMemoryError: none left" in error.value.log_tail
    assert re.search(rf"last lines of .*/server-node\d.log, on {host}:", str(error.value))
    assert left_of(tmp_path) == []


def test_a_part_that_dies_later_takes_the_server_along(tmp_path: Path) -> None:
    with spanning(tmp_path, Script()) as server:
        part_of(tmp_path).kill()
        server.process.popen.wait(timeout=10)
        with pytest.raises(ServerDiedError) as error:
            server.check_alive()
    said = str(error.value)
    assert "its part on localhost ended with status 137 while it was measured" in said
    assert "server-node1.log, on localhost:\nINFO a part with pid" in said
    assert left_of(tmp_path) == []


def test_a_server_that_ends_by_itself_leaves_no_part(tmp_path: Path) -> None:
    with spanning(tmp_path, Script()) as server:
        server.process.popen.kill()
        server.process.popen.wait()
        with pytest.raises(ServerDiedError, match="'vllm-draft_model-toy': ended with status -9"):
            server.check_alive()
        assert away(tmp_path)
    assert left_of(tmp_path) == []


def test_a_node_that_cannot_be_reached_is_named_with_what_the_connection_says(
    tmp_path: Path,
) -> None:
    spec = dataclasses.replace(builders.SPEC, parallel=ACROSS)
    environment = EngineEnvironment(python=sys.executable, package="", version="", torch_source="")
    code = "import sys; sys.exit('connect to host node2: Connection refused')"
    with (
        pytest.raises(ServerStartError) as error,
        start_server(
            builders.scripted(spec, Script(), tmp_path),
            environment,
            root=tmp_path,
            log_path=tmp_path / "server.log",
            on_gpu=False,
            ready_within_s=30.0,
            show=lambda _: None,
            nodes=Nodes(hosts=("127.0.0.1", "node2"), reach=(sys.executable, "-c", code, "{host}")),
        ),
    ):
        pytest.fail("nobody is there")
    assert "its part on node2 ended with status 1" in str(error.value)
    assert "connect to host node2: Connection refused" in str(error.value)
    assert left_of(tmp_path) == []


def test_hosts_and_what_reaches_them_are_read() -> None:
    assert parse_nodes(None, None).hosts == ()
    nodes = parse_nodes("127.0.0.1, node2", "env -u 'A B' {host} AT={host}")
    assert nodes.hosts == ("127.0.0.1", "node2")
    assert nodes.reaching("node2") == ("env", "-u", "A B", "node2", "AT=node2")


@pytest.mark.parametrize(
    ("hosts", "reach", "words"),
    [
        ("node1", None, "--specreg-nodes 'node1': needs two hosts or more, each once"),
        ("node1,", None, "needs two hosts or more, each once: HOST,HOST"),
        ("node1,node1", None, "needs two hosts or more, each once"),
        (None, "env {host}", "--specreg-node-command without --specreg-nodes"),
        ("a,b", "env", "--specreg-node-command 'env': doesn't say {host}"),
        ("a,b", "env '{host}", "No closing quotation"),
        ("a,b", "no-such-program {host}", "no program 'no-such-program' on PATH"),
    ],
)
def test_nodes_that_cannot_be_those_of_a_server_are_refused(
    hosts: str | None, reach: str | None, words: str
) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(words)):
        parse_nodes(hosts, reach)


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ((), r"parallel\.nodes = 2: --specreg-nodes names none; name as many, this one first"),
        (("192.0.2.1", "b"), r"--specreg-nodes: '192\.0\.2\.1' isn't this machine \(.+\); name"),
        (("no-such-host.invalid", "b"), r"'no-such-host\.invalid' isn't this machine \(.+\)"),
    ],
)
def test_too_few_nodes_or_another_one_first_are_refused(hosts: tuple[str, ...], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        Nodes(hosts=hosts).check(2)
    Nodes(hosts=HOSTS).check(2)


# What reaches another node: heeds nobody.
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(120)
"""
# Two parts on other nodes for as long as nobody says Ctrl-C.
APART = """
import os, pathlib, sys, time
from specreg.engines._parallel import Part
from specreg.servers.spanning import Nodes, Surroundings, running_parts
folder = pathlib.Path(sys.argv[1])
nodes = Nodes(hosts=("127.0.0.1", "b", "c"), reach=(sys.executable, "-c", sys.argv[2], "{host}"))
around = Surroundings(
    nodes=nodes, meeting=None, here={}, there={}, path="", folder=folder, log_path=folder / "log"
)
with running_parts([Part(node=node, command=()) for node in (1, 2)], around) as parts:
    while not all(part.log_path.read_text() for part in parts):
        time.sleep(0.01)
    print(*(part.process.popen.pid for part in parts), flush=True)
    time.sleep(60)
"""


def test_a_second_ctrl_c_waits_for_no_node(tmp_path: Path) -> None:
    """Each has 15 s to end, and is asked for 5 s, else."""
    with subprocess.Popen(
        (sys.executable, "-c", APART, str(tmp_path), DEAF),
        cwd=builders.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as run:
        assert run.stdout is not None
        parts = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
        run.send_signal(signal.SIGINT)
        time.sleep(1)
        assert [part.is_running() for part in parts] == [True, True]
        run.send_signal(signal.SIGINT)
        run.wait(timeout=4)
    assert [part.is_running() for part in parts] == [False, False]


def test_a_part_that_cannot_be_ended_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    code = f"import sys; sys.stdin.read(); print('process 7 is there'); sys.exit({LIVES_ON})"
    around = Surroundings(
        nodes=Nodes(hosts=("127.0.0.1", "b"), reach=(sys.executable, "-c", code, "{host}")),
        meeting=None,
        here={},
        there={},
        path="",
        folder=tmp_path,
        log_path=tmp_path / "log",
    )
    said = r"part on b: may still run; .*\nlast lines of .*log-node1, on b:\nprocess 7 is there"
    with (
        pytest.raises(UnkillableError, match=said),
        running_parts([Part(node=1, command=())], around),
    ):
        pass
