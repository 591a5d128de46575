"""Read RAPL, the energy counters of x86 processors, where Linux allows it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from specreg.core.errors import SensorError
from specreg.telemetry.sensor import Device, Probe, Scope

_UJ_PER_MJ = 1000
_UW_PER_W = 10**6
_MACHINE_ID_CHARACTERS = 12
POWERCAP = Path("/sys/class/powercap")
_DENIED = (
    "RAPL: no permission to read '{}'; as root, let one group that you belong to read it (not"
    " everybody, because the counter lets programs spy on one another, CVE-2020-8694)"
)


@dataclass(slots=True)
class _Package(Probe):
    """Reads the energy counter of a processor, which starts again from 0 at its largest value.

    Attributes:
        counter: the kernel's file of the counter.
        range_uj: the value at which the counter starts again.
        _last_uj: the value at the last read.
        _wrapped_uj: the energy of all passes of the counter that have ended.
    """

    counter: Path
    range_uj: int
    _last_uj: int = 0
    _wrapped_uj: int = 0

    def energy_mj(self) -> int:
        try:
            energy_uj = int(self.counter.read_text())
        except (OSError, ValueError) as error:
            message = f"'{self.counter}': can't be read any more, {error}; measure again"
            raise SensorError(message) from error

        if energy_uj < self._last_uj:
            self._wrapped_uj += self.range_uj
        self._last_uj = energy_uj
        return (self._wrapped_uj + energy_uj) // _UJ_PER_MJ


def find(folder: Path = POWERCAP, machine: Path = Path("/etc/machine-id")) -> tuple[Device, ...]:
    """Return the processors of this machine.

    Args:
        folder: the kernel's folder of energy counters.
        machine: the file with this machine's unique id.

    Raises:
        SensorError: the kernel shows no processor, as in most virtual machines.
    """
    # RAPL calls a processor a package. Parts of a processor (cores, memory) and the whole machine
    # (psys) have counters too, which are left out so that no energy counts twice.
    packages: list[tuple[Path, str]] = []
    for path in sorted(folder.glob("intel-rapl:[0-9]*")):
        name = _read(path / "name")
        if name.startswith("package"):
            packages.append((path, name))

    if not packages:
        raise SensorError(
            f"RAPL: no processor's energy counter in '{folder}', as in most virtual"
            " machines; measure on bare metal"
        )

    # The kernel numbers processors from 0 on each machine, so the id of a device also has a hash of
    # the machine's id.
    machine_id = machine.read_bytes() if machine.is_file() else b""
    machine_hash = hashlib.sha256(machine_id).hexdigest()[:_MACHINE_ID_CHARACTERS]
    devices: list[Device] = []
    for number, (path, name) in enumerate(packages):
        counter = path / "energy_uj"
        device = Device(
            sensor="rapl",
            id=f"{path.name}-of-{machine_hash}",
            name=name,
            number=number,
            scope=Scope.PACKAGE,
            highest_limit_w=_highest_limit_w(path),
            why_not="" if _read(counter) else _DENIED.format(counter),
        )
        devices.append(device)

    return tuple(devices)


def open_probe(device: Device, folder: Path = POWERCAP) -> Probe:
    """Return a probe that reads the energy of a processor.

    Raises:
        SensorError: the counter, or the value at which it starts again, can't be read.
    """
    package = folder / device.id.partition("-of-")[0]
    range_uj = _read(package / "max_energy_range_uj")
    if not range_uj.isdigit():
        message = f"RAPL: '{package}': doesn't say the value at which its counter starts again"
        raise SensorError(f"{message}; update the kernel")
    probe = _Package(counter=package / "energy_uj", range_uj=int(range_uj))
    probe.energy_mj()
    return probe


def _highest_limit_w(package: Path) -> float | None:
    """Return the highest power limit of a processor, in W; None if it has none, as AMD's.

    It is the limit for moments as a rule, which is above the one for a longer time.
    """
    texts = [_read(path) for path in package.glob("constraint_*_power_limit_uw")]
    limits_w = [int(text) / _UW_PER_W for text in texts if text.isdigit() and int(text)]
    return max(limits_w, default=None)


def _read(path: Path) -> str:
    """Return the text of a kernel file; empty if it can't be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
