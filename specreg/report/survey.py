"""Surveys of devices as text."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from specreg.power.checks import describe
from specreg.power.record import DeviceRecord
from specreg.power.survey import Survey
from specreg.report.terminal import render_table

_MW_PER_W = 1000
_MJ_PER_J = 1000
_BYTES_PER_GIB = 2**30

_Row = tuple[str, str]


def render_surveys(surveys: Sequence[Survey], *, width: int) -> str:
    """Some rows for each device, and the total of those that could be measured."""
    blocks = [_block(one, width) for one in surveys]
    measured = [one.record for one in surveys if one.record is not None]
    if measured:
        energy_mj = sum(record.energy_mj for record in measured)
        window_s = surveys[0].window_s
        mean = _watts(energy_mj / window_s)
        of = f"{len(measured)} of {len(surveys)} device(s) in {window_s:.1f} s"
        blocks.append(f"total: {mean}, {_joules(energy_mj)}; {of}")
    return "\n\n".join(blocks)


def _block(one: Survey, width: int) -> str:
    device = one.device
    head = f"{device.name}, number {device.number} ({device.id}); power of the {device.scope}"
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in _rows(one):
        table.add_row(Text(f"  {name}"), Text(words))
    rows = render_table(table, width, color=False).splitlines()
    return "\n".join((head, *map(str.rstrip, rows)))


def _rows(one: Survey) -> Iterator[_Row]:
    """Name and words of what is known of a device."""
    record = one.record
    if record is not None:
        yield _energy(record, one.window_s)
    for name, field_mw in (("average field", one.average_mw), ("instant field", one.instant_mw)):
        if field_mw is not None:
            yield name, f"{_watts(field_mw)}{_ratio(one, field_mw)}"
    if record is not None:
        yield from _state(record)
    missing = "" if record is None else f", {record.missing_frac:.1%} missing"
    yield "samples", f"{one.samples_per_s:.1f} per second{missing}"
    if one.held_back_frac is not None:
        reasons = [f"{why} in {frac:.0%} of them" for why, frac in one.held_back_frac.items()]
        yield "clocks held", ", ".join(reasons) or "in none of them"
    if one.pids is not None:
        yield "processes", ", ".join(map(describe, one.pids)) or "none"
    if one.wrong:
        yield "INVALID", one.wrong


def _energy(record: DeviceRecord, window_s: float) -> _Row:
    said = f"{_watts(record.energy_mj / window_s)}, {_joules(record.energy_mj)}"
    if not record.from_counter:
        return "energy", f"{said}, by its power; it has no energy counter"
    ticks = "" if record.tick_ms is None else f"ticks every {record.tick_ms:.1f} ms, "
    return "energy counter", f"{said}; {ticks}edges off by {record.error_frac:.3%} at most"


def _ratio(one: Survey, field_mw: float) -> str:
    """What the counter says over what a field says."""
    if one.record is None or not one.record.from_counter or one.mean_mw is None or not field_mw:
        return ""
    return f"; the counter says {one.mean_mw / field_mw:.4f} times that"


def _state(record: DeviceRecord) -> Iterator[_Row]:
    if record.peak_mw is not None:
        yield "peak", _watts(record.peak_mw)
    clocks = (("SM", record.sm_clock_mhz), ("memory", record.memory_clock_mhz))
    if said := [f"{name} {mhz:.0f} MHz" for name, mhz in clocks if mhz is not None]:
        yield "clocks", f"{', '.join(said)} (medians)"
    if record.temperature_c is not None:
        yield "temperature", f"{record.temperature_c} °C at most"
    if record.utilisation_frac is not None:
        yield "utilisation", f"{record.utilisation_frac:.0%}"
    if record.used_bytes is not None:
        yield "memory used", f"{record.used_bytes / _BYTES_PER_GIB:.1f} GiB at most"


def _watts(power_mw: float) -> str:
    return f"{power_mw / _MW_PER_W:.1f} W"


def _joules(energy_mj: float) -> str:
    return f"{energy_mj / _MJ_PER_J:.1f} J"
