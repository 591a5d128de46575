"""A run of the suite that can be hurt, and what is left of it afterwards.

The same run is of the scripted server or of real vLLM on the CPU; each process of it carries a
mark, and its temporary files and locks lie in folders of its own.
"""

import contextlib
import fcntl
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import psutil

from specreg.core.shared_memory import shared_files, used_by
from specreg.measurement.metrics import Replay
from specreg.report.document import RunVerdict
from specreg.report.files import load_verdict
from specreg.runs.ledger import read_ledger
from tests.doubles.nvml.device import ScriptedGpu, build, environment, write_script
from tests.doubles.vllm.script import Script, record_script

ROOT = Path(__file__).parents[2]
PLANTED = Path(__file__).parent / "planted"
MATRIX = """
needs_gpus = {needs_gpus}

[models.tiny]
target = "fixtures/models/tiny/target"

[[cases]]
engine = "vllm"
methods = ["ngram"]
models = "tiny"
dataset = "{dataset}"
concurrency = [1, 2, 3]
prompts = 20
output_cap_tokens = 64
dtype = "float32"
engine_env = {{ OMP_NUM_THREADS = "1" }}
engine_args = {engine_args}
{settings}
"""
CASES = tuple(f"vllm-ngram-tiny-toy-c{load}" for load in (1, 2, 3))
MARK = "TEST_MARK"
"""The variable that says whose a process is."""
_PATIENCE_S = 180.0


@dataclass(kw_only=True)
class Hurt:
    """A matrix, of three cases on one server unless said otherwise, and the suite run on it.

    Attributes:
        script: of the scripted server; None for real vLLM.
        gpus: that the machine has, none for a machine without.
        variables: further ones, for it and its servers.
        settings: further ones of the cases, as TOML; dataset: what they replay.
        user: whose cache it has, None for its own.
    """

    folder: Path
    script: Script | None = field(default_factory=lambda: Script(step_ms=8.0, shares_memory=True))
    gpus: tuple[ScriptedGpu, ...] = ()
    engine_args: tuple[str, ...] = ()
    matrix: str = MATRIX
    variables: dict[str, str] = field(default_factory=dict)
    settings: str = ""
    dataset: str = "toy"
    user: Path | None = None
    patience_s: float = _PATIENCE_S
    temporary: Path = field(init=False)
    shared_before: frozenset[str] = field(init=False, default_factory=shared_files)

    def __post_init__(self) -> None:
        self.temporary = Path(tempfile.mkdtemp(prefix="hurt-"))  # short, as sockets lie in it
        weakref.finalize(self, shutil.rmtree, self.temporary, ignore_errors=True)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def cache(self) -> Path:
        """Where its locks are; that of the engines is the user's."""
        return (self.user or self.folder) / "cache"

    def beside(self, name: str) -> "Hurt":
        """The same of the same user, in another folder."""
        folder = self.folder / name
        folder.mkdir()
        return replace(self, folder=folder, user=self.folder)

    def command(self, *arguments: str) -> tuple[str, ...]:
        text = self.matrix.format(
            needs_gpus=len(self.gpus),
            settings=self.settings,
            dataset=self.dataset,
            engine_args=list(self.engine_args),
        )
        (self.folder / "cpu.toml").write_text(text)
        scripted = (f"--specreg-engine-python={sys.executable}",) if self.script else ()
        return (
            *(sys.executable, "-m", "pytest", "tests/perf", "-q", "-k", "acceptance"),
            *("-p", "no:cacheprovider", "-p", "no:hypothesispytest"),
            *("--specreg-tier=cpu", f"--specreg-matrix={self.folder}"),
            *(f"--specreg-baselines={self.folder / 'baselines'}", f"--specreg-runs={self.runs}"),
            *scripted,
            *arguments,
        )

    @property
    def soaked(self) -> Path:
        return self.folder / "soak"

    def soak_command(self, *arguments: str) -> tuple[str, ...]:
        self.command()  # writes the matrix
        return (
            *(sys.executable, "-m", "specreg", "soak", CASES[0], f"--engine={sys.executable}"),
            *("--tier=cpu", f"--matrix={self.folder}", f"--out={self.soaked}"),
            *arguments,
        )

    def environment(self) -> dict[str, str]:
        variables = {MARK: str(self.folder), "TMPDIR": str(self.temporary), "COLUMNS": "200"}
        if self.script is None:
            return os.environ | variables | self.variables
        variables |= record_script(self.script, self.folder) | {"SPECREG_CACHE": str(self.cache)}
        if self.gpus:
            library = self.folder / "libnvidia-ml.so.1"
            library = library if library.exists() else build(self.folder)
            variables |= environment(library, write_script(self.folder / "gpus", self.gpus))
        return os.environ | variables | self.variables

    def show_gpus(self, *gpus: ScriptedGpu) -> None:
        write_script(self.folder / "gpus", gpus)

    def start(self, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
        """The command in a process of its own, killed with all of its own in the end."""
        return self._start(self.command(*arguments))

    def start_soak(self, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
        return self._start(self.soak_command(*arguments))

    @contextlib.contextmanager
    def _start(self, command: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as run:
            try:
                yield run
            finally:
                for process in self.processes():
                    with contextlib.suppress(psutil.Error):
                        process.kill()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments) as run:
            output, _ = run.communicate(timeout=self.patience_s)
        return subprocess.CompletedProcess(run.args, run.returncode, output)

    def processes(self) -> list[psutil.Process]:
        return marked(self.folder)

    def server(self) -> psutil.Process:
        """The process that its server's API runs in."""
        (api,) = [process for process in self.processes() if is_api(process)]
        return api

    def worker(self) -> psutil.Process:
        """The process that generates: vLLM's engine core; the scripted server has but one."""
        api = self.server()
        workers = [
            process for process in api.children() if "EngineCore" in " ".join(process.cmdline())
        ]
        return workers[0] if workers else api

    def listening(self) -> list[str]:
        addresses: list[str] = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                sockets = process.net_connections("inet")
                addresses += [
                    socket.laddr[0] for socket in sockets if socket.status == psutil.CONN_LISTEN
                ]
        return addresses

    def finished(self, case_id: str, attempt: int = -1) -> int:
        """How many requests of an attempt at a case are in the ledger; of the last one, or from 0.

        Those of the control, if there is one, and of the case itself.
        """
        lines = self.ledger()
        begun = [at for at, line in enumerate(lines) if _begins(line, case_id)]
        after = lines[begun[attempt] + 1 :] if begun else []
        of_it = itertools.takewhile(lambda line: line["type"] != "Launched", after)
        return sum(line["type"] == "Replayed" for line in of_it)

    def attempts(self, case_id: str) -> int:
        return sum(_begins(line, case_id) for line in self.ledger())

    def ledger(self) -> list[dict[str, object]]:
        """The whole lines of all its runs' ledgers."""
        texts = []
        for path in self._ledgers():
            with contextlib.suppress(FileNotFoundError):  # a run has just taken it
                texts.append(path.read_bytes())
        lines = [line for text in texts for line in text.splitlines(keepends=True)]
        return [msgspec.json.decode(line) for line in lines if line.endswith(b"\n")]

    def _ledgers(self) -> Iterator[Path]:
        """The runs' own, each with those of its workers that it hasn't taken yet, in order."""
        for run in sorted(self.runs.glob("*")):
            yield run / "ledger.jsonl"
            yield from sorted(run.glob("shards/*/ledger.jsonl"))

    def replays(self) -> dict[str, Replay]:
        """By case what was measured, of the one run that there was."""
        (ledger,) = self.runs.glob("*/ledger.jsonl")
        return {
            key.case_id: ledger_entry.replay
            for key, ledger_entry in read_ledger(ledger).measured.items()
            if ledger_entry.replay
        }

    def verdict(self) -> RunVerdict:
        verdict = load_verdict(max(self.runs.iterdir()) / "verdict.json")
        assert verdict is not None
        return verdict

    def logs(self) -> list[str]:
        return sorted(path.name for path in self.runs.glob("*/logs/*.log"))

    def is_measuring(self, case_id: str = CASES[0], requests: int = 3) -> Callable[[], bool]:
        return lambda: self.finished(case_id) >= requests

    def left(self) -> list[str]:
        """The processes, ports, locks, temporary files and shared memory that are left of it."""
        processes = self.processes()
        leftovers = [f"process {process.pid}" for process in processes]
        for process in processes:
            with contextlib.suppress(psutil.Error):
                leftovers += [f"port {port}" for port in ports_of(process)]
        leftovers += [
            f"lock {path.name}" for path in self.cache.glob("**/*.lock") if _is_held(path)
        ]
        leftovers += [f"file {path.name}" for path in self.temporary.iterdir()]
        shared = shared_left(self.shared_before, [process.pid for process in processes])
        return leftovers + [f"shared {name}" for name in shared]


def shared_left(before: frozenset[str], own_pids: Collection[int] = ()) -> frozenset[str]:
    """The names in /dev/shm that weren't there before, and that no living process but ours uses.

    Looked at twice: any program's semaphore has a name for a moment, which it then takes away.
    """
    files_left = shared_files() - before
    if files_left:
        files_left -= used_by() - used_by(own_pids)
    if files_left and not own_pids:
        time.sleep(0.5)
    return files_left & shared_files()


def ports_of(process: psutil.Process) -> set[int]:
    connections = process.net_connections("tcp")
    return {
        connection.laddr[1]
        for connection in connections
        if connection.status == psutil.CONN_LISTEN and connection.laddr
    }


def is_free(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def wait_until(condition: Callable[[], bool], within_s: float = _PATIENCE_S) -> float:
    """How long it takes until a condition holds, in seconds; a failure if that is too long."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within_s
        time.sleep(0.05)
    return time.monotonic() - started


def marked(folder: Path) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == str(folder) and lives(process):
                processes.append(process)
    return processes


def end_of_leader(find: Callable[[], Sequence[psutil.Process]]) -> float:
    """When the process ended that leads a session, in seconds of the monotonic clock.

    Args:
        find: the processes that it is one of; it may not be there yet.
    """
    leaders: list[psutil.Process] = []

    def are_there() -> bool:
        with contextlib.suppress(OSError):
            leaders.extend(process for process in find() if os.getsid(process.pid) == process.pid)
        return bool(leaders)

    wait_until(are_there)
    wait_until(lambda: not lives(leaders[0]))
    return time.monotonic()


def is_api(process: psutil.Process) -> bool:
    """Whether it runs vLLM's server, and is none of its workers nor what fetches its models."""
    with contextlib.suppress(psutil.Error):
        return "vllm.entrypoints" in " ".join(process.cmdline())
    return False


def lives(process: psutil.Process) -> bool:
    """Whether it runs; one that only waits to be reaped doesn't."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _begins(line: dict[str, object], case_id: str) -> bool:
    keys = line.get("keys")
    if line["type"] != "Launched" or not isinstance(keys, list):
        return False
    return any(key["case_id"] == case_id for key in keys)


def _is_held(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
