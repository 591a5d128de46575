"""Real engines for these tests: their environments, and servers of a case."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specreg.acceptance.record import AcceptanceRecord
from specreg.core.files import cache_folder, temporary_folder_beside
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.matrix.tier import load_tier
from specreg.measurement.measure import Measurement
from specreg.servers.handle import ServerHandle
from specreg.servers.installer import run_uv
from specreg.servers.launch import Launch
from specreg.servers.launcher import ServerLauncher
from specreg.servers.provision import Provision, engine_environment
from specreg.servers.server import Server
from tests.unit import builders

_WITHOUT_CPU_BUILD = {("vllm", "0.33.0")}


def case_of(tier: str, case_id: str) -> Case:
    """A case of a tier of the repository."""
    return load_tier(builders.ROOT / "fixtures/matrix", tier).named(case_id)


def interpreter_of(engine: str, version: str = "") -> str:
    """The interpreter of an engine's version; from the cache, after the first time.

    Of a version without a build for CPUs it is that of the one that specreg installs there.
    """
    requirement = engine_named(engine).requirement(on_gpu=False)
    if not version or (engine, version) in _WITHOUT_CPU_BUILD:
        version = requirement.version
    return engine_environment(dataclasses.replace(requirement, version=version), show=print)


def modules_of(engine: str, version: str) -> Path | None:
    """The modules of a version that has no build for CPUs, without what it needs.

    The environment of the version that specreg installs on a CPU has that, as far as the parser of
    its command line goes.

    Returns:
        A folder of the cache to put on PYTHONPATH; None for a version with a build for CPUs.
    """
    if (engine, version) not in _WITHOUT_CPU_BUILD:
        return None
    folder = cache_folder("modules") / f"{engine}-{version}"
    if not folder.is_dir():
        with temporary_folder_beside(folder) as new_folder:
            pin = f"{engine_named(engine).requirement(on_gpu=True).package}=={version}"
            log_path = Path(f"{folder}.log")
            run_uv(
                log_path, "pip", "install", "--no-deps", "--target", str(new_folder / "all"), pin
            )
            (new_folder / "all").rename(folder)
    return folder


@contextmanager
def start(case: Case, folder: Path) -> Iterator[Server]:
    """A server of a case, in its engine's environment."""
    provision = Provision(on_gpu=False, show=print)
    handle = ServerHandle(
        launch=Launch(spec=case.server, number=1),
        launcher=ServerLauncher(provision=provision, root=builders.ROOT, ready_within_s=600),
        log_path=folder / f"{case.server.id}.log",
    )
    try:
        yield handle.server
    finally:
        handle.stop()


def measure(case: Case, server: Server) -> tuple[Measurement, AcceptanceRecord]:
    """A measurement of a case on its server, which is valid, and its acceptance."""
    prompts = load_case_prompts(builders.ROOT, case)[: case.request.prompts]
    measurement = builders.measure_alone(case, server, prompts)
    assert not measurement.invalid, measurement.invalid
    assert measurement.acceptance is not None
    return measurement, measurement.acceptance
