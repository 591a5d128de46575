"""RAPL: the energy counters of x86 processors, where Linux lets us read them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.core.errors import SensorError
from specreg.telemetry.sensors._sensor import Device, Probe, Scope, Settings, State

_UJ_PER_MJ = 1000
_ID_LENGTH = 12


@dataclass(slots=True)
class _Package:
    """Reads a package; its counter goes back to 0 at `range_uj`, which this one doesn't."""

    counter: Path
    range_uj: int
    _last_uj: int = 0
    _wrapped_uj: int = 0

    def energy_mj(self) -> int:
        try:
            now_uj = int(self.counter.read_text())
        except (OSError, ValueError) as error:
            raise SensorError(f"'{self.counter}': can't be read any more, {error}") from error
        if now_uj < self._last_uj:
            self._wrapped_uj += self.range_uj
        self._last_uj = now_uj
        return (self._wrapped_uj + now_uj) // _UJ_PER_MJ

    def state(self) -> State:
        return State()

    def pids(self) -> None:
        return None

    def settings(self) -> Settings:
        return Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rapl:
    """The packages below a folder; a machine that has none, or hides them, says so.

    Attributes:
        folder: of the kernel's power capping.
        machine: the file that tells this machine from others.
    """

    folder: Path = Path("/sys/class/powercap")
    machine: Path = Path("/etc/machine-id")
    name: str = "rapl"
    of_gpus: bool = False

    def find(self, variables: Mapping[str, str]) -> Sequence[Device]:
        """The packages. Their parts (cores, memory) are left out: a package has them in.

        Raises:
            SensorError: the kernel shows none, which is so in most virtual machines.
        """
        del variables
        packages = sorted(self.folder.glob("intel-rapl:[0-9]*"))
        # Besides packages there may be psys, the whole machine, which has them in.
        found = [path for path in packages if _says(path, "name").startswith("package")]
        if not found:
            message = (
                f"RAPL: no processor's energy counter in '{self.folder}', as in most virtual"
                " machines; measure on bare metal"
            )
            raise SensorError(message)
        return tuple(self._device(number, path) for number, path in enumerate(found))

    def open(self, device: Device) -> Probe:
        """What reads a package.

        Raises:
            SensorError: it can't be read.
        """
        folder = self.folder / device.id.partition("-of-")[0]
        range_uj = _says(folder, "max_energy_range_uj")
        if not range_uj.isdigit():
            raise SensorError(f"RAPL: '{folder}': doesn't say where its counter wraps around")
        probe = _Package(counter=folder / "energy_uj", range_uj=int(range_uj))
        probe.energy_mj()
        return probe

    def _device(self, number: int, folder: Path) -> Device:
        machine = self.machine.read_bytes() if self.machine.is_file() else b""
        whose = hashlib.sha256(machine).hexdigest()[:_ID_LENGTH]
        why_not = ""
        if not _says(folder, "energy_uj"):
            why_not = (
                f"RAPL: no permission to read '{folder / 'energy_uj'}';"
                " have root give it to a group of yours (not to all: it lets programs spy on one"
                " another, CVE-2020-8694)"
            )
        return Device(
            sensor=self.name,
            id=f"{folder.name}-of-{whose}",
            name=_says(folder, "name"),
            number=number,
            scope=Scope.PACKAGE,
            why_not=why_not,
        )


def _says(folder: Path, name: str) -> str:
    """What a file of the kernel says; empty where it can't be read."""
    try:
        return (folder / name).read_text().strip()
    except OSError:
        return ""


SENSOR = Rapl()
