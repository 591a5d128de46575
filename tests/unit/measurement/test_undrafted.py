"""Some steps draft nothing: no fault, and no acceptance of 0. Nor do chunks change acceptance."""

import asyncio
import dataclasses
import time

import msgspec
import pytest

from specreg.acceptance.record import AcceptanceRecord, CountedSteps
from specreg.core.address import Address
from specreg.core.errors import InvalidMeasurementError
from specreg.engines.registry import ENGINES
from specreg.engines.server_spec import ServerSpec
from specreg.engines.wire_format import Endpoint
from specreg.load.rounds import open_clients
from specreg.measurement.arm import counted_steps, read_acceptance
from specreg.measurement.figures import figures_of
from specreg.measurement.metrics import Replay
from specreg.report.remarks import workload_remarks
from tests.doubles.protocols.sglang import ScriptedSglang
from tests.doubles.protocols.tensorrt_llm import ScriptedTensorrtLlm
from tests.doubles.vllm.app import ScriptedServer
from tests.doubles.vllm.launch import Launch
from tests.doubles.vllm.script import Fault, Script, Stream
from tests.doubles.vllm.steps import Steps
from tests.unit import builders

SCRIPT = Script(undrafted_frac=0.3, step_ms=1.0, prefill_ms=0.0)
SERVERS: dict[str, tuple[type[ScriptedServer], bool]] = {
    "vllm": (ScriptedServer, True),
    "vllm-counters": (ScriptedServer, False),
    "sglang": (ScriptedSglang, True),
    "tensorrt_llm": (ScriptedTensorrtLlm, False),
}
"""By name the server, and whether each answer has its own record."""
CASE = builders.with_concurrency(1)


def truth(script: Script = SCRIPT) -> list[Steps]:
    return [builders.truth(prompt, script) for prompt in builders.PROMPTS]


def least_undrafted(steps: Steps) -> int:
    """The steps without a draft, less the tokens that the end of the answer cut off."""
    drafted_tokens = steps.accepted_tokens + steps.verify_steps
    return max(steps.completion_tokens - 1 - drafted_tokens, 0)


def replayed(name: str, script: Script = SCRIPT, spec: ServerSpec = builders.SPEC) -> Replay:
    """A round of all prompts, with its acceptance."""
    kind, counts = SERVERS[name]
    engine = name.partition("-")[0]
    wire_format = ENGINES[engine].wire_format
    server = kind(Launch(model="folder", name="toy", draft_tokens=3, counts=counts), script)

    async def run() -> Replay:
        async with server.listening() as base_url:
            endpoint = Endpoint(address=Address(base_url), model="toy", engine=engine)
            async with open_clients(CASE, endpoint, clock=time.monotonic_ns) as clients:
                path = wire_format.counters_path or ""
                before = wire_format.parse_counters(await clients.scrape(path))
                done = await clients.replay(builders.PROMPTS)
                after = wire_format.parse_counters(await clients.scrape(path))
        record = read_acceptance(spec, wire_format, done.traces, before, after)
        return Replay(rounds=(done,), acceptance=record)

    return asyncio.run(run())


@pytest.mark.parametrize("name", SERVERS)
def test_acceptance_covers_only_the_steps_that_drafted(name: str) -> None:
    replay = replayed(name)
    steps = truth()
    record: AcceptanceRecord | None = replay.acceptance
    assert record is not None
    assert record.total == builders.counts_of(steps)
    assert sum(len(step.undrafted) for step in steps) > 10
    later_tokens = sum(step.completion_tokens - 1 for step in steps)
    drafted = record.total.steps
    undrafted = sum(map(least_undrafted, steps))
    if not record.prompts:
        undrafted = later_tokens - record.total.accepted - drafted
    assert record.undrafted_steps == undrafted
    measurement = dataclasses.replace(builders.measurement({}), replay=replay)
    figures = figures_of(measurement, 1)
    assert figures.acceptance is not None
    total = figures.acceptance.total
    assert total.tokens_per_step == later_tokens / (drafted + undrafted)
    assert total.acceptance_length_tokens == record.total.acceptance_length
    (remark,) = workload_remarks(figures)
    share = f"{undrafted} of {drafted + undrafted} steps ({undrafted / (drafted + undrafted):.0%})"
    assert f"{share} were undrafted, so acceptance covers only the other {drafted}" in remark
    assert f"over all steps it is {total.tokens_per_step:.2f} tokens per step" in remark


@pytest.mark.parametrize("undrafted_frac", [0.0, 0.3])
@pytest.mark.parametrize("method", ["ngram", "suffix", "eagle3"])
@pytest.mark.parametrize("stream", Stream)
@pytest.mark.parametrize("name", SERVERS)
def test_how_a_front_end_cuts_the_stream_changes_no_acceptance(
    name: str, stream: Stream, method: str, undrafted_frac: float
) -> None:
    """The engine counts its steps; a chunk of one token is no step without a draft."""
    script = msgspec.structs.replace(SCRIPT, undrafted_frac=undrafted_frac)
    spec = dataclasses.replace(builders.SPEC, method=method)
    as_steps = replayed(name, script, spec).acceptance
    replay = replayed(name, msgspec.structs.replace(script, stream=stream), spec)
    record = replay.acceptance
    assert record is not None
    assert dataclasses.replace(record, chunks_split_steps=False) == as_steps
    assert record.total == builders.counts_of(truth(script))
    assert counted_steps(spec, record, "v1") is CountedSteps.DRAFTED
    # In a sum, chunks of several steps make up for those of a part of one.
    if record.prompts or stream is not Stream.MIXED:
        assert record.chunks_split_steps is (stream is not Stream.STEPS)
    measurement = dataclasses.replace(builders.measurement({}), replay=replay)
    remarks = list(workload_remarks(figures_of(measurement, 1)))
    assert any("in several chunks" in remark for remark in remarks) is record.chunks_split_steps


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", SERVERS)
def test_what_each_rank_counts_is_counted_once(name: str, ranks: int) -> None:
    """Each rank of tensor parallelism may have series of its own, all with the same counts."""
    record = replayed(name, msgspec.structs.replace(SCRIPT, ranks=ranks)).acceptance
    assert record == replayed(name).acceptance


@pytest.mark.parametrize("counters", ["spec_decode", "num_drafts", "accepted_tokens", "request"])
@pytest.mark.parametrize("name", ["vllm", "vllm-counters", "tensorrt_llm"])
def test_what_each_rank_counts_is_counted_once_where_other_counters_are_not_of_ranks(
    name: str, counters: str
) -> None:
    script = msgspec.structs.replace(SCRIPT, ranks=2, counted_by_ranks=counters)
    assert replayed(name, script).acceptance == replayed(name).acceptance


@pytest.mark.parametrize("name", ["vllm", "vllm-counters"])
def test_another_client_is_noticed_whatever_the_ranks(name: str) -> None:
    script = msgspec.structs.replace(SCRIPT, ranks=2, fault=Fault.COUNTERS_TOO_HIGH)
    with builders.invalid("FOREIGN_TRAFFIC", "another client"):
        replayed(name, script)


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_drafts_in_every_step_needs_no_remark(name: str) -> None:
    replay = replayed(name, Script(step_ms=1.0, prefill_ms=0.0))
    assert replay.acceptance is not None
    assert replay.acceptance.undrafted_steps == 0
    measurement = dataclasses.replace(builders.measurement({}), replay=replay)
    assert list(workload_remarks(figures_of(measurement, 1))) == []


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_drafter_that_is_always_off_is_still_found(name: str) -> None:
    with pytest.raises(InvalidMeasurementError, match=r"SPEC_DISABLED|ACCEPTANCE_MISSING"):
        replayed(name, Script(undrafted_frac=1.0, step_ms=1.0, prefill_ms=0.0))


def test_adaptive_sglang_does_not_report_its_drafted_tokens() -> None:
    """It reports the verify calls times the drafts that a step had at the start."""
    replay = replayed("sglang")
    adaptive = dataclasses.replace(
        builders.SPEC, engine="sglang", speculation=(("speculative-adaptive", True),)
    )
    record = read_acceptance(
        adaptive, ENGINES["sglang"].wire_format, replay.rounds[0].traces, None, None
    )
    assert replay.acceptance is not None
    assert record is not None
    assert replay.acceptance.total.proposed is not None
    assert record.total.proposed is None
    assert record.total.acceptance_rate is None
    assert record.total.acceptance_length == replay.acceptance.total.acceptance_length
