"""Measuring: a case and its running server in, a measurement out. Knows nothing of pytest."""

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import httpx

from specreg.acceptance.checks import (
    check_acceptance,
    check_counters,
    check_emitted,
    check_reconciled,
    check_requests,
)
from specreg.acceptance.record import (
    NO_STEPS,
    AcceptanceRecord,
    PromptAcceptance,
    StepCounts,
    View,
    Weighting,
)
from specreg.datasets import Prompt
from specreg.errors import InvalidMeasurementError
from specreg.matrix import Case
from specreg.methods import METHODS
from specreg.metrics import METRICS, Replay
from specreg.replay import Clock, Round, new_client, replay_round
from specreg.server import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one launch of a case's server did.

    Attributes:
        case: what was measured.
        engine_version: by the server's own word.
        target, draft: what was served: folders or hub ids.
        replay: all rounds; None when the measurement is invalid.
        values: by metric's name; a metric without a value isn't there.
        invalid: why the figures mean nothing, None when they do.
    """

    case: Case
    engine_version: str
    target: str
    draft: str | None
    replay: Replay | None = None
    values: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    invalid: str | None = None

    @property
    def acceptance(self) -> AcceptanceRecord | None:
        """The acceptance of a valid measurement of a case that speculates."""
        return self.replay.acceptance if self.replay else None


def measure(
    case: Case,
    server: Server,
    control: Server | None,
    prompts: Sequence[Prompt],
    *,
    show: Callable[[str], None],
    clock: Clock = time.monotonic_ns,
) -> Measurement:
    """Measures a case: warm-up, then its prompts in rounds, each beside a round of the control.

    A check that breaks makes the measurement invalid; it is no error of this function.

    Args:
        case: what to measure.
        server: running, with nobody else using it.
        control: the `none` server to alternate with, None for no speedup.
        prompts: the dataset's; the case takes its first ones.
        show: is told what goes on.
        clock: monotonic, in nanoseconds.

    Raises:
        ServerDiedError: a server went away.
    """
    taken = prompts[: case.prompts]
    measurement = Measurement(
        case=case,
        engine_version=server.engine_version,
        target=server.target,
        draft=server.draft,
    )
    try:
        replay = asyncio.run(_measure(case, server, control, taken, show=show, clock=clock))
    except InvalidMeasurementError as error:
        for one in (server, control):
            if one is not None:
                one.check_alive()
        return dataclasses.replace(measurement, invalid=str(error))
    values = {name: metric.function(replay) for name, metric in METRICS.items()}
    present = {name: value for name, value in values.items() if value is not None}
    return dataclasses.replace(measurement, replay=replay, values=MappingProxyType(present))


async def _measure(
    case: Case,
    server: Server,
    control: Server | None,
    prompts: Sequence[Prompt],
    *,
    show: Callable[[str], None],
    clock: Clock,
) -> Replay:
    arms = [server] if control is None else [server, control]
    rounds: dict[str, list[Round]] = {arm.base_url: [] for arm in arms}
    clients = {arm.base_url: new_client(arm, concurrency=case.concurrency) for arm in arms}
    try:
        show(f"{case.id}: warming up")
        for arm in arms:
            # The first requests pay for what the engine prepares on first use.
            warm_up = prompts[: 2 * case.concurrency]
            await replay_round(case, arm, warm_up, client=clients[arm.base_url], clock=clock)
        before = await _scrape_counts(case, server, clients[server.base_url])
        parts = deal(prompts, case.rounds)
        for index, part in enumerate(parts):
            show(f"{case.id}: round {index + 1} of {len(parts)}")
            # ABBA: neither arm is always the first.
            for arm in arms if index % 2 == 0 else arms[::-1]:
                client = clients[arm.base_url]
                done = await replay_round(case, arm, part, client=client, clock=clock)
                check_requests(done.traces)
                rounds[arm.base_url].append(done)
        after = await _scrape_counts(case, server, clients[server.base_url])
    finally:
        for client in clients.values():
            await client.aclose()
    ours = tuple(rounds[server.base_url])
    return Replay(
        rounds=ours,
        control_rounds=tuple(rounds[control.base_url]) if control else (),
        acceptance=_acceptance(case, server, ours, check_counters(before, after)),
    )


def deal(prompts: Sequence[Prompt], rounds: int) -> tuple[Sequence[Prompt], ...]:
    """The prompts cut into at most `rounds` parts of equal size, in order; none is empty."""
    size = math.ceil(len(prompts) / rounds)
    return tuple(prompts[start : start + size] for start in range(0, len(prompts), size))


async def _scrape_counts(case: Case, server: Server, client: httpx.AsyncClient) -> StepCounts:
    if not case.speculates:
        return NO_STEPS
    try:
        page = await client.get(server.engine.metrics_path)
        page.raise_for_status()
    except httpx.HTTPError as error:
        message = f"{server.engine.metrics_path}: {error}"
        raise InvalidMeasurementError("METRICS_MISSING", message) from error
    return server.engine.parse_counters(page.text)


def _acceptance(
    case: Case, server: Server, rounds: tuple[Round, ...], counters: StepCounts
) -> AcceptanceRecord | None:
    if not case.speculates:
        return None
    prompts = tuple(
        PromptAcceptance(
            prompt_id=trace.prompt_id,
            category=trace.category,
            counts=_counts_of(trace.acceptance, trace.prompt_id),
            completion_tokens=trace.usage_tokens or 0,
        )
        for part in rounds
        for trace in part.traces
    )
    total = sum((prompt.counts for prompt in prompts), NO_STEPS)
    check_reconciled(total, counters)
    record = AcceptanceRecord(
        source=server.engine.request_source,
        view=View.VERIFIER,
        weighting=Weighting.STEP,
        total=total,
        prompts=prompts,
    )
    check_acceptance(record, draft_tokens=case.server.draft_tokens)
    if METHODS[case.server.method].drafts_every_step:
        check_emitted(record)
    return record


def _counts_of(counts: StepCounts | None, prompt_id: str) -> StepCounts:
    if counts is None:
        message = f"prompt '{prompt_id}': the server sent no acceptance with its usage"
        raise InvalidMeasurementError("ACCEPTANCE_MISSING", message)
    return counts
