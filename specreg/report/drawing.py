"""The geometry of the page's pictures. The templates turn it into SVG.

A picture is small: a page of 72 cases has about a thousand of them. Vega-Lite drew 12 KB and 30 ms
for each, so that such a page took 6 MB and 11 s.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_LEAST_RANGE_FRAC = 0.01
"""A range that is a smaller share of its largest value is widened: noise is no movement."""
_DISTANCES = 3
"""How many distances between ticks an axis has at least, about."""
_STEPS = (1, 2, 5, 10)
"""Distances between ticks are one of these times a power of ten."""
_LEAST_RANGE = 1e-6
"""Values that are all smaller are drawn as 0."""
_LARGEST = 1e200
"""Larger numbers, which a damaged file may hold, are drawn as this one."""
_LARGEST_PLAIN = 1e7
"""Larger numbers, and steps of their size, are written with an exponent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A labelled value of an axis.

    Attributes:
        at: where it lies, in the unit of its picture.
        label: the value, rounded to the distance of the ticks.
    """

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisStyle:
    """How an axis is labelled, and how little it spans at least.

    Attributes:
        prefix: what precedes each label.
        unit: what follows each label.
        signed: whether a label above 0 has its sign.
        least_range: the smallest distance of its ends; 1 % of its largest value if that is more.
    """

    prefix: str = ""
    unit: str = ""
    signed: bool = False
    least_range: float = 0.0


PLAIN = AxisStyle()


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis whose ends are ticks and differ by 1 % of its values at least.

    Attributes:
        low: the value at its beginning.
        high: the value at its end.
        step: the distance of its ticks.
        style: how it is labelled.
    """

    low: float
    high: float
    step: float
    style: AxisStyle = PLAIN

    @classmethod
    def over(cls, values: Iterable[float], style: AxisStyle = PLAIN) -> "Axis":
        """Return the axis that holds some values; one from 0 to 1 or so if none is a number."""
        shown = [value for value in values if math.isfinite(value)] or [0.5]
        low = max(min(shown), -_LARGEST)
        high = min(max(shown), _LARGEST)
        largest = max(abs(low), abs(high))
        # Values that repeat to the last digits would have an axis of rounding errors.
        least_range = max(style.least_range, _LEAST_RANGE_FRAC * largest)
        if least_range < _LEAST_RANGE:
            least_range = 1.0
        if high - low < least_range:
            # `low + (high - low) / 2` doesn't overflow where `(low + high) / 2` would.
            middle = low + (high - low) / 2
            low = middle - least_range / 2
            high = middle + least_range / 2
        step = _round_step((high - low) / _DISTANCES)
        # What lies on a tick but for rounding is on it.
        first = math.floor(low / step + 1e-6)
        last = math.ceil(high / step - 1e-6)
        return cls(low=first * step, high=last * step, step=step, style=style)

    def share(self, value: float) -> float:
        """Return where a value lies, from 0 at the beginning to 1 at the end."""
        if math.isnan(value):
            return 0.5
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def ticks(self, length: float, start: float = 0.0) -> tuple[Tick, ...]:
        """Return the ticks.

        Args:
            length: of the axis in the unit of the picture; negative where it leads upwards.
            start: where it begins.
        """
        count = round((self.high - self.low) / self.step)
        values = [self.low + number * self.step for number in range(count + 1)]
        ticks = []
        for value in values:
            at = _rounded(start + length * self.share(value))
            ticks.append(Tick(at=at, label=self._label(value)))
        return tuple(ticks)

    def _label(self, value: float) -> str:
        if abs(value) < self.step / 2:
            value = 0.0  # without the sign that rounding may leave
        before = "+" if self.style.signed and value > 0 else self.style.prefix
        unit = self.style.unit
        # A damaged file may hold any number, and its digits would run across the picture.
        if abs(value) >= _LARGEST_PLAIN:
            return f"{before}{value:.4g}{unit}"
        decimals = max(0, -math.floor(math.log10(self.step) + 1e-6))
        return f"{before}{value:.{decimals}f}{unit}"


def _round_step(step: float) -> float:
    """Return a round distance of ticks that is not much less than a step."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in _STEPS if power * factor * 1.5 >= step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A row of an interval picture. Places are percent of its width.

    Attributes:
        label: what it is about.
        text: its numbers.
        tone: the colour of its dot, as the page's style names it.
        target: the id of the element of the page that tells more; empty without one.
        value: where the dot is.
        low: where the interval begins; None without one.
        high: where it ends.
        mark: where the baseline is; None without one.
    """

    label: str
    text: str
    tone: str
    target: str
    value: float
    low: float | None = None
    high: float | None = None
    mark: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPicture:
    """Values with their intervals, one below the other on one axis.

    Attributes:
        title: what is drawn.
        note: how to read it.
        reference: where the value lies that means "no change", in percent of the width.
        ticks: of the axis, in percent of the width.
        rows: the values.
    """

    title: str
    note: str
    reference: float
    ticks: Sequence[Tick]
    rows: Sequence[Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRow:
    """What a row of an interval picture shows, in the unit of its axis; see `Interval`."""

    label: str
    text: str
    value: float
    tone: str = "plain"
    target: str = ""
    interval: tuple[float, float] | None = None
    baseline: float | None = None


def draw_intervals(
    title: str,
    note: str,
    rows: Sequence[IntervalRow],
    *,
    reference: float,
    style: AxisStyle = PLAIN,
) -> IntervalPicture:
    """Draw values with their intervals on one axis, which holds the reference too."""
    values = [reference]
    for row in rows:
        values += [row.value, *(row.interval or ())]
        if row.baseline is not None:
            values.append(row.baseline)
    axis = Axis.over(values, style)

    def percent(value: float) -> float:
        return _rounded(100 * axis.share(value))

    drawn = []
    for row in rows:
        low_percent = None
        high_percent = None
        if row.interval is not None:
            low_percent, high_percent = map(percent, row.interval)
        mark_percent = None
        if row.baseline is not None:
            mark_percent = percent(row.baseline)
        drawn.append(
            Interval(
                label=row.label,
                text=row.text,
                tone=row.tone,
                target=row.target,
                value=percent(row.value),
                low=low_percent,
                high=high_percent,
                mark=mark_percent,
            )
        )
    return IntervalPicture(
        title=title, note=note, reference=percent(reference), ticks=axis.ticks(100), rows=drawn
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A share, and what was expected of it, in percent; None where that isn't known."""

    share: float
    expected: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPicture:
    """Shares side by side.

    Attributes:
        title: what is drawn.
        target: the id of the element of the page that tells more; empty without one.
        bars: the shares, from the first position.
    """

    title: str
    target: str
    bars: Sequence[Bar]


def draw_bars(
    title: str, shares: Sequence[float], expected: Sequence[float] = (), target: str = ""
) -> BarPicture:
    """Draw shares (0..1) side by side, with what was expected of them behind."""
    bars = []
    for index, share in enumerate(shares):
        expected_percent = None
        if index < len(expected):
            expected_percent = _rounded(100 * expected[index])
        bars.append(Bar(share=_rounded(100 * share), expected=expected_percent))
    return BarPicture(title=title, target=target, bars=bars)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line through points.

    Attributes:
        name: what it is about.
        color: a variable of the page's style.
        path: what it leads through, as the attribute of a path.
        dots: points that are drawn as well: x, y, and a variable of the page's style.
        diamonds: where it crosses the reference: x and y.
    """

    name: str
    color: str
    path: str
    dots: Sequence[tuple[int, int, str]] = ()
    diamonds: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePicture:
    """Lines over one axis.

    Attributes:
        title: what is drawn.
        note: how to read it.
        x_ticks: below the lines.
        y_ticks: left of them.
        curves: the lines.
        band: the room that the lines of further cases fill, as the attribute of a path; empty
            without any.
        reference: the height of the dashed line; None without one.
        versions: where a version begins: the place, and what it is.
        bad: where the first of the bad runs is, of each line that has one.
        legend: by variable of the page's style, what has that colour.
    """

    title: str
    note: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    curves: Sequence[Curve]
    band: str = ""
    reference: int | None = None
    versions: Sequence[Tick] = ()
    bad: Sequence[int] = ()
    legend: Mapping[str, str] = field(default_factory=dict)


# A curve picture is 680 wide and 300 high. On a page it is about half as large, so a whole number
# of this unit is finer than a screen, and shorter to write than a fraction.
PLOT_LEFT = 96
PLOT_RIGHT = 650
PLOT_TOP = 28
PLOT_BOTTOM = 252


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """The room of a curve picture.

    Attributes:
        y: the axis of its height.
        x_low: the number at its left end.
        x_high: the number at its right end.
    """

    y: Axis
    x_low: float
    x_high: float

    def x(self, number: float) -> int:
        """Return the place of a number from left to right; the middle where there is only one."""
        if self.x_high <= self.x_low:
            return (PLOT_LEFT + PLOT_RIGHT) // 2
        share = (number - self.x_low) / (self.x_high - self.x_low)
        return round(PLOT_LEFT + share * (PLOT_RIGHT - PLOT_LEFT))

    def height(self, value: float) -> int:
        """Return the height of a value."""
        return round(PLOT_BOTTOM - self.y.share(value) * (PLOT_BOTTOM - PLOT_TOP))

    @property
    def y_ticks(self) -> tuple[Tick, ...]:
        """The ticks of the height."""
        ticks = self.y.ticks(PLOT_TOP - PLOT_BOTTOM, PLOT_BOTTOM)
        return tuple(Tick(at=round(tick.at), label=tick.label) for tick in ticks)

    def path(self, line: Iterable[tuple[float, float]]) -> str:
        """Return a line of numbers and values as the attribute of a path.

        A step says how far it leads, not where to: that takes half the characters, and the lines
        are a third of a page of many nights.
        """
        points = [(self.x(number), self.height(value)) for number, value in line]
        if not points:
            return ""
        start_x, start_y = points[0]
        steps = []
        for (x, y), (next_x, next_y) in itertools.pairwise(points):
            # A minus sign separates as well as a space does.
            steps.append(f"{next_x - x} {next_y - y}".replace(" -", "-"))
        return f"M{start_x} {start_y}l{' '.join(steps)}"

    def band(self, lines: Iterable[Iterable[tuple[float, float]]]) -> str:
        """Return the room that some lines fill, as a path; empty without a line."""
        values_by_number: dict[float, list[float]] = {}
        for line in lines:
            for number, value in line:
                values_by_number.setdefault(number, []).append(value)
        if not values_by_number:
            return ""
        numbers = sorted(values_by_number)
        upper = [(number, max(values_by_number[number])) for number in numbers]
        lower = [(number, min(values_by_number[number])) for number in reversed(numbers)]
        return f"{self.path([*upper, *lower])}z"


def spaced(ticks: Iterable[Tick], room: float) -> Iterator[Tick]:
    """Yield the ticks that are at least some room apart, from the first one."""
    last_at = -math.inf
    for tick in ticks:
        if tick.at - last_at >= room:
            last_at = tick.at
            yield tick


def _rounded(coordinate: float) -> float:
    """Return a place to a tenth of its unit, which is finer than a screen."""
    return round(coordinate, 1)
