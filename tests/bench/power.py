"""Measures the sampler of power beside scripted GPUs: its errors, and what it costs."""

import contextlib
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from specreg.core.errors import SensorError
from specreg.telemetry.energy import energy_of, missing_frac
from specreg.telemetry.sampler import watch
from specreg.telemetry.samples import PowerTrace
from specreg.telemetry.sensor import Device, Scope
from tests.doubles.nvml.device import (
    Load,
    ScriptedGpu,
    build,
    constant,
    environment,
    true_energy_j,
    write_script,
)

NS_PER_S = 10**9
WATCHED_S = 36.0
BLOCKS = 500
LOADS: Mapping[str, Load] = {
    "constant": constant(400.0),
    "square wave, 100 ms": Load(low_w=100.0, high_w=700.0, period_ms=100.0),
    "square wave, 130 ms": Load(low_w=100.0, high_w=700.0, period_ms=130.0, duty_frac=0.3),
    "square wave, 1.7 s": Load(low_w=100.0, high_w=700.0, period_ms=1_700.0),
}


def main() -> None:
    """Four GPUs for their errors, then one and eight for what they cost."""
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        gpus = [scripted(number, load) for number, load in enumerate(LOADS.values())]
        traces, _ = watched(library, gpus, WATCHED_S)
        table = Table("load", "block", "worst error", "blocks without a figure")
        for name, gpu, trace in zip(LOADS, gpus, traces, strict=True):
            for length_s in (10.0, 30.0):
                errors = list(errors_of(gpu, trace, length_s))
                worst = f"{max(errors):.3%}" if errors else "–"
                table.add_row(name, f"{length_s} s", worst, str(BLOCKS - len(errors)))
        console.print(table)
        for count in (1, 8):
            few = [scripted(number, LOADS["square wave, 130 ms"]) for number in range(count)]
            traces, share = watched(library, few, 20.0)
            first = traces[0]
            span = (first.samples[0].at_ns, first.samples[-1].at_ns)
            missing = missing_frac(first, span)
            console.print(f"{count} GPU(s): {share:.2%} of a core, {missing:.1%} missing")


def scripted(number: int, load: Load) -> ScriptedGpu:
    """A GPU under a load, whose counter moves every 100 ms."""
    return ScriptedGpu(uuid=f"GPU-{number:08d}-0000-4000-8000-000000000000", load=load)


def watched(
    library: Path, gpus: Sequence[ScriptedGpu], seconds: float
) -> tuple[Sequence[PowerTrace], float]:
    """What a sampler saw of GPUs for a while, and the share of a core that it took."""
    folder = library.parent
    os.environ.update(environment(library, write_script(folder / "script", gpus)))
    devices = [
        Device(sensor="nvml", id=gpu.uuid, name=gpu.name, number=number, scope=Scope.GPU)
        for number, gpu in enumerate(gpus)
    ]
    with watch(devices, folder / "samples.jsonl") as watching:
        process = psutil.Process(watching.child.process.popen.pid)
        time.sleep(1.0)  # its imports are over
        before, began = process.cpu_times(), time.monotonic()
        time.sleep(seconds)
        after, ended = process.cpu_times(), time.monotonic()
        traces = watching.traces(until_ns=time.monotonic_ns())
    used_s = after.user + after.system - before.user - before.system
    return traces, used_s / (ended - began)


def errors_of(gpu: ScriptedGpu, trace: PowerTrace, length_s: float) -> Iterator[float]:
    """The relative errors of blocks anywhere in a recording, of those that have a figure."""
    draw = random.Random(1)  # noqa: S311 - moments, not keys
    first_ns, last_ns = trace.samples[0].at_ns + NS_PER_S, trace.samples[-1].at_ns - NS_PER_S
    length_ns = round(length_s * NS_PER_S)
    for _ in range(BLOCKS):
        start_ns = draw.randint(first_ns, last_ns - length_ns)
        span = (start_ns, start_ns + length_ns)
        with contextlib.suppress(SensorError):
            yield abs(energy_of(trace, span).energy_j / true_energy_j(gpu, *span) - 1)


if __name__ == "__main__":
    main()
