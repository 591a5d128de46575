"""`specreg power`: the sampler of power by itself, and what it saw."""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from specreg.cli.options import WIDTH
from specreg.core.errors import SensorError
from specreg.report.power import render_devices
from specreg.telemetry.devices import devices_of, why_unreadable
from specreg.telemetry.energy import Span
from specreg.telemetry.identity import find_gpus
from specreg.telemetry.record import record_device
from specreg.telemetry.samples import PowerTrace
from specreg.telemetry.sensor import Device
from specreg.telemetry.watch import watch

_SUFFIX = ".jsonl"
_LEAD_NS = 10**9
"""The sampler runs this long before the time begins, so that there are reads around its start."""
_NS_PER_S = 10**9
_NOT_IDLE = (0, 0)


def power(
    seconds: Annotated[float, typer.Option(min=1, help="how long to watch")] = 60.0,
    gpus: Annotated[int | None, typer.Option(min=1, help="how many; else all in sight")] = None,
    output: Annotated[
        Path | None, typer.Option(help=f"a file for the samples, {_SUFFIX}; it is replaced")
    ] = None,
    *,
    processors: Annotated[
        bool, typer.Option("--processors", help="watch the processors, whatever GPUs there are")
    ] = False,
) -> None:
    """Print what GPUs draw, or processors where there are none. Ctrl-C ends the watch early.

    Status 1 where a device can't be measured as a run would have to.
    """
    devices = _readable(_devices(0 if processors else gpus))
    typer.echo(f"watching {len(devices)} device(s) for {seconds:g} s", err=True)
    # Kept where the sampler fails: its message says where the samples are.
    path = _checked(output) if output else Path(tempfile.mkdtemp("-specreg")) / f"power{_SUFFIX}"
    traces, span = _watch(devices, path, for_s=seconds)
    if not output:
        shutil.rmtree(path.parent)
    records = [record_device(trace, span, _NOT_IDLE) for trace in traces]
    users = [
        {pid for one in trace.within(*span).users for pid in one.pids} if trace.users else None
        for trace in traces
    ]
    typer.echo(render_devices(records, users, (span[1] - span[0]) / _NS_PER_S, width=WIDTH))
    if output:
        typer.echo(f"samples: {output}", err=True)
    raise typer.Exit(1 if any(one.invalid for one in records) else 0)


def _watch(
    devices: Sequence[Device], path: Path, *, for_s: float
) -> tuple[Sequence[PowerTrace], Span]:
    """Samples devices for a while, which Ctrl-C ends early; the traces, and the time they are of.

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


def _devices(gpus: int | None) -> tuple[Device, ...]:
    """So many GPUs, 0 for the processors; None for all GPUs, or else those.

    Raises:
        SensorError: there are none, with the reason.
    """
    found = find_gpus()
    if gpus is not None:
        return devices_of(gpus, os.environ)
    if found.devices:
        return found.devices
    try:
        return devices_of(0, os.environ)
    except SensorError as error:
        raise SensorError(f"{found.why_none}\n{error}") from error


def _readable(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Those whose power can be read; the others are named.

    Raises:
        SensorError: none can.
    """
    left = tuple(device for device in devices if not device.why_not)
    if not left:
        raise SensorError(why_unreadable(devices))
    for device in devices:
        if device.why_not:
            typer.echo(f"{device.name}, number {device.number}: {device.why_not}", err=True)
    return left


def _checked(output: Path) -> Path:
    """A file that samples can be written to.

    Raises:
        SensorError: it isn't.
    """
    if output.suffix != _SUFFIX:
        raise SensorError(f"--output '{output}': needed a name that ends in {_SUFFIX}; change it")
    if output.exists():
        raise SensorError(f"--output '{output}': stands there already; name another, or remove it")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.touch()
        output.unlink()
    except OSError as error:
        message = f"--output '{output}': {error.strerror}; name a file that can be written"
        raise SensorError(message) from error
    return output
