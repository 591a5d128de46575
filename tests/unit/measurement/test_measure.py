"""A measurement, end to end against the scripted server: the truth, or why it means nothing."""

import asyncio
import dataclasses
import gzip
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, cast

import msgspec
import numpy as np
import pytest

from specreg.acceptance.record import AcceptanceRecord, Source, StepCounts
from specreg.core.address import Address
from specreg.core.errors import HungError, InvalidMeasurementError, ServerDiedError
from specreg.core.families import Family
from specreg.datasets.prompts import Prompt, cut_evenly
from specreg.engines.vllm import Vllm, VllmWireFormat
from specreg.load.chat_client import Record
from specreg.load.rounds import Clients, Round, open_clients
from specreg.matrix.case import Arrivals, Case, Load
from specreg.measurement.arm import Arm, StoppingRule, has_all_prompts
from specreg.measurement.measure import (
    Measurement,
    Plan,
    check_client,
    combine_with_control,
    measure,
    warm_up,
    workload_of,
)
from specreg.measurement.metrics import metrics_of
from specreg.runs.ledger import Ledger, read_ledger
from specreg.servers.server import Server
from specreg.stats.intervals import Look
from specreg.stats.percentiles import TimeHistogram
from specreg.telemetry.power_record import PowerRecord
from specreg.telemetry.sampler import DeviceSample, PowerTrace, Watch
from tests.doubles.vllm.script import BEFORE_ROUNDS, DEFAULTS, SLOWING, Fault, Script
from tests.unit import builders
from tests.unit.builders.busy_machines import duration_s, invalid_if_idle
from tests.unit.builders.ledgers import key_of
from tests.unit.builders.processes import lives
from tests.unit.builders.started_servers import at_most, start

MS = 10**6
PROMPTS = builders.PROMPTS[: builders.CASE.request.prompts]
ONE_AT_A_TIME = builders.with_concurrency(1)
BESIDE_CONTROL = dataclasses.replace(builders.CASE, control=builders.PLAIN_SPEC)
LEARNING = builders.with_concurrency(1, builders.on_server(method="suffix"))
"""A case whose warm-up has a fixed number of batches, as the time of a step doesn't end it."""
QUIET = Plan(show=lambda _: None, clock=lambda: time.monotonic_ns() // 3)
"""Its clock is slow, so that a busy machine doesn't put the client behind."""
OWN = "says 'scripted: the engine is dead'"
FAILED = "REQUEST_FAILED: 1 of 1 requests failed"


def hurt(fault: Fault, after: int) -> Script:
    """A server with a fault after so many requests, whose warm-up is as short as can be."""
    return Script(fault=fault, fault_after_requests=after, step_ms=4.0, stretches=SLOWING)


def true_counts(prompts: Sequence[Prompt] = PROMPTS) -> StepCounts:
    """What a server without a fault does for some prompts."""
    return builders.counts_of([builders.truth(prompt, DEFAULTS) for prompt in prompts])


def metrics_in(*families: Family) -> set[str]:
    """The metrics of some families that a case beside its control has."""
    metrics = (metrics_of(BESIDE_CONTROL, family) for family in families)
    return {metric.name for metric in itertools.chain.from_iterable(metrics)}


def measured(
    server: Server,
    control: Server | None,
    case: Case = builders.CASE,
    plan: Plan = QUIET,
    enough: StoppingRule = has_all_prompts,
    least_s: float = 0.0,
) -> Measurement:
    arms = [Arm(case=case, server=server, enough=enough, least_s=least_s)]
    if control is not None:
        control_case = dataclasses.replace(case, server=builders.PLAIN_SPEC, control=None)
        arms.append(Arm(case=control_case, server=control, is_control=True))
    measurements = measure(arms, workload_of(case, builders.PROMPTS), plan)
    return combine_with_control(*measurements) if control is not None else measurements[0]


@pytest.mark.parametrize(
    ("prompts", "warm", "first"), [(2, False, "chat-4"), (3, False, "chat-0"), (2, True, "chat-0")]
)
def test_the_warm_up_uses_prompts_that_are_not_measured_if_any(
    tmp_path: Path, prompts: int, first: str, *, warm: bool
) -> None:
    """Its own prompts and its extension's are the first of six; here the first request fails."""
    case = builders.with_request(ONE_AT_A_TIME, prompts=prompts)
    with start(tmp_path, Script(fault=Fault.HTTP_500, fault_after_requests=1)) as server:
        arm = Arm(case=case, server=server, warm=warm)
        (measurement,) = measure([arm], workload_of(case, builders.PROMPTS), QUIET)
    (reason,) = set(measurement.invalid.values())
    assert str(reason).startswith(f"{FAILED}, the first on prompt '{first}'")


def test_a_scheduled_drafter_sees_all_answers_before_any_is_measured(tmp_path: Path) -> None:
    case = builders.with_concurrency(1, builders.on_server(method="scheduled"))
    case = builders.with_request(case, prompts=3)
    with start(tmp_path, Script(fault=Fault.HTTP_500, fault_after_requests=3)) as server:
        measurement = measured(server, None, case)
    assert "1 of 6 requests failed, the first on prompt 'chat-2'" in str(
        measurement.invalid[Family.ACCEPTANCE]
    )


@pytest.mark.parametrize(
    ("fault", "after", "words"),
    [
        (Fault.COUNTERS_RENAMED, 0, "DRAFTS_UNCOUNTED: the server counts tokens, and has no spec"),
        (Fault.HTTP_500, BEFORE_ROUNDS + 1, f"{FAILED}, the first on prompt 'chat-1': HTTP_ERROR"),
        (Fault.NO_USAGE, BEFORE_ROUNDS, "USAGE_MISSING: prompt 'chat-0'"),
        *(
            (
                fault,
                BEFORE_ROUNDS,
                f"{FAILED}, the first on prompt 'chat-0': SERVER_ERROR: the server {OWN}",
            )
            for fault in (Fault.ERROR_EVENT, Fault.ERROR_BODY)
        ),
    ],
)
def test_a_broken_meter_makes_the_measurement_invalid(
    tmp_path: Path, fault: Fault, after: int, words: str
) -> None:
    with start(tmp_path, hurt(fault, after)) as server:
        measurement = measured(server, None, LEARNING)
    assert measurement.invalid.keys() == set(Family)
    assert all(str(reason).startswith(words) for reason in measurement.invalid.values())
    assert (measurement.replay, measurement.acceptance, dict(measurement.values)) == (
        None,
        None,
        {},
    )
    assert measurement.engine_version == "99.0+scripted"


IN_LAST_REQUEST = BEFORE_ROUNDS + ONE_AT_A_TIME.request.prompts - 1


@pytest.mark.parametrize("after", [1, BEFORE_ROUNDS + 1, IN_LAST_REQUEST])
def test_a_server_that_dies_is_no_measurement(tmp_path: Path, after: int) -> None:
    script = msgspec.structs.replace(hurt(Fault.CRASH_MID_RUN, after), exit_status=9)
    died = pytest.raises(ServerDiedError, match="ended with status 9 while it was measured")
    with start(tmp_path, script) as server, died:
        measured(server, None, ONE_AT_A_TIME)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    folders = [tmp_path_factory.mktemp(name) for name in ("server", "control")]
    with (
        start(folders[0], DEFAULTS) as server,
        start(folders[1], DEFAULTS, spec=builders.PLAIN_SPEC) as control,
    ):
        yield server, control


@pytest.fixture(scope="module")
def valid(servers: tuple[Server, Server]) -> Measurement:
    return measured(*servers, BESIDE_CONTROL)


def test_a_measurement_has_the_scripted_counts(valid: Measurement) -> None:
    truths = [builders.truth(prompt, DEFAULTS) for prompt in PROMPTS]
    counts = true_counts()
    assert (invalid_if_idle(valid), valid.look) == ({}, Look.FULL)
    assert valid.acceptance is not None
    assert valid.acceptance.total == counts
    assert [prompt.prompt_id for prompt in valid.acceptance.prompts] == [p.id for p in PROMPTS]
    assert [prompt.completion_tokens for prompt in valid.acceptance.prompts] == [
        truth.completion_tokens for truth in truths
    ]
    assert valid.values["acceptance_length_tokens"] == counts.acceptance_length
    assert valid.values["acceptance_rate_frac"] == counts.acceptance_rate
    assert set(valid.values) == metrics_in(*set(Family) - {Family.POWER} - valid.invalid.keys())
    assert all(value > 0 for value in valid.values.values())


def test_case_and_control_take_turns_at_being_first(valid: Measurement) -> None:
    """All prompts fit into one round, so there is another one."""
    assert valid.replay is not None
    own_rounds = valid.replay.rounds
    control_rounds = valid.replay.control_rounds
    assert builders.CASE.rounds == 1
    first = [
        own_round.started_ns < control_round.started_ns
        for own_round, control_round in zip(own_rounds, control_rounds, strict=True)
    ]
    assert first == [True, False]
    assert [len(part.traces) for part in own_rounds] == [4, 4]


class Meter:
    """Says of one GPU that it draws 400 W."""

    def traces(self, until_ns: int) -> tuple[Sequence[PowerTrace], str]:
        moments = range(until_ns - 60 * 10**9, until_ns + 10**9, 97 * MS)
        samples = [
            DeviceSample(device_index=0, at_ns=at_ns, energy_mj=400 * at_ns // MS)
            for at_ns in moments
        ]
        return (PowerTrace(device=builders.device(), samples=samples),), ""


@pytest.mark.parametrize("power_s", [0.0, 1.0])
def test_the_power_of_each_server_is_of_one_uninterrupted_stretch_of_load(
    servers: tuple[Server, Server], power_s: float
) -> None:
    """Of the longest round, or, where that is too short, of prompts that come again and again."""
    plan = dataclasses.replace(QUIET, power_s=power_s, watching=cast("Watch", Meter()))
    measurement = measured(*servers, BESIDE_CONTROL, plan)
    assert measurement.replay is not None
    assert measurement.replay.power is not None
    power = measurement.replay.power
    both = (measurement.replay.rounds, measurement.replay.control_rounds)
    for arm, rounds in zip((power.case, power.control), both, strict=True):
        assert arm is not None
        longest = max(rounds, key=lambda part: part.ended_ns - part.started_ns)
        longest_s = (longest.ended_ns - longest.started_ns) / 1e9
        tokens = sum(trace.tokens for trace in longest.traces)
        if longest_s < power_s:
            assert arm.window_s > longest_s
            assert arm.tokens > tokens
        else:
            assert (arm.window_s, arm.tokens) == (longest_s, tokens)
        assert arm.mean_w == pytest.approx(400.0)
        assert arm.energy_j_per_token == pytest.approx(400.0 * arm.window_s / arm.tokens)
    assert "without a pause, and 10 s are needed; raise power_s" in power.too_short


@pytest.mark.parametrize(
    ("arm_number", "error"),
    [(0, HungError(60.0)), (1, InvalidMeasurementError("CLIENT_DIED", status=1, lines="x"))],
    ids=["server-hangs", "client-of-control-dies"],
)
def test_a_failure_in_the_load_for_power_spoils_only_the_power(
    servers: tuple[Server, Server],
    monkeypatch: pytest.MonkeyPatch,
    arm_number: int,
    error: InvalidMeasurementError,
) -> None:
    replay_under = Clients.replay_under

    async def failing(self: Clients, load: Load, prompts: Sequence[Prompt]) -> Round:
        if load.duration_s and self.endpoint == servers[arm_number].endpoint:
            raise error
        return await replay_under(self, load, prompts)

    monkeypatch.setattr(Clients, "replay_under", failing)
    plan = dataclasses.replace(QUIET, power_s=1.0, watching=cast("Watch", Meter()))
    measurement = measured(*servers, BESIDE_CONTROL, plan)
    assert invalid_if_idle(measurement) == {Family.POWER: error.reason}
    assert measurement.replay is not None
    assert measurement.replay.power == PowerRecord(invalid=error.reason)
    assert set(measurement.values) == metrics_in(*set(Family) - measurement.invalid.keys())


@pytest.mark.parametrize("after", [1, BEFORE_ROUNDS + 3], ids=["warming-up", "in-a-round"])
def test_a_failing_control_spoils_only_the_speedup_and_gets_no_more_load(
    tmp_path: Path, servers: tuple[Server, Server], after: int
) -> None:
    case = dataclasses.replace(ONE_AT_A_TIME, control=builders.PLAIN_SPEC)
    with start(tmp_path, hurt(Fault.HTTP_500, after), spec=builders.PLAIN_SPEC) as control:
        measurement = measured(servers[0], control, case)
    assert Family.SPEEDUP in measurement.invalid
    for family, invalidity in invalid_if_idle(measurement).items():
        assert family is Family.SPEEDUP
        assert str(invalidity).startswith("REQUEST_FAILED: 1 of ")
    assert measurement.replay is not None
    assert (len(measurement.replay.rounds), measurement.replay.control_rounds) == (case.rounds, ())
    assert measurement.acceptance is not None
    assert measurement.acceptance.total == true_counts()


def test_a_control_that_dies_is_no_measurement(
    tmp_path: Path, servers: tuple[Server, Server]
) -> None:
    died = pytest.raises(ServerDiedError, match="while it was measured")
    with start(tmp_path, hurt(Fault.CRASH_MID_RUN, 1), spec=builders.PLAIN_SPEC) as control, died:
        measured(servers[0], control, BESIDE_CONTROL)


def test_a_case_without_speculation_has_no_acceptance(servers: tuple[Server, Server]) -> None:
    measurement = measured(servers[1], None, builders.PLAIN_CASE)
    assert (invalid_if_idle(measurement), measurement.acceptance) == ({}, None)
    expected = {"throughput_tokens_per_s", "ttft_p50_ms", "tpot_p50_ms"}
    if measurement.invalid:
        expected = set()
    assert set(measurement.values) == expected


def test_counters_that_are_missing_leave_the_speeds(servers: tuple[Server, Server]) -> None:
    class Nowhere(VllmWireFormat):
        counters_path: ClassVar[str | None] = "/nowhere"

    class Other(Vllm):
        wire_format = Nowhere()

    measurement = measured(
        dataclasses.replace(servers[0], engine=Other()), servers[1], BESIDE_CONTROL
    )
    assert invalid_if_idle(measurement).keys() == {Family.ACCEPTANCE}
    assert measurement.acceptance is None
    timed_families = {Family.THROUGHPUT, Family.LATENCY, Family.SPEEDUP}
    assert set(measurement.values) == metrics_in(*timed_families - measurement.invalid.keys())


@pytest.mark.parametrize(
    ("version", "source"), [("1.2.1", Source.STREAM_CHUNKS), ("1.3.0", Source.VLLM_COUNTERS)]
)
def test_counters_that_are_wrong_in_a_version_are_not_read(
    servers: tuple[Server, Server], version: str, source: Source
) -> None:
    class Counting(VllmWireFormat):
        request_source: ClassVar[Source | None] = None
        counters_since: ClassVar[str] = "1.3"

    class Other(Vllm):
        wire_format = Counting()

    server = dataclasses.replace(servers[0], engine=Other(), engine_version=version)
    measurement = measured(server, servers[1], BESIDE_CONTROL)
    assert measurement.acceptance is not None
    assert measurement.acceptance.source is source


def test_a_client_that_is_behind_leaves_the_acceptance(servers: tuple[Server, Server]) -> None:
    """Each look at the clock takes it 10 ms: what is sent next is late."""
    ticks = itertools.count(0, 10 * MS)
    plan = dataclasses.replace(QUIET, clock=lambda: next(ticks))
    measurement = measured(*servers, BESIDE_CONTROL, plan)
    assert measurement.invalid.keys() == set(Family) - {Family.ACCEPTANCE}
    assert {reason.code for reason in measurement.invalid.values()} == {"CLIENT_BEHIND"}
    assert measurement.acceptance is not None
    assert measurement.acceptance.total == true_counts()
    assert set(measurement.values) == metrics_in(Family.ACCEPTANCE)


def test_an_acceptance_that_is_not_the_pinned_one_spoils_all(
    servers: tuple[Server, Server],
) -> None:
    measurement = measured(servers[0], None, builders.on_server(pinned_length_tokens=4.0))
    assert measurement.invalid.keys() == {*Family}
    assert {reason.code for reason in measurement.invalid.values()} == {"NOT_PINNED"}


@pytest.mark.parametrize(
    ("prompts", "rounds", "sizes"),
    [
        (0, 4, []),
        (3, 1, [3]),
        (3, 4, [1, 1, 1]),
        (4, 2, [2, 2]),
        (4, 4, [1, 1, 1, 1]),
        (5, 4, [1, 1, 1, 2]),
    ],
)
def test_prompts_are_dealt_into_parts_as_even_as_can_be(
    prompts: int, rounds: int, sizes: list[int]
) -> None:
    parts = cut_evenly(builders.PROMPTS[:prompts], rounds)
    assert [len(part) for part in parts] == sizes
    assert tuple(prompt for part in parts for prompt in part) == builders.PROMPTS[:prompts]


def test_each_request_is_recorded_with_its_round(servers: tuple[Server, Server]) -> None:
    recorded: list[tuple[int, int | None, str]] = []

    def record(arm: int, number: int | None) -> Record:
        return lambda request: recorded.append((arm, number, request.trace.prompt_id))

    measurement = measured(*servers, plan=dataclasses.replace(QUIET, record=record))
    assert not invalid_if_idle(measurement)
    assert sorted(recorded) == sorted(
        (arm, part, prompt.id) for prompt in PROMPTS for arm in (0, 1) for part in (0, 1)
    )


def asked_of(
    servers: tuple[Server, Server], answers: Sequence[bool], parts: int | None = None
) -> tuple[Measurement, list[tuple[int, Look]]]:
    """A measurement whose extent is up to these answers; at which prompts and looks it asked."""
    looks: list[tuple[int, Look]] = []

    def enough(acceptance: AcceptanceRecord | None, look: Look) -> bool:
        assert acceptance is not None
        looks.append((len(acceptance.prompts), look))
        return answers[len(looks) - 1]

    plan = dataclasses.replace(QUIET, parts=parts)
    measurement = measured(*servers, plan=plan, enough=enough)
    assert not invalid_if_idle(measurement)
    return measurement, looks


def test_a_measurement_that_was_not_enough_goes_on_with_other_prompts(
    servers: tuple[Server, Server],
) -> None:
    """Four prompts of the case, and the two that there are more; speeds are those of the four."""
    measurement, looks = asked_of(servers, [False])
    assert (looks, measurement.look) == ([(4, Look.FULL)], Look.EXTENDED)
    assert measurement.replay is not None
    assert measurement.acceptance is not None
    assert [prompt.prompt_id for prompt in measurement.acceptance.prompts] == [
        p.id for p in builders.PROMPTS
    ]
    assert measurement.acceptance.total == true_counts(builders.PROMPTS)
    assert [len(part.traces) for part in measurement.replay.rounds] == [4, 4]
    assert [len(part.traces) for part in measurement.replay.control_rounds] == [4, 4]


EXTENDED = dataclasses.replace(ONE_AT_A_TIME, control=builders.PLAIN_SPEC)
"""A case of four rounds with a prompt each, which an extension of two prompts follows."""


def extended_and_ledgered(servers: tuple[Server, Server], path: Path) -> Measurement:
    """A measurement that was extended, and then replayed its prompts again for the speeds."""
    ledger = Ledger(path)
    ledger.begin(key_of(EXTENDED))
    plan = dataclasses.replace(QUIET, record=ledger.record_round)
    measurement = measured(*servers, EXTENDED, plan, enough=lambda *_: False, least_s=0.5)
    ledger.end(measurement, control_number=1)
    ledger.close()
    assert measurement.look is Look.EXTENDED
    assert measurement.replay is not None
    rounds = measurement.replay.rounds
    assert len(rounds) >= 8 or duration_s(rounds) >= 0.5
    return measurement


def test_a_run_that_is_resumed_after_an_extension_has_the_measured_figures(
    servers: tuple[Server, Server], tmp_path: Path
) -> None:
    path = tmp_path / "ledger.jsonl"
    measurement = extended_and_ledgered(servers, path)
    (resumed,) = read_ledger(path).measured.values()
    assert resumed.values == measurement.values
    assert resumed == measurement


def test_a_run_that_is_cut_off_within_an_extension_measures_the_case_again(
    servers: tuple[Server, Server], tmp_path: Path
) -> None:
    path = tmp_path / "ledger.jsonl"
    extended_and_ledgered(servers, path)
    lines = path.read_bytes().splitlines(keepends=True)
    first_of_extension = 1 + 2 * 4
    assert json.loads(lines[first_of_extension])["round"] is None
    path.write_bytes(b"".join(lines[: first_of_extension + 1]) + lines[first_of_extension + 1][:99])
    assert dict(read_ledger(path).measured) == {}

    again = extended_and_ledgered(servers, path)
    assert dict(read_ledger(path).measured) == {key_of(EXTENDED): again}


def test_a_measurement_stops_when_it_is_enough(servers: tuple[Server, Server]) -> None:
    measurement, looks = asked_of(servers, [False, True], parts=4)
    assert looks == [(1, Look.EARLY), (2, Look.EARLY)]
    assert measurement.look is Look.EARLY
    assert measurement.acceptance is not None
    assert len(measurement.acceptance.prompts) == 2


def test_a_case_with_one_in_flight_takes_turns_by_the_prompt(
    servers: tuple[Server, Server],
) -> None:
    case = dataclasses.replace(BESIDE_CONTROL, load=Load(concurrency=1))
    measurement = measured(*servers, case)
    assert measurement.replay is not None
    own_rounds = measurement.replay.rounds
    control_rounds = measurement.replay.control_rounds
    assert [len(part.traces) for part in (*own_rounds, *control_rounds)] == [1] * 8
    turns = sorted((part.started_ns, part in own_rounds) for part in (*own_rounds, *control_rounds))
    assert [is_ours for _, is_ours in turns] == [True, False, False, True] * 2


def test_several_client_processes_measure_what_one_does(
    servers: tuple[Server, Server], valid: Measurement
) -> None:
    case = builders.with_request(builders.CASE, client_processes=2)
    recorded: list[str] = []
    plan = dataclasses.replace(
        QUIET, record=lambda *_: lambda request: recorded.append(request.trace.prompt_id)
    )
    measurement = measured(servers[0], None, case, plan)
    assert measurement.acceptance == valid.acceptance
    assert sorted(recorded) == sorted(prompt.id for prompt in PROMPTS)
    assert measurement.replay is not None
    assert all(part.gaps.counts for part in measurement.replay.rounds)


def test_a_client_process_that_dies_is_named_and_leaves_nothing() -> None:
    async def run() -> list[int | None]:
        case = builders.with_request(builders.CASE, client_processes=2)
        endpoint = dataclasses.replace(
            builders.server().endpoint, address=Address("http://127.0.0.1:9")
        )
        async with open_clients(case, endpoint, clock=time.monotonic_ns) as clients:
            clients.workers[1].child.popen.kill()
            with builders.invalid("CLIENT_DIED", ".*ended with status -9"):
                await clients.replay(PROMPTS)
        return [worker.child.popen.returncode for worker in clients.workers]

    killed, stopped = asyncio.run(run())
    assert (killed, stopped) == (-15, -9)


# Is killed as soon as a request has ended.
KILLED = """
import asyncio, dataclasses, os, signal, sys, time
from specreg.core.address import Address
from specreg.load.rounds import Load, open_clients
from tests.unit import builders
case = builders.with_request(client_processes=int(sys.argv[1]))
case = dataclasses.replace(case, load=Load(concurrency=2, duration_s=60.0))
endpoint = dataclasses.replace(builders.server().endpoint, address=Address("http://127.0.0.1:9"))
async def run():
    async with open_clients(case, endpoint, clock=time.monotonic_ns) as clients:
        print(*(worker.child.popen.pid for worker in clients.workers), flush=True)
        await clients.replay(builders.PROMPTS, lambda _: os.kill(os.getpid(), signal.SIGKILL))
asyncio.run(run())
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_nothing_of_the_clients_is_left_by_a_run_that_is_killed(
    tmp_path: Path, processes: int
) -> None:
    done = subprocess.run(
        (sys.executable, "-c", KILLED, str(processes)),
        check=False,
        cwd=builders.ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert done.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == (2 if processes == 2 else 0)
    with at_most(10):
        while any(map(lives, pids)) or any(tmp_path.iterdir()):
            time.sleep(0.05)


def late(*delays_ms: float, lag_ms: float = 0.0, beats: int = 30) -> Round:
    """A round whose requests took 100 ms each and were sent so much later than planned."""
    traces = tuple(
        msgspec.structs.replace(
            builders.trace(builders.chunk(100 * MS)), planned_ns=round(-delay_ms * MS)
        )
        for delay_ms in delays_ms
    )
    lags = TimeHistogram()
    lags.add_all([round(lag_ms * MS)] * beats)
    return Round(traces=traces, started_ns=0, ended_ns=100 * MS, lags=lags)


def test_a_client_that_keeps_up_but_for_hiccups_is_fine() -> None:
    """Those of one round, of some requests, or of beats too few to tell."""
    check_client([late(*[0.5] * 10, lag_ms=1)])
    fine = late(*[0.5] * 10)
    check_client([fine, late(*[0.5] * 6, *[80] * 4, lag_ms=30, beats=9)])
    check_client([late(*[0.5] * 10, lag_ms=30, beats=7)])


@pytest.mark.parametrize(
    ("behind", "words"),
    [
        (late(*[0.5] * 4, *[30] * 6), "the client sent requests 30.0 ms late or later"),
        (late(*[0.5] * 10, lag_ms=30), "the client woke 30.0 ms late or later"),
        (late(*[0.5] * 10, lag_ms=200, beats=2), "the client woke 200.0 ms late or later"),
    ],
)
def test_a_client_that_falls_behind_makes_no_server_look_slow(behind: Round, words: str) -> None:
    with builders.invalid("CLIENT_BEHIND", words):
        check_client([behind])


@pytest.mark.parametrize(
    ("ttft_ms", "answer_ms", "lag_ms"), [(2000, 64, 60), (2000, 5000, 60), (100, 5000, 6)]
)
def test_times_that_starvation_lengthens_do_not_excuse_a_late_client(
    ttft_ms: int, answer_ms: int, lag_ms: float
) -> None:
    chunks = [builders.chunk((ttft_ms + answer_ms * part // 32) * MS) for part in range(33)]
    behind = dataclasses.replace(late(0.5, lag_ms=lag_ms), traces=(builders.trace(*chunks),))
    with pytest.raises(InvalidMeasurementError, match=f"the client woke {lag_ms:.1f} ms late or"):
        check_client([behind])
    on_time = dataclasses.replace(late(0.5, lag_ms=3), traces=behind.traces)
    check_client([on_time])


def test_chunks_that_waited_for_a_stalled_loop_give_no_tpot(servers: tuple[Server, Server]) -> None:
    """Each stall is longer than an answer takes."""

    def stall(loop: asyncio.AbstractEventLoop) -> None:
        time.sleep(0.1)
        loop.call_later(0.002, stall, loop)

    def record(_: int, __: int | None) -> Record:
        stall(asyncio.get_running_loop())
        return lambda _: None

    plan = dataclasses.replace(QUIET, parts=1, record=record)
    measurement = measured(servers[0], None, ONE_AT_A_TIME, plan)
    reason = str(measurement.invalid.get(Family.LATENCY))
    assert reason.startswith("ANSWERS_AT_ONCE: half of the answers came at once, their chunks 0.0")
    assert measurement.acceptance is not None
    assert not any(name.startswith("tpot") for name in measurement.values)


STEPS = Path(__file__).parents[3] / "fixtures/recordings/h100/steps.jsonl.gz"


class Batch(NamedTuple):
    """A batch of a warm-up, and its median step; 0 is one of answers of one token."""

    step_ms: float
    lasts_s: float = 0.1


def warmed_up(batches: Iterable[Batch], case: Case = builders.CASE) -> tuple[list[Load], float]:
    """The loads of a warm-up, and its seconds, of these batches, of which the last one goes on."""
    served = list(batches)
    loads: list[Load] = []
    now_ns = 0

    async def replay_batch(load: Load, prompts: Sequence[Prompt]) -> Round:
        nonlocal now_ns
        assert len(prompts) == load.concurrency
        batch = served[min(len(loads), len(served) - 1)]
        loads.append(load)
        gaps = TimeHistogram()
        if batch.step_ms:
            gaps.add_all((round(batch.step_ms * MS),))
        started_ns = now_ns
        now_ns = now_ns + round(batch.lasts_s * 1e9)
        return Round(traces=(), started_ns=started_ns, ended_ns=now_ns, gaps=gaps)

    asyncio.run(warm_up(case, builders.PROMPTS, replay_batch))
    return loads, now_ns / 1e9


def taken(*step_times_ms: float) -> int:
    """How many batches a warm-up takes whose step times are these, the last on."""
    return len(warmed_up(map(Batch, step_times_ms))[0])


def h100_batches() -> Mapping[str, list[Batch]]:
    """The batches that the requests of each server of the H100 make, as many as are in flight."""
    steps: dict[str, list[Mapping[str, float]]] = {}
    for line in gzip.decompress(STEPS.read_bytes()).splitlines():
        row = json.loads(line)
        name = f"launch {row['launch']}, {row['arm']} of {row['case']}"
        steps.setdefault(name, []).append(row)
    batches_found = {}
    for name, requests in steps.items():
        size = 16 if name.endswith("c16") else 1
        batches = [requests[at : at + size] for at in range(0, len(requests) - size + 1, size)]
        batches_found[name] = [
            Batch(
                statistics.median(row["step_ms"] for row in batch),
                max(row["e2e_ms"] for row in batch) / 1e3,
            )
            for batch in batches
            if len({row["round"] for row in batch}) == 1
        ]
    return batches_found


def test_warm_up_ends_in_time_wherever_it_begins_on_an_h100() -> None:
    took = [
        warmed_up(batches[start:])
        for batches in h100_batches().values()
        for start in range(max(1, len(batches) - 10))
    ]
    assert len(took) > 80
    assert max(len(loads) for loads, _ in took) <= 10
    assert max(lasted_s for _, lasted_s in took) < 10
    assert statistics.median(len(loads) for loads, _ in took) == 7


def test_warm_up_ends_in_time_where_steps_wander_by_eight_percent() -> None:
    """As the steps of tiny models on an H100 do: from 2.33 to 2.74 ms."""
    chance = np.random.default_rng(1)
    took = [taken(*chance.uniform(2.33, 2.74, 40)) for _ in range(300)]
    assert max(took) <= 10


@pytest.mark.parametrize(
    ("step_times_ms", "batches"),
    [
        ((5.0,), 7),
        ((1500.0, 58.0, 57.0, 57.5, 57.2, 57.6, 57.0), 7),  # compiled in the first batch
        ((10.0, 9.0, 8.0, 7.0, 6.0, 6.1, 6.05, 6.1, 6.05, 6.1), 8),
        ((40.0, 25.0, 16.0, 10.0, 6.0, 4.0, 2.5, 1.6, 1.0), 12),
        ((5.0, 5.0, 6.0, 7.0, 8.0, 9.0), 7),  # slower and slower
        ((5.0, 0.0, 5.1, 0.0, 5.05, 5.0, 5.1, 5.0, 5.1), 9),  # some without steps
        ((0.0,), 3),
    ],
)
def test_warm_up_goes_on_while_steps_get_faster(
    step_times_ms: tuple[float, ...], batches: int
) -> None:
    assert taken(*step_times_ms) == batches


def test_a_learning_drafter_sees_a_fixed_number_of_warm_up_answers() -> None:
    """Else what it accepts depends on how fast the machine is."""
    case = builders.on_server(method="suffix")
    for lasts_s, slower in ((0.1, 1.0), (0.1, 0.9), (30.0, 1.0)):
        batches = [Batch(10 * slower**number, lasts_s) for number in range(30)]
        assert len(warmed_up(batches, case)[0]) == 7


def test_a_server_that_stays_cold_is_measured_ten_seconds_after_a_batch() -> None:
    loads, lasted_s = warmed_up(Batch(100 * 0.98**number, 0.4) for number in range(1000))
    assert (len(loads), lasted_s) == (26, 10.4)
    loads, lasted_s = warmed_up([Batch(1500.0, 120.0), *[Batch(5.0, 0.4)] * 20])
    assert len(loads) == 7
    assert lasted_s == pytest.approx(122.4)


@pytest.mark.parametrize(("rate", "in_flight"), [(2.5, 3), (1000.0, 8)])
def test_a_rate_is_warmed_up_with_a_second_of_it_at_once(rate: float, in_flight: int) -> None:
    load = Load(arrivals=Arrivals.POISSON, requests_per_s=rate)
    loads, _ = warmed_up([Batch(5.0)], dataclasses.replace(builders.CASE, load=load))
    assert set(loads) == {Load(concurrency=in_flight)}
