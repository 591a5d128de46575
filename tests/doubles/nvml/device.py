"""GPUs whose true energy is known. In: what they shall be. Out: a driver that says so, the truth.

`build` makes the library that `nvml.c` describes, `write_script` tells it what to play, and
`environment` has a child process find both, with nothing in nvidia-ml-py changed. Nothing here
loads the library: a process that has loaded one libnvidia-ml.so.1 never gets another.
"""

import dataclasses
import enum
import math
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("nvml.c")
SCRIPT_VARIABLE = "SPECREG_SCRIPTED_NVML"
"""Where the library finds its script."""
NEVER = math.inf
_NS_PER_S = 10**9


class Scope(enum.IntEnum):
    """What the power fields are of; NVML's own numbers, NVML_POWER_SCOPE_GPU and _MODULE."""

    GPU = 0
    MODULE = 1


class Process(NamedTuple):
    """A process that computes on the GPU, from a time of the GPU's on."""

    pid: int
    memory_bytes: int
    from_s: float = 0.0


class Answer(NamedTuple):
    """A function of NVML, and the code that it answers in place of what it would say."""

    function: str
    code: int


class Throttle(NamedTuple):
    """Bits of the mask of what holds the clocks back, for a time."""

    mask: int
    from_s: float = 0.0
    to_s: float = NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The true power: a square wave, in each period high first, before the origin too."""

    low_w: float
    high_w: float
    period_ms: float = 100.0
    duty_frac: float = 0.5

    def energy_j(self, until_s: float) -> float:
        """The integral of the power from the origin on; negative before it."""
        period_s = self.period_ms / 1e3
        high_s = self.duty_frac * period_s
        cycles, rest_s = divmod(until_s, period_s)
        on_s = cycles * high_s + min(rest_s, high_s)
        return self.low_w * until_s + (self.high_w - self.low_w) * on_s


def constant(power_w: float) -> Load:
    return Load(low_w=power_w, high_w=power_w)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedGpu:
    """A GPU, as its driver shows it. Times in seconds count from `started_ns`.

    Attributes:
        name: begins with "Scripted", so that its figures aren't taken for a GPU's.
        started_ns: the origin, by CLOCK_MONOTONIC, which is time.monotonic_ns().
        scope: which of the two scopes the power fields have; of a module alone (GH200) there is
            no nvmlDeviceGetPowerUsage either.
        module_extra_w: what the GPU's module draws beside it. Above 0 the power fields have both
            scopes, and the counter is the module's.
        permission: without it neither power nor energy can be read.
        lost_at_s: from when on the GPU answers nothing at all.
        sampled_frac: of each 100 ms, the first part that the power sensor looks at: a quarter on
            A100 and H100 (arXiv 2312.02741). The energy counter sees all.
        tick_ms: the counter's, from the origin; it holds the true energy up to its last tick.
        read_ms, slow_read_ms: what the counter and the fields take to read, as a rule and each 50th
            time: the median and the 99th percentile of an H100 (fixtures/recordings/nvml/h100).
        counter_factor: times the truth; `counter_sticks_after_s`: its last tick;
            `counter_resets_at_s`: where it begins at 0 again, as when a driver is loaded anew.
        default_power_limit_w: the vendor's, power_limit_w: what it is set to.
        virtualization_mode: 2 in a guest with a virtual GPU, nvml.h's number.
        mig: whether the GPU is cut into slices; slices: how many there are then, each with
            `slice_memory_bytes`.
        answers: what functions answer of this GPU; `nvmlDeviceGetHandleByIndex` too.
    """

    load: Load = field(default_factory=lambda: constant(400.0))
    name: str = "Scripted NVIDIA H100"
    uuid: str = "GPU-5c217ed0-0000-4000-8000-000000000000"
    started_ns: int = field(default_factory=time.monotonic_ns)
    scope: Scope = Scope.GPU
    module_extra_w: float = 0.0
    permission: bool = True
    lost_at_s: float = NEVER
    sampled_frac: float = 1.0
    has_energy_counter: bool = True
    tick_ms: float = 100.0
    read_ms: float = 3.0
    slow_read_ms: float = 18.0
    counter_factor: float = 1.0
    counter_sticks_after_s: float = NEVER
    counter_resets_at_s: float = NEVER
    processes: tuple[Process, ...] = ()
    throttle: tuple[Throttle, ...] = ()
    sm_clock_mhz: int = 1_980
    memory_clock_mhz: int = 2_619
    memory_total_bytes: int = 85_520_809_984
    memory_used_bytes: int = 70_000_000_000
    utilisation_percent: int = 97
    temperature_c: int = 61
    power_limit_w: float = 700.0
    default_power_limit_w: float = 700.0
    virtualization_mode: int = 0
    mig: bool = False
    slices: int = 1
    slice_memory_bytes: int = 10_200_547_328
    answers: tuple[Answer, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.startswith("Scripted"):
            raise ValueError(f"'{self.name}': a scripted GPU says so; begin its name with Scripted")


class ScriptedDriver(NamedTuple):
    """A driver, its GPUs, and what its functions answer that are of no GPU, `nvmlInit` for one."""

    gpus: Sequence[ScriptedGpu] = ()
    answers: Sequence[Answer] = ()
    version: str = "580.scripted"


def true_energy_j(gpu: ScriptedGpu, from_ns: int, to_ns: int) -> float:
    """What the GPU truly took between two times of CLOCK_MONOTONIC."""
    return gpu.load.energy_j((to_ns - gpu.started_ns) / _NS_PER_S) - gpu.load.energy_j(
        (from_ns - gpu.started_ns) / _NS_PER_S
    )


def build(folder: Path) -> Path:
    """The library, compiled into a folder by $CC or gcc.

    RuntimeError, which says what to install, where there is no compiler or it failed.
    """
    library = folder / "libnvidia-ml.so.1"
    compiler = shlex.split(os.environ.get("CC", "gcc"))
    flags = ("-shared", "-fPIC", "-O2", "-Wl,-soname,libnvidia-ml.so.1")
    command = (*compiler, *flags, "-o", str(library), str(SOURCE), "-lm")
    try:
        subprocess.run(command, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise RuntimeError(
            f"the scripted NVML: no C compiler '{compiler[0]}', or it can't build it;"
            " install gcc and libc6-dev, or name another compiler in $CC"
        ) from error
    return library


def write_script(script: Path, driver: Sequence[ScriptedGpu] | ScriptedDriver) -> Path:
    """Tells the library what to play; one that is in use plays it from its next call on."""
    if not isinstance(driver, ScriptedDriver):
        driver = ScriptedDriver(gpus=driver)
    lines = [f"driver_version {driver.version}"]
    lines += [f"answer {' '.join(map(str, row))}" for row in driver.answers]
    for gpu in driver.gpus:
        lines += _lines(gpu)
    new = script.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines))
    return new.replace(script)  # at once: half a script is never read


def environment(library: Path, script: Path) -> dict[str, str]:
    """What a child process needs to take the library for NVIDIA's."""
    paths = (str(library.parent), os.environ.get("LD_LIBRARY_PATH", ""))
    return {"LD_LIBRARY_PATH": ":".join(filter(None, paths)), SCRIPT_VARIABLE: str(script)}


def _lines(gpu: ScriptedGpu) -> Iterator[str]:
    """The GPU's part of a script: `uuid` begins it, then a field a line."""
    settings = dataclasses.asdict(gpu)
    yield f"uuid {settings.pop('uuid')}"
    yield from (f"process {' '.join(map(str, row))}" for row in settings.pop("processes"))
    yield from (f"answer {' '.join(map(str, row))}" for row in settings.pop("answers"))
    yield from (f"throttle {' '.join(map(str, row))}" for row in settings.pop("throttle"))
    for key, value in (settings.pop("load") | settings).items():
        yield f"{key} {int(value) if isinstance(value, bool) else value}"
