"""Cases, their servers' specs and their prompts."""

import dataclasses
from pathlib import Path
from typing import Any

from specreg.datasets.prompts import Prompt
from specreg.engines.engine import Site
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Case, Load, Request

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

SITE = Site(
    port=8123,
    folder=Path("/runs/logs/toy"),
    on_gpu=False,
    served_name="toy",
    target="some/target",
    draft="some/draft",
    offline=False,
)

PLAIN_SPEC = dataclasses.replace(SPEC, method="none", draft=None, draft_tokens=0)

CASE = Case(
    server=SPEC,
    control=None,
    request=Request(dataset="toy", prompts=4, output_cap_tokens=20),
    load=Load(concurrency=2),
)

PLAIN_CASE = dataclasses.replace(CASE, server=PLAIN_SPEC)

PROMPTS = tuple(
    Prompt(id=f"chat-{number}", category="chat", turns=(f"Tell me {number} things.",))
    for number in range(6)
)


def on_server(**changes: Any) -> Case:  # noqa: ANN401 - of any field
    return dataclasses.replace(CASE, server=dataclasses.replace(SPEC, **changes))


def with_request(case: Case = CASE, **changes: Any) -> Case:  # noqa: ANN401 - of any field
    return dataclasses.replace(case, request=dataclasses.replace(case.request, **changes))


def with_judging(case: Case = CASE, **changes: Any) -> Case:  # noqa: ANN401 - of any field
    return dataclasses.replace(case, judging=dataclasses.replace(case.judging, **changes))


def with_concurrency(requests: int, case: Case = CASE) -> Case:
    return dataclasses.replace(case, load=Load(concurrency=requests))


def start_of(spec: ServerSpec | None = None, **changes: Any) -> tuple[ServerSpec, Site]:  # noqa: ANN401
    """A server and where it starts, with other values of the fields of both.

    Without a spec the server doesn't speculate, and has an argument of its own. A model that is
    changed is changed as the engine gets it.
    """
    if spec is None:
        spec = dataclasses.replace(PLAIN_SPEC, engine_args=("--seed", "7"))
    site_names = {field.name for field in dataclasses.fields(Site)}
    of_site = {name: value for name, value in changes.items() if name in site_names}
    of_spec = {name: value for name, value in changes.items() if name not in site_names}
    models = {"target": spec.target, "draft": spec.draft}
    return dataclasses.replace(spec, **of_spec), dataclasses.replace(SITE, **models | of_site)
