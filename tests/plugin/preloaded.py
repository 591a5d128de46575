"""Runs commands of pytest and specreg in forks of a process that has imported their modules.

Importing takes most of the processor time of a command that is refused, and a third of that of a
run on a scripted server. A fork has nothing of earlier commands, so each command begins as it would
in a process of its own.
"""

import gc
import importlib
import os
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import msgspec

from specreg.report.page import TEMPLATES

ROOT = Path(__file__).parents[2]
MODULES = (
    *("pytest", "specreg.plugin", "specreg.cli.suite", "fixtures.servers", "fixtures.measurements"),
    # Those that a run imports when it measures.
    *("httpx_aiohttp", "uvloop", "httpcore", "anyio._backends._asyncio", "numpy.polynomial"),
    # Those that pytest imports as it starts; pytest-xdist isn't one of them, because it keeps the
    # folders of modules that there are when it is imported.
    *("_pytest.junitxml", "_pytest.pastebin", "_pytest.unittest", "_pytest.unraisableexception"),
    *("_pytest.threadexception", "anyio.pytest_plugin", "pdb", "pytest_cov.plugin", "unittest"),
)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command, and the files that its output is written to."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    output: str
    errors: str


class PreloadedPython:
    """A process that has imported the modules, and runs one command at a time in a fork."""

    def __init__(
        self,
        folder: Path,
        *,
        variables: Mapping[str, str] | None = None,
        starter: Sequence[str] = (),
    ) -> None:
        """Start the process.

        Args:
            folder: where the output of the commands is kept.
            variables: variables that a process reads as it starts, such as LD_LIBRARY_PATH. The
                commands have them too.
            starter: a program and its options that start the process with other rights.
        """
        self.folder = folder
        self._variables = dict(variables or {})
        self._output = folder / "output"
        self._errors = folder / "errors"
        self._process = subprocess.Popen(
            (*starter, sys.executable, "-m", "tests.plugin.preloaded"),
            cwd=ROOT,
            # Threads don't survive a fork.
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"} | self._variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def run(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str] = os.environ,
        cwd: Path = ROOT,
        timeout_s: float = 300.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -m` with the arguments; its output is plain text, as it has no terminal.

        If the first argument is `-c`, the second one is a program, as it is for Python.

        Raises:
            subprocess.TimeoutExpired: it took longer than `timeout_s`, and was killed.
        """
        command = Command(
            arguments=tuple(arguments),
            environment={**env, **self._variables},
            folder=str(cwd),
            output=str(self._output),
            errors=str(self._errors),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(command) + b"\n")
        self._process.stdin.flush()
        is_done, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not is_done:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(arguments, timeout_s)
        status = int(self._process.stdout.readline())
        output = self._output.read_text()
        return subprocess.CompletedProcess(arguments, status, output, self._errors.read_text())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    """Run each command that a line of the standard input describes, and print its exit status."""
    for name in MODULES:
        importlib.import_module(name)
    # Compiling the templates of the pages takes as long as a short run has to render its own.
    for name in TEMPLATES.list_templates(extensions=["jinja"]):
        TEMPLATES.get_template(name)
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(msgspec.json.decode(line, type=Command))
            return
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _become(command: Command) -> None:
    """Run a command in this process, as `python -m` would."""
    # A measurement freezes what is there for its time, and unfreezes all. The collections that
    # follow would then write to each object that was imported, and so copy its page.
    gc.unfreeze = lambda: None
    os.environ.clear()
    os.environ.update(command.environment)
    os.chdir(command.folder)
    _redirect(0, os.devnull, os.O_RDONLY)
    _redirect(1, command.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    _redirect(2, command.errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    module, *arguments = command.arguments
    sys.path[0] = command.folder
    sys.path[1:1] = command.environment.get("PYTHONPATH", "").split(os.pathsep)
    if module == "-c":
        program, *arguments = arguments
        sys.argv = ["-c", *arguments]
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), vars(sys.modules["__main__"]))  # noqa: S102
    else:
        sys.argv = ["", *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def _redirect(descriptor: int, path: str, flags: int) -> None:
    """Open a file under the number of a descriptor."""
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)


if __name__ == "__main__":
    main()
