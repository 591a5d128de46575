"""What speculation gains at each load, and up to which it pays: cases in, drawings out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specreg.report.document import CaseReport
from specreg.report.drawing import INK, LINES, Chart, Spec, quantity, svg

_FEWEST = 2
"""Loads; one alone shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """What speculation gains at a load: of so many requests in flight, with such a method."""

    requests: int
    ratio: float
    method: str
    drafted: int


def speed_over_load(cases: Iterable[CaseReport]) -> Iterator[Chart]:
    """A chart for each engine, model pair and prompt set: what speculation gains at each load."""
    groups: dict[tuple[str, ...], list[_Point]] = {}
    for case in cases:
        gain = case.figures.judged.get("speedup_ratio") if case.figures else None
        if gain is not None and case.settings is not None and case.settings.concurrency:
            point = _Point(
                requests=case.settings.concurrency,
                ratio=gain,
                method=case.method,
                drafted=case.settings.draft_tokens,
            )
            groups.setdefault((case.engine, case.models, case.dataset), []).append(point)
    for what, points in groups.items():
        lines = _lines_of(points)
        if len(lines) <= len(LINES):
            yield from _load_chart(what, lines)
            continue
        for method in dict.fromkeys(point.method for point in points):
            ours = {name: line for name, line in lines.items() if line[0].method == method}
            yield from _load_chart((*what, method), ours)


def break_even(loads: Sequence[tuple[int, float]]) -> str:
    """Where speculation stops to pay: its gain crosses 1, on a straight line over log load.

    Args:
        loads: requests in flight and the gain there, the lightest load first; one at least.
    """
    pays = [gain >= 1 for _, gain in loads]
    if all(pays):
        return "never fell below 1"
    if not any(pays):
        return "never reached 1"
    place = next(n for n in range(1, len(pays)) if pays[n] != pays[n - 1])
    (light, high), (heavy, low) = loads[place - 1 : place + 1]
    crossing = light * (heavy / light) ** ((high - 1) / (high - low))
    way = "pays up to about" if pays[0] else "pays from about"
    return f"{way} {crossing:.2g} in flight"


def _lines_of(points: Sequence[_Point]) -> Mapping[str, Sequence[_Point]]:
    """By name, the points of each method and number of drafts, the lightest load first."""
    drafted: dict[str, set[int]] = {}
    for point in points:
        drafted.setdefault(point.method, set()).add(point.drafted)
    lines: dict[str, list[_Point]] = {}
    for point in sorted(points, key=lambda point: (point.method, point.drafted, point.requests)):
        several = len(drafted[point.method]) > 1
        name = f"{point.method}-k{point.drafted}" if several else point.method
        lines.setdefault(name, []).append(point)
    return lines


def _load_chart(what: Sequence[str], lines: Mapping[str, Sequence[_Point]]) -> Iterator[Chart]:
    """One, unless there is a single load."""
    rows = [
        {"n": point.requests, "gain": point.ratio, "method": name}
        for name, line in lines.items()
        for point in line
    ]
    if len({row["n"] for row in rows}) < _FEWEST:
        return
    told = "; ".join(
        f"{name} {break_even([(point.requests, point.ratio) for point in line])}"
        for name, line in lines.items()
        if len(line) >= _FEWEST
    )
    yield Chart(
        title=f"Speedup over load: {', '.join(what)}",
        note="Throughput with speculation over throughput without it, by requests in flight."
        f" Below the dashed line, at 1, speculation costs more than it gains. {told}.",
        svg=svg(_load_layers(rows), width=270, height=190),
    )


def _load_layers(rows: Sequence[Mapping[str, object]]) -> Sequence[Spec]:
    loads = sorted({row["n"] for row in rows}, key=str)
    x = {
        "field": "n",
        "type": "quantitative",
        "title": "requests in flight",
        "scale": {"type": "log", "base": 2, "nice": False},
        "axis": {"values": loads, "format": "d"},
    }
    y = quantity("gain", "speedup, times", zero=False)
    color = {
        "field": "method",
        "type": "nominal",
        "scale": {"range": LINES},
        "legend": {
            "title": None,
            "labelColor": INK,
            "labelFontSize": 12,
            "orient": "top",
            "columns": 2,
        },
    }
    even = {"values": [{"gain": 1}]}
    return (
        {
            "data": even,
            "mark": {"type": "rule", "color": INK, "strokeDash": [5, 4]},
            "encoding": {"y": y},
        },
        {
            "data": {"values": rows},
            "mark": {"type": "line", "point": {"filled": True, "size": 55}},
            "encoding": {"x": x, "y": y, "color": color},
        },
    )
