"""Objects of specreg with plausible contents; a test replaces the fields that it is about."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.acceptance.record import (
    NO_STEPS,
    AcceptanceRecord,
    PromptAcceptance,
    Source,
    StepCounts,
    View,
)
from specreg.acceptance.trace import Chunk, RequestTrace, chunk_sizes
from specreg.baselines.comparison import CaseBaselines
from specreg.baselines.record import record_baseline
from specreg.baselines.schema import (
    SCHEMA_VERSION,
    Baseline,
    Provenance,
    PublishedFigure,
    RecordedDevice,
    StoredAcceptance,
    stored_acceptance,
)
from specreg.baselines.store import settings_in
from specreg.core.errors import InvalidMeasurementError
from specreg.core.processes import SupervisedProcess
from specreg.core.supervisor import Session
from specreg.datasets.prompts import Prompt
from specreg.engines.engine import ALONE, LaunchOptions, Requirement
from specreg.engines.registry import engine_named
from specreg.load.rounds import Round
from specreg.matrix.case import Case, CaseSettings, Load, ServerSpec
from specreg.measurement.arm import Arm
from specreg.measurement.measure import Measurement, Plan, measure, workload_of
from specreg.measurement.metrics import METRICS, Replay
from specreg.servers.provision import MARKER, interpreter_of
from specreg.servers.server import Server, StartedServer
from specreg.stats.intervals import Spread
from specreg.telemetry.identity import Environment, Gpus
from specreg.telemetry.power_record import DeviceRecord, PowerRecord, arm_power
from specreg.telemetry.sensor import Device, Scope
from tests.doubles.nvml.device import ScriptedGpu
from tests.doubles.vllm.script import Script, chat_prompt, record_script, steps_of
from tests.doubles.vllm.steps import Steps

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "fixtures/recordings/vllm/0.32.0"

SPEC = ServerSpec(
    engine="vllm",
    method="draft_model",
    models="toy",
    target="some/target",
    draft="some/draft",
    padding_layers=0,
    draft_tokens=3,
    dtype="float32",
    max_model_len_tokens=1024,
    max_sequences=8,
    gpu_memory_frac=0.4,
)
LAUNCH_OPTIONS = LaunchOptions(
    target="some/target",
    served_name="toy",
    port=8123,
    speculation={},
    dtype="float32",
    max_model_len_tokens=1024,
    max_sequences=8,
    gpu_memory_frac=0.4,
    parallel=ALONE,
    engine_args=("--seed", "7"),
    offline=False,
    on_gpu=False,
    folder=Path("/runs/logs/toy"),
)
PLAIN_SPEC = dataclasses.replace(SPEC, method="none", draft=None, draft_tokens=0)
CASE = Case(
    server=SPEC,
    control=None,
    dataset="toy",
    prompts=4,
    load=Load(concurrency=2),
    output_cap_tokens=20,
)
PLAIN_CASE = dataclasses.replace(CASE, server=PLAIN_SPEC)
PROMPTS = tuple(
    Prompt(id=f"chat-{number}", category="chat", turns=(f"Tell me {number} things.",))
    for number in range(6)
)
PROMPTS_MEASURED = 6
"""In the measurements and baselines below: enough to be judged."""
ENVIRONMENT = Environment(
    kind="cpu", cpu="Intel(R) Xeon(R) CPU @ 2.50GHz", instruction_set="avx512", cores=2
)
OTHER_ENVIRONMENT = msgspec.structs.replace(ENVIRONMENT, instruction_set="avx2", cores=8)
SETTINGS = CaseSettings(
    engine="vllm",
    method="draft_model",
    draft_tokens=3,
    target_sha256="",
    target="some/target",
    prompts_sha256="ab",
    prompts=4,
    output_cap_tokens=20,
    concurrency=2,
    dtype="float32",
    max_model_len_tokens=1024,
    max_sequences=8,
)
PROVENANCE = Provenance(
    engine_version="0.32.0",
    draft_sha256="",
    specreg_version="0.1.0",
    commit="0123456789ab",
    recorded_on="2026-11-21",
    reason="first run",
)


def seem_installed(requirement: Requirement) -> Path:
    """The interpreter of an environment without its engine, in the cache of SPECREG_CACHE."""
    python = interpreter_of(requirement)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (python.parents[1] / MARKER).touch()
    return python


def invalid(reason: str, words: str = "") -> pytest.RaisesExc[InvalidMeasurementError]:
    """Expects an INVALID measurement of such a reason and words, of which some may lie between."""
    return pytest.raises(InvalidMeasurementError, match=f"(?s)^{reason}: .*{words}")


def chunk(at_ns: int, tokens: int = 1) -> Chunk:
    return Chunk(at_ns=at_ns, tokens=tokens)


def trace(*chunks: Chunk, sent_ns: int = 0) -> RequestTrace:
    """A request that finished, with the usage that its chunks add up to."""
    return RequestTrace(
        prompt_id="chat-0",
        category="chat",
        turn=1,
        planned_ns=sent_ns,
        sent_ns=sent_ns,
        first_ns=chunks[0].at_ns if chunks else None,
        last_ns=chunks[-1].at_ns if chunks else None,
        first_chunk_tokens=chunks[0].tokens if chunks else 0,
        chunk_sizes=chunk_sizes(chunks[1:]),
        usage_tokens=sum(one.tokens for one in chunks),
        finish_reason="length",
    )


def on_server(**changes: Any) -> Case:  # noqa: ANN401 - of any field
    return dataclasses.replace(CASE, server=dataclasses.replace(SPEC, **changes))


def with_concurrency(requests: int, case: Case = CASE) -> Case:
    return dataclasses.replace(case, load=Load(concurrency=requests))


def replayed(started_ns: int, ended_ns: int, tokens: int) -> Round:
    """A round in which one request delivered some tokens."""
    only = trace(chunk(ended_ns, tokens), sent_ns=started_ns)
    return Round(traces=(only,), started_ns=started_ns, ended_ns=ended_ns)


def counts(*histogram: int) -> StepCounts:
    """The counts of a histogram whose steps all drafted k."""
    draft_tokens = len(histogram) - 1
    return StepCounts.from_histogram(histogram, proposed=sum(histogram) * draft_tokens)


def prompt_acceptance(
    of: StepCounts, *, cut_tokens: int = 0, prompt_id: str = "chat-0"
) -> PromptAcceptance:
    """A prompt that delivered all that its steps emitted, less what was cut off."""
    return PromptAcceptance(
        prompt_id=prompt_id,
        category="chat",
        counts=of,
        completion_tokens=1 + of.accepted + of.steps - cut_tokens,
    )


def acceptance(
    of: StepCounts, source: Source = Source.VLLM_REQUEST, *, prompts: int = 1
) -> AcceptanceRecord:
    """The record of some prompts that all did the same."""
    each = [prompt_acceptance(of, prompt_id=f"chat-{number}") for number in range(prompts)]
    return acceptance_of(each, source)


def acceptance_of(
    prompts: Sequence[PromptAcceptance], source: Source = Source.VLLM_REQUEST
) -> AcceptanceRecord:
    return AcceptanceRecord(
        source=source,
        view=View.VERIFIER,
        total=sum((one.counts for one in prompts), NO_STEPS),
        prompts=tuple(prompts),
    )


def stored(
    of: StepCounts, source: Source = Source.VLLM_REQUEST, *, prompts: int = PROMPTS_MEASURED
) -> StoredAcceptance:
    """The record of some prompts that all did the same, in the form for disk."""
    found = stored_acceptance(acceptance(of, source, prompts=prompts))
    assert found is not None
    return found


def measurement(
    values: Mapping[str, float],
    *,
    of: StepCounts | AcceptanceRecord | None = None,
    case: Case = CASE,
) -> Measurement:
    """A valid measurement with the values and counts given, of each of its prompts or of all."""
    record = acceptance(of, prompts=PROMPTS_MEASURED) if isinstance(of, StepCounts) else of
    return Measurement(
        case=case,
        engine_version="0.32.0",
        target="some/target",
        draft=case.server.draft,
        replay=Replay(acceptance=record),
        values=values,
    )


def baseline(
    *launches: Mapping[str, float],
    of: StepCounts | None = None,
    environment: Environment = ENVIRONMENT,
    settings: CaseSettings = SETTINGS,
) -> Baseline:
    return Baseline(
        schema_version=SCHEMA_VERSION,
        case=settings,
        environment=environment,
        provenance=PROVENANCE,
        acceptance=stored(of) if of else None,
        launches=tuple(dict(launch) for launch in launches),
    )


def record(folder: Path, baseline: Baseline, case_id: str = CASE.id) -> Path:
    """Write a baseline to where it is looked for; its path."""
    path = folder / baseline.environment.name / f"{case_id}.json"
    record_baseline(path, baseline)
    return path


def record_on_gpu(
    folder: Path, gpu: ScriptedGpu, case: Case, *launches: Mapping[str, float]
) -> Path:
    """Write the baseline of a case on a scripted GPU, which specreg refuses to record; its path."""
    environment = Environment(
        kind="gpu", gpus=(gpu.name,), gpu_memory_gb=round(gpu.memory_total_bytes / 1e9)
    )
    device = RecordedDevice(
        id=gpu.uuid,
        name=gpu.name,
        scope=Scope.GPU,
        from_counter=True,
        sm_clock_mhz=gpu.sm_clock_mhz,
    )
    made = baseline(*launches, environment=environment, settings=settings_in(ROOT, case))
    return record(folder, msgspec.structs.replace(made, devices=(device,)), case.id)


def known(
    exact: Baseline | None = None,
    nearest: Baseline | None = None,
    *,
    published: PublishedFigure | None = None,
    control: Baseline | None = None,
    within_frac: float = 0.0,
    freedom: int = 16,
) -> CaseBaselines:
    """What is known of the case, on a machine whose launches differ by so much."""
    spread = Spread(within_frac=within_frac, between_frac=0.0, freedom=freedom)
    return CaseBaselines(
        environment=ENVIRONMENT,
        settings=SETTINGS,
        exact=exact,
        nearest=nearest,
        published=published,
        control=control,
        spreads={name: spread for name, metric in METRICS.items() if metric.by_launch},
    )


def server(
    base_url: str = "http://scripted", *, log_path: Path = Path("/dev/null")
) -> StartedServer:
    """A server that answers at `base_url`; its process has ended with status 1."""
    process = subprocess.Popen(("/bin/false",))
    process.wait()
    return StartedServer(
        spec=SPEC,
        engine=engine_named("vllm"),
        base_url=base_url,
        model=SPEC.id,
        target="some/target",
        draft="some/draft",
        engine_version="99.0+scripted",
        process=SupervisedProcess(
            popen=process, session=Session("none"), supervisor=process, log_path=log_path
        ),
    )


def scripted(spec: ServerSpec, script: Script, folder: Path) -> ServerSpec:
    """The spec with what makes its command line start the scripted server."""
    return dataclasses.replace(spec, engine_env=tuple(record_script(script, folder).items()))


def truth(prompt: Prompt, script: Script, case: Case = CASE) -> Steps:
    """What the scripted server does for a prompt of a case."""
    return steps_of(
        chat_prompt([{"role": "user", "content": prompt.turns[0]}]),
        script,
        num_speculative_tokens=case.server.draft_tokens,
        max_tokens=case.output_cap_tokens,
    )


def counts_of(steps: Sequence[Steps]) -> StepCounts:
    """The truth of some requests, added up by hand."""
    by_position = zip(*(one.accepted_per_position for one in steps), strict=True)
    return StepCounts(
        steps=sum(one.verify_steps for one in steps),
        accepted=sum(one.accepted_tokens for one in steps),
        proposed=sum(one.drafted_tokens for one in steps),
        position_counts=tuple(sum(column) for column in by_position),
    )


def device(name: str = "NVIDIA H200", **changes: object) -> Device:
    """A GPU of no machine."""
    whole = Device(sensor="nvml", id=f"GPU-{name}", name=name, number=0, scope=Scope.GPU)
    return msgspec.structs.replace(whole, **changes)


def gpus(*names: str, memory_gib: float = 0) -> Gpus:
    """What a machine with such GPUs says of them; without names one that has none."""
    memory_bytes = round(memory_gib * 2**30)
    return Gpus(
        devices=tuple(device(name, memory_bytes=memory_bytes) for name in names),
        why_none="" if names else "NVML: none",
    )


def power(
    energy_j: float = 12_000.0,
    *,
    window_s: float = 60.0,
    tokens: int = 6000,
    accepted_frac: float = 0.0,
    of: Device | None = None,
    from_counter: bool = True,
    sm_clock_mhz: float | None = 1980.0,
) -> PowerRecord:
    """What one GPU drew, idle at 100 W, for so many tokens."""
    record = DeviceRecord(
        device=of or device(),
        energy_j=energy_j,
        mean_w=energy_j / window_s,
        from_counter=from_counter,
        error_frac=1e-3,
        idle_w=100.0,
        peak_w=450.0,
        sm_clock_mhz=sm_clock_mhz,
        memory_clock_mhz=2619.0,
        temperature_c=61,
        used_bytes=10**10,
        utilisation_frac=0.9,
        throttled=("power cap",),
        counter_ratio=1.001,
        missing_frac=0.0,
    )
    span = (0, round(window_s * 10**9))
    arm = arm_power([record], span, tokens=tokens, accepted_frac=accepted_frac)
    return PowerRecord(case=arm)


def rows_in(name: str, prompts: Sequence[Prompt]) -> list[dict[str, object]]:
    """Prompts as the rows of a dataset are published; of one turn, where a row holds no more."""
    spell: Mapping[str, Callable[[Prompt], dict[str, object]]] = {
        "sharegpt": lambda one: {
            "conversations": [{"from": "human", "value": turn} for turn in one.turns]
        },
        "humaneval": lambda one: {"task_id": one.id, "prompt": one.turns[0]},
        "mbpp": lambda one: {"task_id": one.id, "text": one.turns[0]},
        "gsm8k": lambda one: {"question": one.turns[0]},
        "genai-perf": lambda one: {"text": one.turns[0]},
    }

    def as_question(one: Prompt) -> dict[str, object]:
        return {"question_id": one.id, "category": one.category, "turns": one.turns}

    return [spell.get(name, as_question)(one) for one in prompts]


def write_lines(path: Path, rows: Iterable[object]) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return path


def measure_alone(
    case: Case,
    server: Server,
    prompts: Sequence[Prompt] = PROMPTS,
    plan: Plan = Plan(show=lambda _: None),  # noqa: B008 - frozen
) -> Measurement:
    (found,) = measure([Arm(case=case, server=server)], workload_of(case, prompts), plan)
    return found


def published(length_tokens: float = 2.0, tolerance_frac: float | None = None) -> PublishedFigure:
    return PublishedFigure(
        schema_version=1,
        source="https://example.org/paper",
        conditions="80 prompts",
        method="draft_model",
        target="some/target",
        draft="some/draft",
        dataset="toy",
        draft_tokens=3,
        temperature=0.0,
        acceptance_length_tokens=length_tokens,
        acceptance_rate_frac=None,
        position_frac=(),
        tolerance_frac=tolerance_frac,
    )
