"""Power as text: what a token costs in each case, and what devices drew while they were watched."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from rich.table import Table
from rich.text import Text

from specreg.measurement.figures import Figures
from specreg.report.terminal import NOTHING, format_number, render_table
from specreg.telemetry.devices import describe
from specreg.telemetry.record import DeviceRecord

_BYTES_PER_GIB = 2**30


def render_power(figures: Sequence[Figures], *, width: int, color: bool) -> str:
    """A row for each case whose power was watched; empty without one.

    J/token: all energy over all tokens, that beyond idle, and alone: without speculation; saved:
    the share of it that speculation saves; the remark says how far off the ends of the block may
    make these.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("power", overflow="fold")
    for name in ("J/token", "beyond idle", "alone", "saved", "W", "peak", "idle", "°C", "MHz"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("remark", overflow="fold")
    for one in figures:
        if one.power is not None:
            table.add_row(one.case_id, *_cells(one))
    return render_table(table, width, color=color) if table.row_count else ""


def _cells(one: Figures) -> tuple[str, ...]:
    power = one.power
    arm = power.case if power else None
    if power is None or arm is None:
        return (*[NOTHING] * 9, power.invalid if power else "")
    alone = power.control.energy_j_per_token if power.control else None
    saved = None if power.energy_ratio is None else 1 - 1 / power.energy_ratio
    peaks = [device.peak_w for device in arm.devices if device.peak_w is not None]
    hottest = [device.temperature_c for device in arm.devices if device.temperature_c]
    clocks = [device.sm_clock_mhz for device in arm.devices if device.sm_clock_mhz]
    capped = any("power cap" in device.throttled for device in arm.devices)
    error = "" if arm.error_frac is None else f"±{arm.error_frac:.1%}"
    return (
        format_number(arm.energy_j_per_token),
        format_number(arm.above_idle_j_per_token),
        format_number(alone),
        NOTHING if saved is None else f"{saved:+.0%}",
        format_number(arm.mean_w),
        format_number(sum(peaks) if peaks else None),
        format_number(arm.idle_w),
        format_number(max(hottest, default=None)),
        format_number(min(clocks, default=None)),
        "; ".join(filter(None, (error, power.too_short, "at its power cap" if capped else ""))),
    )


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
