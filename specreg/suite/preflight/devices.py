"""What stands between a run and its GPUs: other processes, limits, clocks that are held."""

from collections.abc import Iterator

from specreg.core.errors import SensorError
from specreg.report.doctor import Finding, note, of_error, ok
from specreg.suite.preflight.scene import Scene
from specreg.telemetry.devices import check_cool, check_free, throttle_reasons
from specreg.telemetry.sensor import Probe

_BYTES_PER_GIB = 2**30
_EMPTY_GIB = 2.0
"""What a driver may keep of a GPU's memory while nobody uses it."""
_SET_BY_SOMEBODY = 0x2


def examine_driver(scene: Scene) -> Iterator[Finding]:
    """Whether a driver shows the GPUs that are needed."""
    if not scene.on_gpu:
        return
    if not scene.gpus.devices:
        yield of_error("driver", scene.gpus.why_none)
    elif scene.why_no_devices:
        yield of_error("driver", scene.why_no_devices)
    else:
        yield ok("driver", f"{scene.gpus.driver_version} shows {len(scene.gpus.devices)} GPU(s)")


def examine_use(scene: Scene) -> Iterator[Finding]:
    """Whether the GPUs of a run are free, cool, and as their vendor set them."""
    if not scene.on_gpu:
        return
    for device in scene.devices:
        subject = f"GPU {device.number}"
        try:
            check_free([device], frozenset())
            check_cool([device])
            probe = scene.sensors[device.sensor].open(device)
            yield from _memory(subject, probe)
            yield from _settings(subject, probe)
            yield _clocks(subject, probe)
        except SensorError as error:
            yield of_error(subject, error)


def _memory(subject: str, probe: Probe) -> Iterator[Finding]:
    """What is taken of its memory while no process can be seen on it."""
    used_gib = (probe.state().used_bytes or 0) / _BYTES_PER_GIB
    if used_gib > _EMPTY_GIB:
        yield note(
            subject,
            f"{used_gib:.1f} GiB of its memory are taken, and no process is seen on it",
            "another container may use it; look with nvidia-smi on the host",
        )
    else:
        yield ok(subject, "free, nobody computes on it")


def _settings(subject: str, probe: Probe) -> Iterator[Finding]:
    """What somebody set it to, where that isn't the vendor's."""
    found = probe.settings()
    if _is_lower(found.limit_w, found.own_limit_w):
        yield note(
            subject,
            f"held to {found.limit_w:.0f} W, its vendor's limit is {found.own_limit_w:.0f} W",
            "its baselines are kept apart from those of others; to undo it, as root:"
            f" nvidia-smi -pl {found.own_limit_w:.0f}",
        )
    if _is_lower(found.sm_clock_mhz, found.own_sm_clock_mhz):
        yield note(
            subject,
            f"its SM clock is set to {found.sm_clock_mhz} MHz, its vendor's is"
            f" {found.own_sm_clock_mhz} MHz",
            "to undo it, as root: nvidia-smi -rac",
        )
    if found.persistent is False:
        yield note(
            subject,
            "persistence is off: its driver is loaded anew for each server",
            "to keep it, as root: nvidia-smi -pm 1",
        )


def _is_lower(value: float | None, own: float | None) -> bool:
    return value is not None and own is not None and value < own


def _clocks(subject: str, probe: Probe) -> Finding:
    """Its clock now, and what holds it."""
    state = probe.state()
    mask = state.throttle_mask or 0
    reasons = ", ".join(throttle_reasons(mask)) or "nothing"
    clock = "" if state.sm_clock_mhz is None else f"SM clock {state.sm_clock_mhz} MHz, "
    says = f"{clock}held by {reasons}"
    if mask & _SET_BY_SOMEBODY:
        return note(subject, says, "to undo it, as root: nvidia-smi -rgc, and nvidia-smi -rac")
    return ok(subject, says)
