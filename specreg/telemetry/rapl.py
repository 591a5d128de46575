"""RAPL: the energy counters of x86 processors, where Linux allows to read them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.core.errors import SensorError
from specreg.telemetry.sensor import Device, Probe, Scope, Sensor

_UJ_PER_MJ = 1000
_ID_LENGTH = 12


@dataclass(slots=True)
class _Package(Probe):
    """Reads a package; adds up what is lost where its counter wraps around at `range_uj`."""

    counter: Path
    range_uj: int
    _last_uj: int = 0
    _wrapped_uj: int = 0

    def energy_mj(self) -> int:
        try:
            now_uj = int(self.counter.read_text())
        except (OSError, ValueError) as error:
            message = f"'{self.counter}': can't be read any more, {error}; measure again"
            raise SensorError(message) from error
        if now_uj < self._last_uj:
            self._wrapped_uj += self.range_uj
        self._last_uj = now_uj
        return (self._wrapped_uj + now_uj) // _UJ_PER_MJ


@dataclass(slots=True, kw_only=True)
class Rapl(Sensor):
    """The processor packages below a folder.

    Attributes:
        folder: of the kernel's power capping.
        machine: the file that tells this machine from others.
    """

    folder: Path = Path("/sys/class/powercap")
    machine: Path = Path("/etc/machine-id")
    name: str = "rapl"
    of_gpus: bool = False

    def find(self, variables: Mapping[str, str]) -> Sequence[Device]:
        """List the packages; their parts (cores, memory) and the whole (psys) are left out.

        Raises:
            SensorError: the kernel shows none, as in most virtual machines.
        """
        del variables
        found = sorted(self.folder.glob("intel-rapl:[0-9]*"))
        packages = [path for path in found if _read(path / "name").startswith("package")]
        if not packages:
            raise SensorError(
                f"RAPL: no processor's energy counter in '{self.folder}', as in most virtual"
                " machines; measure on bare metal"
            )
        return tuple(self._device(number, path) for number, path in enumerate(packages))

    def open(self, device: Device) -> Probe:
        """Return what reads a package.

        Raises:
            SensorError: it can't be read.
        """
        folder = self.folder / device.id.partition("-of-")[0]
        range_uj = _read(folder / "max_energy_range_uj")
        if not range_uj.isdigit():
            message = f"RAPL: '{folder}': doesn't say where its counter wraps around"
            raise SensorError(f"{message}; update the kernel")
        probe = _Package(counter=folder / "energy_uj", range_uj=int(range_uj))
        probe.energy_mj()
        return probe

    def _device(self, number: int, folder: Path) -> Device:
        machine = self.machine.read_bytes() if self.machine.is_file() else b""
        counter = folder / "energy_uj"
        denied = (
            f"RAPL: no permission to read '{counter}'; have root give it to a group of yours (not"
            " to all: it lets programs spy on one another, CVE-2020-8694)"
        )
        return Device(
            sensor=self.name,
            id=f"{folder.name}-of-{hashlib.sha256(machine).hexdigest()[:_ID_LENGTH]}",
            name=_read(folder / "name"),
            number=number,
            scope=Scope.PACKAGE,
            why_not="" if _read(counter) else denied,
        )


def _read(path: Path) -> str:
    """Read a file of the kernel; empty where that fails."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


SENSOR = Rapl()
