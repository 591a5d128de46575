"""Acceptance by round where only the server's counters tell it, as before vLLM 0.29."""

import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import ClassVar

import pytest

from specreg.acceptance.record import NO_STEPS, AcceptanceRecord, Counters, Source
from specreg.engines.vllm import Vllm, VllmWireFormat
from specreg.engines.wire_format import MetricsPage
from specreg.matrix.case import Case
from specreg.measurement.arm import Arm, StoppingRule, has_all_prompts
from specreg.measurement.measure import Measurement, Plan, measure, workload_of
from specreg.servers.server import Server
from specreg.stats.intervals import Look
from tests.doubles.vllm.script import DEFAULTS, Script
from tests.unit import builders
from tests.unit.builders.started_servers import start

PROMPTS = builders.PROMPTS
SIX = builders.with_request(builders.CASE, prompts=6)


class _OldWireFormat(VllmWireFormat):
    """Answers without a record of their own."""

    request_source: ClassVar[Source | None] = None


class _OldVllm(Vllm):
    wire_format = _OldWireFormat()


@pytest.fixture(scope="module")
def new_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start(tmp_path_factory.mktemp("server"), Script()) as server:
        yield server


@pytest.fixture
def old_server(new_server: Server) -> Server:
    return dataclasses.replace(new_server, engine=_OldVllm())


def measured(
    case: Case, server: Server, enough: StoppingRule = has_all_prompts, **plan: object
) -> Measurement:
    slow_clock = Plan(show=lambda _: None, clock=lambda: time.monotonic_ns() // 3)
    arm = Arm(case=case, server=server, enough=enough)
    chosen = dataclasses.replace(slow_clock, **plan)  # type: ignore[arg-type]
    (measurement,) = measure([arm], workload_of(case, PROMPTS), chosen)
    assert not measurement.invalid
    return measurement


def accepted(measurement: Measurement) -> AcceptanceRecord:
    assert measurement.acceptance is not None
    return measurement.acceptance


def test_one_request_at_a_time_is_counted_prompt_by_prompt(old_server: Server) -> None:
    record = accepted(measured(builders.with_concurrency(1, SIX), old_server))
    assert (record.source, record.prompts) == (Source.VLLM_COUNTERS, ())
    counts = {
        round_acceptance.prompt_ids: round_acceptance.counts for round_acceptance in record.rounds
    }
    # With fewer than ten rounds the prompts are replayed once more, here one by one again.
    assert counts == {
        (prompt.id,): builders.counts_of([builders.truth(prompt, DEFAULTS)]) for prompt in PROMPTS
    }
    assert record.total.steps == 2 * sum(prompt_counts.steps for prompt_counts in counts.values())


def test_several_requests_at_a_time_are_counted_in_batches(old_server: Server) -> None:
    """Six prompts of two at a time are one round, in which the load is full."""
    record = accepted(measured(builders.with_concurrency(2, SIX), old_server))
    assert [round_acceptance.prompt_ids for round_acceptance in record.rounds] == [
        (prompt.id,) for prompt in PROMPTS
    ]
    assert {round_acceptance.requests for round_acceptance in record.rounds} == {1}


def test_a_soak_needs_no_more_than_the_sum(old_server: Server) -> None:
    record = accepted(
        measured(builders.with_concurrency(2, SIX), old_server, parts=1, counts_apart=False)
    )
    truths = [builders.truth(prompt, DEFAULTS) for prompt in PROMPTS]
    assert record.total == builders.counts_of(truths)


def test_the_extension_is_counted_in_batches_too(old_server: Server) -> None:
    three = builders.with_request(builders.with_concurrency(1), prompts=3)
    measurement = measured(three, old_server, enough=lambda _, look: look is Look.EXTENDED)
    record = accepted(measurement)
    assert measurement.look is Look.EXTENDED
    assert record.prompt_ids == tuple(prompt.id for prompt in PROMPTS)
    total = sum((round_acceptance.counts for round_acceptance in record.rounds), NO_STEPS)
    assert record.total.steps > total.steps, "the three prompts were replayed twice"


def test_counters_are_not_read_in_between_if_answers_have_counts(new_server: Server) -> None:
    record = accepted(measured(builders.with_concurrency(1, SIX), new_server))
    assert record.source is Source.VLLM_REQUEST
    assert not record.rounds
    assert len(record.prompts) == 6


class _LaggingWireFormat(_OldWireFormat):
    """The last step of the first round shows only in the reading after the next round."""

    def __init__(self) -> None:
        self.readings = itertools.count()

    def count_steps(self, page: MetricsPage) -> Counters:
        counters = super().count_steps(page)
        after_first_round = next(self.readings) == 1
        if not after_first_round or counters.counts is None:
            return counters
        lagging = dataclasses.replace(counters.counts, steps=counters.counts.steps - 1)
        return dataclasses.replace(counters, steps=lagging.steps, counts=lagging)


def test_counters_that_lag_leave_the_sum_alone(new_server: Server) -> None:
    class LaggingVllm(Vllm):
        wire_format = _LaggingWireFormat()

    server = dataclasses.replace(new_server, engine=LaggingVllm())
    record = accepted(measured(builders.with_concurrency(1, SIX), server))
    assert record.source is Source.VLLM_COUNTERS
    assert record.total.steps
    assert not record.rounds
