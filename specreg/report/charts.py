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
from specreg.verdicts.history import RunRecord, comparable
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

    Attributes:
        title: What is drawn.
        note: How to read it.
        svg: The drawing.
        legend: What has a colour, by the colour's name in the page's style; empty where the
            drawing says it.
    """

    title: str
    note: str
    svg: str
    legend: Mapping[str, str] = field(default_factory=dict)


def can_draw() -> bool:
    """Return whether Vega-Lite is installed, which is in the extra `report`."""
    return importlib.util.find_spec("vl_convert") is not None


def charts_of(
    case: CaseReport,
    verdicts: Iterable[Verdict] = (),
    names: tuple[str, str] = ("this run", "the baseline"),
) -> Iterator[Chart]:
    """Yield the charts of all that is known of a case.

    Args:
        case: The case.
        verdicts: The verdicts on the case that compare it with the oracle, by position.
        names: What the case's figures and the expected ones are called.
    """
    if case.figures and case.figures.acceptance:
        shares = case.figures.acceptance.total.marginal_frac
        expected = case.expected.marginal_frac if case.expected else ()
        yield from _positions("", shares, expected, names)
    for verdict in verdicts:
        engine_shares = [ours for ours, _ in verdict.by_position_frac]
        oracle_shares = [oracle for _, oracle in verdict.by_position_frac]
        yield from _positions(", against the oracle", engine_shares, oracle_shares, _ORACLE_NAMES)
    if case.figures and case.figures.power:
        yield from _energy(case.figures.power)
    yield from _history(case)


def crossings(loads: Sequence[tuple[int, float]]) -> list[float]:
    """Return the loads at which a gain crosses 1, on straight lines over the load's logarithm.

    Args:
        loads: One load or more, the lightest first: requests in flight, and the gain there.
    """
    return [
        light * (heavy / light) ** ((gain - 1) / (gain - other))
        for (light, gain), (heavy, other) in itertools.pairwise(loads)
        if (gain >= 1) != (other >= 1)
    ]


def break_even(loads: Sequence[tuple[int, float]]) -> str:
    """Say where speculation stops paying, of the loads and gains that `crossings` takes."""
    crossed = crossings(loads)
    paying = [load for load, gain in loads if gain >= 1]
    costing = [load for load, gain in loads if gain < 1]
    if not crossed:
        pays = "pays" if paying else "never pays"
        return f"{pays} at {loads[0][0]} to {loads[-1][0]} in flight"
    if len(crossed) == 1:
        pays = "pays up to about" if paying[0] < costing[0] else "pays from about"
        return f"{pays} {crossed[0]:.2g} in flight"
    paying_text = ", ".join(map(str, paying))
    costing_text = ", ".join(map(str, costing))
    return f"pays at {paying_text} in flight, not at {costing_text}"


def gains_over_load(cases: Sequence[CaseReport]) -> Iterator[Chart]:
    """Yield charts of what speculation gains at each load, for each engine, models and prompt set.

    A line is of cases that differ in load and prompts alone. A chart has three loads or more: a
    line through two has no bend, so it doesn't show where it crosses 1.
    """
    speedups: list[tuple[CaseReport, float | None]] = []
    savings: list[tuple[CaseReport, float | None]] = []
    for case in cases:
        if case.figures is None:
            continue
        speedups.append((case, case.figures.judged.get("speedup_ratio")))
        power = case.figures.power
        if power is not None and not power.invalid and not power.too_short:
            savings.append((case, power.energy_ratio))
    yield from _gain_charts(
        "Speedup over load",
        axis="speedup, times",
        formula="Throughput with speculation over throughput without it",
        gains=speedups,
    )
    yield from _gain_charts(
        "Energy saved over load",
        axis="energy per token, times less",
        formula="Energy per token without speculation over that with it",
        gains=savings,
    )


def _gain_charts(
    title: str, *, axis: str, formula: str, gains: Iterable[tuple[CaseReport, float | None]]
) -> Iterator[Chart]:
    """Yield a chart for each engine, models and prompt set that has loads enough."""
    lines_by_subject: dict[str, dict[CaseSettings, dict[int, float]]] = {}
    for case, gain in gains:
        if gain is None or case.settings is None or not case.settings.concurrency:
            continue
        subject = f"{case.engine}, {case.models}, {case.dataset}"
        line_settings = dataclasses.replace(case.settings, **_OF_LOAD)
        line = lines_by_subject.setdefault(subject, {}).setdefault(line_settings, {})
        line[case.settings.concurrency] = gain
    for subject, lines in lines_by_subject.items():
        loads = {load for line in lines.values() for load in line}
        if len(loads) >= _FEWEST_LOADS:
            yield _load_chart(f"{title}: {subject}", axis, formula, _named(lines))


def _named(lines: Mapping[CaseSettings, Mapping[int, float]]) -> Mapping[str, _Line]:
    """Return lines by method and drafts, and by what else differs from the first of that name."""
    first_settings: dict[str, CaseSettings] = {}
    named = {}
    for settings, line in lines.items():
        name = f"{settings.method}-k{settings.draft_tokens}"
        difference = differing_settings(first_settings.setdefault(name, settings), settings)
        if difference:
            name = f"{name} ({difference})"
        named[name] = sorted(line.items())
    return dict(sorted(named.items()))


def _load_chart(title: str, axis: str, formula: str, lines: Mapping[str, _Line]) -> Chart:
    """Draw the gain of each line over the load, with a diamond where it crosses 1."""
    points = [
        {"n": load, "gain": gain, "method": name}
        for name, line in lines.items()
        for load, gain in line
    ]
    bent_lines = {name: line for name, line in lines.items() if len(line) >= _FEWEST_LOADS}
    crossed = [
        {"n": load, "gain": 1, "method": name}
        for name, line in bent_lines.items()
        for load in crossings(line)
    ]
    ticks = _every(sorted({load for line in lines.values() for load, _ in line}))
    x = _channel(
        "n",
        "requests in flight",
        scale={"type": "log", "base": 2, "nice": False},
        axis={**ticks, "labelFlush": False},
    )
    y = _channel("gain", axis)
    color = {
        "field": "method",
        "type": "nominal",
        "scale": {"range": _LINES},
        "legend": {
            "title": None,
            "labelColor": _INK,
            "labelFontSize": 12,
            "orient": "top",
            "columns": 2,
            "columnPadding": 20,
        },
    }
    line_mark = {"type": "line", "point": {"filled": True, "size": 55}}
    diamond = {"type": "point", "shape": "diamond", "filled": False, "size": 160}
    layers = [_layer([{"gain": 1}], _DASHED, y=y), _layer(points, line_mark, x=x, y=y, color=color)]
    if crossed:
        layers.append(_layer(crossed, diamond, x=x, y=y, color=color))
    note = (
        f"{formula}, by requests in flight. Below the dashed line, at 1, speculation costs more"
        " than it gains; a diamond is where it crosses."
    )
    if bent_lines:
        findings = "; ".join(f"{name} {break_even(line)}" for name, line in bent_lines.items())
        note = f"{note} {findings}."
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
    """Yield the energy per token with and without speculation: at rest, and what load adds.

    Nothing is drawn unless the energy of both is known.
    """
    if power.invalid or power.case is None or power.control is None:
        return
    arms = {"with": power.case, "without": power.control}
    energies = [{"arm": name, "energy": arm.energy_j_per_token} for name, arm in arms.items()]
    if any(row["energy"] is None for row in energies):
        return
    at_rest = [
        {"arm": name, "energy": arm.idle_w * arm.window_s / arm.tokens}
        for name, arm in arms.items()
        if arm.idle_w is not None and arm.tokens
    ]
    x = _channel("energy", "J per token", scale={"zero": True})
    y = {"field": "arm", "type": "nominal", "title": None, "sort": None}
    bar = {"type": "bar", "height": {"band": 0.6}}
    yield Chart(
        title="Energy per token, with speculation and without",
        note="Of all devices together.",
        svg=_svg(
            _layer(energies, {**bar, "color": _NOW}, x=x, y=y),
            _layer(at_rest, {**bar, "color": _BASE}, x=x, y=y),
            height=80,
        ),
        legend={"now": "what load adds", "base": "what is drawn at rest"} if at_rest else {},
    )


def _history(case: CaseReport) -> Iterator[Chart]:
    """Yield a chart for each metric that several runs judged, but for those of one position.

    Those by position follow the others.
    """
    for metric in METRICS:
        runs = comparable(case.history, metric)
        if not metric.startswith("acceptance_pos") and len(runs) >= _FEWEST_RUNS:
            yield _metric_history(metric, runs, case)


def _metric_history(metric: str, runs: Sequence[RunRecord], case: CaseReport) -> Chart:
    """Draw a metric over a case's runs, the earliest first, beside its baseline."""
    rows = [
        {"at": number, "value": run.values.get(metric), "fine": run.fine(metric)}
        for number, run in enumerate(runs)
    ]
    version_starts = {
        number: run.engine_version
        for number, run in enumerate(runs)
        if number == 0 or run.engine_version != runs[number - 1].engine_version
    }
    axis = {
        **_every(version_starts),
        "labelExpr": f"{json.dumps(version_starts)}[datum.value]",
        "labelAngle": -45,
        "grid": True,
        "gridColor": _BASE,
    }
    scale = {"nice": False, "zero": False}
    x = _channel("at", "engine, from the first run with it", scale=scale, axis=axis)
    y = _channel("value", axis_of(metric).rpartition(", ")[2])
    color = {"condition": {"test": "datum.fine", "value": _NOW}, "value": _BAD}
    points = {"type": "point", "filled": True, "size": 45}
    layers = []
    note = f"The last {len(runs)} runs that judged it on this machine; red is what was not fine."
    expected = case.expected.values.get(metric) if case.expected else None
    if expected is not None:
        layers.append(_layer([{"value": expected}], _DASHED, y=y))
        note += " The dashed line is the baseline."
    bad = first_bad(runs, metric)
    if bad < len(runs):
        layers.append(_layer([rows[bad]], {"type": "rule", "color": _BAD}, x=x))
        note += f" Not fine since {moment_of(runs[bad])}, at the red line."
    layers.append(_layer(rows, {"type": "line", "color": _NOW}, x=x, y=y))
    layers.append(_layer(rows, points, x=x, y=y, color=color))
    return Chart(title=f"History of {label_of(metric)}", note=note, svg=_svg(*layers))


def _channel(field: str, title: str, **others: object) -> dict[str, object]:
    """Return numbers with a title; their axis needn't begin at 0 unless a scale says so."""
    usual = {"type": "quantitative", "scale": {"zero": False}}
    return {"field": field, "title": title, **usual, **others}


def _every(values: Iterable[float]) -> dict[str, object]:
    """Return an axis with a label at each of these values, where Vega would leave some out."""
    ticks = list(values)
    return {"values": ticks, "tickCount": len(ticks), "labelOverlap": False}


def _layer(rows: Sequence[Mapping[str, object]], mark: Layer, **encoding: Layer) -> Layer:
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def _svg(*layers: Layer, **size: object) -> str:
    """Draw layers over each other; `size` has what differs from the usual size."""
    import vl_convert  # noqa: PLC0415 - an extra

    spec = {**_SIZE, **size, "background": None, "config": _CONFIG, "layer": layers}
    return vl_convert.vegalite_to_svg({**spec}, vl_version="6.1")
