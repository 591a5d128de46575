"""The doctor: a machine and a tier in; what it is, what can be measured, what is in the way, out.

A check looks at a scene and yields findings. Nothing is started, fetched or changed.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from specreg.core.errors import SensorError, SpecregError
from specreg.matrix.case import Tier
from specreg.report.doctor import Finding, in_the_way
from specreg.servers.provision import Provision
from specreg.suite.preflight.cases import examine_cases
from specreg.suite.preflight.devices import examine_driver, examine_use
from specreg.suite.preflight.inputs import (
    examine_baselines,
    examine_datasets,
    examine_engines,
    examine_models,
)
from specreg.suite.preflight.machine import (
    examine_environment,
    examine_gpus,
    examine_processor,
)
from specreg.suite.preflight.scene import Scene
from specreg.suite.preflight.sensing import (
    examine_acceptance,
    examine_load,
    examine_power,
    examine_speed,
)
from specreg.suite.preflight.space import examine_disks, examine_memory, examine_port
from specreg.telemetry.devices import SENSORS, devices_of
from specreg.telemetry.identity import find_gpus
from specreg.telemetry.sensor import Device

Check = Callable[[Scene], Iterator[Finding]]

CHECKS: Mapping[str, tuple[Check, ...]] = {
    "this machine": (examine_environment, examine_processor, examine_gpus, examine_memory),
    "what can be measured": (examine_acceptance, examine_speed, examine_load, examine_power),
    "what a run needs": (
        *(examine_driver, examine_use, examine_port, examine_disks),
        *(examine_engines, examine_models, examine_datasets, examine_baselines, examine_cases),
    ),
}
"""The checks, in the order in which their findings are shown, under headings."""


def examine(scene: Scene) -> Mapping[str, tuple[Finding, ...]]:
    """All findings, by heading."""
    return {
        heading: tuple(finding for check in checks for finding in _guarded(check, scene))
        for heading, checks in CHECKS.items()
    }


def scene_of(
    load_tier: Callable[[], Tier],
    *,
    root: Path,
    runs: Path,
    baselines: Path,
    variables: Mapping[str, str],
    engine_python: str | None = None,
) -> Scene:
    """This machine, with the tier that is to run on it.

    Args:
        load_tier: reads it; what it raises becomes a finding.
        root: the repository's folder.
        runs: the folder of runs.
        baselines: theirs.
        variables: the environment.
        engine_python: an interpreter that has the engine, None where a run makes an environment.
    """
    tier, why_no_tier, gpus = None, "", find_gpus()
    try:
        tier = load_tier()
    except (SpecregError, OSError) as error:
        why_no_tier = str(error)
    on_gpu = tier.needs_gpus > 0 if tier else bool(gpus.devices)
    used = tier.gpus_used(gpus.memory_gib) if tier else len(gpus.devices)
    devices, why_no_devices = _devices(used if on_gpu else 0, variables)
    return Scene(
        root=root,
        runs=runs,
        baselines=baselines,
        tier=tier,
        why_no_tier=why_no_tier,
        gpus=gpus,
        devices=devices,
        why_no_devices=why_no_devices,
        sensors=SENSORS,
        provision=Provision(
            on_gpu=on_gpu,
            version=None,
            python=engine_python,
            url=None,
            show=lambda _: None,
            tell=lambda _: None,
        ),
        variables=variables,
    )


def _devices(gpus: int, variables: Mapping[str, str]) -> tuple[tuple[Device, ...], str]:
    try:
        return devices_of(gpus, variables), ""
    except SensorError as error:
        return (), str(error)


def _guarded(check: Check, scene: Scene) -> Iterator[Finding]:
    """What a check finds; one that breaks says so, and the others go on."""
    try:
        yield from check(scene)
    except Exception as error:  # noqa: BLE001 - whatever is broken, the rest is still worth knowing
        subject = check.__name__.removeprefix("examine_")
        says = f"couldn't be looked at: {type(error).__name__}: {error}"
        yield in_the_way(subject, says, "mend that; if it isn't yours to mend, report it")
