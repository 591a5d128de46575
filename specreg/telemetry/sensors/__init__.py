"""The sensors of power, one module each: what a machine's devices are, and what they draw.

A module here defines `SENSOR`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from specreg.telemetry.sensors import nvml, rapl
from specreg.telemetry.sensors._sensor import (
    SCRIPTED,
    Device,
    Probe,
    Scope,
    Sensor,
    Settings,
    State,
)

__all__ = ["SCRIPTED", "SENSORS", "Device", "Probe", "Scope", "Sensor", "Settings", "State"]

_ALL: tuple[Sensor, ...] = (nvml.SENSOR, rapl.SENSOR)
SENSORS: Mapping[str, Sensor] = MappingProxyType({one.name: one for one in _ALL})
