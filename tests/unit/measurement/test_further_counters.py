"""What metrics are made of besides acceptance and times: further counters of the engine's page."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from specreg.core.families import Family
from specreg.engines.vllm import Vllm, VllmWireFormat
from specreg.load.rounds import Round
from specreg.matrix.case import Case
from specreg.measurement.arm import Arm, StoppingRule, has_all_prompts
from specreg.measurement.measure import Measurement, Plan, measure, workload_of
from specreg.measurement.metrics import Metric, Replay
from specreg.servers.server import Server
from specreg.stats.intervals import Look
from tests.doubles.vllm.script import Fault, Script
from tests.unit import builders
from tests.unit.builders.started_servers import start

QUEUE_MS = 2.0
THREE = builders.with_request(builders.with_concurrency(1), prompts=3)
PLAIN = dataclasses.replace(THREE, server=builders.PLAIN_SPEC)
QUEUE = Metric(
    name="queue_ms",
    family=Family.LATENCY,
    formula=lambda replay: 1000 * replay.counters["queue_s"] / len(replay.traces),
    counters=("queue_s",),
    sign=-1,
)


class _WireFormat(VllmWireFormat):
    further_counters: ClassVar[Mapping[str, str]] = {
        "queue_s": "vllm:request_queue_time_seconds_sum",
        "absent": "vllm:there_is_none_total",
    }


class _Vllm(Vllm):
    wire_format = _WireFormat()


def measured(
    folder: Path,
    script: Script,
    *,
    case: Case = THREE,
    enough: StoppingRule = has_all_prompts,
    least_s: float = 0.0,
) -> Measurement:
    """A measurement of a server whose engine names further counters."""
    with start(folder, script, spec=case.server) as started:
        server: Server = dataclasses.replace(started, engine=_Vllm())
        arm = Arm(case=case, server=server, enough=enough, least_s=least_s)
        workload = workload_of(case, builders.PROMPTS)
        (measurement,) = measure([arm], workload, Plan(show=lambda _: None))
    return measurement


def rounds_of(measurement: Measurement) -> tuple[Round, ...]:
    assert measurement.replay is not None
    return measurement.replay.rounds


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("method", ["eagle3", "none"])
def test_a_round_has_what_its_own_requests_added(tmp_path: Path, method: str, ranks: int) -> None:
    script = Script(queue_ms=QUEUE_MS, ranks=ranks)
    measurement = measured(tmp_path, script, case=THREE if method == "eagle3" else PLAIN)
    assert not measurement.invalid
    for part in rounds_of(measurement):
        assert part.counters == {"queue_s": pytest.approx(len(part.traces) * QUEUE_MS / 1000)}
    assert measurement.replay is not None
    assert QUEUE.value_of(measurement.replay) == pytest.approx(QUEUE_MS)


def test_what_the_extension_added_is_in_no_round(tmp_path: Path) -> None:
    measurement = measured(
        tmp_path,
        Script(queue_ms=QUEUE_MS),
        enough=lambda _, look: look is Look.EXTENDED,
        least_s=1.0,
    )
    rounds = rounds_of(measurement)
    assert measurement.look is Look.EXTENDED
    assert len(rounds) > THREE.rounds, "the prompts were replayed again after the extension"
    for part in rounds:
        assert part.counters["queue_s"] == pytest.approx(len(part.traces) * QUEUE_MS / 1000)


def test_a_server_without_a_page_spoils_nothing_that_needs_none(tmp_path: Path) -> None:
    measurement = measured(tmp_path, Script(fault=Fault.COUNTERS_MISSING), case=PLAIN)
    assert not measurement.invalid
    assert measurement.replay is not None
    assert QUEUE.value_of(measurement.replay) is None
    assert measurement.values["throughput_tokens_per_s"] > 0


def test_a_metric_has_no_value_if_a_round_lacks_its_counter() -> None:
    whole = Round(traces=(), started_ns=0, ended_ns=1, counters={"queue_s": 1.0})
    torn = dataclasses.replace(whole, counters={})
    assert Replay(rounds=(whole, whole)).counters == {"queue_s": 2.0}
    assert QUEUE.value_of(Replay(rounds=(whole, torn))) is None
    assert QUEUE.value_of(Replay()) is None


def test_a_wait_of_nothing_is_measured_and_not_recorded() -> None:
    nothing = Round(traces=(builders.trace(),), started_ns=0, ended_ns=1, counters={"queue_s": 0.0})
    assert QUEUE.value_of(Replay(rounds=(nothing,))) == 0
    assert not QUEUE.is_recordable(0.0)
    assert QUEUE.is_recordable(0.1)


def test_a_case_whose_engine_names_no_such_counter_has_no_such_metric() -> None:
    assert not QUEUE.applies_to(THREE)
