"""Slurm's queue: functions in, jobs of submitit's out. All that we use of submitit is here."""

import contextlib
import importlib
import logging
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specreg.core.commands import install_command
from specreg.core.errors import SpecregError, UnsupportedError
from specreg.many.places import Need
from specreg.many.slurm_settings import CLUSTERS, LOCAL, SLURM_OPTION, Settings, parameters

_PROGRAMS = ("sbatch", "srun", "scancel")
_RULE = re.compile(r"^-{5,}$", re.MULTILINE)
_MAIN = (
    "import runpy, sys; *sys.path[:], _, _, name, folder = sys.argv[1:]; sys.argv[1:] = [folder];"
    ' runpy.run_module(name, run_name="__main__", alter_sys=True)'
)
"""Runs what submitit adds, `-u -m MODULE FOLDER`, with the folders that stand before it."""


class Job(Protocol):
    """What we use of a job of submitit's."""

    @property
    def job_id(self) -> str:
        """By which Slurm knows it."""
        ...

    @property
    def state(self) -> str:
        """What Slurm calls how it is, RUNNING or NODE_FAIL for instance."""
        ...

    @property
    def paths(self) -> Any:  # noqa: ANN401 - submitit's own
        """Where its output lies, as `stdout` and `stderr`."""
        ...

    def done(self) -> bool:
        """Whether it left its answer, or Slurm says that it has ended."""
        ...

    def result(self) -> Any:  # noqa: ANN401 - as the function
        """What its function returned; waits for it.

        Raises:
            RuntimeError: it returned nothing.
        """
        ...

    def cancel(self, *, check: bool) -> None:
        """Ends it; `check` whether to see to it."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class Queue:
    """The queue of the cluster that this machine belongs to.

    Attributes:
        settings: of each job.
        submitit: the package.
    """

    settings: Settings
    submitit: Any
    _submitting: threading.Lock = field(default_factory=threading.Lock)
    _asking: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, name: str, need: Need, function: Callable[..., object], folder: Path) -> Job:
        """A job that calls a function with a folder.

        Args:
            name: for people.
            need: what it takes of a machine.
            function: of a module that the node has too.
            folder: on a disk that all nodes share; what becomes of the job lies there too.

        Raises:
            SpecregError: the queue doesn't take it.
        """
        asked = parameters(self.settings, need, name)
        # One at a time: a job gets our own environment, which all threads share.
        with self._submitting, _outside_of_jobs(self.submitit):
            try:
                pythons = {f"{name}_python": python_command() for name in CLUSTERS}
                executor = self.submitit.AutoExecutor(
                    folder, cluster=self.settings.cluster, **pythons
                )
                executor.update_parameters(**asked)
                job: Job = executor.submit(function, str(folder))
            except (OSError, RuntimeError) as error:
                message = (
                    f"{SLURM_OPTION}: the job for '{name}' can't be submitted, {last_words(error)};"
                    " mend the settings, or ask sinfo what there is"
                )
                raise SpecregError(message) from error
        return job

    def is_over(self, job: Job) -> bool:
        """Whether a job has ended, as far as anybody knows.

        One asks at a time, as submitit asks Slurm for all jobs at once, each few seconds; whoever
        comes meanwhile hears nothing new, and isn't held up by a Slurm that is slow to answer.
        """
        if not self._asking.acquire(blocking=False):
            return False
        try:
            return job.done()
        finally:
            self._asking.release()


def python_command() -> str:
    """What runs Python on a node, for a shell, with our own modules' folders.

    They are no variable: the engines that the job starts would look for theirs in them, too.
    """
    return shlex.join((sys.executable, "-u", "-P", "-c", _MAIN, *sys.path))


def last_words(error: Exception) -> str:
    """The last line of what submitit says went wrong; what it quotes stands between rules."""
    said, *quoted = _RULE.split(str(error))
    lines = (quoted[0] if quoted else said).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def open_queue(settings: Settings) -> Queue:
    """The queue of the cluster that this machine belongs to.

    Raises:
        UnsupportedError: submitit is missing, or there is no Slurm.
    """
    # Where Slurm keeps no accounts, it would say so each time that it asks for a job.
    logging.getLogger("submitit").setLevel(logging.ERROR)
    try:
        submitit = importlib.import_module("submitit")
    except ImportError as error:
        message = (
            f"{SLURM_OPTION}: submitit isn't installed; {install_command('slurm')}, here and"
            " where the jobs run"
        )
        raise UnsupportedError(message) from error
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if settings.cluster != LOCAL and missing:
        message = (
            f"{SLURM_OPTION}: no '{missing[0]}' on PATH, so this machine belongs to no Slurm"
            f" cluster; begin on a node that does, or try cluster={LOCAL}"
        )
        raise UnsupportedError(message)
    return Queue(settings=settings, submitit=submitit)


@contextlib.contextmanager
def _outside_of_jobs(submitit: Any) -> Iterator[None]:  # noqa: ANN401 - an extra
    """An environment without that of a job that we are in: the new one would take it for its own.

    Where Slurm's configuration lies is left (facebookincubator/submitit#1814).
    """
    if "SLURM_JOB_ID" not in os.environ:
        yield
        return
    configuration = os.environ.get("SLURM_CONF")
    with submitit.helpers.clean_env():
        if configuration is not None:
            os.environ["SLURM_CONF"] = configuration
        yield
