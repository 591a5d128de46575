"""The table of power: what a token costs in each case, and what speculation saves."""

from collections.abc import Sequence

from rich.table import Table

from specreg.figures import Figures
from specreg.report.terminal import NOTHING, format_number, render_table


def render_power(figures: Sequence[Figures], *, width: int, color: bool) -> str:
    """A row for each case whose power was watched; empty without one.

    J/token: all energy over all tokens, that beyond idle, and alone: without speculation; saved:
    the share of it that speculation saves.
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
        "; ".join(filter(None, (power.too_short, "at its power cap" if capped else ""))),
    )
