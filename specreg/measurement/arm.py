"""A lane: one running server in a measurement, who asks it, and what it has accepted so far."""

import asyncio
import contextlib
import itertools
import math
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from specreg.acceptance.checks import check_requests
from specreg.acceptance.record import AcceptanceRecord, Counters, Gauges, StepCounts
from specreg.acceptance.trace import RequestTrace
from specreg.datasets.prompts import Prompt
from specreg.load.chat_client import Clock, Record
from specreg.load.client_processes import Crew, open_crew
from specreg.load.rounds import Round
from specreg.matrix import Case
from specreg.matrix.load import Load
from specreg.measurement.meter import read_acceptance
from specreg.servers.server import Server

_WARM_UP_NS = 10 * 10**9
_COMPARED = 3
"""Batches that are held against as many before them."""
_SILENT_BATCHES = 3
_CLEAR = 2.5
"""Errors by which the earlier batches are slower than the later ones where a trend is left."""
_EXPORT_LOOKS, _EXPORT_S = 50, 0.1

ReplayBatch = Callable[[Load, Sequence[Prompt]], Awaitable[Round]]
"""A load and prompts in, a round that nobody records out."""


@dataclass(slots=True, kw_only=True)
class Lane:
    """One server in a measurement.

    Attributes:
        case: what is asked of it; server: whom.
        crew: who asks.
        before: the server's counters when the rounds began; None where nobody needs them.
        rounds: replayed so far.
    """

    case: Case
    server: Server
    crew: Crew
    before: Counters | None = None
    rounds: list[Round] = field(default_factory=list)

    async def begin(self) -> None:
        """What is accepted counts from here on.

        Raises:
            InvalidMeasurementError: its counters can't be read.
        """
        self.before = await self._counters()

    async def replay(self, prompts: Sequence[Prompt], record: Record | None = None) -> None:
        """One round more.

        Raises:
            InvalidMeasurementError: a request failed.
        """
        done = await self.crew.replay(prompts, record)
        check_requests(done.traces)
        self.rounds.append(done)

    async def acceptance(self, *further: Round) -> tuple[AcceptanceRecord | None, Gauges | None]:
        """What was accepted in all rounds, and further ones that aren't among them.

        Raises:
            InvalidMeasurementError: a check of the meter broke.
        """
        traces = [trace for part in (*self.rounds, *further) for trace in part.traces]
        if self.case.speculates:
            traces = await with_exported(self.server, traces)
        after = await self._counters()
        protocol = self.server.engine.protocol
        record = read_acceptance(self.case.server, protocol, traces, self.before, after)
        return record, after.gauges if after else None

    async def _counters(self) -> Counters | None:
        protocol = self.server.engine.protocol
        if not self.case.speculates:
            return None
        path = protocol.counters_path_of(self.server.engine_version)
        return None if path is None else protocol.parse_counters(await self.crew.scrape(path))


@contextlib.asynccontextmanager
async def open_lane(case: Case, server: Server, *, clock: Clock) -> AsyncIterator[Lane]:
    """A lane for as long as the context lasts.

    Args:
        case: its load, and whether it speculates.
        server: running.
        clock: monotonic, in nanoseconds.
    """
    async with open_crew(case, server.endpoint, clock=clock) as crew:
        yield Lane(case=case, server=server, crew=crew)


async def warm_up(case: Case, prompts: Sequence[Prompt], replay_batch: ReplayBatch) -> None:
    """Replay batches until their steps get no faster, for 10 s at most after the first one.

    What is made on demand slows the first requests, by minutes where kernels are compiled. A batch
    is a prompt for each request in flight; for a rate, for each that comes in a second, as far as
    the server takes them on at once. The batch that ends once 10 s have passed is the last.

    Args:
        case: what it is for.
        prompts: batches take them in turn.
        replay_batch: replays some prompts under a load.

    Raises:
        InvalidMeasurementError: a request failed.
    """
    rate = math.ceil(case.load.requests_per_s)
    size = case.load.concurrency or min(rate, case.server.max_sequences)
    in_turn = itertools.cycle(prompts)
    began_ns, step_times_ns = None, []
    for batch in itertools.count(1):
        done = await replay_batch(Load(concurrency=size), list(itertools.islice(in_turn, size)))
        check_requests(done.traces)
        began_ns = done.ended_ns if began_ns is None else began_ns
        if step_time_ns := done.gaps.quantile_ns(0.5):  # answers of one token have no steps
            step_times_ns.append(step_time_ns)
        silent = not step_times_ns and batch == _SILENT_BATCHES
        if silent or done.ended_ns - began_ns >= _WARM_UP_NS or is_warm(step_times_ns):
            return


def is_warm(step_times_ns: Sequence[float]) -> bool:
    """Whether batches have stopped getting faster; seven or more can tell.

    The first one pays for most of what is made on demand, and isn't looked at. Of the last six
    others, the logarithms of the later three lie below those of the earlier three by no more than
    2.5 times the error of that difference, which their spread within the threes gives: steady steps
    look otherwise once in thirty times.

    Args:
        step_times_ns: the median of each batch, in order.
    """
    recent = [math.log(one) for one in step_times_ns[1:][-2 * _COMPARED :]]
    if len(recent) < 2 * _COMPARED:
        return False
    halves = recent[:_COMPARED], recent[_COMPARED:]
    error = math.sqrt(sum(map(statistics.variance, halves)) / _COMPARED)
    earlier, later = map(statistics.fmean, halves)
    return earlier - later <= _CLEAR * error


async def with_exported(server: Server, traces: Sequence[RequestTrace]) -> list[RequestTrace]:
    """The traces, with the counts that a server writes to a file instead of into its answers.

    It writes them just after the answer. What isn't there in time stays unknown, which the meter
    says.

    Raises:
        InvalidMeasurementError: `COUNTS_DISAGREE`.
    """
    waiting = {trace.request_id for trace in traces if not trace.acceptance and trace.tokens > 1}
    if not (waiting and server.exports):
        return list(traces)
    told: Mapping[str, StepCounts] = {}
    for _ in range(_EXPORT_LOOKS):
        told = server.exported()
        if waiting <= told.keys():
            break
        await asyncio.sleep(_EXPORT_S)
    return [
        msgspec.structs.replace(trace, acceptance=trace.acceptance or told.get(trace.request_id))
        for trace in traces
    ]
