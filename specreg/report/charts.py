"""Charts: a case of the document in, drawings as SVG out.

Vega-Lite draws them, here and not in the reader's browser: a page needs no script then, and a
screen reader is told each mark. Colours are variables of the page's style, which knows day from
night.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import vl_convert

from specreg.changes import comparable, shifts_in
from specreg.distribution import Bar
from specreg.history import Lived
from specreg.report.document import CaseReport, began_at

Spec = Mapping[str, object]

_NOW, _BASE, _ALONE, _INK = (f"var(--{name})" for name in ("now", "base", "alone", "ink"))
_SIZE = {
    "width": 250,
    "height": 130,
    # Labels are measured in another font than the reader's.
    "padding": {"left": 20, "right": 12, "top": 6, "bottom": 6},
}
_FONT = "system-ui, sans-serif"
_CONFIG = {
    "font": _FONT,
    "view": {"stroke": None},
    "axis": {
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
    },
}
_HISTORY = ("acceptance_length_tokens", "throughput_tokens_per_s", "speedup_ratio")
_FEWEST_RUNS = 2
_FEWEST_POINTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing. `title` says what is drawn, `note` how to read it."""

    title: str
    note: str
    svg: str


def charts_of(case: CaseReport) -> Iterator[Chart]:
    """All that can be drawn of a case; a part that isn't known has no chart."""
    for draw in (_positions, _categories, _histogram, _first_tokens, _steps, _power):
        chart = draw(case)
        if chart is not None:
            yield chart
    yield from _history(case)


def speed_over_load(cases: Iterable[CaseReport]) -> Iterator[Chart]:
    """A chart for each engine, model pair and prompt set: what speculation gains at each load."""
    groups: dict[tuple[str, str, str], list[Mapping[str, object]]] = {}
    for case in cases:
        gain = case.figures.judged.get("speedup_ratio") if case.figures else None
        if gain is not None and case.settings is not None and case.settings.concurrency:
            row = {"n": case.settings.concurrency, "gain": gain, "method": case.method}
            groups.setdefault((case.engine, case.models, case.dataset), []).append(row)
    for (engine, models, dataset), rows in groups.items():
        if len(rows) < _FEWEST_POINTS:
            continue
        yield Chart(
            title=f"Speedup over load: {engine}, {models}, {dataset}",
            note="Throughput with speculation over throughput without it, by requests in flight."
            " Below the dashed line, at 1, speculation costs more than it gains.",
            svg=_svg(_load_layers(rows), width=420, height=200),
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
    y = _quantity("gain", "speedup, times", zero=False)
    colors = [f"var(--line{number})" for number in range(1, 7)]
    color = {
        "field": "method",
        "type": "nominal",
        "scale": {"range": colors},
        "legend": {"title": None, "labelColor": _INK, "labelFontSize": 12, "orient": "top"},
    }
    even = {"values": [{"gain": 1}]}
    return (
        {
            "data": even,
            "mark": {"type": "rule", "color": _INK, "strokeDash": [5, 4]},
            "encoding": {"y": y},
        },
        {
            "data": {"values": rows},
            "mark": {"type": "line", "point": {"filled": True, "size": 55}},
            "encoding": {"x": x, "y": y, "color": color},
        },
    )


def _positions(case: CaseReport) -> Chart | None:
    acceptance = case.figures.acceptance if case.figures else None
    if acceptance is None or not acceptance.total.marginal_frac:
        return None
    expected = case.expected.marginal_frac if case.expected else ()
    return Chart(
        title="Accepted, by position of the draft",
        note="How often a step accepted so many drafts or more.",
        svg=_svg(
            _bars_before(
                _numbered(acceptance.total.marginal_frac, 1),
                _numbered(expected, 1),
                "position in the draft",
                "share of steps",
            )
        ),
    )


def _histogram(case: CaseReport) -> Chart | None:
    acceptance = case.figures.acceptance if case.figures else None
    if acceptance is None or not acceptance.total.steps:
        return None
    expected = case.expected.histogram if case.expected else ()
    return Chart(
        title="Accepted drafts of a step",
        note="How often a step accepted exactly so many drafts.",
        svg=_svg(
            _bars_before(
                _numbered(_shares(acceptance.total.histogram), 0),
                _numbered(_shares(expected), 0),
                "drafts accepted",
                "share of steps",
            )
        ),
    )


def _categories(case: CaseReport) -> Chart | None:
    acceptance = case.figures.acceptance if case.figures else None
    if acceptance is None or len(acceptance.by_category) < len(("one", "another")):
        return None
    expected = case.expected.category_acceptance_length_tokens if case.expected else {}
    now = [
        {"category": name, "tokens": part.acceptance_length_tokens}
        for name, part in acceptance.by_category.items()
        if part.acceptance_length_tokens is not None
    ]
    before = [{"category": name, "tokens": value} for name, value in expected.items()]
    y = {"field": "category", "type": "nominal", "title": None, "axis": {"labelLimit": 110}}
    x = _quantity("tokens", "acceptance length, tokens per step", zero=False)
    return Chart(
        title="Acceptance length, by category of the prompts",
        note="Tokens that one step brings forth: the accepted drafts, and one of the target's own.",
        svg=_svg(
            (
                {
                    "data": {"values": before},
                    "mark": {"type": "tick", "color": _BASE, "thickness": 7, "size": 18},
                    "encoding": {"x": x, "y": y},
                },
                {
                    "data": {"values": now},
                    "mark": {"type": "point", "color": _NOW, "filled": True, "size": 70},
                    "encoding": {"x": x, "y": y},
                },
            ),
            width=200,
            height={"step": 24},
        ),
    )


def _first_tokens(case: CaseReport) -> Chart | None:
    bars = case.spreads.ttft_ms
    if not bars:
        return None
    return Chart(
        title="Time to the first token",
        note="Of this run's requests; the outermost bars have the tails too.",
        svg=_svg((_duration_layer(bars, _NOW),)),
    )


def _steps(case: CaseReport) -> Chart | None:
    bars = case.spreads.step_ms
    if not bars:
        return None
    alone = case.spreads.control_step_ms
    layers = [_duration_layer(alone, _ALONE, 0.55)] if alone else []
    return Chart(
        title="Time of a step",
        note="Between two chunks of an answer. A step with speculation may bring several tokens.",
        svg=_svg((*layers, _duration_layer(bars, _NOW, 0.8))),
    )


def _power(case: CaseReport) -> Chart | None:
    rows = [
        {"at": point.at_s, "drawn": point.power_w, "device": f"{number + 1}: {curve.device}"}
        for number, curve in enumerate(case.power)
        for point in curve.points
    ]
    if not rows:
        return None
    x = {"field": "at", "type": "quantitative", "title": "seconds"}
    colors = [f"var(--line{number})" for number in range(1, 7)]
    legend = {"title": None, "labelColor": _INK, "orient": "top", "columns": 1}
    color = {"field": "device", "type": "nominal", "scale": {"range": colors}, "legend": legend}
    encoding = {"x": x, "y": _quantity("drawn", "watts", zero=True), "color": color}
    return Chart(
        title="Power over time",
        note="Of each device while the case was measured: idle first, then both servers in turns.",
        svg=_svg(({"data": {"values": rows}, "mark": {"type": "line"}, "encoding": encoding},)),
    )


def _history(case: CaseReport) -> Iterator[Chart]:
    for metric in _HISTORY:
        runs = comparable(case.history, metric)
        if len(runs) >= _FEWEST_RUNS:
            yield Chart(
                title=f"History of {label_of(metric)}",
                note=f"The last {len(runs)} runs on this machine; red is what was not fine."
                " The dashed line is the baseline; an upright one, where it shifted for good.",
                svg=_svg(tuple(_history_layers(case, metric, runs))),
            )


def _history_layers(case: CaseReport, metric: str, runs: Sequence[Lived]) -> Iterator[Spec]:
    moments = [began_at(run.run) for run in runs]
    timed = all(moments)
    rows = [
        {
            "at": moment.isoformat() if timed and moment else number,
            "value": run.values[metric],
            "fine": run.outcomes.get(metric) in {"PASS", "IMPROVED", "MEASURED"},
        }
        for number, (run, moment) in enumerate(zip(runs, moments, strict=True), start=1)
    ]
    x = {"field": "at", "type": "temporal" if timed else "ordinal", "title": None}
    y = _quantity("value", label_of(metric), zero=False)
    expected = case.expected.values.get(metric) if case.expected else None
    if expected is not None:
        yield {
            "data": {"values": [{"value": expected}]},
            "mark": {"type": "rule", "color": _INK, "strokeDash": [5, 4]},
            "encoding": {"y": y},
        }
    shifts = [rows[shift.place] for shift in shifts_in([run.values[metric] for run in runs])]
    if shifts:
        yield {
            "data": {"values": shifts},
            "mark": {"type": "rule", "color": "var(--bad)"},
            "encoding": {"x": x},
        }
    yield {
        "data": {"values": rows},
        "mark": {"type": "line", "color": _NOW},
        "encoding": {"x": x, "y": y},
    }
    yield {
        "data": {"values": rows},
        "mark": {"type": "point", "filled": True, "size": 45},
        "encoding": {
            "x": x,
            "y": y,
            "color": {"condition": {"test": "datum.fine", "value": _NOW}, "value": "var(--bad)"},
            "size": {"condition": {"test": "datum.fine", "value": 30}, "value": 90},
        },
    }


def label_of(metric: str) -> str:
    """`acceptance length` of `acceptance_length_tokens`."""
    for unit in ("_tokens_per_s", "_requests_per_s", "_tokens", "_frac", "_ms", "_ratio"):
        if metric.endswith(unit):
            return metric.removesuffix(unit).replace("_", " ")
    return metric.replace("_", " ")


def _bars_before(
    now: Sequence[Mapping[str, object]],
    before: Sequence[Mapping[str, object]],
    x_title: str,
    y_title: str,
) -> Sequence[Spec]:
    """Narrow bars of now in front of wide ones of the baseline."""
    x = {"field": "place", "type": "ordinal", "title": x_title}
    y = {**_quantity("share", y_title, zero=True), "axis": {"format": ".0%", "tickCount": 4}}
    encoding = {"x": x, "y": y}
    wide = {"type": "bar", "color": _BASE, "width": {"band": 0.9}}
    narrow = {"type": "bar", "color": _NOW, "width": {"band": 0.5}}
    return (
        {"data": {"values": before}, "mark": wide, "encoding": encoding},
        {"data": {"values": now}, "mark": narrow, "encoding": encoding},
    )


def _duration_layer(bars: Sequence[Bar], color: str, opacity: float = 1.0) -> Spec:
    total = sum(bar.count for bar in bars)
    rows = [
        {"low": bar.low_ms, "high": bar.high_ms, "share": bar.count / total}
        for bar in bars
        if bar.count
    ]
    scale = {"type": "log", "nice": False}
    x = {"field": "low", "type": "quantitative", "title": "milliseconds", "scale": scale}
    return {
        "data": {"values": rows},
        "mark": {"type": "bar", "color": color, "opacity": opacity, "binSpacing": 0},
        "encoding": {
            "x": {**x, "axis": {"format": "~r", "labelOverlap": True}},
            "x2": {"field": "high"},
            "y": {**_quantity("share", "share", zero=True), "axis": {"format": ".0%"}},
            "y2": {"datum": 0},
        },
    }


def _quantity(field: str, title: str, *, zero: bool) -> Mapping[str, object]:
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": zero}}


def _numbered(values: Sequence[float], first: int) -> Sequence[Mapping[str, object]]:
    return [{"place": first + i, "share": value} for i, value in enumerate(values)]


def _shares(counts: Sequence[int]) -> Sequence[float]:
    return [count / sum(counts) for count in counts] if any(counts) else ()


def _svg(layers: Sequence[Spec], **size: object) -> str:
    spec = {**_SIZE, **size, "background": None, "config": _CONFIG, "layer": layers}
    return vl_convert.vegalite_to_svg({**spec}, vl_version="6.1")
