"""Charts of a case, or of several loads, as SVG.

Vega-Lite draws, here and not in the reader's browser: a page needs no script then, and a screen
reader is told each mark. Colours are variables of the page's style, which knows day from night.
"""

import dataclasses
import importlib.util
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specreg.baselines.comparison import differing_settings
from specreg.matrix.case import CaseSettings, Load
from specreg.measurement.metrics import METRICS
from specreg.report.document import CaseReport
from specreg.report.failures import first_bad, moment_of
from specreg.report.tables import axis_of, label_of
from specreg.telemetry.power_record import PowerRecord
from specreg.verdicts.history import comparable
from specreg.verdicts.verdict import Verdict

Layer = Mapping[str, object]
_Line = Sequence[tuple[int, float]]
_OF_LOAD: Mapping[str, Any] = {
    **{one.name: one.default for one in dataclasses.fields(Load)},
    **dict.fromkeys(("prompts", "num_prompts")),
    "prompts_sha256": "",
}
"""What differs between the places of a line."""

_NOW, _BASE, _INK, _BAD = (f"var(--{name})" for name in ("now", "base", "ink", "bad"))
_LINES = tuple(f"var(--line{number})" for number in range(1, 7))
_ORACLE_NAMES = ("the engine", "its text and models")
_FEWEST_RUNS, _FEWEST_LOADS = 2, 3
_DASHED = {"type": "rule", "color": _INK, "strokeDash": [5, 4]}
# Labels are measured in another font than the reader's.
_PADDING = {"left": 20, "right": 12, "top": 6, "bottom": 6}
_SIZE = {"width": 250, "height": 130, "padding": _PADDING}
_COLORS = {"labelColor": _INK, "titleColor": _INK, "domainColor": _BASE, "tickColor": _BASE}
_TITLES = {"titleFontWeight": "normal", "titleFontSize": 12, "titlePadding": 9}
_TICKS = {"labelFontSize": 11, "labelAngle": 0, "tickCount": 4, "grid": False}
_AXIS = {**_COLORS, **_TITLES, **_TICKS}
_CONFIG = {"font": "system-ui, sans-serif", "view": {"stroke": None}, "axis": _AXIS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing, whose markup Vega escaped, and how to read it.

    `legend` has by colour of the page's style what has it; empty where the drawing says it.
    """

    title: str
    note: str
    svg: str
    legend: Mapping[str, str] = field(default_factory=dict)


def can_draw() -> bool:
    """Whether Vega-Lite is installed, which is in the extra `report`."""
    return importlib.util.find_spec("vl_convert") is not None


def charts_of(
    case: CaseReport,
    verdicts: Iterable[Verdict] = (),
    names: tuple[str, str] = ("this run", "the baseline"),
) -> Iterator[Chart]:
    """All that is known of a case, whose figures and expected ones are called by names."""
    if case.figures and case.figures.acceptance:
        shares = case.figures.acceptance.total.marginal_frac
        expected = case.expected.marginal_frac if case.expected else ()
        yield from _positions("", shares, expected, names)
    for one in verdicts:
        ours, must = ([pair[side] for pair in one.by_position_frac] for side in (0, 1))
        yield from _positions(", against the oracle", ours, must, _ORACLE_NAMES)
    if case.figures and case.figures.power:
        yield from _energy(case.figures.power)
    yield from _history(case)


def crossings(loads: Sequence[tuple[int, float]]) -> list[float]:
    """The loads at which a gain crosses 1, on straight lines over log load.

    One load or more: requests in flight and the gain there, the lightest first.
    """
    return [
        light * (heavy / light) ** ((gain - 1) / (gain - other))
        for (light, gain), (heavy, other) in itertools.pairwise(loads)
        if (gain >= 1) != (other >= 1)
    ]


def break_even(loads: Sequence[tuple[int, float]]) -> str:
    """Where speculation stops to pay, of the loads and gains that `crossings` takes."""
    found = crossings(loads)
    pays, costs = ([load for load, gain in loads if (gain >= 1) is one] for one in (True, False))
    if len(found) == 1:
        way = "pays up to about" if pays[0] < costs[0] else "pays from about"
        return f"{way} {found[0]:.2g} in flight"
    if found:
        return f"pays at {', '.join(map(str, pays))} in flight, not at {', '.join(map(str, costs))}"
    told = "pays" if pays else "never pays"
    return f"{told} at {loads[0][0]} to {loads[-1][0]} in flight"


def gains_over_load(cases: Sequence[CaseReport]) -> Iterator[Chart]:
    """Charts for each engine, model pair and prompt set: what speculation gains at each load.

    Of three loads or more: a line through two has no bend, so it shows no place where it crosses 1.
    A line is of cases that differ in load and prompts alone.
    """
    known = [(case, case.figures) for case in cases if case.figures]
    speedups = [(case, figures.judged.get("speedup_ratio")) for case, figures in known]
    title, formula = "Speedup over load", "Throughput with speculation over throughput without it"
    yield from _gain_charts(title, "speedup, times", formula, speedups)
    saved = [
        (case, power.energy_ratio)
        for case, figures in known
        if (power := figures.power) and not (power.invalid or power.too_short)
    ]
    title, formula = "Energy saved", "Energy per token without speculation over that with it"
    yield from _gain_charts(f"{title} over load", "energy per token, times less", formula, saved)


def _gain_charts(
    title: str, axis: str, formula: str, gains: Iterable[tuple[CaseReport, float | None]]
) -> Iterator[Chart]:
    groups: dict[str, dict[CaseSettings, dict[int, float]]] = {}
    for case, gain in gains:
        if gain is not None and case.settings is not None and case.settings.concurrency:
            lines = groups.setdefault(f"{case.engine}, {case.models}, {case.dataset}", {})
            alike = dataclasses.replace(case.settings, **_OF_LOAD)
            lines.setdefault(alike, {})[case.settings.concurrency] = gain
    for what, found in groups.items():
        if len({load for line in found.values() for load in line}) >= _FEWEST_LOADS:
            yield _load_chart(f"{title}: {what}", axis, formula, _named(found))


def _named(lines: Mapping[CaseSettings, Mapping[int, float]]) -> Mapping[str, _Line]:
    """Return lines by method and drafts, and by what else differs from the first of that name."""
    first: dict[str, CaseSettings] = {}
    found = {}
    for settings, line in lines.items():
        name = f"{settings.method}-k{settings.draft_tokens}"
        differs = differing_settings(first.setdefault(name, settings), settings)
        found[f"{name}{differs and f' ({differs})'}"] = sorted(line.items())
    return dict(sorted(found.items()))


def _load_chart(title: str, axis: str, formula: str, lines: Mapping[str, _Line]) -> Chart:
    rows = [{"n": n, "gain": gain, "method": name} for name in lines for n, gain in lines[name]]
    bent = {name: line for name, line in lines.items() if len(line) >= _FEWEST_LOADS}
    even = [{"n": n, "gain": 1, "method": name} for name in bent for n in crossings(bent[name])]
    ticks = _every(sorted({load for line in lines.values() for load, _ in line}))
    log = {"type": "log", "base": 2, "nice": False}
    x = _channel("n", "requests in flight", scale=log, axis={**ticks, "labelFlush": False})
    y = _channel("gain", axis)
    place = {"orient": "top", "columns": 2, "columnPadding": 20}
    legend = {"title": None, "labelColor": _INK, "labelFontSize": 12, **place}
    color = {"field": "method", "type": "nominal", "scale": {"range": _LINES}, "legend": legend}
    mark = {"type": "line", "point": {"filled": True, "size": 55}}
    crossing = {"type": "point", "shape": "diamond", "filled": False, "size": 160}
    layers = [_layer([{"gain": 1}], _DASHED, y=y), _layer(rows, mark, x=x, y=y, color=color)]
    if even:
        layers.append(_layer(even, crossing, x=x, y=y, color=color))
    said = "; ".join(f"{name} {break_even(line)}" for name, line in bent.items())
    note = (
        f"{formula}, by requests in flight. Below the dashed line, at 1, speculation costs more"
        f" than it gains; a diamond is where it crosses.{said and f' {said}.'}"
    )
    return Chart(title=title, note=note, svg=_svg(*layers, width=270, height=190))


def _positions(
    against: str, shares: Sequence[float], expected: Sequence[float], names: tuple[str, str]
) -> Iterator[Chart]:
    if not shares:
        return
    x = {"field": "place", "type": "ordinal", "title": "position in the draft"}
    percent = {"format": ".0%", "tickCount": 4}
    y = _channel("share", "share of steps", axis=percent, scale={"zero": True})
    layers = []  # narrow bars of now in front of wide ones of the baseline
    for found, color, band in ((expected, _BASE, 0.9), (shares, _NOW, 0.5)):
        rows = [{"place": place, "share": share} for place, share in enumerate(found, start=1)]
        bar = {"type": "bar", "color": color, "width": {"band": band}}
        layers.append(_layer(rows, bar, x=x, y=y))
    yield Chart(
        title=f"Accepted, by position of the draft{against}",
        note="How often a step accepted so many drafts or more.",
        svg=_svg(*layers),
        legend=dict(zip(("now", "base"), names, strict=True)) if expected else {},
    )


def _energy(power: PowerRecord) -> Iterator[Chart]:
    """Energy per token with and without speculation: what is drawn at rest, and what load adds."""
    sides = {"with": power.case, "without": power.control}
    arms = {name: arm for name, arm in sides.items() if arm and not power.invalid}
    whole = [{"arm": name, "energy": one.energy_j_per_token} for name, one in arms.items()]
    rest = [
        {"arm": name, "energy": one.idle_w * one.window_s / one.tokens}
        for name, one in arms.items()
        if one.idle_w is not None and one.tokens
    ]
    if [row for row in whole if row["energy"] is None] or arms.keys() != sides.keys():
        return
    x = _channel("energy", "J per token", scale={"zero": True})
    y = {"field": "arm", "type": "nominal", "title": None, "sort": None}
    bar = {"type": "bar", "height": {"band": 0.6}}
    yield Chart(
        title="Energy per token, with speculation and without",
        note="Of all devices together.",
        svg=_svg(
            _layer(whole, {**bar, "color": _NOW}, x=x, y=y),
            _layer(rest, {**bar, "color": _BASE}, x=x, y=y),
            height=80,
        ),
        legend={"now": "what load adds", "base": "what is drawn at rest"} if rest else {},
    )


def _history(case: CaseReport) -> Iterator[Chart]:
    """A chart for each metric that several runs judged; those by position follow the others."""
    for metric in (name for name in METRICS if not name.startswith("acceptance_pos")):
        runs = comparable(case.history, metric)
        if len(runs) < _FEWEST_RUNS:
            continue
        rows = [
            {"at": at, "value": run.values.get(metric), "fine": run.fine(metric)}
            for at, run in enumerate(runs)
        ]
        versions = [run.engine_version for run in runs]
        begins = {
            at: one for at, one in enumerate(versions) if one not in versions[max(at - 1, 0) : at]
        }
        labels = {"labelExpr": f"{json.dumps(begins)}[datum.value]", "labelAngle": -45}
        axis = {**_every(begins), **labels, "grid": True, "gridColor": _BASE}
        scale = {"nice": False, "zero": False}
        x = _channel("at", "engine, from the first run with it", scale=scale, axis=axis)
        y = _channel("value", axis_of(metric).rpartition(", ")[2])
        color = {"condition": {"test": "datum.fine", "value": _NOW}, "value": _BAD}
        points = {"type": "point", "filled": True, "size": 45}
        layers, told = [], f"The last {len(runs)} runs that judged it on this machine"
        note = f"{told}; red is what was not fine."
        if case.expected and (expected := case.expected.values.get(metric)) is not None:
            layers.append(_layer([{"value": expected}], _DASHED, y=y))
            note += " The dashed line is the baseline."
        if (bad := first_bad(runs, metric)) < len(runs):
            layers.append(_layer([rows[bad]], {"type": "rule", "color": _BAD}, x=x))
            note += f" Not fine since {moment_of(runs[bad])}, at the red line."
        layers.append(_layer(rows, {"type": "line", "color": _NOW}, x=x, y=y))
        layers.append(_layer(rows, points, x=x, y=y, color=color))
        yield Chart(title=f"History of {label_of(metric)}", note=note, svg=_svg(*layers))


def _channel(field: str, title: str, **others: object) -> dict[str, object]:
    """Numbers with a title on their axis, which need not begin at 0 unless a scale says so."""
    usual = {"type": "quantitative", "scale": {"zero": False}}
    return {"field": field, "title": title, **usual, **others}


def _every(values: Iterable[float]) -> dict[str, object]:
    """An axis with a label at each of these values, where Vega would leave some out."""
    ticks = list(values)
    return {"values": ticks, "tickCount": len(ticks), "labelOverlap": False}


def _layer(rows: Sequence[Mapping[str, object]], mark: Layer, **encoding: Layer) -> Layer:
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def _svg(*layers: Layer, **size: object) -> str:
    """The layers as one drawing, of the usual size unless told."""
    import vl_convert  # noqa: PLC0415 - an extra

    spec = {**_SIZE, **size, "background": None, "config": _CONFIG, "layer": layers}
    return vl_convert.vegalite_to_svg({**spec}, vl_version="6.1")
