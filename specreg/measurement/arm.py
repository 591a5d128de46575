"""One running server in a measurement: what it replays, and what is read of it beside times.

Acceptance is read from each answer's own record, else the server's counters, else the chunks.
"""

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from specreg.acceptance import checks
from specreg.acceptance.record import (
    NO_STEPS,
    AcceptanceRecord,
    Counters,
    PromptAcceptance,
    Source,
    StepCounts,
    View,
)
from specreg.acceptance.trace import RequestTrace, undrafted_steps_of
from specreg.core.errors import InvalidMeasurementError
from specreg.core.reasons import Invalidity
from specreg.datasets.prompts import Prompt
from specreg.engines.methods import METHODS
from specreg.engines.wire_format import WireFormat
from specreg.load.chat_client import Record
from specreg.load.rounds import Clients, Round
from specreg.matrix.case import Case, ServerSpec
from specreg.measurement.metrics import ALL, Family, noting
from specreg.servers.server import Server
from specreg.telemetry.power_record import (
    POWER_INVALID,
    PowerRecord,
    check_alone,
    check_held_back,
    record_power,
)
from specreg.telemetry.sampler import Span, Watch

_PARSED_WITHIN_S = 10.0
"""How long a page of counters may take to parse; one of many engines takes about a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One running server, which no other client asks, and the case as it runs it.

    Without a `required` one the other arms mean nothing; a control isn't, and is left out once it
    fails. One that is `warm` was measured under this load before, and isn't warmed up again.
    """

    case: Case
    server: Server
    required: bool = True
    warm: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class ArmReplay:
    """What one arm has replayed so far, by the clients of its server.

    Attributes:
        before: the server's counters when the rounds began; None where they aren't needed.
        block: a stretch of load without a pause, for the power; None without one.
        invalid: by family why its figures mean nothing.
        parsed_within_s: how long a page of counters may take to parse, in seconds.
    """

    arm: Arm
    clients: Clients
    before: Counters | None = None
    rounds: list[Round] = field(default_factory=list)
    acceptance: AcceptanceRecord | None = None
    block: Round | None = None
    invalid: dict[Family, Invalidity] = field(default_factory=dict)
    parsed_within_s: float = _PARSED_WITHIN_S

    async def begin(self) -> None:
        """Read the counters: what is accepted counts from here on.

        Raises:
            InvalidMeasurementError: they can't be read, and nothing means anything without them.
        """
        with noting(self.invalid):
            self.before = await self._counters()

    async def replay(self, prompts: Sequence[Prompt], record: Record) -> None:
        """Replay one more round; raises InvalidMeasurementError where a request failed."""
        done = await self.clients.replay(prompts, record)
        checks.check_requests(done.traces)
        self.rounds.append(done)

    async def extend(self, prompts: Sequence[Prompt], record: Record) -> None:
        """Replay further prompts for the acceptance alone, not as a round; raises as `replay`."""
        more = await self.clients.replay(prompts, record)
        checks.check_requests(more.traces)
        await self.read(more)

    async def read(self, *further: Round) -> None:
        """Read the acceptance of all rounds, and of further ones that aren't among them.

        Raises:
            InvalidMeasurementError: a check broke that spoils all figures.
        """
        self.acceptance = None
        with noting(self.invalid):
            traces = [trace for part in (*self.rounds, *further) for trace in part.traces]
            case, wire_format = self.arm.case, self.arm.server.engine.wire_format
            after = await self._counters()
            found = read_acceptance(case.server, wire_format, traces, self.before, after)
            if found is not None and case.server.pinned_length_tokens:
                checks.check_pinned(found, case.server.pinned_length_tokens, case.in_flight)
            if Family.ACCEPTANCE not in self.invalid:
                self.acceptance = found

    def power(self, watching: Watch, idle: Span, pids: AbstractSet[int]) -> PowerRecord:
        """What the devices drew while the server had requests, and in `idle` when none had.

        `pids` are those of all servers. What `THROTTLED` and `DEVICE_SHARED` spoil is noted.
        """
        block = self.block
        looked = [(self.rounds, ALL), ([block] if block else [], frozenset({Family.POWER}))]
        until_ns = max(one.ended_ns for rounds, _ in looked for one in rounds)
        traces, broken = watching.traces(until_ns)
        invalidity = Invalidity(POWER_INVALID, broken) if broken else None
        try:
            checks.check_requests(block.traces if block and not broken else ())
        except InvalidMeasurementError as error:
            invalidity = Invalidity(POWER_INVALID, str(error))
        for rounds, within in looked:
            spans = [(part.started_ns, part.ended_ns) for part in rounds]
            with noting(self.invalid, within):
                check_held_back(traces, spans)
            with noting(self.invalid, within):
                check_alone(traces, spans, pids)
        if invalidity is not None or block is None:
            return PowerRecord(invalid=invalidity or self.invalid[Family.POWER])
        # An extension's requests are no part of the rounds.
        timed = [trace for part in self.rounds for trace in part.traces]
        tokens = sum(trace.tokens for trace in timed)
        turns = {(trace.prompt_id, trace.turn) for trace in timed}
        prompts = self.acceptance.prompts if self.acceptance else ()
        accepted = sum(p.counts.accepted for p in prompts if (p.prompt_id, p.turn) in turns)
        return record_power(
            traces,
            (block.started_ns, block.ended_ns),
            tokens=sum(trace.tokens for trace in block.traces),
            accepted_frac=accepted / tokens if tokens else 0.0,
            idle=idle,
        )

    async def _counters(self) -> Counters | None:
        wire_format = self.arm.server.engine.wire_format
        path = wire_format.counters_path
        if path is None or not self.arm.case.speculates:
            return None
        page = await self.clients.scrape(path)
        # A page of another's making may take seconds, in which the event loop has to go on.
        parsing = asyncio.to_thread(wire_format.parse_counters, page)
        try:
            return await asyncio.wait_for(parsing, self.parsed_within_s)
        except TimeoutError as error:
            message = f"{path} takes more than {self.parsed_within_s:g} s to parse; look at it"
            raise InvalidMeasurementError("METRICS_UNREADABLE", message) from error


def read_acceptance(
    spec: ServerSpec,
    wire_format: WireFormat,
    traces: Sequence[RequestTrace],
    before: Counters | None,
    after: Counters | None,
) -> AcceptanceRecord | None:
    """The acceptance of all requests between two readings of the counters, None where it has none.

    Raises:
        InvalidMeasurementError: a check of `specreg.acceptance` broke.
    """
    if spec.method == "none":
        return None
    method = METHODS[spec.method]
    moved = checks.check_counters(before, after) if before and after else None
    spoken = [trace for trace in traces if trace.acceptance is not None]
    if wire_format.request_source is not None and spoken:
        record = _record(wire_format.request_source, View.VERIFIER, traces, _own_counts(traces))
        if moved is not None:
            checks.check_reconciled(record.total, moved)
    elif wire_format.counters_source is not None and moved is not None and moved.counts is not None:
        checks.check_ended(len(traces), moved)
        record = AcceptanceRecord(
            source=wire_format.counters_source,
            view=View.VERIFIER,
            total=moved.counts,
            prompts=(),
            undrafted_steps=undrafted_steps_of(traces, moved.counts),
            later_tokens=sum(max(trace.tokens - 1, 0) for trace in traces),
        )
    elif wire_format.request_source is not None:
        message = (
            "no answer tells its steps, nor do the counters; is the server as old as it says, and"
            " are its statistics switched on?"
        )
        raise InvalidMeasurementError("ACCEPTANCE_MISSING", message)
    else:
        tokens, each = spec.draft_tokens, method.drafts_every_step
        counts = [t.counts_of_chunks(draft_tokens=tokens, drafts_every_step=each) for t in traces]
        record = _record(Source.STREAM_CHUNKS, View.EMITTED, traces, counts)
    checks.check_acceptance(
        record, draft_tokens=spec.draft_tokens, drafted_tokens=spec.drafted_tokens
    )
    if method.drafts_every_step:
        checks.check_emitted(record, traces, draft_tokens=spec.draft_tokens)
    return record.to_depth(spec.draft_tokens)


def _own_counts(traces: Sequence[RequestTrace]) -> list[StepCounts]:
    """Return the counts that each answer tells.

    An answer without counts had no step that drafted: it is of one token, or each of its chunks
    after the first is.
    """
    counts = []
    for trace in traces:
        drafted_nothing = trace.tokens <= 1 or trace.later_chunks == trace.tokens - 1
        if trace.acceptance is None and not drafted_nothing:
            message = f"prompt '{trace.prompt_id}': the server sent no acceptance, to others it did"
            raise InvalidMeasurementError("ACCEPTANCE_MISSING", message)
        counts.append(trace.acceptance or NO_STEPS)
    return counts


def _record(
    source: Source, view: View, traces: Sequence[RequestTrace], counts: Sequence[StepCounts]
) -> AcceptanceRecord:
    prompts = tuple(
        PromptAcceptance(
            prompt_id=trace.prompt_id,
            category=trace.category,
            turn=trace.turn,
            counts=own,
            completion_tokens=trace.tokens,
            undrafted_steps=undrafted_steps_of([trace], own),
        )
        for trace, own in zip(traces, counts, strict=True)
    )
    return AcceptanceRecord(
        source=source,
        view=view,
        total=sum(counts, NO_STEPS),
        prompts=prompts,
        undrafted_steps=sum(prompt.undrafted_steps or 0 for prompt in prompts),
        later_tokens=sum(max(trace.tokens - 1, 0) for trace in traces),
    )
