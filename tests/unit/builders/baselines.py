"""Baselines, the machines they are of, and what they know of a case."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from specreg.acceptance.record import StepCounts
from specreg.baselines.comparison import CaseBaselines
from specreg.baselines.record import record_baseline
from specreg.baselines.schema import (
    BASELINE_SCHEMA_VERSION,
    Baseline,
    Provenance,
    PublishedFigure,
    RecordedDevice,
)
from specreg.baselines.store import load_settings
from specreg.matrix.case import Case, CaseSettings
from specreg.measurement.metrics import METRICS
from specreg.stats.intervals import Spread
from specreg.telemetry.identity import Environment
from specreg.telemetry.sensor import Scope
from tests.doubles.nvml.device import ScriptedGpu
from tests.unit.builders.acceptance import stored
from tests.unit.builders.cases import CASE, ROOT

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


def baseline(
    *launches: Mapping[str, float],
    of: StepCounts | None = None,
    environment: Environment = ENVIRONMENT,
    settings: CaseSettings = SETTINGS,
) -> Baseline:
    return Baseline(
        schema_version=BASELINE_SCHEMA_VERSION,
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
    recorded = baseline(*launches, environment=environment, settings=load_settings(ROOT, case))
    return record(folder, msgspec.structs.replace(recorded, devices=(device,)), case.id)


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
    spread = Spread(within_frac=within_frac, between_frac=0.0, freedom=freedom, between_freedom=0)
    return CaseBaselines(
        environment=ENVIRONMENT,
        settings=SETTINGS,
        exact=exact,
        nearest=nearest,
        published=published,
        control=control,
        control_spreads={name: spread for name, metric in METRICS.items() if metric.by_launch},
    )


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
