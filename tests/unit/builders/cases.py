"""Cases, their servers' specs and their prompts."""

import dataclasses
from pathlib import Path
from typing import Any

from specreg.datasets.prompts import Prompt
from specreg.engines.engine import ALONE, LaunchOptions
from specreg.matrix.case import Case, Load, ServerSpec

ROOT = Path(__file__).parents[3]

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


def on_server(**changes: Any) -> Case:  # noqa: ANN401 - of any field
    return dataclasses.replace(CASE, server=dataclasses.replace(SPEC, **changes))


def with_concurrency(requests: int, case: Case = CASE) -> Case:
    return dataclasses.replace(case, load=Load(concurrency=requests))
