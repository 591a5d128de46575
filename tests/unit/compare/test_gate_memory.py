"""Whose GPU memory is told: the server's, or nobody's."""

import dataclasses
from types import SimpleNamespace

import pynvml
import pytest

from specreg.compare.gate import memory
from specreg.compare.gate.memory import held_bytes
from specreg.engines.settings import Parallel
from specreg.telemetry.sensor import Device, Scope
from tests.unit import builders

OURS, OTHER, THIRD = 100, 200, 300


def held(
    monkeypatch: pytest.MonkeyPatch, running: dict[int, list[tuple[int, int | None]]]
) -> int | None:
    """What is told of a server on the GPUs 1 and 2; `running`: by GPU process and bytes."""
    devices = tuple(
        Device(sensor="nvml", id=f"GPU-{number}", name="L4", number=number, scope=Scope.GPU)
        for number in (1, 2)
    )
    monkeypatch.setattr(memory, "devices_of", lambda gpus, _: devices[:gpus])
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda number: number)
    monkeypatch.setattr(
        pynvml,
        "nvmlDeviceGetComputeRunningProcesses",
        lambda number: [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in running[number]
        ],
    )
    spec = dataclasses.replace(builders.SPEC, parallel=Parallel(tensor=2))
    server = SimpleNamespace(spec=spec, pids=lambda: frozenset({OURS}))
    return held_bytes(server, on_gpu=True)  # type: ignore[arg-type]


def test_what_others_hold_beside_it_is_not_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    running: dict[int, list[tuple[int, int | None]]] = {
        0: [(OTHER, 7)],
        1: [(OURS, 10), (OTHER, 5)],
        2: [(OTHER, 3), (OURS, 20)],
    }
    assert held(monkeypatch, running) == 30


def test_alone_on_its_gpus_it_may_have_other_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    assert held(monkeypatch, {0: [(THIRD, 7)], 1: [(OTHER, 10)], 2: [(OTHER, 20)]}) == 30


@pytest.mark.parametrize(
    "second",
    [
        pytest.param([(OTHER, 20), (THIRD, 5)], id="two that nobody knows"),
        pytest.param([], id="none"),
        pytest.param([(OTHER, None)], id="one of which the driver doesn't tell"),
    ],
)
def test_where_nobody_knows_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, second: list[tuple[int, int | None]]
) -> None:
    assert held(monkeypatch, {1: [(OURS, 10)], 2: second}) is None
