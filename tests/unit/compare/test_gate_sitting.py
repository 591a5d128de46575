"""What was measured, or failed, is kept at the edges of a launch."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from specreg.compare.gate.beside import SideError
from specreg.compare.gate.going import Slot
from specreg.compare.gate.hearing import Hearing
from specreg.compare.gate.journal import Spent
from specreg.compare.gate.launched import Arm, Launched
from specreg.compare.gate.needs import Pace
from specreg.compare.gate.opening import Opened, open_gate
from specreg.compare.gate.plan import Pair
from specreg.compare.gate.request import Request
from specreg.compare.gate.run import sittings_s
from specreg.compare.gate.source import Source
from specreg.core.errors import MemoryHeldError
from specreg.matrix.tier import load_tier
from tests.doubles.vllm.script import Script, record_script
from tests.unit import builders

MATRIX = """
needs_gpus = 0
[models.tiny]
target = "fixtures/models/tiny/target"
drafts = { eagle3 = "fixtures/models/tiny/eagle3" }
[[cases]]
engine = "vllm"
methods = ["ngram", "eagle3"]
models = "tiny"
dataset = "toy"
concurrency = [1, 2]
prompts = 5
rounds = 1
output_cap_tokens = 8
speed = false
"""
C1, C2 = "vllm-eagle3-tiny-toy-c1", "vllm-eagle3-tiny-toy-c2"


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """A gate of two cases on each of two servers, of the scripted engine on both sides."""
    (tmp_path / "cpu.toml").write_text(MATRIX)
    there = f"engine_env.PYTHONPATH={record_script(Script(), tmp_path)['PYTHONPATH']}"
    side = f"vllm@{sys.executable}"
    return open_gate(
        Request(
            a=side,
            b=side,
            a_overrides=(there,),
            b_overrides=(there,),
            tier=load_tier(tmp_path, "cpu"),
            launches=2,
            with_control=False,
            root=builders.ROOT,
            out=tmp_path / "gate",
            show=lambda _: None,
        )
    )


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that are none: a busy machine can't disturb what is measured on them."""

    @contextlib.contextmanager
    def start(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(engine_version="1.0")

    def measure(sides: Mapping[Arm, object], *_: object, **__: object) -> dict[Arm, object]:
        return {arm: SimpleNamespace(acceptance=None) for arm in sides}

    monkeypatch.setattr("specreg.compare.gate.run.start_server", start)
    monkeypatch.setattr("specreg.compare.gate.sitting.measure_beside", measure)
    monkeypatch.setattr(
        "specreg.compare.gate.sitting.values_beside", lambda of: {arm: {} for arm in of}
    )
    monkeypatch.setattr("specreg.compare.gate.sitting.held_bytes", lambda *_, **__: 0)
    monkeypatch.setattr(Hearing, "listen", lambda *_: None)


@pytest.fixture
def slot(opened: Opened) -> Slot:
    """Of the server with a draft, both sides at the same time."""
    [group] = (one.group for one in opened.gate.shared if one.pairs[0].id == C1)
    return Slot(group=group, arms=(Arm.A, Arm.B), block=1, number=1)


def told(opened: Opened) -> list[Launched]:
    """What the journal holds."""
    return [one for one in opened.gate.journal.lines() if isinstance(one, Launched)]


BOTH = {(case_id, arm) for case_id in (C1, C2) for arm in (Arm.A, Arm.B)}


def test_what_was_measured_stays_where_a_server_leaves_its_memory_held(
    opened: Opened, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def held(*_: object) -> Iterator[None]:
        yield
        message = "GPU 0: its memory isn't back"
        raise MemoryHeldError(message)

    monkeypatch.setattr(Source, "leased", held)
    with pytest.raises(MemoryHeldError):
        opened.gate.launch(slot)
    assert {(one.case_id, one.arm) for one in told(opened) if not one.invalid} == BOTH
    assert opened.report().launches == 2
    ready = {one.case_id for one in told(opened) if "ready_s" in one.values}
    assert ready == {C1}  # of the server, and so with the first of its cases


def test_memory_that_is_not_back_is_no_sides_fault(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search would go on with another version of that side."""

    def held(*_: object) -> contextlib.AbstractContextManager[None]:
        message = "GPU 0: its memory isn't back"
        raise MemoryHeldError(message)

    monkeypatch.setattr(Source, "leased", held)
    with pytest.raises(MemoryHeldError):
        opened.gate.rehearse()


def test_a_side_that_dies_as_the_last_answers_are_compared_has_failed(
    opened: Opened, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listen(_: Hearing, pair: Pair, __: object) -> None:
        if pair.id == C2:
            raise SideError(Arm.B, "it died")

    monkeypatch.setattr(Hearing, "listen", listen)
    opened.gate.launch(slot)
    assert {(one.case_id, one.arm) for one in told(opened) if not one.invalid} == BOTH
    [failed] = opened.report().failed
    assert (failed.case_id, failed.arm, failed.reason) == (C2, Arm.B, "it died")


def test_a_side_that_dies_earlier_fails_for_what_was_yet_to_come(
    opened: Opened, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listen(*_: object) -> None:
        raise SideError(Arm.B, "it died")

    monkeypatch.setattr(Hearing, "listen", listen)
    opened.gate.launch(slot)
    assert [(one.case_id, one.arm, one.invalid) for one in told(opened)] == [
        (C1, Arm.A, ""),
        (C1, Arm.B, ""),
        (C2, Arm.B, "it died"),
    ]


def launched(case_id: str, arm: Arm) -> Launched:
    return Launched(case_id=case_id, arm=arm, block=1, number=1)


def test_a_launch_takes_as_long_as_those_of_its_own_servers_did(opened: Opened) -> None:
    """Both sides at the same time twice in a block: a launch more of each takes a sitting."""
    others = [one.replace("eagle3", "ngram") for one in (C1, C2)]
    lines = [
        *(launched(case_id, arm) for case_id in others for arm in (Arm.A, Arm.B)),
        Spent(launch_s=60.0),
        *(launched(case_id, arm) for case_id in (C1, C2) for arm in (Arm.A, Arm.B)),
        Spent(launch_s=300.0),
        *(launched(case_id, Arm.A) for case_id in others),
        Spent(launch_s=120.0),
    ]
    assert sittings_s(lines) == {others[1]: [60.0, 120.0], C2: [300.0]}
    opened.gate.take_over(lines)
    time = opened.gate._time  # noqa: SLF001 - what its answer is told
    assert set(time.paces) == {
        Pace(case_ids=frozenset(others), launch_s=90.0),
        Pace(case_ids=frozenset({C1, C2}), launch_s=300.0),
    }
    assert (time.longest_s, time.is_up) == (300.0, False)


def test_of_servers_that_had_no_launch_yet_it_is_as_long_as_all_did(opened: Opened) -> None:
    assert opened.gate._time.paces == ()  # noqa: SLF001 - the same
    lines = [launched(C2, Arm.A), Spent(launch_s=60.0)]
    opened.gate.take_over(lines)
    gate = dataclasses.replace(opened.gate, out_of_time=True)
    assert {one.launch_s for one in gate._time.paces} == {60.0}  # noqa: SLF001 - the same
    assert gate._time.is_up  # noqa: SLF001 - the same
