"""Jobs that wait: those that came meanwhile are answered as the next batch."""

import asyncio
import traceback
from collections.abc import AsyncGenerator, Callable, Sequence

from specreg.core.errors import ServerError
from specreg.engines.pytorch.decoding import Models, decode
from specreg.engines.pytorch.jobs import Job, Step


class _Waiting:
    """A job, and its steps as they come; None after the last, or the error that ended it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.steps: asyncio.Queue[Step | ServerError] = asyncio.Queue()
        self.wanted = True


class Queue:
    """Answers jobs, at most `max_sequences` at once; `count` is told of each step."""

    def __init__(self, models: Models, max_sequences: int, count: Callable[[Step], None]) -> None:
        self._models, self._max_sequences, self._count = models, max_sequences, count
        self._jobs: asyncio.Queue[_Waiting] = asyncio.Queue()

    async def steps(self, job: Job) -> AsyncGenerator[Step, None]:
        """The steps of a job. Whoever stops to listen takes it out of its batch.

        Raises:
            ServerError: its batch could not be answered.
        """
        waiting = _Waiting(job)
        self._jobs.put_nowait(waiting)
        try:
            while True:
                step = await waiting.steps.get()
                if isinstance(step, ServerError):
                    raise step
                yield step
                if step.finish_reason is not None:
                    return
        finally:
            waiting.wanted = False

    async def work(self) -> None:
        """Answers batch after batch, until it is cancelled."""
        while True:
            batch = [await self._jobs.get()]
            while len(batch) < self._max_sequences and not self._jobs.empty():
                batch.append(self._jobs.get_nowait())
            try:
                await self._answer([waiting for waiting in batch if waiting.wanted])
            except Exception as error:  # noqa: BLE001 - its requests are told, others go on
                traceback.print_exception(error)
                message = f"batch of {len(batch)}: {error!r}; look at the log of the server"
                for waiting in batch:
                    waiting.steps.put_nowait(ServerError(message))

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        jobs = [waiting.job for waiting in batch]
        batches = decode(self._models, jobs, wanted=lambda place: batch[place].wanted)
        # In a thread, so that the server goes on listening.
        while steps := await asyncio.to_thread(next, batches, None):
            for place, step in steps.items():
                self._count(step)
                batch[place].steps.put_nowait(step)
