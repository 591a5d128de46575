"""The power of a measurement: what the devices drew while each server had requests."""

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import msgspec

from specreg.acceptance.checks import check_requests
from specreg.core.errors import InvalidMeasurementError
from specreg.load.rounds import Round
from specreg.measurement.metrics import Family, Replay
from specreg.measurement.validity import ALL, noting
from specreg.telemetry.energy import check_alone, check_held_back
from specreg.telemetry.power_record import PowerRecord, record_power
from specreg.telemetry.sampler import Span, Watch

_SETTLE_S, _IDLE_S = 1.0, 4.0
_OF_POWER = frozenset({Family.POWER})
"""The families of metrics that are read from a block."""


def rest(watching: Watch | None, show: Callable[[str], None]) -> Span:
    """Let the devices of a watch be idle for a while, and return that span."""
    if watching is None:
        return 0, 0
    show("watching the idle power")
    time.sleep(_SETTLE_S)
    start_ns = time.monotonic_ns()
    time.sleep(_IDLE_S)
    return start_ns, time.monotonic_ns()


def power_of(
    replay: Replay,
    watching: Watch,
    idle: Span,
    pids: AbstractSet[int],
    block: Round | None,
    invalid: dict[Family, str],
) -> PowerRecord:
    """What the devices drew while an arm's server had requests; its clock is the monotonic one.

    `idle` is when the servers had nothing to do, `pids` are the processes of all servers. `block`
    is load without a pause, None where there is none, which `invalid` says; that takes what
    `THROTTLED` and `DEVICE_SHARED` spoil.
    """
    looked = [(replay.rounds, ALL), ((block,) if block else (), _OF_POWER)]
    until_ns = max(one.ended_ns for rounds, _ in looked for one in rounds)
    traces, broken = watching.traces(until_ns)
    try:
        check_requests(block.traces if block and not broken else ())
    except InvalidMeasurementError as error:
        broken = str(error)
    for rounds, within in looked:
        spans = [(part.started_ns, part.ended_ns) for part in rounds]
        with noting(invalid, within):
            check_held_back(traces, spans)
        with noting(invalid, within):
            check_alone(traces, spans, pids)
    if broken or block is None:
        return PowerRecord(invalid=f"POWER_INVALID: {broken}" if broken else invalid[Family.POWER])
    return record_power(
        traces,
        (block.started_ns, block.ended_ns),
        tokens=sum(trace.tokens for trace in block.traces),
        accepted_frac=_accepted_frac(replay),
        idle=idle,
    )


def power_beside(ours: PowerRecord | None, theirs: PowerRecord | None) -> PowerRecord | None:
    """The power of a case with that of its control; the energy that speculation saves."""
    if ours is None or theirs is None or ours.case is None or theirs.case is None:
        why = theirs.invalid if theirs is not None and ours is not None else ""
        return PowerRecord(invalid=ours.invalid or why) if ours is not None and why else ours
    case_j, control_j = (one.case.energy_j_per_token for one in (ours, theirs) if one.case)
    too_short = ours.too_short or theirs.too_short
    return msgspec.structs.replace(
        ours,
        control=theirs.case,
        energy_ratio=control_j / case_j if control_j is not None and case_j else None,
        invalid="" if too_short else ours.invalid or theirs.invalid,
        too_short=too_short,
    )


def _accepted_frac(replay: Replay) -> float:
    """Accepted drafts / tokens of the rounds, 0..1; an extension's requests are no part of them."""
    tokens = sum(trace.tokens for trace in replay.traces)
    timed = {(trace.prompt_id, trace.turn) for trace in replay.traces}
    prompts = replay.acceptance.prompts if replay.acceptance else ()
    accepted = sum(one.counts.accepted for one in prompts if (one.prompt_id, one.turn) in timed)
    return accepted / tokens if tokens else 0.0
