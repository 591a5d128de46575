"""`specreg power`: the sampler of power by itself, and what it saw."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from specreg.cli.options import WIDTH
from specreg.core.errors import SensorError
from specreg.report.tables import render_table
from specreg.telemetry.devices import describe, devices_of, why_unreadable
from specreg.telemetry.energy import Span
from specreg.telemetry.identity import find_gpus
from specreg.telemetry.record import DeviceRecord, record_device
from specreg.telemetry.sampler import watch
from specreg.telemetry.samples import PowerTrace
from specreg.telemetry.sensor import Device

_SUFFIX = ".jsonl"
_LEAD_NS = 10**9
"""The sampler runs this long before the time begins, so that there are reads around its start."""
_NS_PER_S = 10**9
_BYTES_PER_GIB = 2**30
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


def render_devices(
    records: Sequence[DeviceRecord],
    users: Sequence[AbstractSet[int] | None],
    window_s: float,
    *,
    width: int,
) -> str:
    """Some rows for each device, and the total of those that could be measured.

    Args:
        records: what they did.
        users: by device the ids of the processes that computed on it, None where that isn't told.
        window_s: in how long a time.
        width: of the text, in characters.
    """
    blocks = [_block(*pair, width=width) for pair in zip(records, users, strict=True)]
    told = [one.energy_j for one in records if one.energy_j is not None]
    if told:
        of = f"{len(told)} of {len(records)} device(s) in {window_s:.1f} s"
        blocks.append(f"total: {sum(told) / window_s:.1f} W, {sum(told):.1f} J; {of}")
    return "\n\n".join(blocks)


def _block(one: DeviceRecord, users: AbstractSet[int] | None, *, width: int) -> str:
    device = one.device
    head = f"{device.name}, number {device.number} ({device.id}); power of the {device.scope}"
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in _rows(one, users):
        table.add_row(Text(f"  {name}"), Text(words))
    rows = render_table(table, width, color=False).splitlines()
    return "\n".join((head, *map(str.rstrip, rows)))


def _rows(one: DeviceRecord, users: AbstractSet[int] | None) -> Iterator[tuple[str, str]]:
    """Name and words of what is known of a device."""
    if one.energy_j is not None:
        said = f"{one.mean_w:.1f} W, {one.energy_j:.1f} J"
        if one.from_counter:
            yield "energy counter", f"{said}, off by {one.error_frac or 0:.2%} at most for its ends"
        else:
            yield "energy", f"{said}, by its power; it has no energy counter"
    for name, field_w in (("average field", one.average_w), ("instant field", one.instant_w)):
        if field_w is not None:
            counted_w = one.mean_w if one.from_counter and field_w else None
            ratio = f"; the counter says {counted_w / field_w:.4f} times that" if counted_w else ""
            yield name, f"{field_w:.1f} W{ratio}"
    yield from _state(one)
    yield "samples", f"{one.missing_frac:.1%} missing"
    if one.throttled:
        yield "clocks held", ", ".join(one.throttled)
    if users is not None:
        yield "processes", ", ".join(map(describe, sorted(users))) or "none"
    if one.invalid:
        yield "INVALID", one.invalid


def _state(one: DeviceRecord) -> Iterator[tuple[str, str]]:
    if one.peak_w is not None:
        yield "peak", f"{one.peak_w:.1f} W"
    clocks = (("SM", one.sm_clock_mhz), ("memory", one.memory_clock_mhz))
    if told := [f"{name} {mhz:.0f} MHz" for name, mhz in clocks if mhz is not None]:
        yield "clocks", f"{', '.join(told)} (medians)"
    if one.temperature_c is not None:
        yield "temperature", f"{one.temperature_c} °C at most"
    if one.utilisation_frac is not None:
        yield "utilisation", f"{one.utilisation_frac:.0%}"
    if one.used_bytes is not None:
        yield "memory used", f"{one.used_bytes / _BYTES_PER_GIB:.1f} GiB at most"
