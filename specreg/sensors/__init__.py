"""The sensors of power, one module each: what a machine's devices are, and what they draw.

A public module here defines `SENSOR`; the catalogue finds it.
"""

import sys
from collections.abc import Mapping

from specreg.catalog import load_catalog
from specreg.sensors._sensor import SCRIPTED, Device, Probe, Scope, Sensor, Settings, State

__all__ = ["SCRIPTED", "SENSORS", "Device", "Probe", "Scope", "Sensor", "Settings", "State"]

SENSORS: Mapping[str, Sensor] = load_catalog(sys.modules[__name__], "SENSOR", Sensor)  # type: ignore[type-abstract]
