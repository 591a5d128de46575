"""Runs the suite as a user would, against the scripted server.

A run that nobody watches or interrupts is a fork of a process that has imported its modules.
"""

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
import termios
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from filelock import FileLock

from specreg.report.document import RunVerdict
from specreg.report.files import load_verdict
from tests.doubles.nvml.device import (
    Answer,
    ScriptedDriver,
    ScriptedGpu,
    build,
    environment,
    write_script,
)
from tests.doubles.vllm.script import Script, record_script
from tests.plugin.preloaded import PreloadedPython

ROOT = Path(__file__).parents[2]

MATRIX = """
    needs_gpus = 0

    [models.tiny]
    target = "fixtures/models/tiny/target"
    drafts = { eagle3 = "fixtures/models/tiny/eagle3" }
    target_gib = 0.1 # with its size a pair of servers starts at once
    drafts_gib = { eagle3 = 0.1 }

    [[cases]]
    engine = "vllm"
    methods = ["none", "eagle3"]
    models = "tiny"
    dataset = "toy"
    concurrency = [1, 4]
    prompts = 10
    output_cap_tokens = 32
    [cases.tolerances]
    throughput_tokens_per_s = 0.5
    ttft_p50_ms = 4.0
    tpot_p50_ms = 2.0
    speedup_ratio = 0.9 # what two launches of ten prompts can tell
"""
WITHOUT_TOLERANCES = MATRIX.partition("    [cases.tolerances]")[0]
"""The same tier; each metric has its own tolerance."""
PAIR = """
[models.{name}]
target = "fixtures/models/tiny/target"
drafts = {{ eagle3 = "fixtures/models/tiny/eagle3" }}
"""
_TIMES = 3
_BUSY = ("CLIENT_BEHIND: ", "ANSWERS_AT_ONCE: ", "FIGURE_IMPOSSIBLE: ", "MACHINE_MOVED: ")
_SAYS_CI = ("CI", "BUILD_NUMBER", "GITHUB_STEP_SUMMARY")


def run_here(
    *command: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT, timeout_s: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Run a command of the repository; its output is plain text, as it has no terminal."""
    return subprocess.run(
        command, check=False, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s
    )


def start_here(
    command: Sequence[str], env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a command of the repository; its output is a pipe."""
    return subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def decided(folder: Path) -> RunVerdict:
    """Return what the run of a folder decided."""
    verdict = load_verdict(folder / "verdict.json")
    assert verdict is not None
    return verdict


def cases_of(models: str, **settings: object) -> str:
    """Return a table of cases of a model pair. JSON writes its values as TOML does."""
    usual = {"engine": "vllm", "methods": ["eagle3"], "dataset": "toy", "concurrency": [1]}
    rows = {"models": models, **usual, **settings}.items()
    return "\n".join(("[[cases]]", *(f"{key} = {json.dumps(value)}" for key, value in rows), ""))


class Suite:
    """The suite on a tier, baselines and runs of its own, with a scripted server."""

    def __init__(self, folder: Path, preloaded: PreloadedPython | None = None) -> None:
        """Write the tier `cpu` with the usual cases.

        Args:
            folder: where the tier, the baselines and the runs are.
            preloaded: runs the commands in forks; None to start a process for each.
        """
        self.folder = folder
        self.root = ROOT  # where the commands run
        self.preloaded = preloaded
        self.gpu_python: PreloadedPython | None = None
        self.baselines = folder / "baselines"
        self.runs = folder / "runs"
        self.script = Script()
        self.python_path: Path | None = None
        self.benchmarks = False  # whether pytest-benchmark is there
        self.job_summary: Path | None = None
        self.variables: dict[str, str] = {}
        self.gpus: tuple[ScriptedGpu, ...] = ()
        self.driver_answers: tuple[Answer, ...] = ()
        self.patience_s = 120.0
        self.engine_option = f"--specreg-engine-python={sys.executable}"
        self.write_tier(MATRIX)

    def write_tier(self, text: str) -> None:
        """Write the tier `cpu`."""
        (self.folder / "cpu.toml").write_text(textwrap.dedent(text))

    def command(self, *arguments: str) -> tuple[str, ...]:
        """`pytest` with the arguments."""
        return (
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
            *("-p", "no:hypothesispytest"),  # a second of importing, in each run
            *(() if self.benchmarks else ("-p", "no:benchmark")),
            *("--specreg-tier=cpu", f"--specreg-matrix={self.folder}"),
            f"--specreg-baselines={self.baselines}",
            self.engine_option,
            f"--specreg-runs={self.runs}",
            *arguments,
        )

    def environment(self) -> dict[str, str]:
        """What the command runs in; as CI, pytest would say each failure once more, in full.

        Nor do these runs belong into the summary of the job that tests specreg.
        """
        # Where it is told to be a worker of pytest-xdist, pytest-benchmark records nothing.
        left_out = {*_SAYS_CI, *(name for name in os.environ if name.startswith("PYTEST_XDIST"))}
        outer = {name: text for name, text in os.environ.items() if name not in left_out}
        scripted = record_script(self.script, self.folder) | {"COLUMNS": "120"}
        if self.python_path is not None:
            scripted["PYTHONPATH"] = f"{self.python_path}{os.pathsep}{scripted['PYTHONPATH']}"
        if self.gpus or self.driver_answers:
            folder = self.folder if self.gpu_python is None else self.gpu_python.folder
            library = folder / "libnvidia-ml.so.1"
            library = library if library.exists() else build(folder)
            driver = ScriptedDriver(self.gpus, self.driver_answers)
            scripted |= environment(library, write_script(self.folder / "gpus", driver))
        if self.job_summary is not None:
            outer["GITHUB_STEP_SUMMARY"] = str(self.job_summary)
        return outer | scripted | self.variables

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the command."""
        cwd = cwd or self.root
        command = self.command(*arguments)
        if self._python is None:
            env = self.environment()
            return run_here(*command, env=env, cwd=cwd, timeout_s=self.patience_s)
        _, _, module, *options = command
        # pytest can't rewrite the assertions of modules that have been imported.
        return self._fork(module, "--assert=plain", *options, cwd=cwd)

    @property
    def _python(self) -> PreloadedPython | None:
        """What runs the commands in forks; None where each needs a process of its own.

        A process reads where its libraries are as it starts, the scripted driver's among them.
        """
        has_driver = bool(self.gpus or self.driver_answers)
        return self.gpu_python if has_driver else self.preloaded

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start the command; its output is a pipe."""
        return start_here(self.command(*arguments), self.environment() | variables)

    def run_in_terminal(self, *arguments: str, interrupt_once: str = "") -> str:
        """What the command shows in a terminal of its own, 40 lines of 120 characters.

        Ctrl-C is typed once a text is there, unless that is empty.
        """
        command = self.command(*arguments)
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(ROOT)
            termios.tcsetwinsize(0, (40, 120))
            os.execve(command[0], command, self.environment())  # noqa: S606 - no shell
        shown = b""
        typed = not interrupt_once
        with contextlib.suppress(OSError):  # a terminal that everybody left
            while part := os.read(terminal, 65536):
                shown += part
                if not typed and interrupt_once.encode() in shown:
                    typed = bool(os.write(terminal, b"\x03"))
        os.close(terminal)
        os.waitpid(pid, 0)
        return shown.decode()

    def specreg(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run `specreg` with the arguments."""
        command = ("specreg", *map(str, arguments))
        if self._python is not None:
            return self._fork(*command)
        return run_here(
            *(sys.executable, "-m", *command), env=self.environment(), timeout_s=self.patience_s
        )

    def _fork(self, *command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run a module with arguments in a fork."""
        assert self._python is not None
        return self._python.run(command, self.environment(), cwd, self.patience_s)

    def merge(
        self, *runs: Path, into: Path, arguments: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """`specreg merge` of some runs by the suite's own matrix and baselines, done."""
        return self.specreg(
            *("merge", *runs, f"--into={into}", f"--matrix={self.folder}"),
            *(f"--baselines={self.baselines}", f"--history={self.folder / 'history'}"),
            *arguments,
        )

    def record(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Records baselines from two launches and insists that it worked.

        A busy machine is refused as it should be, which says nothing of what a test is after.
        """
        update = ("tests/perf", "-q", "--update-baselines", "--reason=test", "--specreg-launches=2")
        done = self.run_undisturbed(*update, *arguments)
        assert done.returncode == 0, done.stdout
        return done

    def judge(self, run: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`specreg judge` of a run by the suite's own matrix and baselines, done."""
        return self.specreg(
            *("judge", run, f"--matrix={self.folder}", f"--baselines={self.baselines}"),
            *(f"--history={self.folder / 'history'}", *arguments),
        )

    def run_undisturbed(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the suite, and again if the machine was too busy to time anything."""
        for _ in range(_TIMES):
            done = self.run(*arguments)
            if not any(reason in done.stdout for reason in _BUSY):
                break
        return done

    def verdict(self) -> RunVerdict:
        """Return what the last run decided, as it is on disk."""
        return decided(max(self.runs.iterdir()))

    def recorded(self) -> dict[str, str]:
        """Return the content of each baseline, by case id."""
        return {path.stem: path.read_text() for path in self.baselines.glob("*/*.json")}


@pytest.fixture
def suite(tmp_path: Path, preloaded: PreloadedPython) -> Suite:
    """A suite with an empty folder of baselines."""
    return Suite(tmp_path, preloaded)


@pytest.fixture
def gpu_suite(suite: Suite, gpu_python: PreloadedPython) -> Suite:
    """The same suite; its commands are forks too where it has a scripted driver."""
    suite.gpu_python = gpu_python
    return suite


@pytest.fixture(scope="session")
def recorded_once(tmp_path_factory: pytest.TempPathFactory, preloaded: PreloadedPython) -> Suite:
    """A suite whose baselines have been recorded; its folder is to be copied, not changed.

    The workers of a run record them once.
    """
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    folder = shared / "recorded"
    with FileLock(shared / "recorded.lock"):
        folder.mkdir(exist_ok=True)
        suite = Suite(folder, preloaded)
        if not suite.recorded():
            suite.record()
    return suite


@pytest.fixture
def recorded_suite(recorded_once: Suite, tmp_path: Path) -> Suite:
    """A suite of one's own with all baselines recorded."""
    suite = Suite(tmp_path, recorded_once.preloaded)
    shutil.copytree(recorded_once.baselines, suite.baselines)
    return suite
