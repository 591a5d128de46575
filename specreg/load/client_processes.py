"""The clients of one endpoint: this process, or several when one core isn't enough.

A further process is `python -m specreg.load.client_processes`: orders come in as JSON lines,
requests go out as they end. It ends with its input, so it can't outlive the suite.
"""

import asyncio
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from specreg.core.errors import AnswerError, HungError, InvalidMeasurementError
from specreg.core.http import read
from specreg.datasets.prompts import Prompt
from specreg.engines.protocols import Endpoint
from specreg.load.chat_client import Clock, Finished, Hear, Record, check_heard, new_client
from specreg.load.rounds import Round, Share, Tally, replay_round
from specreg.matrix.case import Case
from specreg.matrix.schema import Load
from specreg.stats.percentiles import Histogram

if TYPE_CHECKING:
    import httpx

_HEAD_START_NS = 50 * 10**6
"""What an order takes to reach all processes; then they begin together."""
_SCRAPE_S = 30.0
_TOKEN_S = 60.0
_LINE_BYTES = 256 * 2**20


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to replay."""

    case: Case
    endpoint: Endpoint
    prompts: tuple[Prompt, ...]
    share: Share


class _Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that ended; when the server last showed life; or, at the end, how late we were."""

    finished: Finished | None = None
    heard_ns: int | None = None
    lags: Histogram | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Who asks one endpoint as one case says.

    Attributes:
        client: of this process.
        workers: the further processes; none unless the case asks for two or more.
        token_within_s: a server that doesn't hang generates a token.
    """

    case: Case
    endpoint: Endpoint
    clock: Clock
    client: "httpx.AsyncClient"
    workers: tuple[asyncio.subprocess.Process, ...]
    token_within_s: float = _TOKEN_S

    async def replay(self, prompts: Sequence[Prompt], record: Record | None = None) -> Round:
        """One round; see `replay_round`.

        Where a request's time was up in it, the server is asked for a token more: it may hang, and
        the round may have been too short to show it.

        Raises:
            InvalidMeasurementError: `CLIENT_DIED`, one of the further processes did; `HUNG`.
        """
        late: list[int] = []

        def keep(finished: Finished) -> None:
            if finished.late:
                late.append(finished.place)
            if record is not None:
                record(finished)

        if self.workers:
            done = await self._replay_shares(tuple(prompts), keep)
        else:
            done = await self._replay_here(self.case, prompts, keep)
        if late:
            await self._check_generates(prompts)
        return done

    async def _replay_here(self, case: Case, prompts: Sequence[Prompt], record: Record) -> Round:
        return await replay_round(
            case, self.endpoint, prompts, client=self.client, clock=self.clock, record=record
        )

    async def _check_generates(self, prompts: Sequence[Prompt]) -> None:
        """Silent where the server answers the first prompt, with a token or a refusal."""
        case = dataclasses.replace(
            self.case,
            load=Load(concurrency=1),
            turns=1,
            output_cap_tokens=1,
            request_timeout_s=self.token_within_s,
        )
        ended: list[Finished] = []
        await self._replay_here(case, prompts[:1], ended.append)
        if any(one.late for one in ended):
            raise HungError(self.token_within_s)

    async def replay_under(self, load: Load, prompts: Sequence[Prompt]) -> Round:
        """The same under another load, as for the warm-up; nobody records it."""
        case = dataclasses.replace(self.case, load=load)
        return await dataclasses.replace(self, case=case).replay(prompts)

    async def scrape(self, path: str, *, within_s: float = _SCRAPE_S) -> str:
        """A page of the server.

        Args:
            path: where it is.
            within_s: how long it may take.

        Raises:
            InvalidMeasurementError: `METRICS_MISSING`.
        """
        try:
            page = await read(self.client, "GET", path, within_s=within_s)
            page.good()
        except AnswerError as error:
            message = f"looked for counters, {error}; look at the server's log"
            raise InvalidMeasurementError("METRICS_MISSING", message) from error
        return page.text

    async def _replay_shares(self, prompts: tuple[Prompt, ...], record: Record) -> Round:
        started_ns, tally = self.clock() + _HEAD_START_NS, Tally()
        last_ns = started_ns

        def hear(heard_ns: int) -> None:
            # A server that one process hears nothing from may be busy with another's requests.
            nonlocal last_ns
            last_ns = max(last_ns, heard_ns)
            check_heard(self.case, last_ns, self.clock())

        async def follow(number: int, worker: asyncio.subprocess.Process) -> None:
            share = Share(number=number, of=len(self.workers), started_ns=started_ns)
            order = _Order(case=self.case, endpoint=self.endpoint, prompts=prompts, share=share)
            await _send(worker, order)
            async for finished in _replies(worker, tally.lags, hear):
                tally.take(finished)
                record(finished)
                if not finished.late:
                    hear(self.clock())

        await asyncio.gather(*(follow(*pair) for pair in enumerate(self.workers)))
        return tally.as_round()


@contextlib.asynccontextmanager
async def open_crew(case: Case, endpoint: Endpoint, *, clock: Clock) -> AsyncIterator[Crew]:
    """A crew for as long as the context lasts.

    Args:
        case: its load and number of client processes.
        endpoint: whom to ask.
        clock: monotonic, in nanoseconds; with further processes the system's own.
    """
    async with contextlib.AsyncExitStack() as stack:
        count = case.client_processes if case.client_processes > 1 else 0
        yield Crew(
            case=case,
            endpoint=endpoint,
            clock=clock,
            client=await stack.enter_async_context(
                new_client(endpoint, connections=case.load.concurrency or None)
            ),
            workers=tuple([await stack.enter_async_context(_worker()) for _ in range(count)]),
        )


@contextlib.asynccontextmanager
async def _worker() -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    # In a session of its own, so that Ctrl-C reaches the suite alone, which then ends it.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "specreg.load.client_processes"),
        stdin=pipe,
        stdout=pipe,
        limit=_LINE_BYTES,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _send(worker: asyncio.subprocess.Process, order: _Order) -> None:
    with contextlib.suppress(ConnectionError):  # then it has no replies either
        if worker.stdin is not None:
            worker.stdin.write(msgspec.json.encode(order) + b"\n")
            await worker.stdin.drain()


async def _replies(
    worker: asyncio.subprocess.Process, lags: Histogram, hear: Hear
) -> AsyncIterator[Finished]:
    """The requests of a share as they end; `lags` takes the process's own at the end."""
    decoder = msgspec.json.Decoder(_Reply)
    while worker.stdout is not None and (line := await worker.stdout.readline()):
        reply = decoder.decode(line)
        if reply.heard_ns is not None:
            hear(reply.heard_ns)
        if reply.lags is not None:
            lags.merge(reply.lags)
            return
        if reply.finished is not None:
            yield reply.finished
    message = f"a client process ended with status {await worker.wait()}; its output is above"
    raise InvalidMeasurementError("CLIENT_DIED", message)


async def _work() -> None:
    """Replays the shares that are ordered on stdin, until it ends."""
    for line in iter(sys.stdin.buffer.readline, b""):
        order = msgspec.json.decode(line, type=_Order)
        connections = order.case.load.concurrency or None
        async with new_client(order.endpoint, connections=connections) as client:
            done = await replay_round(
                order.case,
                order.endpoint,
                order.prompts,
                client=client,
                clock=time.monotonic_ns,
                record=lambda finished: _say(_Reply(finished=finished)),
                share=order.share,
                hear=lambda heard_ns: _say(_Reply(heard_ns=heard_ns)),
            )
        _say(_Reply(lags=done.lags))


def _say(reply: _Reply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(_work())
    except BrokenPipeError:  # whoever asked was killed, and nobody is left to tell anything
        os._exit(1)
