"""The machine that measures: its stable facts, and the name of the environment they make."""

import functools
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pynvml

# The widest vector unit decides the kernels that a CPU engine picks.
_INSTRUCTION_SETS = ("amx_tile", "avx512f", "avx2", "asimd")
_SHORT = {"amx_tile": "amx", "avx512f": "avx512"}
_BYTES_PER_GB = 10**9
_BYTES_PER_GIB = 2**30
_HZ_PER_MHZ = 10**6
_BITS_PER_BYTE = 8
_TRANSFERS_PER_CLOCK = 2  # double data rate


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What must be equal for two speeds to be comparable. No clocks, temperatures, host names.

    Attributes:
        kind: "cpu" or "gpu", what the engine runs on; "unknown" where nobody can tell.
        cpu: the processor's name; `instruction_set`: its widest; `cores`: that we may use. Empty
            and 0 for "gpu".
        gpus: the names of the GPUs in use; `gpu_memory_gb`: of the first, rounded. Empty and 0
            for "cpu".
    """

    kind: str
    cpu: str = ""
    instruction_set: str = ""
    cores: int = 0
    gpus: tuple[str, ...] = ()
    gpu_memory_gb: int = 0

    @property
    def name(self) -> str:
        """The folder of its baselines, `cpu-intel-xeon-2.50ghz-avx512-2c` for instance."""
        if self.kind == "gpu":
            names = "-".join(_slug(name) for name in dict.fromkeys(self.gpus))
            return f"gpu-{names}-{self.gpu_memory_gb}gb-x{len(self.gpus)}"
        if self.kind == "unknown":
            return self.kind
        return f"cpu-{_slug(self.cpu)}-{self.instruction_set}-{self.cores}c"


UNKNOWN_ENVIRONMENT = Environment(kind="unknown")
"""Of a server that somebody else runs elsewhere: no speed is comparable with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs that NVML shows.

    Attributes:
        names: of each; memory_bytes: of each.
        why_none: why there are none, empty where there are.
        driver_version: of all.
        bandwidth_gib_per_s: how fast the first one reads its memory, by its clock and the width of
            its bus; 0 where it doesn't say.
    """

    names: tuple[str, ...]
    memory_bytes: tuple[int, ...]
    why_none: str
    driver_version: str = ""
    bandwidth_gib_per_s: float = 0.0

    @property
    def memory_gib(self) -> tuple[float, ...]:
        """The memory of each."""
        return tuple(each / _BYTES_PER_GIB for each in self.memory_bytes)


def current_environment(*, needs_gpus: int) -> Environment:
    """This machine, as the environment of cases that use so many of its GPUs; 0 for none."""
    gpus = find_gpus()
    if needs_gpus and gpus.names:
        memory_gb = round(gpus.memory_bytes[0] / _BYTES_PER_GB)
        return Environment(kind="gpu", gpus=gpus.names[:needs_gpus], gpu_memory_gb=memory_gb)
    cpu, instruction_set = _read_cpu(Path("/proc/cpuinfo"))
    return Environment(
        kind="cpu", cpu=cpu, instruction_set=instruction_set, cores=len(os.sched_getaffinity(0))
    )


@functools.cache
def find_gpus() -> Gpus:
    """The NVIDIA GPUs of this machine, by their driver."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = tuple(pynvml.nvmlDeviceGetName(handle) for handle in handles)
        memory = tuple(pynvml.nvmlDeviceGetMemoryInfo(handle).total for handle in handles)
        driver = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as error:
        return Gpus(names=(), memory_bytes=(), why_none=f"NVML: {error}")
    return Gpus(
        names=names,
        memory_bytes=memory,
        why_none="" if names else "NVML: the driver shows no GPU",
        driver_version=str(driver),
        bandwidth_gib_per_s=_bandwidth_gib_per_s(handles[0]) if handles else 0.0,
    )


def _bandwidth_gib_per_s(handle: object) -> float:
    """Transfers per second × the width of the bus; 0 where the driver doesn't say."""
    try:
        clock_mhz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM)
        width_bits = pynvml.nvmlDeviceGetMemoryBusWidth(handle)
    except pynvml.NVMLError:
        return 0.0
    bits_per_s = _TRANSFERS_PER_CLOCK * clock_mhz * _HZ_PER_MHZ * width_bits
    return float(bits_per_s / _BITS_PER_BYTE / _BYTES_PER_GIB)


def _read_cpu(cpuinfo: Path) -> tuple[str, str]:
    """The processor's name and its widest instruction set."""
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    known = flags.group(1).split() if flags else []
    widest = next((name for name in _INSTRUCTION_SETS if name in known), "scalar")
    name = model.group(1).strip() if model else platform.machine()
    return name, _SHORT.get(widest, widest)


def _slug(name: str) -> str:
    plain = re.sub(r"\((?:R|TM|C)\)|\b(?:CPU|Processor)\b|@", " ", name, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9.]+", "-", plain.lower()).strip("-")
