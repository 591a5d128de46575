"""Scripted servers as real processes, and what is left of them."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType

import psutil
import pytest

from specreg.engines.server_spec import ServerSpec
from specreg.servers.handle import ServerHandle
from specreg.servers.launch import Launch
from specreg.servers.launcher import ServerLauncher, free_port
from specreg.servers.provision import Provision
from specreg.servers.server import StartedServer
from tests.doubles.vllm.script import VARIABLE, Script
from tests.unit import builders


def fetch_nothing(*_arguments: object) -> None:
    """Fetch no model: a scripted server loads none, and there is no hub that has them."""


PROVISION = Provision(on_gpu=False, show=lambda _: None, python=sys.executable, fetch=fetch_nothing)


@contextmanager
def running(handle: ServerHandle) -> Iterator[StartedServer]:
    """The ready server of a handle, which ends with the context."""
    try:
        server = handle.server
        assert isinstance(server, StartedServer)
        yield server
    finally:
        handle.stop()


def start(
    folder: Path,
    script: Script,
    *,
    spec: ServerSpec = builders.SPEC,
    provision: Provision = PROVISION,
    ready_within_s: float = 30.0,
    choose_port: Callable[[], int] = free_port,
    root: Path | None = None,
) -> AbstractContextManager[StartedServer]:
    """A scripted server of a spec, its script and log in `folder`, which is its root by default."""
    launcher = ServerLauncher(
        provision=provision,
        root=root or folder,
        ready_within_s=ready_within_s,
        choose_port=choose_port,
    )
    launch = Launch(spec=builders.scripted(spec, script, folder), number=1)
    log_path = folder / "logs" / "server.log"
    return running(ServerHandle(launch=launch, launcher=launcher, log_path=log_path))


def left_of(folder: Path) -> list[psutil.Process]:
    """The processes that were started with a script in `folder`."""
    pids = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.environ().get(VARIABLE, ""):
                pids.append(process)
        except psutil.Error:
            continue
    return pids


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Ends with an error what takes longer, so that a hang is a failure and not a wait.

    Not in one another: the inner one would end the time of the outer one.
    """
    with _limited(signal.ITIMER_REAL, signal.SIGALRM, seconds):
        yield


@contextmanager
def at_most_cpu(seconds: float) -> Iterator[None]:
    """As `at_most`, in time of a processor: for work, whose time is longer on a busy machine.

    What neither works nor ends is an error after 90 s.
    """
    with at_most(90.0), _limited(signal.ITIMER_PROF, signal.SIGPROF, seconds):
        yield


@contextmanager
def _limited(timer: int, ended: signal.Signals, seconds: float) -> Iterator[None]:
    def give_up(_number: int, _frame: FrameType | None) -> None:
        pytest.fail(f"it took more than {seconds} s")

    before = signal.signal(ended, give_up)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(ended, before)
