"""Charts: a case of the document in, drawings as SVG out."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from specreg.report.document import CaseReport, began_at
from specreg.report.drawing import ALONE, BASE, INK, NOW, Chart, Spec, quantity, svg
from specreg.report.quantities import axis_of, label_of
from specreg.stats.percentiles import Bar
from specreg.verdicts.history import RunRecord, comparable

_HISTORY = ("acceptance_length_tokens", "throughput_tokens_per_s", "speedup_ratio")
_FEWEST = 2
"""Runs, categories: one alone shows nothing."""
_DECADE = 10
_OF_A_DECADE = ((1,), (1, 3), (1, 2, 5))
_FEWEST_TICKS = 3


def charts_of(case: CaseReport) -> Iterator[Chart]:
    """All that can be drawn of a case; a part that isn't known has no chart."""
    for draw in (_positions, _categories, _histogram, _first_tokens, _steps):
        chart = draw(case)
        if chart is not None:
            yield chart
    yield from _history(case)


def _positions(case: CaseReport) -> Chart | None:
    acceptance = case.figures.acceptance if case.figures else None
    if acceptance is None or not acceptance.total.marginal_frac:
        return None
    expected = case.expected.marginal_frac if case.expected else ()
    return Chart(
        title="Accepted, by position of the draft",
        colors=_with_base(expected),
        note="How often a step accepted so many drafts or more.",
        svg=svg(
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
        colors=_with_base(expected),
        note="How often a step accepted exactly so many drafts.",
        svg=svg(
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
    if acceptance is None or len(acceptance.by_category) < _FEWEST:
        return None
    expected = case.expected.category_acceptance_length_tokens if case.expected else {}
    now = [
        {"category": name, "tokens": part.acceptance_length_tokens}
        for name, part in acceptance.by_category.items()
        if part.acceptance_length_tokens is not None
    ]
    before = [{"category": name, "tokens": value} for name, value in expected.items()]
    y = {"field": "category", "type": "nominal", "title": None, "axis": {"labelLimit": 110}}
    x = quantity("tokens", "acceptance length, tokens per step", zero=False)
    return Chart(
        title="Acceptance length, by category of the prompts",
        colors=_with_base(expected),
        note="Tokens that one step brings forth: the accepted drafts, and one of the target's own.",
        svg=svg(
            (
                {
                    "data": {"values": before},
                    "mark": {"type": "tick", "color": BASE, "thickness": 7, "size": 18},
                    "encoding": {"x": x, "y": y},
                },
                {
                    "data": {"values": now},
                    "mark": {"type": "point", "color": NOW, "filled": True, "size": 70},
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
        svg=svg((_duration_layer(bars, NOW, _ticks(bars)),)),
        colors=("now",),
    )


def _steps(case: CaseReport) -> Chart | None:
    bars = case.spreads.step_ms
    if not bars:
        return None
    alone = case.spreads.control_step_ms
    ticks = _ticks((*bars, *alone))
    layers = [_duration_layer(alone, ALONE, ticks, 0.55)] if alone else []
    return Chart(
        title="Time of a step",
        note="Between two chunks of an answer. A step with speculation may bring several tokens.",
        svg=svg((*layers, _duration_layer(bars, NOW, ticks, 0.8))),
        colors=("now", "alone") if alone else ("now",),
    )


def _history(case: CaseReport) -> Iterator[Chart]:
    for metric in _HISTORY:
        runs = comparable(case.history, metric)
        if len(runs) >= _FEWEST:
            base = " The dashed line is the baseline." if _expects(case, metric) else ""
            yield Chart(
                title=f"History of {label_of(metric)}",
                note=f"The last {len(runs)} runs that judged it on this machine; red is what was"
                f" not fine.{base}",
                svg=svg(tuple(_history_layers(case, metric, runs))),
            )


def _expects(case: CaseReport, metric: str) -> float | None:
    return case.expected.values.get(metric) if case.expected else None


def _history_layers(case: CaseReport, metric: str, runs: Sequence[RunRecord]) -> Iterator[Spec]:
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
    y = quantity("value", axis_of(metric), zero=False)
    expected = _expects(case, metric)
    if expected is not None:
        yield {
            "data": {"values": [{"value": expected}]},
            "mark": {"type": "rule", "color": INK, "strokeDash": [5, 4]},
            "encoding": {"y": y},
        }
    yield {
        "data": {"values": rows},
        "mark": {"type": "line", "color": NOW},
        "encoding": {"x": x, "y": y},
    }
    yield {
        "data": {"values": rows},
        "mark": {"type": "point", "filled": True, "size": 45},
        "encoding": {
            "x": x,
            "y": y,
            "color": {"condition": {"test": "datum.fine", "value": NOW}, "value": "var(--bad)"},
            "size": {"condition": {"test": "datum.fine", "value": 30}, "value": 90},
        },
    }


def _with_base(expected: object) -> tuple[str, ...]:
    return ("now", "base") if expected else ("now",)


def _bars_before(
    now: Sequence[Mapping[str, object]],
    before: Sequence[Mapping[str, object]],
    x_title: str,
    y_title: str,
) -> Sequence[Spec]:
    """Narrow bars of now in front of wide ones of the baseline."""
    x = {"field": "place", "type": "ordinal", "title": x_title}
    y = {**quantity("share", y_title, zero=True), "axis": {"format": ".0%", "tickCount": 4}}
    encoding = {"x": x, "y": y}
    wide = {"type": "bar", "color": BASE, "width": {"band": 0.9}}
    narrow = {"type": "bar", "color": NOW, "width": {"band": 0.5}}
    return (
        {"data": {"values": before}, "mark": wide, "encoding": encoding},
        {"data": {"values": now}, "mark": narrow, "encoding": encoding},
    )


def _ticks(bars: Sequence[Bar]) -> Sequence[float]:
    """Where an axis of logarithms says a number: at three or more, as round as can be."""
    low, high = min(bar.low_ms for bar in bars), max(bar.high_ms for bar in bars)
    exponents = range(math.ceil(math.log10(high)), math.floor(math.log10(high - low)) - 2, -1)
    if high >= _DECADE * low:
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for steps in _OF_A_DECADE:
            found = [step * 10.0**power for power, step in itertools.product(exponents, steps)]
            inside = [tick for tick in found if low <= tick <= high]
            if len(inside) >= _FEWEST_TICKS:
                return inside
    for power, step in itertools.product(exponents, (5, 2.5, 2, 1)):
        width = step * 10.0**power
        inside = [width * n for n in range(math.ceil(low / width), math.floor(high / width) + 1)]
        if len(inside) >= _FEWEST_TICKS:
            return inside
    return [low, high]


def _duration_layer(
    bars: Sequence[Bar], color: str, ticks: Sequence[float], opacity: float = 1.0
) -> Spec:
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
            "x": {**x, "axis": {"format": "~r", "values": list(ticks)}},
            "x2": {"field": "high"},
            "y": {**quantity("share", "share", zero=True), "axis": {"format": ".0%"}},
            "y2": {"datum": 0},
        },
    }


def _numbered(values: Sequence[float], first: int) -> Sequence[Mapping[str, object]]:
    return [{"place": first + i, "share": value} for i, value in enumerate(values)]


def _shares(counts: Sequence[int]) -> Sequence[float]:
    return [count / sum(counts) for count in counts] if any(counts) else ()
