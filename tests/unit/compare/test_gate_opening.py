"""What can't be measured as it is asked for is said before anything is."""

import dataclasses
import math
import re
import sys
from pathlib import Path

import msgspec
import pytest

from specreg.compare.gate.journal import Spent
from specreg.compare.gate.launched import Arm, Launched
from specreg.compare.gate.opening import open_gate
from specreg.compare.gate.pinning import recording_of
from specreg.compare.gate.plan import Pair
from specreg.compare.gate.quantities import OUTPUT
from specreg.compare.gate.request import Request
from specreg.core.errors import SpecregError, UnsupportedError
from specreg.matrix.tier import load_tier
from specreg.telemetry.identity import Gpus
from specreg.telemetry.sensor import Device, Scope
from tests.doubles.vllm import __version__ as scripted_version
from tests.doubles.vllm.script import Script, record_script
from tests.unit import builders

TIER = load_tier(builders.ROOT / "fixtures/matrix", "cpu")
CASE = "vllm-eagle3-tiny-toy-c1"


@pytest.fixture
def asked(tmp_path: Path) -> Request:
    """Two versions of vLLM, and a folder that isn't there yet."""
    return Request(
        a="vllm==0.31.0",
        b="vllm==0.32.0",
        tier=TIER,
        case_ids=(CASE,),
        root=builders.ROOT,
        out=tmp_path / "gate",
        show=lambda _: None,
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"b": "sglang==0.5.23"}, f"side 'sglang==0.5.23': '{CASE}' is of engine 'vllm'"),
        ({"case_ids": ("nope",)}, "tier 'cpu': unknown case 'nope'"),
        ({"b_overrides": ("k=5",)}, "unknown setting 'k'"),
        ({"b_overrides": ("draft=./nowhere",)}, "model folder '.*nowhere': config.json is missing"),
        ({"launches": 5}, "--launches 5: a block of ABBA has two of each side; give an even"),
        ({"tolerances": ("speed=0.1",)}, "--tolerance speed=0.1: unknown quantity 'speed'"),
        ({"tolerances": ("step_p50_ms=3%",)}, "'3%' is no fraction between 0 and 1"),
        ({"pin_length_tokens": 9.0}, "--pin 9: with 3 draft tokens per step"),
        ({"least_s": math.inf}, "--seconds inf: is no time; give a number above 0"),
        ({"least_s": 0.0}, "--seconds 0: is no time"),
        ({"minutes": math.nan}, "--minutes nan: is no time"),
        ({"minutes": -1.0}, "--minutes -1: is no time"),
        ({"ready_within_s": 0.0}, "--ready-within-s 0: is no time"),
        ({"prompts": 100_000}, "dataset 'toy': has .* prompts, .* asks for 100000"),
        (
            {"b": sys.executable},
            f": python '{sys.executable}': has no module 'vllm'; install vllm there, or name",
        ),
        ({"resume": True}, "--resume: nothing to go on with in '.*gate'; name its --out"),
    ],
    ids=str,
)
def test_it_is_said(asked: Request, changes: dict[str, object], said: str) -> None:
    with pytest.raises(SpecregError, match=said):
        open_gate(dataclasses.replace(asked, **changes))  # type: ignore[arg-type]
    assert asked.out is not None
    assert not asked.out.exists()


@pytest.fixture
def gpu_of_24_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU that is too small for most of the tier's models."""
    device = Device(
        sensor="nvml", id="GPU-0", name="L4", number=0, scope=Scope.GPU, memory_bytes=24 * 2**30
    )
    found = Gpus(devices=(device,), why_none="")
    for module in ("specreg.compare.gate.opening", "specreg.telemetry.identity"):
        monkeypatch.setattr(f"{module}.find_gpus", lambda: found)


@pytest.mark.usefixtures("gpu_of_24_gib")
def test_of_a_tier_the_cases_that_nobody_named_and_that_dont_fit_are_left_out(
    asked: Request, tmp_path: Path
) -> None:
    """The tier gpu has two engines, and models for which this GPU is too small."""
    there = f"engine_env.PYTHONPATH={record_script(Script(), tmp_path)['PYTHONPATH']}"
    said: list[str] = []
    request = dataclasses.replace(
        asked,
        a=f"vllm@{sys.executable}",
        b=f"vllm@{sys.executable}",
        a_overrides=(there,),
        b_overrides=(there,),
        tier=load_tier(builders.ROOT / "fixtures/matrix", "gpu"),
        case_ids=(),
        show=said.append,
    )
    opened = open_gate(request)
    assert {(pair.a.server.engine, pair.a.server.models) for pair in opened.pairs} == {
        ("vllm", "tiny"),
        ("vllm", "wide-1b"),
    }
    assert "left out: 'sglang-none-tiny-toy-c1' is of engine 'sglang'" in said
    too_big = "vllm-none-qwen3-8b-toy-c1"
    assert f"left out: {too_big} needs 1 GPU(s) of 49 GiB, this machine has 24 GiB" in said

    named = dataclasses.replace(request, case_ids=(too_big,))
    with pytest.raises(UnsupportedError, match=f"{too_big} needs 1 .*choose other cases"):
        open_gate(named)


@pytest.fixture
def here(asked: Request, tmp_path: Path) -> Request:
    """Sides that are there: the scripted server, which this interpreter finds as vLLM."""
    (tmp_path / "cpu.toml").write_text(
        'needs_gpus = 0\n[models.tiny]\ntarget = "fixtures/models/tiny/target"\n'
        '[[cases]]\nengine = "vllm"\nmethods = ["none"]\nmodels = "tiny"\ndataset = "toy"\n'
        "concurrency = [1]\nprompts = 5\noutput_cap_tokens = 32\n"
    )
    there = f"engine_env.PYTHONPATH={record_script(Script(), tmp_path)['PYTHONPATH']}"
    side = f"vllm@{sys.executable}"
    tier = load_tier(tmp_path, "cpu")
    return dataclasses.replace(
        asked, a=side, b=side, a_overrides=(there,), b_overrides=(there,), tier=tier, case_ids=()
    )


def test_recordings_of_another_gate_are_forgotten_and_those_of_this_one_kept(
    here: Request,
) -> None:
    """They know the answers of their own versions and models alone."""
    pinning = dataclasses.replace(here, tier=TIER, case_ids=(CASE,), pin_length_tokens=2.5)
    opened = open_gate(pinning)
    recordings = [recording_of(opened.pairs[-1].of(arm)) for arm in (Arm.A, Arm.B)]
    other = opened.gate.place.folder / "recordings" / "A-notes.json"
    for path in (*recordings, other):
        assert path is not None
        path.parent.mkdir(exist_ok=True)
        path.write_text("[]")
    opened = open_gate(pinning)
    assert list(other.parent.iterdir()) == [other]
    opened.gate.journal.write(Launched(case_id="case", arm=Arm.A, block=1, number=1))
    assert recordings[0] is not None
    recordings[0].write_text("[]")
    open_gate(dataclasses.replace(pinning, resume=True, tolerances=("step_p50_ms=0.5",)))
    assert recordings[0].exists()


def test_without_pin_a_gate_removes_nothing(here: Request) -> None:
    """Not even what an override names as the recording of a drafter."""
    assert here.out is not None
    recording = here.out / "recordings" / "A-vllm-tiny.json"
    recording.parent.mkdir(parents=True)
    recording.write_text("[]")
    open_gate(here)
    assert recording.exists()


@pytest.mark.parametrize(("launches", "told"), [(2, True), (4, False)])
def test_too_few_launches_for_a_speed_are_said(here: Request, launches: int, told: bool) -> None:  # noqa: FBT001 - a parameter
    said: list[str] = []
    open_gate(dataclasses.replace(here, launches=launches, show=said.append))
    assert any("--launches 2: a speed is decided by 4 launches" in one for one in said) is told


def test_a_report_says_that_the_control_was_given_up(here: Request) -> None:
    opened = open_gate(here)
    [case_id] = (pair.id for pair in opened.pairs)
    opened.gate.launches = tuple(
        Launched(case_id=case_id, arm=Arm.A2, block=1, number=number, invalid="it died")
        for number in (1, 2)
    )
    how = opened.report().how
    assert how is not None
    assert how.control_failed == "side A2: it died"


def test_fewer_launches_than_there_are_make_no_look_cheaper(here: Request) -> None:
    opened = open_gate(here)
    assert opened.gate.rules.blocks == 8
    opened.gate.journal.write(Launched(case_id="case", arm=Arm.A, block=8, number=16))
    said: list[str] = []
    fewer = open_gate(dataclasses.replace(here, resume=True, launches=4, show=said.append))
    assert fewer.gate.rules == opened.gate.rules
    assert said == [
        "--launches 4: 16 of each side were begun before; all are judged as with --launches 16"
    ]
    more = open_gate(dataclasses.replace(here, resume=True, launches=20))
    assert more.gate.rules.blocks == 10


def test_a_break_even_rests_on_the_launches_that_count(here: Request) -> None:
    """What had failed before was launched once more; its old place isn't kept beside that."""
    opened = open_gate(here)
    pairs = []
    for load in (1, 4):
        fast = builders.with_concurrency(load)
        slow = builders.with_concurrency(load, builders.PLAIN_CASE)
        pairs += [Pair(a=fast, b=fast), Pair(a=slow, b=slow)]
    opened.gate.failed_before = tuple(
        Launched(case_id=pair.id, arm=Arm.A, block=1, number=1, invalid="it died")
        for pair in pairs
        if pair.a.speculates
    )
    opened.gate.launches = tuple(
        Launched(
            case_id=pair.id,
            arm=Arm.A,
            block=1,
            number=number,
            values={OUTPUT: 200.0 if pair.a.speculates else 100.0},
        )
        for pair in pairs
        for number in ((2, 3) if pair.a.speculates else (1, 2))
    )
    [found] = dataclasses.replace(opened, pairs=tuple(pairs)).report().break_evens
    assert [one.low_ratio for one in found.speedups] == [pytest.approx(2.0)] * 2


def test_a_report_says_how_much_was_asked_for(here: Request) -> None:
    pinned = dataclasses.replace(here, tier=TIER, case_ids=(CASE,), pin_length_tokens=2.5)
    how = open_gate(dataclasses.replace(pinned, minutes=7.0, prompts=6)).report().how
    assert how is not None
    assert (how.blocks, how.launches, how.minutes, how.prompts) == (8, 16, 7.0, 6)
    assert how.pin_length_tokens == 2.5


def test_a_gate_that_goes_on_says_since_when_its_minutes_count(here: Request) -> None:
    opened = open_gate(here)
    opened.gate.journal.write(
        Launched(case_id="case", arm=Arm.A, block=1, number=1), Spent(launch_s=60.0)
    )
    hows = [
        open_gate(request).report().how
        for request in (
            dataclasses.replace(here, resume=True, minutes=0.1),
            dataclasses.replace(here, out=opened.gate.place.folder / "another", minutes=0.1),
        )
    ]
    assert [how and (how.minutes, how.went_on) for how in hows] == [(0.1, True), (0.1, False)]


def test_a_side_is_of_one_version(here: Request) -> None:
    """What lies at an interpreter's path may be another engine by the time that a gate goes on."""
    quick = dataclasses.replace(here, least_s=0.1, launches=2)
    opened = open_gate(quick)
    [pair] = opened.pairs
    before = [
        Launched(case_id=pair.id, arm=arm, block=1, number=number, engine_version=version)
        for number, (arm, version) in enumerate(
            [(Arm.A, "0.31.0"), (Arm.B, "0.32.0"), (Arm.A2, "0.31.0"), (Arm.B, "")], start=1
        )
    ]
    opened.gate.journal.write(*before)
    resumed = open_gate(dataclasses.replace(quick, resume=True))
    report = resumed.report()
    assert (report.a.engine_versions, report.b.engine_versions) == (("0.31.0",), ("0.32.0",))

    gate = resumed.gate
    gate.rehearsed = True
    said = f"side A ('{here.a}'): its servers said 0.31.0, {scripted_version}, so its launches"
    with pytest.raises(UnsupportedError, match=re.escape(said)):
        gate.measure()
    assert gate.all_launches == tuple(before)

    opened.gate.journal.write(msgspec.structs.replace(before[1], engine_version="0.33.0"))
    with pytest.raises(UnsupportedError, match=r"side B .*: its servers said 0\.32\.0, 0\.33\.0"):
        open_gate(dataclasses.replace(quick, resume=True))


def test_a_gate_with_a_drafter_of_ones_own_knows_its_target(
    here: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only such a draft is no model; other weights of the target are another gate's."""
    drafter = ("method=custom_class", "draft=own.Drafter")
    pinned = dataclasses.replace(
        here,
        tier=TIER,
        case_ids=(CASE,),
        a_overrides=(*here.a_overrides, *drafter),
        b_overrides=(*here.b_overrides, *drafter),
    )
    asked_of: list[str] = []

    def sha256(folder: str) -> str:
        asked_of.append(folder)
        return "sha256"

    monkeypatch.setattr("specreg.compare.gate.run.model_sha256", sha256)
    open_gate(pinned)
    assert {Path(folder).name for folder in asked_of} == {"target"}
