"""RAPL: the energy counters of x86 processors, where Linux allows to read them."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from specreg.core.errors import SensorError
from specreg.telemetry.sensor import Device, Probe, Scope

_UJ_PER_MJ = 1000
_ID_LENGTH = 12
FOLDER = Path("/sys/class/powercap")
_DENIED = (
    "RAPL: no permission to read '{}'; have root give it to a group of yours (not to all: it lets"
    " programs spy on one another, CVE-2020-8694)"
)


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


def find(folder: Path = FOLDER, machine: Path = Path("/etc/machine-id")) -> tuple[Device, ...]:
    """List the packages; their parts (cores, memory) and the whole (psys) are left out.

    `machine` is the file that tells this machine from others.

    Raises:
        SensorError: the kernel shows no package, as in most virtual machines.
    """
    found = [(path, _read(path / "name")) for path in sorted(folder.glob("intel-rapl:[0-9]*"))]
    packages = [(path, name) for path, name in found if name.startswith("package")]
    if not packages:
        raise SensorError(
            f"RAPL: no processor's energy counter in '{folder}', as in most virtual"
            " machines; measure on bare metal"
        )
    place = hashlib.sha256(machine.read_bytes() if machine.is_file() else b"").hexdigest()
    return tuple(
        Device(
            sensor="rapl",
            id=f"{path.name}-of-{place[:_ID_LENGTH]}",
            name=name,
            number=number,
            scope=Scope.PACKAGE,
            why_not="" if _read(path / "energy_uj") else _DENIED.format(path / "energy_uj"),
        )
        for number, (path, name) in enumerate(packages)
    )


def open_probe(device: Device, folder: Path = FOLDER) -> Probe:
    """Return what reads a package; SensorError if it can't be read."""
    package = folder / device.id.partition("-of-")[0]
    range_uj = _read(package / "max_energy_range_uj")
    if not range_uj.isdigit():
        message = f"RAPL: '{package}': doesn't say where its counter wraps around"
        raise SensorError(f"{message}; update the kernel")
    probe = _Package(counter=package / "energy_uj", range_uj=int(range_uj))
    probe.energy_mj()
    return probe


def _read(path: Path) -> str:
    """Read a file of the kernel; empty where that fails."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
