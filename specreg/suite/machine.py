"""The GPUs of the machine as a run sees them, with what isn't known about them."""

from collections.abc import Iterator

from specreg.core.commands import run_command
from specreg.core.errors import SensorError
from specreg.suite.options import Options
from specreg.telemetry.identity import Gpus, find_gpus
from specreg.telemetry.sensor import Device


def gpus_of(options: Options) -> Gpus:
    """Return the GPUs of this machine. The user's option fills in memory that no driver reports."""
    return find_gpus().with_memory(options.gpu_memory_gib)


def render_count(gpus: Gpus) -> str:
    """Return how many GPUs a machine has, and why if it has none."""
    count = len(gpus.devices)
    return str(count) if count else f"0 ({gpus.why_none})"


def check_usable(gpus: Gpus, options: Options, *, needs_gpus: bool) -> None:
    """Check that the GPUs of the machine can be used, unless the run doesn't need them.

    Without this check, a machine with a broken driver would silently run the CPU's tier.

    Args:
        gpus: the GPUs of the machine.
        options: the options of the run. If they name a tier that needs no GPU, or a server to
            attach to, the GPUs don't matter.
        needs_gpus: True if the tier needs GPUs.

    Raises:
        SensorError: the driver doesn't work, or no GPU can be used.
    """
    if not gpus.is_unusable or options.attach is not None:
        return
    if options.tier is None or needs_gpus:
        cpu_command = run_command((), ["--specreg-tier=cpu"])
        raise SensorError(f"{gpus.why_none}, or measure without GPUs: {cpu_command}")


def remarks_on(gpus: Gpus) -> Iterator[str]:
    """Yield a line for each GPU that can't be used, and for what isn't known about the others."""
    for hidden in gpus.hidden:
        yield f"GPU {hidden.number} isn't used: {hidden.reason}"
    for device, memory_gib in zip(gpus.devices, gpus.memory_gib, strict=True):
        subject = f"GPU {device.number} ({device.name or 'of an unknown kind'})"
        if not device.name:
            yield f"{subject}: its driver doesn't report its name; speeds aren't compared"
        if device.limit_w is None and not device.why_not:
            yield f"{subject}: its driver doesn't report its power limit"
        if memory := _remark_on_memory(device, memory_gib):
            yield f"{subject}: {memory}"


def _remark_on_memory(device: Device, memory_gib: float | None) -> str:
    """Return a remark on a GPU whose driver doesn't report its memory; empty for other GPUs."""
    if memory_gib is None:
        return (
            "its driver doesn't report its memory, so it isn't checked whether cases fit;"
            " give it with --specreg-gpu-memory=GIB"
        )

    if device.memory_bytes is None:
        return f"it has no memory of its own; the machine's {memory_gib:.1f} GiB are taken for it"
    return ""
