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
    """The GPUs that NVML shows; `why_none` says why where there are none."""

    names: tuple[str, ...]
    memory_gb: int
    why_none: str
    driver_version: str = ""


def current_environment(*, needs_gpus: int) -> Environment:
    """This machine, as the environment of a tier that uses so many of its GPUs."""
    gpus = find_gpus()
    if needs_gpus and gpus.names:
        return Environment(kind="gpu", gpus=gpus.names[:needs_gpus], gpu_memory_gb=gpus.memory_gb)
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
        memory = pynvml.nvmlDeviceGetMemoryInfo(handles[0]).total if handles else 0
        driver = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as error:
        return Gpus(names=(), memory_gb=0, why_none=f"NVML: {error}")
    return Gpus(
        names=names,
        memory_gb=round(memory / _BYTES_PER_GB),
        why_none="" if names else "NVML: the driver shows no GPU",
        driver_version=str(driver),
    )


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
