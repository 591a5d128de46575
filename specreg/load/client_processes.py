"""Replay rounds from this process, or from several where one core isn't enough.

A further process is `python -m specreg.load.client_processes`: it takes `_Order` messages and gives
`_Reply` messages, see `specreg.core.processes`.
"""

import asyncio
import contextlib
import dataclasses
import functools
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from specreg.core.errors import AnswerError, HungError, InvalidMeasurementError
from specreg.core.http import read
from specreg.core.processes import SupervisedProcess, child_process
from specreg.datasets.prompts import Prompt
from specreg.engines.wire_format import Endpoint
from specreg.load.chat_client import Clock, FinishedRequest, Record, new_client
from specreg.load.rounds import Round, RoundBuilder, RoundSlice, replay_round
from specreg.matrix.case import Case, Load
from specreg.stats.percentiles import Histogram

if TYPE_CHECKING:
    import httpx

_HEAD_START_NS = 50 * 10**6
"""How long an order may take to reach all processes, so that they begin together."""
_SCRAPE_S = 30.0
_TOKEN_S = 60.0


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to replay."""

    case: Case
    endpoint: Endpoint
    prompts: tuple[Prompt, ...]
    part: RoundSlice


class _Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that ended or, at the end, the lags, or for how long no token came."""

    finished: FinishedRequest | None = None
    lags: Histogram | None = None
    hung_s: float | None = None


class _Worker(NamedTuple):
    """A further process, and what it replies."""

    child: SupervisedProcess
    replies: asyncio.StreamReader

    async def replay(self, order: _Order, builder: RoundBuilder) -> None:
        """Replay a slice of the round that is built, else `CLIENT_DIED` or `HUNG`."""
        self.child.send(order)
        while line := await self.replies.readline():
            reply = msgspec.json.decode(line, type=_Reply)
            if reply.hung_s is not None:
                raise HungError(reply.hung_s)
            if reply.finished is not None:
                builder.take(reply.finished)
            if reply.lags is not None:
                builder.lags.merge(reply.lags)
                return
        status = self.child.popen.wait()
        message = f"a client process ended with status {status}:\n{self.child.last_lines()}"
        raise InvalidMeasurementError("CLIENT_DIED", message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The processes that send one case's requests to an endpoint.

    `workers` are the further ones; none unless the case asks for two or more. A server that doesn't
    hang generates a token in `token_within_s`.
    """

    case: Case
    endpoint: Endpoint
    clock: Clock
    client: "httpx.AsyncClient"
    workers: tuple[_Worker, ...]
    token_within_s: float = _TOKEN_S

    async def replay(self, prompts: Sequence[Prompt], record: Record | None = None) -> Round:
        """One round, see `replay_round`, else `CLIENT_DIED` of a further process, or `HUNG`.

        Where a request's time was up, the server is asked for a token more: it may hang.
        """
        if self.workers:
            built = RoundBuilder(record)
            await self._replay_slices(tuple(prompts), built)
        else:
            built = await self._replay_here(self.case, prompts, record)
        if built.late:
            within_s, one = self.token_within_s, Load(concurrency=1)
            case = dataclasses.replace(
                self.case, load=one, turns=1, output_cap_tokens=1, request_timeout_s=within_s
            )
            if (await self._replay_here(case, prompts[:1])).late:
                raise HungError(within_s)
        return built.as_round()

    async def _replay_here(
        self, case: Case, prompts: Sequence[Prompt], record: Record | None = None
    ) -> RoundBuilder:
        return await replay_round(
            case, self.endpoint, prompts, client=self.client, clock=self.clock, record=record
        )

    async def replay_under(self, load: Load, prompts: Sequence[Prompt]) -> Round:
        """One round under another load, as for the warm-up; it isn't recorded."""
        case = dataclasses.replace(self.case, load=load)
        return await dataclasses.replace(self, case=case).replay(prompts)

    async def scrape(self, path: str) -> str:
        """The page of the server at a path, else `METRICS_MISSING`."""
        try:
            page = await read(self.client, "GET", path, within_s=_SCRAPE_S)
            page.good()
        except AnswerError as error:
            message = f"looked for counters, {error}; look at the server's log"
            raise InvalidMeasurementError("METRICS_MISSING", message) from error
        return page.text

    async def _replay_slices(self, prompts: tuple[Prompt, ...], builder: RoundBuilder) -> None:
        started_ns, of = self.clock() + _HEAD_START_NS, len(self.workers)
        parts = [RoundSlice(number=number, of=of, started_ns=started_ns) for number in range(of)]
        order = functools.partial(_Order, case=self.case, endpoint=self.endpoint, prompts=prompts)
        pairs = zip(self.workers, parts, strict=True)
        await asyncio.gather(*(worker.replay(order(part=part), builder) for worker, part in pairs))


@contextlib.asynccontextmanager
async def open_clients(case: Case, endpoint: Endpoint, *, clock: Clock) -> AsyncIterator[Clients]:
    """Clients for as long as the context lasts.

    `clock` is monotonic, in nanoseconds; with further processes the system's own.
    """
    count = case.client_processes if case.client_processes > 1 else 0
    client = new_client(endpoint, connections=case.load.concurrency)
    async with client, contextlib.AsyncExitStack() as stack:
        workers = tuple([await stack.enter_async_context(_worker()) for _ in range(count)])
        yield Clients(case=case, endpoint=endpoint, clock=clock, client=client, workers=workers)


@contextlib.asynccontextmanager
async def _worker() -> AsyncIterator[_Worker]:
    command = (sys.executable, "-P", "-m", "specreg.load.client_processes")
    with tempfile.TemporaryDirectory(prefix="specreg-", ignore_cleanup_errors=True) as folder:
        log_path = Path(folder) / "log"
        with child_process(command, log_path=log_path, temporary=[Path(folder)]) as child:
            async with child.reader() as reader:
                yield _Worker(child, reader)


async def _work() -> None:
    """Replay the slices that are ordered on stdin, until it ends."""
    for line in iter(sys.stdin.buffer.readline, b""):
        order = msgspec.json.decode(line, type=_Order)
        async with new_client(order.endpoint, connections=order.case.load.concurrency) as client:
            try:
                done = await replay_round(
                    order.case,
                    order.endpoint,
                    order.prompts,
                    client=client,
                    clock=time.monotonic_ns,
                    record=lambda finished: _reply(_Reply(finished=finished)),
                    part=order.part,
                )
            except HungError as error:
                _reply(_Reply(hung_s=error.silent_s))
            else:
                _reply(_Reply(lags=done.lags))


def _reply(reply: _Reply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    import uvloop

    with contextlib.suppress(BrokenPipeError):  # the suite was killed, and takes no replies
        uvloop.run(_work())
