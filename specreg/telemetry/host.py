"""A site: what a machine says of itself, for whoever has it measure from elsewhere."""

import os

import msgspec

from specreg.core.errors import SensorError
from specreg.telemetry.identity import (
    Environment,
    Gpus,
    cpu_environment,
    find_gpus,
    gpu_environment,
)
from specreg.telemetry.power.devices import devices_of
from specreg.telemetry.sensors import Device


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A machine.

    Attributes:
        cpu: its environment where no GPU is used.
        gpus: that may be used, in the order in which engines take them; why_none: why there are
            none.
        processors: those that tell what they draw; why_dark: why none does.
    """

    cpu: Environment
    gpus: tuple[Device, ...] = ()
    why_none: str = ""
    processors: tuple[Device, ...] = ()
    why_dark: str = ""

    @property
    def found(self) -> Gpus:
        """Its GPUs, as `find_gpus` gives them."""
        return Gpus(devices=self.gpus, why_none=self.why_none)

    def environment(self, *, needs_gpus: int) -> Environment:
        """See `current_environment`."""
        return gpu_environment(self.gpus[:needs_gpus]) if needs_gpus and self.gpus else self.cpu

    def devices(self, gpus: int) -> tuple[Device, ...]:
        """See `devices_of`.

        Raises:
            SensorError: there are fewer, or nothing shows them.
        """
        if gpus > len(self.gpus):
            raise SensorError(self.why_none or f"there are {len(self.gpus)} of {gpus} GPUs")
        if not gpus and not self.processors:
            raise SensorError(self.why_dark)
        return self.gpus[:gpus] if gpus else self.processors


def this_site() -> Site:
    """This machine."""
    gpus = find_gpus()
    try:
        processors, why_dark = devices_of(0, os.environ), ""
    except SensorError as error:
        processors, why_dark = (), str(error)
    return Site(
        cpu=cpu_environment(),
        gpus=gpus.devices,
        why_none=gpus.why_none,
        processors=processors,
        why_dark=why_dark,
    )
