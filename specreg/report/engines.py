"""Engines side by side: which has which method, and what the same case did on several."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from specreg.acceptance.record import AcceptanceRecord
from specreg.engines import ENGINES, Engine
from specreg.matrix import Case
from specreg.measurement import Measurement
from specreg.methods import METHODS, Method
from specreg.report.terminal import NOTHING, format_number, render_table


def render_support() -> str:
    """Which engine has which method: `yes`, or the first version that does."""
    return "\n".join(_lines())


def render_side_by_side(measurements: Sequence[Measurement], *, width: int, color: bool) -> str:
    """The acceptance of each case that was measured on several engines; empty without one.

    The change is that of AL - 1 against the first of them, where both count the same: the
    verifier's tokens, or those delivered.
    """
    groups: dict[str, dict[str, tuple[Measurement, AcceptanceRecord]]] = {}
    for one in measurements:
        if one.acceptance is not None:
            group = groups.setdefault(_on_any_engine(one.case), {})
            group.setdefault(one.case.server.engine, (one, one.acceptance))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("on several engines", "version", "source", "view"):
        table.add_column(name, no_wrap=True)
    for name in ("steps", "AL", "acceptance rate", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, group in groups.items():
        if len(group) > 1:
            table.add_row(name)
            first = next(iter(group.values()))[1]
            for one, acceptance in group.values():
                table.add_row(*_side(one, acceptance, first))
    return render_table(table, width, color=color) if table.row_count else ""


def _on_any_engine(case: Case) -> str:
    return case.id.removeprefix(f"{case.server.engine}-")


def _side(one: Measurement, acceptance: AcceptanceRecord, first: AcceptanceRecord) -> Iterator[str]:
    yield f"  {one.case.server.engine}"
    yield one.engine_version
    yield acceptance.source
    yield acceptance.view
    yield str(acceptance.total.steps)
    length, its = acceptance.total.acceptance_length, first.total.acceptance_length
    yield format_number(length)
    yield format_number(acceptance.total.acceptance_rate)
    if acceptance is first or acceptance.view != first.view or not length or not its or its == 1:
        yield NOTHING
    else:
        yield f"{(length - its) / (its - 1):+.1%}"


def _lines() -> Iterator[str]:
    yield f"| method | {' | '.join(ENGINES)} |"
    yield f"| --- |{' --- |' * len(ENGINES)}"
    for method in METHODS.values():
        cells = (_cell(method, engine) for engine in ENGINES.values())
        yield f"| `{method.name}` | {' | '.join(cells)} |"


def _cell(method: Method, engine: Engine) -> str:
    if engine.spelling not in method.spelling:
        return "–"
    since = method.since.get(engine.spelling)
    return f"{since} or newer" if since else "yes"
