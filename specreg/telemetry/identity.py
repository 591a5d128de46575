"""Identify the machine that measures: its environment, its GPUs and its load."""

import functools
import hashlib
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import psutil

from specreg.core.counted import counted
from specreg.core.errors import NoGpuError, SensorError
from specreg.core.names import MAX_NAME_CHARACTERS
from specreg.core.readable import Label
from specreg.telemetry import amd
from specreg.telemetry.gpus import find_visible
from specreg.telemetry.sensor import Device, HiddenGpu

_INSTRUCTION_SETS = ("amx_tile", "avx512f", "avx2", "asimd")
"""The instruction sets for vectors, the widest first. Engines choose kernels for the widest one."""
_SHORT_INSTRUCTION_SETS = {"amx_tile": "amx", "avx512f": "avx512"}
_BYTES_PER_GB = 10**9
_BYTES_PER_GIB = 2**30
_CHECKSUM_CHARACTERS = 8
_MACHINE_CHARACTERS = 12
_MACHINE_ID = Path("/etc/machine-id")
_DeviceName = Annotated[Label, msgspec.Meta(max_length=256)]
_LOADED_FRAC = 0.5
"""The share of the cores that other programs may keep busy before a speed on processors suffers."""


class ProcessorLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of the processor before a run has started anything.

    Attributes:
        waiting: the number of processes and threads that ran or waited to run, on average over the
            last minute.
        cores: the number of cores that they share.
    """

    waiting: float
    cores: int

    @property
    def is_high(self) -> bool:
        """True if the load would keep more than half of the cores busy."""
        return self.waiting > _LOADED_FRAC * self.cores

    def __str__(self) -> str:
        return f"a load of {self.waiting:.1f} on {counted(self.cores, 'core')}"


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware that must be equal for two speeds to be comparable.

    Clocks, temperatures and host names aren't part of it.

    Attributes:
        kind: what the engine runs on: "cpu", "gpu" or "unknown".
        cpu: the name of the processor; empty for "gpu".
        instruction_set: the widest instruction set of the processor; empty for "gpu".
        cores: how many cores this process may use; 0 for "gpu".
        gpus: the names of the GPUs in use; empty for "cpu".
        gpu_memory_gb: the memory of the first GPU, in GB, rounded; 0 for "cpu", null if the driver
            doesn't report it.
        power_limit_w: the power limit of the GPUs, in W, if somebody changed it; else 0, or null if
            the driver doesn't report it.
    """

    kind: Literal["cpu", "gpu", "unknown"]
    cpu: _DeviceName = ""
    instruction_set: _DeviceName = ""
    cores: Annotated[int, msgspec.Meta(ge=0, le=2**20)] = 0
    gpus: Annotated[tuple[_DeviceName, ...], msgspec.Meta(max_length=1024)] = ()
    gpu_memory_gb: Annotated[int, msgspec.Meta(ge=0, le=2**20)] | None = 0
    power_limit_w: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = 0.0

    @property
    def name(self) -> str:
        """The name of its folder of baselines, such as `cpu-intel-xeon-2.50ghz-avx512-2c`.

        It has the memory of a GPU in GiB, as in the names that vendors give their GPUs:
        `h100-80gb-hbm3-x1`. A name that is too long for the grammar of `core.names` is cut, and
        ends in a checksum of the whole name.
        """
        name = self._full_name
        if len(name) <= MAX_NAME_CHARACTERS:
            return name
        checksum = hashlib.sha256(name.encode()).hexdigest()[:_CHECKSUM_CHARACTERS]
        beginning = name[: MAX_NAME_CHARACTERS - len(checksum) - 1]
        return f"{beginning}-{checksum}"

    @property
    def _full_name(self) -> str:
        if self.kind == "gpu":
            return self._full_name_of_gpus
        if self.kind == "unknown":
            return self.kind
        return f"cpu-{_slug(self.cpu)}-{_slug(self.instruction_set)}-{self.cores}c"

    @property
    def _full_name_of_gpus(self) -> str:
        models = "-".join(_slug(name) for name in dict.fromkeys(self.gpus))
        name = re.sub(r"\bnvidia-", "", models)

        # Most vendors' names contain the size of the memory.
        if self.gpu_memory_gb is not None and not re.search(r"\dgb\b", name):
            memory_gib = round(self.gpu_memory_gb * _BYTES_PER_GB / _BYTES_PER_GIB)
            name += f"-{memory_gib}gb"
        if self.power_limit_w:
            name += f"-{self.power_limit_w:.0f}w"
        return f"{name}-x{len(self.gpus)}"


UNKNOWN_ENVIRONMENT = Environment(kind="unknown")
"""The environment of a server on another machine, or on a GPU whose name isn't known. Its speeds
can't be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs that a process sees.

    Attributes:
        devices: the GPUs, in the order in which engines take them.
        why_none: why the process sees no GPU; empty if it sees one.
        is_unusable: True if the machine may have GPUs, but the driver or the GPUs don't work.
        hidden: the GPUs that can't be used although others can.
    """

    devices: tuple[Device, ...]
    why_none: str
    is_unusable: bool = False
    hidden: tuple[HiddenGpu, ...] = ()

    @property
    def memory_gib(self) -> tuple[float | None, ...]:
        """The memory of each GPU, in GiB; None if it isn't known.

        A GPU that is part of a processor uses the memory of the machine.
        """
        return tuple(_memory_gib(device) for device in self.devices)

    def with_memory(self, memory_gib: float | None) -> "Gpus":
        """Return the GPUs, with a given memory for those whose driver doesn't report it.

        Args:
            memory_gib: the memory of each GPU, in GiB; None to leave it unknown.
        """
        if memory_gib is None:
            return self
        memory_bytes = round(memory_gib * _BYTES_PER_GIB)
        devices = tuple(
            msgspec.structs.replace(device, memory_bytes=device.memory_bytes or memory_bytes)
            for device in self.devices
        )
        return replace(self, devices=devices)

    def check_usable(self) -> None:
        """Check that the driver works, if there is one.

        Raises:
            SensorError: the driver or the GPUs can't be used.
        """
        if self.is_unusable:
            raise SensorError(self.why_none)

    @property
    def are_amd(self) -> bool:
        """True if the GPUs are AMD's, for which engines have builds of their own."""
        return any(device.sensor == amd.SENSOR for device in self.devices)

    @property
    def driver_version(self) -> str:
        """The version of the driver of all GPUs; empty without a GPU or if it isn't reported."""
        return self.devices[0].driver_version if self.devices else ""


def _memory_gib(device: Device) -> float | None:
    memory_bytes = device.memory_bytes
    if memory_bytes is None and device.shares_memory:
        memory_bytes = psutil.virtual_memory().total
    return None if memory_bytes is None else memory_bytes / _BYTES_PER_GIB


def current_environment(*, gpus: int) -> Environment:
    """Return the environment of cases on this machine: of its GPUs, or else of its processors.

    If a GPU doesn't report its name, the environment is `UNKNOWN_ENVIRONMENT`.

    Args:
        gpus: the number of GPUs that the cases use; 0 for cases that run on processors, even if the
            machine has a GPU.
    """
    devices = find_gpus().devices[:gpus]
    if not all(device.name for device in devices):
        # Without the name of a GPU, its speed can't be compared with any other.
        return UNKNOWN_ENVIRONMENT
    if devices:
        memory_bytes = devices[0].memory_bytes
        return Environment(
            kind="gpu",
            gpus=tuple(device.name for device in devices),
            gpu_memory_gb=None if memory_bytes is None else round(memory_bytes / _BYTES_PER_GB),
            power_limit_w=_power_limit_w(devices),
        )

    cpu, instruction_set = _read_cpu(Path("/proc/cpuinfo"))
    cores = len(os.sched_getaffinity(0))
    return Environment(kind="cpu", cpu=cpu, instruction_set=instruction_set, cores=cores)


def machine_identity(gpus: Gpus, machine_id: Path = _MACHINE_ID) -> str:
    """Return a checksum that tells this machine from others of its kind; empty if nothing does.

    Args:
        gpus: the GPUs that the process sees. Without any, the machine's processors measure.
        machine_id: the file with the id of the installation.
    """
    ids = sorted(device.id for device in gpus.devices)
    if not ids and machine_id.is_file():
        ids = [machine_id.read_text(errors="replace").strip()]
    text = " ".join(ids)
    return hashlib.sha256(text.encode()).hexdigest()[:_MACHINE_CHARACTERS] if text else ""


def _power_limit_w(devices: Sequence[Device]) -> float | None:
    """Return the lowest of the power limits that somebody has changed.

    Returns:
        The limit in W; 0 if all limits are the vendor's defaults; None if the limit of a GPU isn't
        known and no other was changed.
    """
    limits_w = [device.limit_w for device in devices]
    changed_w = [limit_w for limit_w in limits_w if limit_w]
    if changed_w:
        return min(changed_w)
    return None if None in limits_w else 0.0


@functools.cache
def find_gpus() -> Gpus:
    """Return the GPUs that this process sees, according to their driver.

    The answer to the first call is kept, so it still has the GPUs that a claim hides later.
    """
    try:
        gpus = find_visible(os.environ)
    except NoGpuError as error:
        return Gpus(devices=(), why_none=str(error))
    except SensorError as error:
        return Gpus(devices=(), why_none=str(error), is_unusable=True)
    return Gpus(devices=gpus.devices, why_none="", hidden=gpus.hidden)


def _read_cpu(cpuinfo: Path) -> tuple[str, str]:
    """Return the processor's name and its widest instruction set."""
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""

    # An Arm processor has no model name here, and calls its flags features.
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = model.group(1).strip() if model else platform.machine()
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    features = flags.group(1).split() if flags else []
    widest = "scalar"
    for instruction_set in _INSTRUCTION_SETS:
        if instruction_set in features:
            widest = instruction_set
            break

    return name, _SHORT_INSTRUCTION_SETS.get(widest, widest)


def _slug(name: str) -> str:
    """Return a device's name in the form of a name of a folder, without trademarks."""
    plain = re.sub(r"\((?:R|TM|C)\)|\b(?:CPU|Processor)\b|@", " ", name, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9.]+", "-", plain.lower()).strip("-")
