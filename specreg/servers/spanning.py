"""Servers that span nodes: where the nodes are in, parts that run there, and end with us, out."""

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from specreg.core.errors import UnkillableError, UnsupportedError
from specreg.core.logs import log_tail
from specreg.core.processes import (
    STOPPED_WITHIN_S,
    MarkedProcess,
    kill_running,
    settle_log,
    start_marked,
    stop_marked,
)
from specreg.engines._parallel import Meeting, Part
from specreg.servers.outpost import LIVES_ON, Order

NODES_OPTION, REACH_OPTION = "--specreg-nodes", "--specreg-node-command"
REACH = "ssh -o BatchMode=yes {host}"
"""How a command is run on another node, unless told otherwise; it must hand its input on."""
_HOST = "{host}"
_HERE = str(Path(__file__).parents[2])
"""The folder that holds specreg, on each node."""
_ENDING_S = STOPPED_WITHIN_S + 15.0
"""The far end stops its part first, and the connection takes its time."""
_LISTENING_S, _POLL_S = 60.0, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Where servers may have parts.

    Attributes:
        hosts: of the nodes, as they reach one another; this one first.
        reach: what runs a command on another one, `{host}` standing for which.
    """

    hosts: tuple[str, ...] = ()
    reach: tuple[str, ...] = tuple(REACH.split())

    def check(self, nodes: int) -> None:
        """Silent where a server may span so many nodes.

        Raises:
            UnsupportedError: there are fewer, or this one isn't the first of them.
        """
        if nodes > len(self.hosts):
            known = ", ".join(self.hosts) or "none"
            message = (
                f"parallel.nodes = {nodes}: {NODES_OPTION} names {known}; name as many, this one"
                " first, as the others reach it (of pytest alone: a gate or a soak spans no nodes)"
            )
            raise UnsupportedError(message)
        try:
            free_port(self.hosts[0])
        except OSError as error:
            message = (
                f"{NODES_OPTION}: '{self.hosts[0]}' isn't this machine ({error.strerror or error});"
                " name this one first, as the others reach it"
            )
            raise UnsupportedError(message) from error

    def meeting(self) -> Meeting:
        """A place to meet at that was free a moment ago."""
        return Meeting(host=self.hosts[0], port=free_port(self.hosts[0]))

    def reaching(self, host: str) -> tuple[str, ...]:
        """What runs a command there."""
        return tuple(word.replace(_HOST, host) for word in self.reach)


HERE_ALONE = Nodes()


def parse_nodes(hosts: str | None, reach: str | None) -> Nodes:
    """The nodes that somebody typed, `HOST,HOST`, and how to reach the others.

    Raises:
        UnsupportedError: they can't be those of a server.
    """
    if hosts is None:
        if reach is not None:
            raise UnsupportedError(f"{REACH_OPTION} without {NODES_OPTION}: name the nodes too")
        return HERE_ALONE
    named = tuple(host.strip() for host in hosts.split(","))
    if not all(named) or len(set(named)) < len(named) or len(named) == 1:
        message = f"{NODES_OPTION} '{hosts}': needs two hosts or more, each once: HOST,HOST"
        raise UnsupportedError(message)
    try:
        words = tuple(shlex.split(reach or REACH))
    except ValueError as error:
        raise UnsupportedError(f"{REACH_OPTION} '{reach}': {error}; close it") from error
    if not any(_HOST in word for word in words):
        message = f"{REACH_OPTION} '{reach}': doesn't say {_HOST}; write it where the host belongs"
        raise UnsupportedError(message)
    if shutil.which(words[0]) is None:
        message = f"{REACH_OPTION}: no program '{words[0]}' on PATH; install it, or give another"
        raise UnsupportedError(message)
    return Nodes(hosts=named, reach=words)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPart:
    """A part of a server, beside the process that answers.

    Attributes:
        host: of its node.
        process: what runs here, of another node what holds the connection.
        log_path: what it says.
    """

    host: str
    process: MarkedProcess
    log_path: Path

    def ended(self) -> str:
        """How it ended, empty while it runs."""
        status = self.process.popen.poll()
        return "" if status is None else f"its part on {self.host} ended with status {status}"

    def log_tail(self) -> str:
        """The last lines of what it has said so far, and where all of it is."""
        settle_log(self.process)
        said = log_tail(self.log_path) or "(the log is empty)"
        return f"last lines of {self.log_path}, on {self.host}:\n{said}"

    def takes_along(self, process: MarkedProcess) -> None:
        """Ends a process once this part has ended: it might wait for it for ever."""
        threading.Thread(target=self._take_along, args=(process,), daemon=True).start()

    def _take_along(self, process: MarkedProcess) -> None:
        self.process.popen.wait()
        process.popen.terminate()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the parts of a server are started in.

    Attributes:
        nodes: where.
        meeting: where they meet; None for a server of one node.
        here: the environment of those on this node.
        there: what those on others have beside the environment of their node.
        path: the folder of the engine's programs, empty where they are on PATH.
        folder: to run in.
        log_path: of the process that answers; theirs lie beside it.
    """

    nodes: Nodes
    meeting: Meeting | None
    here: Mapping[str, str]
    there: Mapping[str, str]
    path: str
    folder: Path
    log_path: Path

    def start(self, part: Part) -> RunningPart:
        """A part that runs.

        Raises:
            OSError: it can't be started, or its log not be written.
        """
        host = self.nodes.hosts[part.node]
        log_path = self.log_path.with_stem(f"{self.log_path.stem}-node{part.node}")
        if part.node == 0:
            process = start_marked(
                part.command, environment=self.here, log_path=log_path, cwd=self.folder
            )
        else:
            order = Order(
                command=part.command,
                variables=dict(self.there),
                path=self.path,
                folder=str(self.folder),
            )
            process = start_marked(
                (*self.nodes.reaching(host), *_outpost()),
                environment=os.environ,
                log_path=log_path,
                cwd=self.folder,
                order=msgspec.json.encode(order) + b"\n",
            )
        return RunningPart(host=host, process=process, log_path=log_path)


@contextlib.contextmanager
def running_parts(parts: Sequence[Part], around: Surroundings) -> Iterator[tuple[RunningPart, ...]]:
    """The parts of a server for as long as the context lasts; none is left on any node.

    Raises:
        OSError: one can't be started.
        UnkillableError: one can't be ended, here or there.
    """
    running: list[RunningPart] = []
    try:
        for part in parts:
            running.append(around.start(part))
            if part.first and around.meeting is not None:
                _await_listening(around.meeting, running[-1])
        yield tuple(running)
    finally:
        _end(running)


def _outpost() -> tuple[str, ...]:
    """What takes an order on another node; quoted for a shell there, and plain where it can be."""
    command = ("env", f"PYTHONPATH={_HERE}", sys.executable, "-P", "-m", "specreg.servers.outpost")
    return tuple(map(shlex.quote, command))


def _await_listening(meeting: Meeting, part: RunningPart) -> None:
    """Returns once somebody listens there, or it makes no sense to wait any longer."""
    deadline = time.monotonic() + _LISTENING_S
    while not part.ended() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection((meeting.host, meeting.port), timeout=1).close()
            return
        time.sleep(_POLL_S)


def _end(running: Sequence[RunningPart]) -> None:
    """Tells all at once that they aren't wanted any more, and waits until each has ended.

    Raises:
        UnkillableError: one hasn't, here or there.
    """
    with contextlib.ExitStack() as stack:
        for part in running:
            stack.callback(stop_marked, part.process)
        try:
            left = _left_away(running)
        except KeyboardInterrupt:  # once more, as a rule: then nobody waits, or asks again
            kill_running()
            raise
    if left:
        hosts = ", ".join(part.host for part in left)
        message = f"part on {hosts}: may still run; see what it says, and end it there"
        raise UnkillableError("\n".join((message, *(part.log_tail() for part in left))))


def _left_away(running: Sequence[RunningPart]) -> list[RunningPart]:
    """Ends those on other nodes, and gives those that haven't ended there.

    What is at the far end ends first; ending what holds the connection wouldn't wait.
    """
    away = [(part, pipe) for part in running if (pipe := part.process.popen.stdin) is not None]
    for _, pipe in away:
        with contextlib.suppress(OSError):  # what wasn't taken before it ended
            pipe.close()
    return [part for part, _ in away if _status(part.process.popen) in {None, LIVES_ON}]


def _status(popen: subprocess.Popen[bytes]) -> int | None:
    """The status of one that holds a connection; None where it doesn't end in time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return popen.wait(_ENDING_S)
    return None


def free_port(host: str) -> int:
    """A port of ours that was free a moment ago. Closed before it is bound: a small risk.

    Raises:
        OSError: the host is none of this machine's names.
    """
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
