"""What an examination looks at."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specreg.core.errors import UnsupportedError
from specreg.engines._engine import Requirement
from specreg.matrix.case import Case, ServerSpec, Tier
from specreg.servers.provision import Provision
from specreg.telemetry.identity import Environment, Gpus, current_environment
from specreg.telemetry.sensor import Device, Sensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is examined.

    Attributes:
        root: the repository's; runs: the folder of what each run leaves; baselines: theirs.
        tier: that is to run; None where it can't be read, and why_no_tier says why.
        gpus: in sight.
        devices: whose power a run measures; none where why_no_devices says why.
        sensors: what reads them, by name.
        provision: where its engines come from.
        variables: the environment.
    """

    root: Path
    runs: Path
    baselines: Path
    tier: Tier | None
    why_no_tier: str
    gpus: Gpus
    devices: tuple[Device, ...]
    why_no_devices: str
    sensors: Mapping[str, Sensor]
    provision: Provision
    variables: Mapping[str, str]

    @property
    def on_gpu(self) -> bool:
        """Whether the engines run on GPUs."""
        return self.provision.on_gpu

    @property
    def environment(self) -> Environment:
        """This machine, as its baselines name it."""
        gpus = len(self.gpus.devices)
        used = self.tier.gpus_used(self.gpus.memory_gib) if self.tier else gpus
        return current_environment(needs_gpus=used)

    @property
    def skipped(self) -> Mapping[str, str]:
        """By case that a run leaves out, what it needs; all of them where the tier does."""
        if self.tier is None:
            return {}
        there, needed = len(self.gpus.devices), self.tier.needs_gpus
        if there < needed:
            lack = f"tier '{self.tier.name}' needs {needed} GPU(s), this machine has {there}"
            return {case.id: lack for case in self.tier.cases}
        return self.tier.unmet(self.gpus.memory_gib)

    @property
    def running(self) -> tuple[Case, ...]:
        """The cases that a run doesn't leave out."""
        cases = self.tier.cases if self.tier else ()
        return tuple(case for case in cases if case.id not in self.skipped)

    @property
    def servers(self) -> tuple[ServerSpec, ...]:
        """The servers of those."""
        return tuple(dict.fromkeys(case.server for case in self.running))

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """What a run installs, each once; without the engines that don't run here."""
        return tuple(dict.fromkeys(self._requirements()))

    def _requirements(self) -> Iterable[Requirement]:
        for spec in self.servers:
            try:
                yield self.provision.requirement(spec)
            except UnsupportedError:  # as the finding on its cases says
                continue
