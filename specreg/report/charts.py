"""Charts: a case of a document, or several loads of one, as SVG.

Vega-Lite draws, here and not in the reader's browser: a page needs no script then, and a screen
reader is told each mark. Colours are variables of the page's style, which knows day from night.
"""

import importlib.util
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specreg.report.document import CaseReport, began_at
from specreg.report.tables import axis_of, label_of
from specreg.stats.percentiles import Bar
from specreg.verdicts.history import comparable

Layer = Mapping[str, object]

_NOW, _BASE, _ALONE, _INK = (f"var(--{name})" for name in ("now", "base", "alone", "ink"))
_LINES = tuple(f"var(--line{number})" for number in range(1, 7))
_HISTORY = ("acceptance_length_tokens", "throughput_tokens_per_s", "speedup_ratio")
_FEWEST = 2
"""Runs, categories, loads: one alone shows nothing."""
_DASHED = {"type": "rule", "color": _INK, "strokeDash": [5, 4]}
_MOST_TICKS = 4
_SIZE = {
    "width": 250,
    "height": 130,
    # Labels are measured in another font than the reader's.
    "padding": {"left": 20, "right": 12, "top": 6, "bottom": 6},
}
_CONFIG = {
    "font": "system-ui, sans-serif",
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
        "tickCount": _MOST_TICKS,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing.

    Attributes:
        title: what is drawn; note: how to read it.
        svg: the markup, which Vega escaped.
        colors: the variables of the colours that it is drawn in, where it doesn't name them.
    """

    title: str
    note: str
    svg: str
    colors: tuple[str, ...] = ()


def can_draw() -> bool:
    """Whether Vega-Lite is installed, which is in the extra `report`."""
    return importlib.util.find_spec("vl_convert") is not None


def charts_of(case: CaseReport) -> Iterator[Chart]:
    """All that can be drawn of a case; a part that isn't known has no chart."""
    yield from _positions(case)
    yield from _categories(case)
    yield from _durations(
        "Time to the first token",
        "Of this run's requests; the outermost bars have the tails too.",
        case.spreads.ttft_ms,
    )
    yield from _durations(
        "Time of a step",
        "Between two chunks of an answer. A step with speculation may bring several tokens.",
        case.spreads.step_ms,
        case.spreads.control_step_ms,
    )
    yield from _history(case)


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


def speed_over_load(cases: Iterable[CaseReport]) -> Iterator[Chart]:
    """A chart for each engine, model pair and prompt set: what speculation gains at each load."""
    groups: dict[tuple[str, ...], dict[tuple[str, int], dict[int, float]]] = {}
    for case in cases:
        gain = case.figures.judged.get("speedup_ratio") if case.figures else None
        if gain is not None and case.settings is not None and case.settings.concurrency:
            lines = groups.setdefault((case.engine, case.models, case.dataset), {})
            line = lines.setdefault((case.method, case.settings.draft_tokens), {})
            line[case.settings.concurrency] = gain
    for what, lines in groups.items():
        methods = [method for method, _ in lines]
        named: dict[str, dict[str, Sequence[tuple[int, float]]]] = {}
        for (method, drafted), line in sorted(lines.items()):
            name = f"{method}-k{drafted}" if methods.count(method) > 1 else method
            # More lines than there are colours are drawn by method.
            part = method if len(lines) > len(_LINES) else ""
            named.setdefault(part, {})[name] = sorted(line.items())
        for part, shown in named.items():
            if len({load for line in shown.values() for load, _ in line}) >= _FEWEST:
                yield _load_chart((*what, part) if part else what, shown)


def _load_chart(what: Sequence[str], lines: Mapping[str, Sequence[tuple[int, float]]]) -> Chart:
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
        title=f"Speedup over load: {', '.join(what)}",
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
    now = acceptance.total.marginal_frac
    expected = case.expected.marginal_frac if case.expected else ()
    x = {"field": "place", "type": "ordinal", "title": "position in the draft"}
    y = _channel("share", "share of steps", zero=True, axis={"format": ".0%", "tickCount": 4})
    layers = (
        _layer(
            [{"place": place, "share": share} for place, share in enumerate(shares, start=1)],
            {"type": "bar", "color": color, "width": {"band": band}},
            x=x,
            y=y,
        )
        # Narrow bars of now in front of wide ones of the baseline.
        for shares, color, band in ((expected, _BASE, 0.9), (now, _NOW, 0.5))
    )
    yield Chart(
        title="Accepted, by position of the draft",
        colors=_with_base(expected),
        note="How often a step accepted so many drafts or more.",
        svg=_svg(*layers),
    )


def _categories(case: CaseReport) -> Iterator[Chart]:
    acceptance = case.figures.acceptance if case.figures else None
    if acceptance is None or len(acceptance.by_category) < _FEWEST:
        return
    expected = case.expected.category_acceptance_length_tokens if case.expected else {}
    now = {
        name: part.acceptance_length_tokens
        for name, part in acceptance.by_category.items()
        if part.acceptance_length_tokens is not None
    }
    y = {"field": "category", "type": "nominal", "title": None, "axis": {"labelLimit": 110}}
    x = _channel("tokens", "acceptance length, tokens per step")
    marks = (
        (expected, {"type": "tick", "color": _BASE, "thickness": 7, "size": 18}),
        (now, {"type": "point", "color": _NOW, "filled": True, "size": 70}),
    )
    layers = (
        _layer([{"category": name, "tokens": values[name]} for name in values], mark, x=x, y=y)
        for values, mark in marks
    )
    yield Chart(
        title="Acceptance length, by category of the prompts",
        colors=_with_base(expected),
        note="Tokens that one step brings forth: the accepted drafts, and one of the target's own.",
        svg=_svg(*layers, width=200, height={"step": 24}),
    )


def _durations(
    title: str, note: str, bars: Sequence[Bar], alone: Sequence[Bar] = ()
) -> Iterator[Chart]:
    """Shares of durations over a logarithmic axis, those without speculation behind."""
    if not bars:
        return
    ticks = _ticks((*bars, *alone))
    x = {
        **_channel("low", "milliseconds"),
        "scale": {"type": "log", "nice": False},
        "axis": {"format": "~r", "values": ticks},
    }
    y = _channel("share", "share", zero=True, axis={"format": ".0%"})
    layers = (
        _layer(
            [
                {"low": bar.low_ms, "high": bar.high_ms, "share": bar.count / total}
                for bar in some
                if bar.count
            ],
            {"type": "bar", "color": color, "opacity": 0.7 if alone else 1, "binSpacing": 0},
            x=x,
            x2={"field": "high"},
            y=y,
            y2={"datum": 0},
        )
        for some, color in ((alone, _ALONE), (bars, _NOW))
        if (total := sum(bar.count for bar in some))
    )
    colors = ("now", "alone") if alone else ("now",)
    yield Chart(title=title, note=note, svg=_svg(*layers), colors=colors)


def _history(case: CaseReport) -> Iterator[Chart]:
    for metric in _HISTORY:
        runs = comparable(case.history, metric)
        if len(runs) < _FEWEST:
            continue
        moments = [began_at(run.run) for run in runs]
        timed = all(moments)
        rows = [
            {
                "at": moment.isoformat() if timed and moment else number,
                "value": run.values[metric],
                "fine": run.fine(metric),
            }
            for number, (run, moment) in enumerate(zip(runs, moments, strict=True), start=1)
        ]
        x = {"field": "at", "type": "temporal" if timed else "ordinal", "title": None}
        y = _channel("value", axis_of(metric).rpartition(", ")[2])
        color = {"condition": {"test": "datum.fine", "value": _NOW}, "value": "var(--bad)"}
        size = {"condition": {"test": "datum.fine", "value": 30}, "value": 90}
        points = {"type": "point", "filled": True, "size": 45}
        expected = case.expected.values.get(metric) if case.expected else None
        layers = [_layer([{"value": expected}], _DASHED, y=y)] if expected is not None else []
        layers.append(_layer(rows, {"type": "line", "color": _NOW}, x=x, y=y))
        layers.append(_layer(rows, points, x=x, y=y, color=color, size=size))
        base = " The dashed line is the baseline." if expected else ""
        yield Chart(
            title=f"History of {label_of(metric)}",
            note=f"The last {len(runs)} runs that judged it on this machine; red is what was"
            f" not fine.{base}",
            svg=_svg(*layers),
        )


def _with_base(expected: object) -> tuple[str, ...]:
    return ("now", "base") if expected else ("now",)


def _ticks(bars: Sequence[Bar]) -> Sequence[float]:
    """Four round numbers at most, as far apart as one another on a logarithmic axis.

    Vega's own axis says a number at each power of ten alone, and so none of a narrow range.
    """
    low, high = min(bar.low_ms for bar in bars), max(bar.high_ms for bar in bars)
    step = (high / low) ** (1 / _MOST_TICKS)
    places = (low * step ** (n + 0.5) for n in range(_MOST_TICKS))
    digits = max(0, math.ceil(-math.log10(1 - 1 / step)))
    rounded = (round(place, digits - math.floor(math.log10(place))) for place in places)
    return list(dict.fromkeys(rounded))


def _channel(field: str, title: str, *, zero: bool = False, **others: object) -> Layer:
    """Numbers with a title on their axis, which need not begin at 0."""
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"zero": zero},
        **others,
    }


def _layer(rows: Sequence[Mapping[str, object]], mark: Layer, **encoding: Layer) -> Layer:
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def _svg(*layers: Layer, **size: object) -> str:
    """The layers as one drawing, of the usual size unless told."""
    import vl_convert  # noqa: PLC0415 - an extra

    spec = {**_SIZE, **size, "background": None, "config": _CONFIG, "layer": layers}
    return vl_convert.vegalite_to_svg({**spec}, vl_version="6.1")
