"""The pool: errands in; workers that do them, as many at once as fit; answers out as they come.

Each errand has a worker of its own and a thread here that listens to it. Those that wait stand in
one line, the widest first and then the longest, and nobody overtakes: so a server that needs all
GPUs gets them, and none waits for another while it holds any.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specreg.core.errors import SpecregError
from specreg.many.crew import Crew, Worker
from specreg.many.errand import (
    Answer,
    Done,
    Ended,
    Errand,
    Failure,
    Order,
    Shown,
    Task,
    Terms,
    failure_of,
)
from specreg.many.places import Place

_END_S = 60.0


@dataclass(slots=True, kw_only=True, eq=False)
class Pool:
    """Workers of one run.

    Attributes:
        crew: who they are.
        terms: of all its errands.
        most_workers: how many may work at once, whatever fits.
        show, tell: see `Provision`.
        retried: what was begun a second time as its worker was gone, in words.
    """

    crew: Crew
    terms: Terms
    most_workers: int
    show: Callable[[str], None]
    tell: Callable[[str], None]
    retried: list[str] = field(default_factory=list)
    _waiting: list[Errand] = field(default_factory=list)
    _workers: dict[str, Worker] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)
    _sent: set[Task] = field(default_factory=set)
    _answers: dict[Task, Answer] = field(default_factory=dict)
    _died: set[Task] = field(default_factory=set)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _fatal: Failure | None = None
    _closed: bool = False
    _started_s: float | None = None
    _ended_s: float = 0.0
    _busy_s: float = 0.0

    def send(self, errands: Iterable[Errand]) -> None:
        """Has errands done, as soon as there is a place for them."""
        with self._changed:
            for errand in errands:
                self._waiting.append(errand)
                self._sent.update(errand.tasks)
            self._waiting.sort(key=lambda one: (-one.need.gpus, -one.weight_tokens))
            self._start_all()

    def answer(self, task: Task) -> Answer:
        """What came of a task that was sent; waits for it.

        Raises:
            SpecregError: nothing may be measured any more; or it wasn't sent.
        """
        if task not in self._sent:
            raise SpecregError(f"{task}: nobody was sent for it; report this")
        with self._changed:
            while task not in self._answers and self._fatal is None:
                self._changed.wait()
            if self._fatal is not None:
                raise self._fatal.error()
            return self._answers[task]

    @property
    def wall_s(self) -> float:
        """From the first start of a worker to the last end of one so far."""
        return self._ended_s - self._started_s if self._started_s is not None else 0.0

    @property
    def idle_frac(self) -> float | None:
        """Of the time of all GPUs until then, the part in which no worker had them; or None."""
        all_s = self.wall_s * self.crew.gpus
        return 1 - self._busy_s / all_s if all_s else None

    def wait(self) -> None:
        """Returns when all workers have ended, their servers with them.

        Raises:
            SpecregError: one left something behind.
        """
        with self._changed:
            while self._workers:
                self._changed.wait()
            if self._fatal is not None:
                raise self._fatal.error()

    def close(self) -> None:
        """Ends all workers, each with its servers; a second Ctrl-C kills them.

        The servers of one that is killed are their watchdog's.
        """
        try:
            for worker in self._last_workers():
                worker.hang_up()
            deadline = time.monotonic() + _END_S
            for thread in self._threads:
                thread.join(max(deadline - time.monotonic(), 0.0))
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends all workers at once; see `close`."""
        for worker in self._last_workers():
            worker.kill()
        self.crew.close()

    def _last_workers(self) -> Sequence[Worker]:
        """Those that are at work, after whom no others come."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            return tuple(self._workers.values())

    def _start_all(self) -> None:
        """Starts what stands first in the line, and the next, as long as there are places."""
        while self._waiting and not self._closed and len(self._workers) < self.most_workers:
            try:
                place = self.crew.place(self._waiting[0].need)
            except Exception as error:  # noqa: BLE001 - see below
                errand = self._waiting.pop(0)
                self._give_up(errand, _why_not_started(errand, error))
                continue
            if place is None:
                return
            errand = self._waiting.pop(0)
            try:
                self._start(errand, place)
            except Exception as error:  # noqa: BLE001 - whoever waits for it would wait for ever
                if worker := self._workers.pop(errand.name, None):  # and no thread for it
                    worker.kill()
                self.crew.give_back(place)
                self._give_up(errand, _why_not_started(errand, error))

    def _start(self, errand: Errand, place: Place) -> None:
        order = Order(terms=self.terms, errand=errand).at(place)
        log_path = Path(self.terms.run_folder) / "workers" / f"{errand.name}.log"
        worker = self.crew.start(order, place, log_path)
        started_s = time.monotonic()
        self._started_s = started_s if self._started_s is None else self._started_s
        self._workers[errand.name] = worker
        thread = threading.Thread(
            target=self._follow, args=(errand, place, worker, log_path), daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _follow(self, errand: Errand, place: Place, worker: Worker, log_path: Path) -> None:
        """Hears a worker out, then gives its place to the next."""
        started_s, done = time.monotonic(), set[Task]()
        ended: Ended | None = None
        try:
            ended = self._listen(errand, worker, done)
        finally:
            with self._changed:
                self._ended_s = time.monotonic()
                self._busy_s += (self._ended_s - started_s) * len(place.gpus)
                del self._workers[errand.name]
                self.crew.give_back(place)
                try:
                    self._settle(errand.without(done), ended, worker.how, log_path)
                    self._start_all()
                finally:
                    self._changed.notify_all()

    def _listen(self, errand: Errand, worker: Worker, done: set[Task]) -> Ended | None:
        """Takes what a worker says until it says no more; None where it never said that it is."""
        ended = None
        for said in worker:
            if isinstance(said, Ended):
                ended = said
            elif isinstance(said, Done):
                with self._changed:
                    done.add(said.task)
                    self._answers[said.task] = said.answer
                    self._changed.notify_all()
            else:
                self._pass_on(errand, said)
        return ended

    def _pass_on(self, errand: Errand, said: Shown) -> None:
        with self._changed:
            if self._closed:
                return
            if not said.stays:
                self.show(
                    f"{len(self._workers)} at work, {len(self._waiting)} waiting: {said.text}"
                )
            else:
                self.tell(f"{errand.name}: {said.text}")

    def _settle(self, left: Errand, ended: Ended | None, how: str, log_path: Path) -> None:
        """What is left of an errand whose worker is gone is done again, once, or never."""
        if ended is not None:
            if ended.failure is not None and ended.failure.ends_run:
                self._end(ended.failure)
            elif left.tasks:
                silent = Failure(message=f"worker for '{left.name}': said nothing of it")
                self._give_up(left, ended.failure or silent)
            return
        if self._closed or not left.tasks:
            return
        # What it was at; the others hadn't begun.
        task = left.tasks[0]
        name = " of ".join(filter(None, (task.proof, left.name)))
        if task not in self._died:
            self._died.add(task)
            self.retried.append(f"{name}: begun again, its worker {how}")
            self._waiting.insert(0, left)
            return
        message = f"worker for '{left.name}': {how}, twice; look into {log_path}"
        self._answers[task] = Failure(message=message)
        rest = left.without({task})
        if rest.tasks:
            self._waiting.insert(0, rest)

    def _give_up(self, errand: Errand, failure: Failure) -> None:
        for task in errand.tasks:
            self._answers[task] = failure

    def _end(self, failure: Failure) -> None:
        """Nothing is begun any more; whoever asks is told why."""
        self._waiting.clear()
        self._fatal, self._closed = failure, True


def _why_not_started(errand: Errand, error: Exception) -> Failure:
    if isinstance(error, SpecregError):
        return failure_of(error)
    why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    message = f"worker for '{errand.name}': can't be started, {why}"
    return Failure(message=f"{message}; free memory, or run fewer")
