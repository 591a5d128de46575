"""Engines side by side: which has which method, and what the same case did on several."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from rich.table import Table

from specreg.acceptance.record import AcceptanceRecord
from specreg.engines.methods import METHODS
from specreg.engines.registry import ENGINES
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.report.terminal import NOTHING, format_number, render_table
from specreg.stats.alpha_spending import Look


def render_support() -> str:
    """Which engine has which method."""
    return "\n".join(_lines())


def render_side_by_side(measurements: Sequence[Measurement], *, width: int, color: bool) -> str:
    """The acceptance of each case that was measured on several engines; empty without one.

    The change is that of AL - 1 against the first of them, where both count the same (the
    verifier's tokens, or those delivered) of as many requests.
    """
    groups: dict[bytes, tuple[Case, dict[str, _Side]]] = {}
    for one in measurements:
        if one.replay is not None and one.replay.acceptance is not None:
            case = _on_any_engine(one.case)
            # A template's arguments may be lists, so that a case is no key.
            _, group = groups.setdefault(msgspec.json.encode(case), (case, {}))
            # Further requests are for the acceptance alone, and beside the rounds.
            requests = len(one.replay.traces), one.look is Look.EXTENDED
            side = _Side(measurement=one, acceptance=one.replay.acceptance, requests=requests)
            group.setdefault(one.case.server.engine, side)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("on several engines", "version", "source", "view"):
        table.add_column(name, no_wrap=True)
    for name in ("steps", "AL", "acceptance rate", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    for case, group in groups.values():
        if len(group) > 1:
            table.add_row(case.id.removeprefix("-"))
            first = next(iter(group.values()))
            for side in group.values():
                table.add_row(*_cells(side, first))
    return render_table(table, width, color=color) if table.row_count else ""


def render_gauges(measurements: Sequence[Measurement]) -> str:
    """What servers say of their own acceptance, a line for each case; empty without one.

    That is of SGLang's last 40 decode iterations, unless it was started with another
    `--decode-log-interval`.
    """
    said = {one.case.id: one.replay.gauges for one in measurements if one.replay}
    return "\n".join(
        f"{case_id}: the server's own gauges, of its last 40 decode iterations and never judged:"
        f" length {format_number(gauges.acceptance_length_tokens)},"
        f" rate {format_number(gauges.acceptance_rate_frac)}"
        for case_id, gauges in said.items()
        if gauges is not None
    )


def _on_any_engine(case: Case) -> Case:
    """The case without what an engine may need of its own."""
    server = dataclasses.replace(case.server, engine="", engine_args=(), engine_env=())
    return dataclasses.replace(case, server=server, control=None, tolerances=())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One engine's. `requests`: how many there were, and whether further ones."""

    measurement: Measurement
    acceptance: AcceptanceRecord
    requests: tuple[int, bool]


def _cells(side: _Side, against: _Side) -> Iterator[str]:
    acceptance, first = side.acceptance, against.acceptance
    yield f"  {side.measurement.case.server.engine}"
    yield side.measurement.engine_version
    yield acceptance.source
    yield acceptance.view
    yield str(acceptance.total.steps)
    length, its = acceptance.total.acceptance_length, first.total.acceptance_length
    yield format_number(length)
    yield format_number(acceptance.total.acceptance_rate)
    alike = (acceptance.view, side.requests) == (first.view, against.requests)
    if side is against or not alike or not length or not its or its == 1:
        yield NOTHING
    else:
        yield f"{(length - its) / (its - 1):+.1%}"


def _lines() -> Iterator[str]:
    yield f"| method | {' | '.join(ENGINES)} |"
    yield f"| --- |{' --- |' * len(ENGINES)}"
    for method in METHODS.values():
        has = (engine.spelling in method.spelling for engine in ENGINES.values())
        cells = ("yes" if one else NOTHING for one in has)
        yield f"| `{method.name}` | {' | '.join(cells)} |"
