"""The types of a device, of its state, and of the probe that reads it."""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from specreg.core.readable import Label

SCRIPTED = "Scripted"
"""The prefix of the names of test devices, from which no baseline is written."""


class Scope(enum.StrEnum):
    """The hardware whose power a device reports.

    Attributes:
        GPU: the GPU alone.
        MODULE: a module with a GPU and a processor.
        PACKAGE: a processor.
    """

    GPU = "gpu"
    MODULE = "module"
    PACKAGE = "package"


MAX_PLAUSIBLE_MEMORY_BYTES = 2**50
"""The largest figure that is taken for the memory of a device. A larger one isn't its memory."""


def number_in(word: str) -> int | None:
    """Parse one entry of a variable such as CUDA_VISIBLE_DEVICES as the index of a GPU.

    Returns:
        The index; None if the entry isn't a number.
    """
    # `str.isdigit` would accept `²` too, which `int` refuses.
    return int(word) if re.fullmatch(r"[0-9]{1,9}", word) else None


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU or a processor. A field is None or empty if the driver doesn't report it.

    Attributes:
        sensor: the interface that reads it: nvml, amdsmi or rapl.
        id: a unique and constant id, such as a GPU's UUID.
        name: the name of its model, or of a RAPL counter, as the driver reports it.
        number: its index, from 0, in the order of NVML, HIP or RAPL.
        scope: what its power covers.
        limit_w: the power limit, in W, if somebody has changed it; 0 if it is the vendor's default.
        highest_limit_w: the power limit or the vendor's, in W, whichever is higher. It is of the
            same scope as the power.
        memory_bytes: the size of its memory.
        shares_memory: True if it has no memory of its own and uses that of the machine.
        driver_version: the version of its driver.
        bus_id: its PCI address as Linux writes it, 0000:1b:00.0.
        why_not: why its power can't be read; empty if it can.
    """

    sensor: str
    id: Label
    name: Label
    number: int
    scope: Scope
    limit_w: float | None = None
    highest_limit_w: float | None = None
    memory_bytes: int | None = None
    shares_memory: bool = False
    driver_version: str = ""
    bus_id: str = ""
    why_not: str = ""

    @property
    def selector(self) -> str:
        """The environment variable by which a user chooses GPUs of its vendor."""
        return "HIP_VISIBLE_DEVICES" if self.sensor == "amdsmi" else "CUDA_VISIBLE_DEVICES"

    @property
    def limit_reset(self) -> str:
        """The command that brings the vendor's power limit back. It has to be run as root."""
        if self.sensor == "amdsmi":
            return "amd-smi reset --power-cap"
        return "nvidia-smi -pl WATTS, with the default that nvidia-smi -q -d POWER shows"


def changed_limit(limits_w: tuple[float, ...]) -> float | None:
    """Return the power limit of a GPU if somebody has changed it.

    Args:
        limits_w: its limit and the vendor's default; empty if one of them isn't known.

    Returns:
        The limit in W; 0 if the vendor's default holds, None if it isn't known.
    """
    if not limits_w:
        return None
    limit_w, vendor_limit_w = limits_w
    return 0.0 if limit_w == vendor_limit_w else limit_w


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenGpu:
    """A GPU that is installed and can't be used.

    Attributes:
        number: its index in the driver's order, from 0.
        reason: why it can't be used, and what to do about it.
    """

    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleGpus:
    """The GPUs of a process.

    Attributes:
        devices: the GPUs that it can use, in the order in which engines count them.
        hidden: the GPUs that it can't use.
    """

    devices: tuple[Device, ...]
    hidden: tuple[HiddenGpu, ...]


class DeviceState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a device at a moment. A field is None if the device doesn't report it.

    Attributes:
        average_mw: the average power over the last second; on some cards the power at this moment.
        instant_mw: the power at this moment.
        sm_clock_mhz: the clock of its processors.
        memory_clock_mhz: the clock of its memory.
        temperature_c: its temperature.
        throttle_mask: why its clocks are lowered, as NVML's bits.
        utilisation_frac: the share of the time in which it computed, from 0 to 1.
        used_bytes: the memory in use.
    """

    average_mw: int | None = None
    instant_mw: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle_mask: int | None = None
    utilisation_frac: float | None = None
    used_bytes: int | None = None


class Probe(Protocol):
    """Reads one device.

    A value is None if the device doesn't report it. A method may raise a SensorError once the
    device is gone.
    """

    def energy_mj(self) -> int | None:
        """Read the energy counter, in mJ since some moment in the past."""
        return None

    def state(self) -> DeviceState:
        """Read the current power, clocks, temperature, utilisation and memory."""
        return DeviceState()

    def processes(self) -> Mapping[int, int | None] | None:
        """Return the memory in bytes of each process that computes on the device, by process id.

        The memory is None if the driver hides it.
        """
        return None
