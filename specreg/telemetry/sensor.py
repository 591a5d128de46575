"""A device, and what its sensor tells of it."""

import enum
from collections.abc import Mapping
from typing import Protocol

import msgspec

SCRIPTED = "Scripted"
"""How the name of a test's device begins; no baseline is written from one."""


class Scope(enum.StrEnum):
    """Whose power a device's figures are: a GPU's, its module's with a processor, a processor's."""

    GPU = "gpu"
    MODULE = "module"
    PACKAGE = "package"


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU or a processor; None and empty for what its driver doesn't say.

    Attributes:
        sensor: What reads it, nvml or rapl.
        id: Unique and constant, such as a GPU's UUID.
        number: Its place in the driver's order, from 0.
        limit_w: A power limit that isn't the vendor's; 0 where it is the vendor's.
        shares_memory: True if it has no memory of its own and uses the machine's.
        bus_id: As Linux writes it, 0000:1b:00.0.
        why_not: Why its power can't be read; empty where it can.
    """

    sensor: str
    id: str
    name: str
    number: int
    scope: Scope
    limit_w: float | None = None
    memory_bytes: int | None = None
    shares_memory: bool = False
    driver_version: str = ""
    bus_id: str = ""
    why_not: str = ""


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device at a moment; None for what it doesn't say.

    Attributes:
        average_mw: the power over the last second; instant_mw: at this moment.
        throttle_mask: why its clocks are lowered, as NVML's bits.
        utilisation_frac: share of the time in which it computed, 0..1.
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
    """Reads one device; None for what it doesn't tell. Raises SensorError once it is gone."""

    def energy_mj(self) -> int | None:
        """Read the counter of all energy drawn."""
        return None

    def state(self) -> State:
        """Read everything else that changes."""
        return State()

    def processes(self) -> Mapping[int, int | None] | None:
        """List the processes that compute on it, each with the bytes of its memory it holds."""
        return None
