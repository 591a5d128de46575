"""Charts of a case, or of several loads, as SVG.

Vega-Lite draws, here and not in the reader's browser: a page needs no script then, and a screen
reader is told each mark. Colours are variables of the page's style, which knows day from night.
"""

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specreg.report.document import CaseReport, began_at
from specreg.report.tables import axis_of, label_of
from specreg.verdicts.history import comparable

Layer = Mapping[str, object]

_NOW, _BASE, _INK = (f"var(--{name})" for name in ("now", "base", "ink"))
_LINES = tuple(f"var(--line{number})" for number in range(1, 7))
_HISTORY = ("acceptance_length_tokens", "throughput_tokens_per_s", "speedup_ratio")
_FEWEST = 2
"""Runs, loads: one alone shows nothing."""
_DASHED = {"type": "rule", "color": _INK, "strokeDash": [5, 4]}
_SIZE = {
    "width": 250,
    "height": 130,
    # Labels are measured in another font than the reader's.
    "padding": {"left": 20, "right": 12, "top": 6, "bottom": 6},
}
_AXIS = {
    "labelColor": _INK,
    "titleColor": _INK,
    "domainColor": _BASE,
    "tickColor": _BASE,
    "grid": False,
    "titleFontWeight": "normal",
    "labelFontSize": 11,
    "titleFontSize": 12,
    "titlePadding": 9,
    "labelAngle": 0,
    "tickCount": 4,
}
_CONFIG = {"font": "system-ui, sans-serif", "view": {"stroke": None}, "axis": _AXIS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing.

    Attributes:
        title: what is drawn; note: how to read it.
        svg: the markup, which Vega escaped.
        has_base: whether the baseline is drawn behind, in a colour that needs a legend.
    """

    title: str
    note: str
    svg: str
    has_base: bool = False


def can_draw() -> bool:
    """Whether Vega-Lite is installed, which is in the extra `report`."""
    return importlib.util.find_spec("vl_convert") is not None


def charts_of(case: CaseReport) -> Iterator[Chart]:
    """All that can be drawn of a case; a part that isn't known has no chart."""
    yield from _positions(case)
    yield from _history(case)


def break_even(loads: Sequence[tuple[int, float]]) -> str:
    """Where speculation stops to pay: its gain crosses 1, on a straight line over log load.

    One load or more: requests in flight and the gain there, the lightest first.
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


def speed_over_load(cases: Iterable[CaseReport]) -> Iterator[Chart]:
    """A chart for each engine, model pair and prompt set: what speculation gains at each load."""
    groups: dict[str, dict[str, dict[int, float]]] = {}
    for case in cases:
        gain = case.figures.judged.get("speedup_ratio") if case.figures else None
        if gain is not None and case.settings is not None and case.settings.concurrency:
            lines = groups.setdefault(f"{case.engine}, {case.models}, {case.dataset}", {})
            line = lines.setdefault(f"{case.method}-k{case.settings.draft_tokens}", {})
            line[case.settings.concurrency] = gain
    for what, found in groups.items():
        if len({load for line in found.values() for load in line}) >= _FEWEST:
            yield _load_chart(what, {name: sorted(found[name].items()) for name in sorted(found)})


def _load_chart(what: str, lines: Mapping[str, Sequence[tuple[int, float]]]) -> Chart:
    rows = [{"n": n, "gain": gain, "method": name} for name in lines for n, gain in lines[name]]
    crossings = "; ".join(
        f"{name} {break_even(line)}" for name, line in lines.items() if len(line) >= _FEWEST
    )
    x = {
        **_channel("n", "requests in flight"),
        "scale": {"type": "log", "base": 2, "nice": False},
        "axis": {"values": sorted({load for line in lines.values() for load, _ in line})},
    }
    y = _channel("gain", "speedup, times")
    legend = {"title": None, "labelColor": _INK, "labelFontSize": 12, "orient": "top", "columns": 2}
    color = {"field": "method", "type": "nominal", "scale": {"range": _LINES}, "legend": legend}
    mark = {"type": "line", "point": {"filled": True, "size": 55}}
    return Chart(
        title=f"Speedup over load: {what}",
        note="Throughput with speculation over throughput without it, by requests in flight."
        f" Below the dashed line, at 1, speculation costs more than it gains. {crossings}.",
        svg=_svg(
            _layer([{"gain": 1}], _DASHED, y=y),
            _layer(rows, mark, x=x, y=y, color=color),
            width=270,
            height=190,
        ),
    )


def _positions(case: CaseReport) -> Iterator[Chart]:
    acceptance = case.figures.acceptance if case.figures else None
    if acceptance is None or not acceptance.total.marginal_frac:
        return
    expected = case.expected.marginal_frac if case.expected else ()
    x = {"field": "place", "type": "ordinal", "title": "position in the draft"}
    y = _channel("share", "share of steps", axis={"format": ".0%", "tickCount": 4})
    y["scale"] = {"zero": True}
    # Narrow bars of now in front of wide ones of the baseline.
    bars = ((expected, _BASE, 0.9), (acceptance.total.marginal_frac, _NOW, 0.5))
    layers = (
        _layer(
            [{"place": place, "share": share} for place, share in enumerate(shares, start=1)],
            {"type": "bar", "color": color, "width": {"band": band}},
            x=x,
            y=y,
        )
        for shares, color, band in bars
    )
    yield Chart(
        title="Accepted, by position of the draft",
        note="How often a step accepted so many drafts or more.",
        svg=_svg(*layers),
        has_base=bool(expected),
    )


def _history(case: CaseReport) -> Iterator[Chart]:
    for metric in _HISTORY:
        runs = comparable(case.history, metric)
        if len(runs) < _FEWEST:
            continue
        rows = [
            {
                "at": moment.isoformat() if (moment := began_at(run.run)) else None,
                "value": run.values.get(metric),
                "fine": run.fine(metric),
            }
            for run in runs
        ]
        x = {"field": "at", "type": "temporal", "title": None}
        y = _channel("value", axis_of(metric).rpartition(", ")[2])
        color = {"condition": {"test": "datum.fine", "value": _NOW}, "value": "var(--bad)"}
        points = {"type": "point", "filled": True, "size": 45}
        expected = case.expected.values.get(metric) if case.expected else None
        base = () if expected is None else (_layer([{"value": expected}], _DASHED, y=y),)
        yield Chart(
            title=f"History of {label_of(metric)}",
            note=f"The last {len(runs)} runs that judged it on this machine; red is what was"
            f" not fine.{' The dashed line is the baseline.' if base else ''}",
            svg=_svg(
                *base,
                _layer(rows, {"type": "line", "color": _NOW}, x=x, y=y),
                _layer(rows, points, x=x, y=y, color=color),
            ),
        )


def _channel(field: str, title: str, **others: object) -> dict[str, object]:
    """Numbers with a title on their axis, which need not begin at 0."""
    scale = {"zero": False}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, **others}


def _layer(rows: Sequence[Mapping[str, object]], mark: Layer, **encoding: Layer) -> Layer:
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def _svg(*layers: Layer, **size: object) -> str:
    """The layers as one drawing, of the usual size unless told."""
    import vl_convert  # noqa: PLC0415 - an extra

    spec = {**_SIZE, **size, "background": None, "config": _CONFIG, "layer": layers}
    return vl_convert.vegalite_to_svg({**spec}, vl_version="6.1")
