"""What a sensor is: it finds the devices of one vendor, and says what one of them draws."""

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

SCRIPTED = "Scripted"
"""How the name of a device begins that the tests made up; no baseline is written from one."""


class Scope(enum.StrEnum):
    """Whose power a device's figures are."""

    GPU = "gpu"
    MODULE = "module"
    PACKAGE = "package"


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Something whose power can be read, or why it can't.

    Attributes:
        sensor: the name of the one that reads it.
        id: the same on every day and for nobody else: a GPU's UUID.
        name: as the vendor calls it.
        number: by the driver's order, from 0.
        scope: of its figures: the GPU, its module with a processor on it, a processor's package.
        limit_w: the power that somebody holds it to; 0 where it is the vendor's, or nobody says.
        memory_bytes: of all its memory; bandwidth_gib_per_s: how fast it reads that, by its clock
            and the width of its bus. 0 where nobody says.
        driver_version: of what it is read with.
        bus_id: where it sits, as Linux calls it, 0000:1b:00.0; empty where nobody says.
        why_not: why its power can't be read, empty where it can.
    """

    sensor: str
    id: str
    name: str
    number: int
    scope: Scope
    limit_w: float = 0.0
    memory_bytes: int = 0
    bandwidth_gib_per_s: float = 0.0
    driver_version: str = ""
    bus_id: str = ""
    why_not: str = ""


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device at a moment; None for what it doesn't say.

    Attributes:
        average_mw: the power over the last second; instant_mw: at this moment.
        throttle_mask: why its clocks aren't what they could be, as NVML's bits.
        utilisation_frac: share of the time in which it did anything, 0..1.
        used_bytes: of its memory.
    """

    average_mw: int | None = None
    instant_mw: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle_mask: int | None = None
    utilisation_frac: float | None = None
    used_bytes: int | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody may have set a device to, and what it comes with; None for what nobody says.

    Attributes:
        limit_w: the power that it is held to; own_limit_w: the vendor's.
        sm_clock_mhz: the clock that is asked of it; own_sm_clock_mhz: the vendor's.
        persistent: whether its driver stays loaded while nobody uses it.
        sliced: whether it is cut into slices (MIG).
    """

    limit_w: float | None = None
    own_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    own_sm_clock_mhz: int | None = None
    persistent: bool | None = None
    sliced: bool | None = None


class Probe(Protocol):
    """Reads one device. Each method is quick, and raises SensorError when the device is gone."""

    def energy_mj(self) -> int | None:
        """A counter of all that was drawn; None where there is none."""
        ...

    def state(self) -> State:
        """Everything else."""
        ...

    def pids(self) -> Sequence[int] | None:
        """The processes that compute on it; None where nobody says."""
        ...

    def settings(self) -> Settings:
        """What it is set to."""
        ...


@runtime_checkable
class Sensor(Protocol):
    """Finds devices and opens them.

    Attributes:
        name: by which a sampler in another process finds it again.
        of_gpus: whether its devices are GPUs, not processors.
    """

    @property
    def name(self) -> str:
        """See above."""
        ...

    @property
    def of_gpus(self) -> bool:
        """See above."""
        ...

    def find(self, variables: Mapping[str, str]) -> Sequence[Device]:
        """The devices that a process with these environment variables sees, in its order.

        Raises:
            SensorError: there is none, with the reason.
        """
        ...

    def open(self, device: Device) -> Probe:
        """What reads a device.

        Raises:
            SensorError: it isn't there any more.
        """
        ...
