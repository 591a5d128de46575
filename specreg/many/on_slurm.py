"""The crew of a Slurm cluster, through submitit: each errand a job of its queue, on a shared disk.

Where a job runs and which GPUs it has is Slurm's to say; what it must be like, the job looks at
itself. `cluster=local` has submitit start the same jobs on this machine, which needs no Slurm.
"""

import contextlib
import importlib
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specreg.errors import SpecregError, UnknownNameError, UnsupportedError
from specreg.many.crew import WorkerLog
from specreg.many.errand import Ended, Order, Said, Shown, failure_of
from specreg.many.job import BEAT_S, PATIENCE_S, Began, Desk, Gone, Pulse, run
from specreg.many.places import Need, Place

SLURM_OPTION = "--specreg-slurm"
JOBS_FOLDER = "jobs"
_POLL_S = 0.5
_TIME_MIN = 240
_CLUSTERS = ("slurm", "local")
_FURTHER = (
    *("account", "comment", "constraint", "exclude", "licenses", "nodelist", "partition", "qos"),
    *("reservation", "wckey"),
)
"""Options of sbatch that a job gets as they are given."""
_NUMBERS = ("cpus_per_task", "mem_gb", "time")
_KNOWN = ("cluster", "gpu_type", *_NUMBERS, *_FURTHER)
_NEXT = re.compile(rf",(?=(?:{'|'.join(_KNOWN)}|[a-z_]+)=)")
"""Between two settings; a list of nodes has commas too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is asked of Slurm for each job.

    Attributes:
        cluster: `slurm`, or `local` for processes of this machine.
        time_min: how long it may take.
        cpus: how many it has; None for as many as its server and clients need.
        mem_gb: how much memory; None for what the partition gives.
        gpu_type: as the cluster calls it; empty for any.
        further: options of sbatch by their long names.
    """

    cluster: str = "slurm"
    time_min: int = _TIME_MIN
    cpus: int | None = None
    mem_gb: int | None = None
    gpu_type: str = ""
    further: Mapping[str, str] = field(default_factory=dict)


def parse_settings(text: str) -> Settings:
    """The settings of `KEY=VALUE,…`.

    Raises:
        UnknownNameError: a key that means nothing.
        SpecregError: no key, no value, or one that can't be.
    """
    given: dict[str, str] = {}
    for part in _NEXT.split(text):
        name, _, value = part.partition("=")
        if not value:
            message = (
                f"{SLURM_OPTION} '{part}': needs KEY=VALUE; say partition=NAME for instance, or"
                " cluster=local to try it without a cluster"
            )
            raise SpecregError(message)
        if name not in _KNOWN:
            raise UnknownNameError("setting", name, _KNOWN, SLURM_OPTION)
        given[name] = value
    numbers = {name: _number(name, given[name]) for name in _NUMBERS if name in given}
    cluster = given.get("cluster", _CLUSTERS[0])
    if cluster not in _CLUSTERS:
        raise UnknownNameError("cluster", cluster, _CLUSTERS, SLURM_OPTION)
    return Settings(
        cluster=cluster,
        time_min=numbers.get("time", _TIME_MIN),
        cpus=numbers.get("cpus_per_task"),
        mem_gb=numbers.get("mem_gb"),
        gpu_type=given.get("gpu_type", ""),
        further={name: given[name] for name in _FURTHER if name in given},
    )


def _number(name: str, given: str) -> int:
    if given.isdecimal() and int(given) > 0:
        return int(given)
    unit = {"time": "whole minutes", "mem_gb": "whole GB"}.get(name, "a number")
    raise SpecregError(f"{SLURM_OPTION} {name}={given}: needs {unit}, 1 or more; say another")


def parameters(settings: Settings, need: Need, name: str) -> dict[str, object]:
    """What submitit is to ask for, by its own names.

    Args:
        settings: of the user.
        need: of the errand.
        name: of it.
    """
    # Who is sent back to the queue would begin in the midst of what the run gave to another.
    further: dict[str, object] = {"no-requeue": True, **settings.further}
    if settings.gpu_type and need.gpus:
        further["gpus-per-node"] = f"{settings.gpu_type}:{need.gpus}"
    cores = need.client_processes + need.gpus + 1 if need.gpus else None
    return {
        "name": f"specreg-{name}",
        "nodes": 1,
        "tasks_per_node": 1,
        "timeout_min": settings.time_min,
        "mem_gb": settings.mem_gb,
        "cpus_per_task": settings.cpus or cores,
        "gpus_per_node": need.gpus or None,
        # A server without a GPU computes on all processors of its node.
        "slurm_exclusive": None if need.gpus else True,
        "slurm_additional_parameters": further,
        # From 22.05 on srun no longer takes over how many cores the job has: it would bind to one.
        "slurm_srun_args": ["--cpu-bind=none"],
    }


@dataclass(slots=True, kw_only=True, eq=False)
class Slurm:
    """A queue; see `Crew`.

    Attributes:
        settings: of each job.
        folder: where run and jobs leave word for one another.
    """

    settings: Settings
    folder: Path
    _submitting: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)
    _beats: threading.Thread | None = None

    gpus: int = 0

    def place(self, need: Need) -> Place:
        """See `Crew`; whoever has to wait does so in the queue."""
        return Place(need=need)

    def give_back(self, place: Place) -> None:
        """See `Crew`; Slurm knows when a job has ended."""

    def at_once(self, needs: Iterable[Need]) -> tuple[int, str]:
        """See `Crew`; as many as there are, for all we know."""
        return len(tuple(needs)), ""

    def start(self, order: Order, place: Place, log_path: Path) -> "Queued":
        """See `Crew`; the job is submitted when somebody listens."""
        del place
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._beats is None:
            alive_path = self.folder / "alive"
            alive_path.touch()
            self._beats = threading.Thread(target=self._beat, args=(alive_path,), daemon=True)
            self._beats.start()
        desk = Desk(Path(tempfile.mkdtemp(prefix=f"{order.errand.name}-", dir=self.folder)))
        desk.give(order, log_path)
        return Queued(
            name=order.errand.name,
            desk=desk,
            log_path=log_path,
            submit=lambda: self._submit(order, desk),
        )

    def close(self) -> None:
        """See `Crew`."""
        self._closed.set()
        if self._beats is not None:
            self._beats.join()
        (self.folder / "alive").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # of one that doesn't end something is left
            self.folder.rmdir()

    def _beat(self, alive_path: Path) -> None:
        """Shows the jobs that the run lives."""
        while not self._closed.wait(BEAT_S):
            with contextlib.suppress(OSError):
                os.utime(alive_path)

    def _submit(self, order: Order, desk: Desk) -> Any:  # noqa: ANN401 - submitit is an extra
        """A job in the queue.

        Raises:
            SpecregError: the queue doesn't take it.
        """
        submitit = load_submitit()
        name = order.errand.name
        asked = parameters(self.settings, order.errand.need, name)
        # One at a time: submitit hands our own environment on, and that is one for all threads.
        with self._submitting, _handed_on(submitit):
            try:
                executor = submitit.AutoExecutor(desk.folder, cluster=self.settings.cluster)
                executor.update_parameters(**asked)
                return executor.submit(run, str(desk.folder))
            except (OSError, RuntimeError) as error:
                said = str(error).strip().splitlines()
                message = (
                    f"{SLURM_OPTION}: the job for '{name}' can't be submitted,"
                    f" {said[-1] if said else type(error).__name__}; mend the settings, or ask"
                    " sinfo what there is"
                )
                raise SpecregError(message) from error


@dataclass(slots=True, kw_only=True, eq=False)
class Queued:
    """A worker that a job of the queue starts; see `Worker`.

    Attributes:
        name: of its errand.
        desk: where it leaves word.
        log_path: gets what was said of the job, where that is lost.
        submit: puts it into the queue.
        patience_s: how long it may give no sign of life once it has begun.
    """

    name: str
    desk: Desk
    log_path: Path
    submit: Callable[[], Any]
    patience_s: float = PATIENCE_S
    how: str = ""
    _job: Any = None
    _node: str = ""
    _hung_up: bool = False

    def __iter__(self) -> Iterator[Said]:
        """See `Worker`."""
        try:
            self._job = self.submit()
        except SpecregError as error:
            yield Ended(failure=failure_of(error))
            self._clear()
            return
        yield Shown(text=f"{self.name}: job {self._job.job_id} is in the queue")
        ended = False
        try:
            for said in self._until_over():
                ended = ended or isinstance(said, Ended)
                yield said
        finally:
            if not ended:
                self._keep_words()
            self._clear()

    def hang_up(self) -> None:
        """See `Worker`; one that only waits is taken out of the queue by who listens to it."""
        self._hung_up = True
        self.desk.end()

    def kill(self) -> None:
        """See `Worker`."""
        if self._job is not None and not self.how:
            self._job.cancel(check=False)

    def _until_over(self) -> Iterator[Said]:
        """What the job says, until it is over."""
        pulse = Pulse(self.desk.said_path, self.patience_s)
        while True:
            # Looked at first: whatever it said before it was over is heard then.
            over = self._job.done()
            for line in self.desk.heard():
                if isinstance(line, Began):
                    self._node = f" on node '{line.node}'"
                    yield Shown(text=f"{self.name}: job {self._job.job_id} runs{self._node}")
                elif isinstance(line, Gone):
                    self.how = f"{line.how}, in job {self._job.job_id}{self._node}"
                else:
                    yield line
            if over:
                self.how = self.how or self._how_over()
                return
            if self._node and pulse.is_lost:
                self.kill()
                self.how = (
                    f"gave no sign of life for {self.patience_s:g} s, in job"
                    f" {self._job.job_id}{self._node}"
                )
                return
            if self._hung_up and not self._node:
                self.kill()
                self.how = f"was taken out of the queue, as job {self._job.job_id}"
                return
            time.sleep(_POLL_S)

    def _how_over(self) -> str:
        """What the queue says of a job that ended without a word."""
        ended = f"is gone: job {self._job.job_id}{self._node} is {self._job.state}"
        if self._node:
            return ended
        return f"{ended} and never began; is '{self.desk.folder.parent}' on every node?"

    def _keep_words(self) -> None:
        """Puts what submitit and the queue wrote of the job beside what the worker said."""
        log = WorkerLog(self.log_path)
        for path in (self._job.paths.stdout, self._job.paths.stderr):
            with contextlib.suppress(OSError):
                if said := path.read_bytes():
                    log.take(said)
        log.close()

    def _clear(self) -> None:
        """Takes the desk away; there is nobody left who would look at it."""
        shutil.rmtree(self.desk.folder, ignore_errors=True)


def new_slurm(settings: Settings, run_folder: Path) -> Slurm:
    """The crew of the cluster that this machine belongs to.

    Args:
        settings: of each job.
        run_folder: of the run, on a disk that all nodes share.

    Raises:
        UnsupportedError: submitit is missing, or there is no Slurm.
    """
    load_submitit()
    if settings.cluster != "local" and (missing := _missing_programs()):
        message = (
            f"{SLURM_OPTION}: no '{missing[0]}' on PATH, so this machine belongs to no Slurm"
            " cluster; begin on a node that does, or try cluster=local"
        )
        raise UnsupportedError(message)
    return Slurm(settings=settings, folder=run_folder.absolute() / JOBS_FOLDER)


def load_submitit() -> Any:  # noqa: ANN401 - an extra
    """The library.

    Raises:
        UnsupportedError: it isn't installed.
    """
    try:
        return importlib.import_module("submitit")
    except ImportError as error:
        message = (
            f"{SLURM_OPTION}: submitit isn't installed; pip install 'specreg[slurm]', here and"
            " where the jobs run"
        )
        raise UnsupportedError(message) from error


def _missing_programs() -> list[str]:
    return [name for name in ("sbatch", "srun", "scancel") if shutil.which(name) is None]


@contextlib.contextmanager
def _handed_on(submitit: Any) -> Iterator[None]:  # noqa: ANN401 - an extra
    """An environment in which a job finds what we import, and nothing of a job that we are in."""
    with contextlib.ExitStack() as stack:
        if "SLURM_JOB_ID" in os.environ:
            stack.enter_context(submitit.helpers.clean_env())
        path = os.pathsep.join(sys.path)
        stack.enter_context(submitit.helpers.environment_variables(PYTHONPATH=path))
        yield
