"""Real engines for these tests: their environments, and servers of a case."""

import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path

from specreg.acceptance.record import AcceptanceRecord
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.matrix.tier import load_tier
from specreg.measurement.measure import Measurement
from specreg.servers.environments import EngineEnvironment, engine_environment
from specreg.servers.server import Server
from specreg.servers.start import ServerStart
from tests.unit import builders


def case_of(tier: str, case_id: str) -> Case:
    """A case of a tier of the repository."""
    return load_tier(builders.ROOT / "fixtures/matrix", tier).named(case_id)


def environment_of(engine: str, version: str = "") -> EngineEnvironment:
    """The environment of an engine's version; from the cache, after the first time."""
    requirement = engine_named(engine).requirement(on_gpu=False)
    version = version or requirement.version
    return engine_environment(dataclasses.replace(requirement, version=version), show=print)


def start(
    case: Case, folder: Path, environment: EngineEnvironment | None = None
) -> AbstractContextManager[Server]:
    """A server of a case, in its engine's environment unless another is given."""
    return ServerStart(
        spec=case.server,
        environment=environment or environment_of(case.server.engine),
        root=builders.ROOT,
        log_path=folder / f"{case.server.id}.log",
        on_gpu=False,
        ready_within_s=600,
        show=print,
    ).running()


def measure(case: Case, server: Server) -> tuple[Measurement, AcceptanceRecord]:
    """A measurement of a case on its server, which is valid, and its acceptance."""
    prompts = load_case_prompts(builders.ROOT, case)[: case.prompts]
    measurement = builders.measure_alone(case, server, prompts)
    assert not measurement.invalid
    assert measurement.acceptance is not None
    return measurement, measurement.acceptance
