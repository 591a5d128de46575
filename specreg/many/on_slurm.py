"""The crew of a Slurm cluster, through submitit: each errand a job of its queue, on a shared disk.

Where a job runs and which GPUs it has is Slurm's to say; what it must be like, the job looks at
itself. `cluster=local` has submitit start the same jobs on this machine, which needs no Slurm.
"""

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from specreg.core.errors import SpecregError
from specreg.many.crew import WorkerLog
from specreg.many.desk import ALIVE, BEAT_S, PATIENCE_S, Began, Desk, Gone, Pulse
from specreg.many.errand import Ended, Order, Said, Shown, failure_of
from specreg.many.job import run
from specreg.many.places import Need, Place
from specreg.many.slurm_queue import Job, Queue
from specreg.many.slurm_settings import SLURM_OPTION

JOBS_FOLDER = "jobs"
_POLL_S = 0.5


@dataclass(slots=True, kw_only=True, eq=False)
class Slurm:
    """Who waits in a queue; see `Crew`.

    Attributes:
        queue: that.
        folder: where run and jobs leave word for one another.
        option: what a user asks for it by.
    """

    queue: Queue
    folder: Path
    option: str = SLURM_OPTION
    _closed: threading.Event = field(default_factory=threading.Event)
    _beats: threading.Thread | None = None

    @property
    def gpus(self) -> int:
        """See `Crew`; nobody knows how many there are."""
        return 0

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
        name = order.errand.name
        if self._beats is None:
            self._open()
        desk = Desk(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder)))
        desk.give(order, log_path)
        return Queued(
            name=name,
            desk=desk,
            log_path=log_path,
            submit=lambda: self.queue.submit(name, order.errand.need, run, desk.folder),
            is_over=self.queue.is_over,
        )

    def close(self) -> None:
        """See `Crew`."""
        self._closed.set()
        if self._beats is not None:
            self._beats.join()
        (self.folder / ALIVE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # of one that doesn't end something is left
            self.folder.rmdir()

    def _open(self) -> None:
        """Makes the folder anew: a job of a run that was killed ends where its desk is gone."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        alive_path = self.folder / ALIVE
        alive_path.touch()
        self._beats = threading.Thread(target=self._beat, args=(alive_path,), daemon=True)
        self._beats.start()

    def _beat(self, alive_path: Path) -> None:
        """Shows the jobs that the run lives."""
        while not self._closed.wait(BEAT_S):
            with contextlib.suppress(OSError):
                os.utime(alive_path)


@dataclass(slots=True, kw_only=True, eq=False)
class Queued:
    """A worker that a job of the queue starts; see `Worker`.

    Attributes:
        name: of its errand.
        desk: where it leaves word.
        log_path: gets what was said of the job, where that is lost.
        submit: puts it into the queue; is_over: says whether it has ended.
        patience_s: how long it may give no sign of life once it has begun.
    """

    name: str
    desk: Desk
    log_path: Path
    submit: Callable[[], Job]
    is_over: Callable[[Job], bool]
    patience_s: float = PATIENCE_S
    how: str = ""
    _job: Job | None = None
    _node: str = ""
    _hung_up: bool = False

    def __iter__(self) -> Iterator[Said]:
        """See `Worker`."""
        ended = False
        try:
            if self._hung_up:
                return
            self._job = self.submit()
            yield Shown(text=f"{self.name}: job {self._job.job_id} is in the queue")
            for said in self._until_over(self._job):
                ended = ended or isinstance(said, Ended)
                yield said
        except SpecregError as error:
            yield Ended(failure=failure_of(error))
        finally:
            if self._job is not None and not ended and not self._hung_up:
                self._keep_words(self._job)
            shutil.rmtree(self.desk.folder, ignore_errors=True)  # nobody looks at it any more

    def hang_up(self) -> None:
        """See `Worker`; one that only waits is taken out of the queue by who listens to it."""
        # In this order: a job that isn't seen to have begun by then sees that it is to end.
        self.desk.end()
        self._hung_up = True

    def kill(self) -> None:
        """See `Worker`."""
        if self._job is not None and not self.how:
            self._job.cancel(check=False)

    def _until_over(self, job: Job) -> Iterator[Said]:
        """What the job says, until it is over."""
        pulse = Pulse(self.desk.said_path, self.patience_s)
        while True:
            # Looked at first: what was said before that is heard then.
            over, hung_up = self.is_over(job), self._hung_up
            for line in self.desk.heard():
                if isinstance(line, Began):
                    self._node = f" on node '{line.node}'"
                    yield Shown(text=f"{self.name}: job {job.job_id} runs{self._node}")
                elif isinstance(line, Gone):
                    self.how = f"{line.how}, in job {job.job_id}{self._node}"
                else:
                    yield line
            if over:
                self.how = self.how or self._how_over(job)
                return
            if self._node and pulse.is_lost:
                self.kill()
                silent = f"gave no sign of life for {self.patience_s:g} s"
                self.how = f"{silent}, in job {job.job_id}{self._node}"
                return
            if hung_up and not self._node:
                self.kill()
                self.how = f"was taken out of the queue, as job {job.job_id}"
                return
            time.sleep(_POLL_S)

    def _how_over(self, job: Job) -> str:
        """What the queue says of a job that ended without a word."""
        ended = f"is gone: job {job.job_id}{self._node} is {job.state}"
        if self._node:
            return ended
        return f"{ended} and never began; is '{self.desk.folder.parent}' on every node?"

    def _keep_words(self, job: Job) -> None:
        """Puts what submitit and the queue wrote of the job beside what the worker said."""
        log = WorkerLog(self.log_path)
        for path in (job.paths.stdout, job.paths.stderr):
            with contextlib.suppress(OSError):
                if said := path.read_bytes():
                    log.take(said)
        log.close()
