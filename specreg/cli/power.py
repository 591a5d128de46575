"""`specreg power`: the sampler of power by itself, and what it saw."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from specreg.cli.options import WIDTH
from specreg.errors import SensorError
from specreg.identity import find_gpus
from specreg.power.devices import devices_of, why_unreadable
from specreg.power.survey import survey_devices
from specreg.report.survey import render_surveys
from specreg.sensors import Device

_SUFFIX = ".jsonl"


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
    surveys = survey_devices(devices, path, for_s=seconds)
    if not output:
        shutil.rmtree(path.parent)
    typer.echo(render_surveys(surveys, width=WIDTH))
    if output:
        typer.echo(f"samples: {output}", err=True)
    raise typer.Exit(1 if any(one.wrong for one in surveys) else 0)


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
