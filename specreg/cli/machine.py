"""What this machine is and draws: `specreg doctor` and `specreg power`."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Annotated

import typer

from specreg.cli.options import (
    BASELINES,
    HERE,
    MATRIX,
    RUNS,
    WIDTH,
    EnginePythonOption,
    FolderOption,
    MatrixOption,
    RootOption,
    RunsOption,
    TierOption,
    fitting_tier_of,
)
from specreg.core.errors import MatrixError, SensorError
from specreg.matrix.case import Tier
from specreg.report.doctor import State, render_findings
from specreg.suite.preflight import examine, preflight_of
from specreg.telemetry.devices import describe, devices_of, why_unreadable
from specreg.telemetry.energy import Span
from specreg.telemetry.identity import find_gpus
from specreg.telemetry.record import DeviceRecord, record_device
from specreg.telemetry.sampler import watch
from specreg.telemetry.samples import PowerTrace
from specreg.telemetry.sensor import Device

_LEAD_NS = 10**9
"""The sampler runs this long before the time begins, so that there are reads around its start."""
_NS_PER_S = 10**9
_BYTES_PER_GIB = 2**30
_NOT_IDLE = (0, 0)


def doctor(
    tier: TierOption = None,
    root: RootOption = HERE,
    matrix: MatrixOption = MATRIX,
    folder: FolderOption = BASELINES,
    runs: RunsOption = RUNS,
    engine_python: EnginePythonOption = None,
) -> None:
    """Print what this machine is, what can be measured on it, and what is in the way of a tier.

    Status 1 where something is. Nothing is started, fetched or changed.
    """
    preflight = preflight_of(
        lambda: _tier_of(root / matrix, tier),
        root=root,
        runs=root / runs,
        baselines=root / folder,
        variables=os.environ,
        engine_python=engine_python,
    )
    found = examine(preflight)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    typer.echo(render_findings(found, width=WIDTH, color=color))
    states = {one.state for findings in found.values() for one in findings}
    raise typer.Exit(1 if State.IN_THE_WAY in states else 0)


def _tier_of(matrix: Path, name: str | None) -> Tier:
    """The tier of a name, else that of this machine.

    Raises:
        SpecregError: it can't be read, or there are none.
    """
    if not matrix.is_dir():
        message = f"tiers '{matrix}': no such folder; run this in the repository, or give --root"
        raise MatrixError(message)
    return fitting_tier_of(matrix, name)


def power(
    seconds: Annotated[float, typer.Option(min=1, help="how long to watch")] = 60.0,
    gpus: Annotated[int | None, typer.Option(min=1, help="how many; else all in sight")] = None,
    output: Annotated[
        Path | None, typer.Option(help="a file for the samples, .jsonl; it is replaced")
    ] = None,
    *,
    processors: Annotated[
        bool, typer.Option("--processors", help="watch the processors, whatever GPUs there are")
    ] = False,
) -> None:
    """Print what GPUs draw, or processors where there are none. Ctrl-C ends the watch early.

    Status 1 where a device can't be measured as a run would have to.
    """
    devices = _readable_devices(0 if processors else gpus)
    typer.echo(f"watching {len(devices)} device(s) for {seconds:g} s", err=True)
    # Kept where the sampler fails: its message says where the samples are.
    path = _emptied(output) if output else Path(tempfile.mkdtemp("-specreg")) / "power.jsonl"
    traces, span = _watch(devices, path, for_s=seconds)
    if not output:
        shutil.rmtree(path.parent)
    records = [record_device(trace, span, _NOT_IDLE) for trace in traces]
    for trace, record in zip(traces, records, strict=True):
        users = {pid for one in trace.within(*span).users for pid in one.pids}
        device = record.device
        typer.echo(f"{device.name}, number {device.number} ({device.id}); power of {device.scope}")
        for name, words in _device_rows(record, users if trace.users else None):
            typer.echo(f"  {name:<15} {words}")
        typer.echo()
    joules = [one.energy_j for one in records if one.energy_j is not None]
    window_s = (span[1] - span[0]) / _NS_PER_S
    if joules:
        of = f"{len(joules)} of {len(records)} device(s) in {window_s:.1f} s"
        typer.echo(f"total: {sum(joules) / window_s:.1f} W, {sum(joules):.1f} J; {of}")
    if output:
        typer.echo(f"samples: {output}", err=True)
    raise typer.Exit(1 if any(one.invalid for one in records) else 0)


def _watch(
    devices: Sequence[Device], path: Path, *, for_s: float
) -> tuple[Sequence[PowerTrace], Span]:
    """Sample devices for a while, which Ctrl-C ends early; the traces, and the time they are of.

    Raises:
        SensorError: the sampler couldn't run, or was ended before the time began.
    """
    with watch(devices, path) as watching:
        start_ns = time.monotonic_ns() + _LEAD_NS
        end_ns = start_ns + round(for_s * _NS_PER_S)
        try:
            traces = watching.traces(end_ns)
        except KeyboardInterrupt:
            end_ns = time.monotonic_ns()
            traces = watching.traces(end_ns)
    if end_ns <= start_ns:
        raise SensorError("power: ended before anything was seen; let it watch for some seconds")
    return traces, (start_ns, end_ns)


def _readable_devices(gpus: int | None) -> tuple[Device, ...]:
    """So many GPUs, 0 for the processors, None for all GPUs, or else the processors.

    Those whose power can't be read are named and left out.

    Raises:
        SensorError: there are none, with the reason.
    """
    found = find_gpus()
    if gpus is None and found.devices:
        devices = found.devices
    else:
        try:
            devices = devices_of(gpus or 0, os.environ)
        except SensorError as error:
            why = f"{found.why_none}\n" if gpus is None else ""
            raise SensorError(f"{why}{error}") from error
    left = tuple(device for device in devices if not device.why_not)
    if not left:
        raise SensorError(why_unreadable(devices))
    for device in devices:
        if device.why_not:
            typer.echo(f"{device.name}, number {device.number}: {device.why_not}", err=True)
    return left


def _emptied(output: Path) -> Path:
    """A place for a file, without one that was there.

    Raises:
        SensorError: it can't be written.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.touch()
        output.unlink()
    except OSError as error:
        message = f"--output '{output}': {error.strerror}; name a file that can be written"
        raise SensorError(message) from error
    return output


def _device_rows(one: DeviceRecord, users: AbstractSet[int] | None) -> Iterator[tuple[str, str]]:
    """Name and words of what is known of a device; `users` None where its processes aren't."""
    if one.energy_j is not None:
        words = f"{one.mean_w:.1f} W, {one.energy_j:.1f} J"
        bound = f"off by {one.error_frac or 0:.2%} at most for its ends"
        by_power = "by its power; it has no energy counter"
        name = "energy counter" if one.from_counter else "energy"
        yield name, f"{words}, {bound if one.from_counter else by_power}"
    used_gib = one.used_bytes and one.used_bytes / _BYTES_PER_GIB
    for name, value, words in (
        ("average field", one.average_w, "{:.1f} W"),
        ("instant field", one.instant_w, "{:.1f} W"),
        ("counter", one.counter_ratio, "{:.4f} times its power"),
        ("peak", one.peak_w, "{:.1f} W"),
        ("SM clock", one.sm_clock_mhz, "{:.0f} MHz, the median"),
        ("memory clock", one.memory_clock_mhz, "{:.0f} MHz, the median"),
        ("temperature", one.temperature_c, "{} °C at most"),
        ("utilisation", one.utilisation_frac, "{:.0%}"),
        ("memory used", used_gib, "{:.1f} GiB at most"),
        ("samples", one.missing_frac, "{:.1%} missing"),
    ):
        if value is not None:
            yield name, words.format(value)
    if one.throttled:
        yield "clocks held", ", ".join(one.throttled)
    if users is not None:
        yield "processes", ", ".join(map(describe, sorted(users))) or "none"
    if one.invalid:
        yield "INVALID", one.invalid
