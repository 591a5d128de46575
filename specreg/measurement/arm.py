"""Replay prompts on one running server, and read its acceptance and its power.

Acceptance is read from the counts in each answer. If the answers have none, it is read from the
server's counters, and without counters it is estimated from the chunks of the answers.
"""

import asyncio
import collections
import dataclasses
import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from specreg.acceptance import checks
from specreg.acceptance.record import (
    NO_STEPS,
    AcceptanceRecord,
    CountedSteps,
    Counters,
    PromptAcceptance,
    RoundAcceptance,
    Source,
    StepCounts,
    View,
)
from specreg.acceptance.trace import RequestTrace, have_split_steps
from specreg.core.errors import InvalidMeasurementError
from specreg.core.families import ALL, Family
from specreg.core.reasons import Reason
from specreg.datasets.prompts import Prompt, cut_evenly
from specreg.engines.methods import METHODS
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import ServerSpec
from specreg.engines.wire_format import WireFormat
from specreg.load.chat_client import Record
from specreg.load.rounds import Clients, Round
from specreg.matrix.case import Case, Load
from specreg.measurement.metrics import note_invalidity
from specreg.servers.server import Server
from specreg.stats.intervals import FEWEST_PROMPTS, Look
from specreg.telemetry.power_record import (
    PowerRecord,
    check_alone,
    check_not_throttled,
    record_power,
)
from specreg.telemetry.sampler import PowerTrace, Span, Watch

_PARSED_WITHIN_S = 10.0
"""How long a page of counters may take to parse; a page of many engines takes about a second."""
_ENOUGH_ROUNDS = 2 * FEWEST_PROMPTS
"""If the counters gave counts for fewer rounds than this, the prompts are replayed in batches."""
_NS_PER_S = 10**9

StoppingRule = Callable[[AcceptanceRecord | None, Look], bool]
"""Takes the acceptance of an arm so far and the look; returns whether that is enough."""


def has_all_prompts(acceptance: AcceptanceRecord | None, look: Look) -> bool:
    """Return whether all prompts of the workload were replayed."""
    del acceptance
    return look is not Look.EARLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One running server, which no other client uses, and the case that it runs.

    Attributes:
        case: the case as the server runs it.
        server: the running server.
        is_control: whether the speeds of all other arms are compared with this one's. Without a
            control the arms are compared with each other.
        warm: whether the server was measured under this load before, so it needs no warm-up.
        enough: decides at each look whether the acceptance so far is enough. If it isn't after all
            prompts, the extension is replayed.
        least_s: the least duration of the measurement, in seconds. If the prompts take less, they
            are replayed again for the speeds.
    """

    case: Case
    server: Server
    is_control: bool = False
    warm: bool = False
    enough: StoppingRule = has_all_prompts
    least_s: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class ArmReplay:
    """The rounds and counts of one arm so far.

    Attributes:
        clients: the clients that send the requests to its server.
        before: the server's counters when the rounds began; None if they aren't needed, or
            couldn't be read.
        rounds: the rounds that were replayed.
        batches: what was replayed only for the acceptance, see `count_in_batches` and `extend`.
        acceptance: the acceptance when it was last read; None if there is no valid one.
        look: the last look at the acceptance.
        block: a stretch of load without a pause, for measuring power; None without one.
        invalid: for each invalid family, the reason why its figures can't be used.
        parsed_within_s: how long a page of counters may take to parse, in seconds.
        _counted: the acceptance of each round and batch so far, according to the counters.
        _counted_until: the counters after the last round or batch.
        _first_compared: the index of the first entry of `_counted` that is compared with a
            baseline.
    """

    arm: Arm
    clients: Clients
    before: Counters | None = None
    rounds: list[Round] = field(default_factory=list)
    batches: list[Round] = field(default_factory=list)
    acceptance: AcceptanceRecord | None = None
    look: Look = Look.FULL
    block: Round | None = None
    invalid: dict[Family, Reason] = field(default_factory=dict)
    parsed_within_s: float = _PARSED_WITHIN_S
    _counted: list[RoundAcceptance] = field(default_factory=list)
    _counted_until: Counters | None = None
    _first_compared: int = 0

    async def begin(self) -> None:
        """Read the counters at the beginning of the rounds.

        Raises:
            InvalidMeasurementError: a check failed that makes all figures invalid.
        """
        # Without speculation, the page says nothing of acceptance.
        invalid = self.invalid if self.arm.case.speculates else {}
        with note_invalidity(invalid):
            self.before = await self._read_counters()

    async def replay(self, prompts: Sequence[Prompt], record: Record) -> None:
        """Replay one more round.

        Raises:
            InvalidMeasurementError: a request failed, the server hangs or restarted, or a client
                process ended.
        """
        replayed_round = await self.clients.replay(prompts, record)
        checks.check_requests(replayed_round.traces)
        rise = await self._count(replayed_round)
        self.rounds.append(dataclasses.replace(replayed_round, counters=rise.further))

    async def _count(self, replayed_round: Round) -> Counters:
        """Return how much the counters increased in a round, or in prompts that were like one.

        If the answers have no counts of their own, the increase is also recorded as the acceptance
        of the round.

        Returns:
            An increase of nothing if the counters aren't needed, or couldn't be read.

        Raises:
            InvalidMeasurementError: the server restarted.
        """
        wire_format = self.arm.server.engine.wire_format
        own_counts = [
            trace.acceptance for trace in replayed_round.traces if trace.acceptance is not None
        ]
        has_own_counts = wire_format.request_source is not None and bool(own_counts)
        gives_acceptance = (
            self.arm.case.speculates
            and wire_format.counters_source is not None
            and not has_own_counts
        )
        nothing = Counters(steps=0)
        if self.before is None or not (gives_acceptance or wire_format.further_counters):
            return nothing

        # A page that is read for the further counters alone says nothing of acceptance.
        invalid = self.invalid if gives_acceptance else {}
        steps = sum(counts.steps for counts in own_counts) if has_own_counts else None
        with note_invalidity(invalid):
            counters = await self._read_counters()
            if counters is None:
                return nothing
            rise = checks.check_counters(self._counted_until or self.before, counters)
            rise = checks.count_once(rise, requests=len(replayed_round.traces), steps=steps)
            self._counted_until = counters
            if gives_acceptance and rise.counts is not None:
                self._counted.append(_round_acceptance(replayed_round, rise.counts))
            return rise

        return nothing

    async def count_in_batches(self, prompts: Sequence[Prompt]) -> None:
        """Replay prompts once more in small batches, if the counters gave counts for few rounds.

        If only the counters provide acceptance, it is compared round by round. A load of many
        requests has too few rounds for that, because its rounds must be long to keep it full.

        Raises:
            InvalidMeasurementError: a request failed, the server hangs or restarted, or a client
                process ended.
        """
        if not self._counted or len(self._counted) >= _ENOUGH_ROUNDS:
            return
        self._first_compared = len(self._counted)
        await self._replay_batches(prompts)

    async def _replay_batches(self, prompts: Sequence[Prompt]) -> None:
        """Replay prompts in batches, and read the counters after each batch."""
        in_flight = self.arm.case.in_flight
        full_batches = math.ceil(len(prompts) / in_flight)
        batches = max(full_batches, _ENOUGH_ROUNDS)
        load = Load(concurrency=in_flight)
        for batch in cut_evenly(prompts, batches):
            replayed_round = await self.clients.replay_under(load, batch)
            checks.check_requests(replayed_round.traces)
            self.batches.append(replayed_round)
            await self._count(replayed_round)

    async def replay_block(self, prompts: Sequence[Prompt], least_s: float) -> None:
        """Keep the server under load without a pause, for its power.

        The longest round is such a load if it lasted long enough; otherwise the prompts are
        replayed in a cycle.

        Args:
            prompts: the prompts of the workload.
            least_s: how long the load lasts at least, in seconds.

        Raises:
            InvalidMeasurementError: a client process ended, or the server hangs.
        """
        longest = max(self.rounds, key=_duration_ns)
        if _duration_ns(longest) >= least_s * _NS_PER_S:
            self.block = longest
        else:
            load = dataclasses.replace(self.arm.case.load, duration_s=least_s)
            self.block = await self.clients.replay_under(load, prompts)

    def discard_block(self, reason: Reason) -> None:
        """Make the power invalid, because the load for it failed on this or another arm."""
        self.block = None
        self.invalid.setdefault(Family.POWER, reason)

    def discard(self, reason: Reason) -> None:
        """Make the figures of all families invalid for one reason, which replaces earlier ones."""
        self.invalid.update(dict.fromkeys(Family, reason))

    @property
    def rounds_ns(self) -> int:
        """How long all rounds took together, in nanoseconds."""
        return sum(map(_duration_ns, self.rounds))

    async def extend(self, prompts: Sequence[Prompt], record: Record) -> None:
        """Replay further prompts for the acceptance only, and read it. They don't count as a round.

        Args:
            prompts: the extension of the workload.
            record: takes each request as it ends. It isn't used if the counters are read, because
                the prompts are then replayed in batches.

        Raises:
            InvalidMeasurementError: a request failed, the server hangs, a client process ended, or
                a check failed that makes all figures invalid.
        """
        if self._counted:
            await self._replay_batches(prompts)
        else:
            extension = await self.clients.replay(prompts, record)
            checks.check_requests(extension.traces)
            self.batches.append(extension)
            # Rounds may follow, which begin with the counters after the extension.
            await self._count(extension)
        await self.read()

    async def read(self) -> None:
        """Read the acceptance of all rounds and batches.

        Raises:
            InvalidMeasurementError: a check failed that makes all figures invalid.
        """
        # Until all checks have passed, there is no valid acceptance.
        self.acceptance = None
        if not self.arm.case.speculates:
            return
        spec = self.arm.case.server
        traces: list[RequestTrace] = []
        for replayed_round in (*self.rounds, *self.batches):
            traces += replayed_round.traces
        wire_format = self.arm.server.engine.wire_format
        with note_invalidity(self.invalid):
            after = await self._read_counters()
            acceptance = read_acceptance(spec, wire_format, traces, self.before, after)
            if acceptance is not None:
                runner = self.arm.server.facts.model_runner
                counted = counted_steps(spec, acceptance, runner)
                rounds = self._compared_rounds(acceptance)
                acceptance = dataclasses.replace(acceptance, counted=counted, rounds=rounds)
                acceptance = acceptance.to_depth(spec.draft_tokens)
            if acceptance is not None and spec.pinned_length_tokens:
                checks.check_pinned_length(
                    acceptance, spec.pinned_length_tokens, self.arm.case.in_flight
                )
            # The acceptance may have been invalid before this reading, for example because the
            # counters were unreadable when the rounds began.
            if Family.ACCEPTANCE not in self.invalid:
                self.acceptance = acceptance

    def _compared_rounds(self, acceptance: AcceptanceRecord) -> tuple[RoundAcceptance, ...]:
        """Return the rounds by which an acceptance is compared.

        There are none if the acceptance of each prompt is known, or if the counts of the rounds are
        wrong. The counters of some servers lag behind the answers. Then the last steps are missing,
        or a round has fewer steps than its tokens need.
        """
        # All rounds together must have the counts of the total.
        counted = sum((counted_round.counts for counted_round in self._counted), NO_STEPS)
        total = acceptance.total
        is_whole = (counted.steps, counted.accepted) == (total.steps, total.accepted)
        if acceptance.prompts or not is_whole:
            return ()
        if METHODS[self.arm.case.server.method].drafts_every_step:
            for counted_round in self._counted:
                counts = counted_round.counts
                # A step emits its accepted drafts and one token, and the prefill emits the first.
                most_tokens = counted_round.requests + counts.accepted + counts.steps
                if counted_round.completion_tokens > most_tokens:
                    return ()

        return tuple(self._counted[self._first_compared :])

    def power(self, watching: Watch, idle: Span, pids: AbstractSet[int]) -> PowerRecord:
        """Return the power of the devices under load and idle.

        The families that `THROTTLED` and `DEVICE_SHARED` make invalid are added to `invalid`.

        Args:
            watching: the sampler that watched the devices.
            idle: a span in which no server had requests.
            pids: the process ids of all servers.
        """
        # Check that the devices were neither throttled nor used by another process.
        block = self.block
        block_rounds = [] if block is None else [block]
        until_ns = max(replayed_round.ended_ns for replayed_round in (*self.rounds, *block_rounds))
        traces, sampling_error = watching.traces(until_ns)
        invalidity = self._power_invalidity(sampling_error)
        self._check_devices(traces, self.rounds, ALL, pids)
        self._check_devices(traces, block_rounds, frozenset({Family.POWER}), pids)

        # Calculate the power from the samples during the load. If there is no block, that load
        # failed, and `discard_block` has recorded why.
        if block is None:
            return PowerRecord(invalid=invalidity or self.invalid[Family.POWER])
        if invalidity is not None:
            return PowerRecord(invalid=invalidity)
        span = (block.started_ns, block.ended_ns)
        tokens = sum(trace.tokens for trace in block.traces)
        return record_power(
            traces, span, tokens=tokens, accepted_frac=self._accepted_frac(), idle=idle
        )

    def _power_invalidity(self, sampling_error: str) -> Reason | None:
        """Return why the power is invalid: the sampler failed, or a request during the load."""
        if sampling_error:
            return Reason.of("POWER_INVALID", fault=sampling_error)
        if self.block is not None:
            try:
                checks.check_requests(self.block.traces)
            except InvalidMeasurementError as error:
                return Reason.of("POWER_INVALID", fault=error)

        return None

    def _check_devices(
        self,
        traces: Sequence[PowerTrace],
        rounds: Sequence[Round],
        families: AbstractSet[Family],
        pids: AbstractSet[int],
    ) -> None:
        """Record which families are invalid because of throttling or another process."""
        spans = [(replayed_round.started_ns, replayed_round.ended_ns) for replayed_round in rounds]
        with note_invalidity(self.invalid, families):
            check_not_throttled(traces, spans)
        with note_invalidity(self.invalid, families):
            check_alone(traces, spans, pids)

    def _accepted_frac(self) -> float:
        """Return the share of the rounds' tokens that were accepted drafts, 0..1.

        It is 0 if the acceptance of each request isn't known.
        """
        if self.acceptance is None:
            return 0.0
        counts = collections.defaultdict[tuple[str, int], list[StepCounts]](list)
        for prompt in self.acceptance.prompts:
            counts[prompt.prompt_id, prompt.turn].append(prompt.counts)

        # The acceptance also has the requests of the extension, which aren't part of the rounds.
        # And prompts may have been replayed again, for the speeds, after the acceptance was read.
        tokens = 0
        accepted_tokens = 0
        traces = [trace for replayed_round in self.rounds for trace in replayed_round.traces]
        for trace in traces:
            counts_of_turn = counts[trace.prompt_id, trace.turn]
            if counts_of_turn:
                tokens += trace.tokens
                accepted_tokens += counts_of_turn.pop(0).accepted

        if not tokens:
            return 0.0
        return accepted_tokens / tokens

    async def _read_counters(self) -> Counters | None:
        """Read the counters, added up over the replicas of the server.

        Returns:
            None if the server has none, or none that the case needs.

        Raises:
            InvalidMeasurementError: the counters can't be read.
        """
        pages = self.arm.server.counters_pages
        is_needed = self.arm.case.speculates or self.arm.server.engine.wire_format.further_counters
        if not pages or not is_needed:
            return None
        counters = [await self._read_page(page) for page in pages]
        return sum(counters[1:], start=counters[0])

    async def _read_page(self, page: str) -> Counters:
        """Read the counters of one replica; errors as in `_read_counters`."""
        text = await self.clients.scrape(page)
        parse_counters = self.arm.server.engine.wire_format.parse_counters
        speculates = self.arm.case.speculates

        # A large page may take seconds to parse, during which the event loop has to go on.
        parsing = asyncio.to_thread(parse_counters, text, speculates=speculates)
        try:
            return await asyncio.wait_for(parsing, self.parsed_within_s)
        except TimeoutError as error:
            fault = f"{page} takes more than {self.parsed_within_s:g} s to parse"
            raise InvalidMeasurementError("METRICS_UNREADABLE", fault=fault, path=page) from error


def _round_acceptance(replayed_round: Round, counts: StepCounts) -> RoundAcceptance:
    """Return the acceptance of a round, from how much the counters increased in it."""
    prompt_ids = dict.fromkeys(trace.prompt_id for trace in replayed_round.traces)
    return RoundAcceptance(
        prompt_ids=tuple(prompt_ids),
        counts=counts,
        completion_tokens=sum(trace.tokens for trace in replayed_round.traces),
        requests=len(replayed_round.traces),
    )


def _duration_ns(replayed_round: Round) -> int:
    return replayed_round.ended_ns - replayed_round.started_ns


def read_acceptance(
    spec: ServerSpec,
    wire_format: WireFormat,
    traces: Sequence[RequestTrace],
    before: Counters | None,
    after: Counters | None,
) -> AcceptanceRecord | None:
    """Return the acceptance of all requests between two readings of the counters.

    Args:
        spec: the specification of the server.
        wire_format: how its answers and counters report acceptance.
        traces: all requests between the two readings.
        before: the first reading; None for a server without counters, or if they couldn't be read.
        after: the second reading; None for a server without counters.

    Returns:
        None for a server that doesn't speculate.

    Raises:
        InvalidMeasurementError: a check of `specreg.acceptance` failed, an answer lacks its counts,
            or neither the answers nor the counters report steps.
    """
    if spec.method == "none":
        return None
    engine = engine_named(spec.engine)
    drafts_every_step = METHODS[spec.method].drafts_every_step
    rise = None
    if before is not None and after is not None:
        rise = checks.check_counters(before, after)
    has_own_counts = any(trace.acceptance is not None for trace in traces)

    # Prefer the counts in the answers, because they are known for each request.
    if wire_format.request_source is not None and has_own_counts:
        counts = _own_counts(traces)
        if not engine.counts_drafts_correctly(dict(spec.speculation)):
            counts = [dataclasses.replace(step_counts, proposed=None) for step_counts in counts]
        record = _record(wire_format.request_source, View.VERIFIER, traces, counts)
        if rise is not None:
            steps = record.total.steps
            own_rise = checks.count_once(rise, requests=len(traces), steps=steps)
            checks.check_reconciled(record.total, own_rise, ended=len(traces))
    elif wire_format.counters_source is not None and rise is not None and rise.counts is not None:
        own_rise = checks.count_once(rise, requests=len(traces))
        checks.check_ended(len(traces), own_rise)
        record = AcceptanceRecord(
            source=wire_format.counters_source,
            view=View.VERIFIER,
            total=own_rise.counts or NO_STEPS,
            prompts=(),
            later_tokens=_later_tokens(traces),
        )
    elif wire_format.request_source is not None:
        sources = "the answers and the counters"
        raise InvalidMeasurementError("ACCEPTANCE_MISSING", sources=sources)
    else:
        counts = [
            trace.counts_of_chunks(
                draft_tokens=spec.draft_tokens, drafts_every_step=drafts_every_step
            )
            for trace in traces
        ]
        record = _record(Source.STREAM_CHUNKS, View.EMITTED, traces, counts)

    record = dataclasses.replace(
        record, chunks_split_steps=_chunks_split_steps(record, traces, spec.draft_tokens)
    )
    checks.check_acceptance(
        record, draft_tokens=spec.draft_tokens, drafted_tokens=spec.drafted_tokens
    )
    checks.check_delivered(record.total, traces, draft_tokens=spec.draft_tokens)

    # More tokens than the counted steps can emit show that the server didn't count some of its
    # drafts. This doesn't hold if some steps have no draft: they aren't counted, and a busy server
    # may merge their chunks into others, so that they aren't seen there either.
    if drafts_every_step and not engine.turns_drafting_off(dict(spec.speculation)):
        checks.check_emitted(record, traces, draft_tokens=spec.draft_tokens)
    return record.to_depth(spec.draft_tokens)


def counted_steps(spec: ServerSpec, record: AcceptanceRecord, model_runner: str) -> CountedSteps:
    """Return which steps a server counts: all of them, or only those that found a draft.

    Args:
        spec: the specification of the server.
        record: its acceptance. It decides if the model runner is unknown: if every counted step
            proposed the full number of drafts, and these steps emitted all tokens, the engine pads
            a step that found no draft, and counts it.
        model_runner: the model runner of the server; empty if unknown.
    """
    engine = engine_named(spec.engine)
    may_find_nothing = not METHODS[spec.method].drafts_every_step
    total = record.total
    is_padded = engine.drafts_every_step(spec.method, model_runner)
    if engine.has_model_runners and not model_runner:
        has_all_drafts = total.proposed == spec.drafted_tokens * total.steps
        is_padded = record.undrafted_steps == 0 and has_all_drafts
    if may_find_nothing and is_padded:
        return CountedSteps.ALL
    return CountedSteps.DRAFTED


def _own_counts(traces: Sequence[RequestTrace]) -> list[StepCounts]:
    """Return the counts in each answer.

    An answer may lack counts only if none of its steps had a draft. It is taken for such an answer
    if each of its chunks has one token, or if it has at most one token in all.

    Raises:
        InvalidMeasurementError: an answer lacks counts, although a chunk of it has several tokens.
    """
    counts = []
    for trace in traces:
        drafted_nothing = trace.tokens <= 1 or trace.later_chunks == trace.tokens - 1
        if trace.acceptance is None and not drafted_nothing:
            raise InvalidMeasurementError("ACCEPTANCE_PARTIAL", prompt=trace.prompt_id)
        counts.append(trace.acceptance or NO_STEPS)
    return counts


def _record(
    source: Source, view: View, traces: Sequence[RequestTrace], counts: Sequence[StepCounts]
) -> AcceptanceRecord:
    """Return the record of requests with counts for each of them."""
    prompts = [
        PromptAcceptance(
            prompt_id=trace.prompt_id,
            category=trace.category,
            turn=trace.turn,
            counts=trace_counts,
            completion_tokens=trace.tokens,
        )
        for trace, trace_counts in zip(traces, counts, strict=True)
    ]
    return AcceptanceRecord(
        source=source,
        view=view,
        total=sum(counts, NO_STEPS),
        prompts=tuple(prompts),
        later_tokens=_later_tokens(traces),
    )


def _chunks_split_steps(
    record: AcceptanceRecord, traces: Sequence[RequestTrace], draft_tokens: int
) -> bool:
    """Return whether the tokens of a step came in several chunks, in any request."""
    if not record.prompts:
        return have_split_steps(traces, record.total, draft_tokens)
    return any(
        have_split_steps([trace], prompt.counts, draft_tokens)
        for trace, prompt in zip(traces, record.prompts, strict=True)
    )


def _later_tokens(traces: Sequence[RequestTrace]) -> int:
    """Return how many tokens follow the first token of each answer."""
    return sum(max(trace.tokens - 1, 0) for trace in traces)
