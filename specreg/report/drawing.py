"""Calculate the geometry of the page's pictures. The templates turn it into SVG.

The pictures must be small, because a page of 72 cases has hundreds of them. With Vega-Lite such a
page took 6 MB and 11 s.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_LEAST_RANGE_FRAC = 0.01
"""An axis spans at least this share of its largest value, so that noise isn't drawn as a change."""
_DISTANCES = 3
"""The ticks divide an axis into about this many parts, or from two to six, as they are rounded."""
_STEPS = (1, 2, 5, 10)
"""The distance between ticks is one of these times a power of ten."""
_NEGLIGIBLE_RANGE = 1e-6
"""If the least range of an axis is below this, its values are about 0, and it spans at least 1."""
_LARGEST = 1e200
"""Larger numbers, which a damaged file may contain, are drawn as this one."""
_LARGEST_PLAIN = 1e7
"""Larger numbers are written with an exponent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A labelled value of an axis.

    Attributes:
        at: its position, in the unit of its picture.
        label: the value, rounded to the distance of the ticks.
    """

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisStyle:
    """How an axis is labelled, and the least range that it spans.

    Attributes:
        prefix: the text before each label.
        unit: the text after each label.
        signed: whether labels above 0 have a plus sign.
        least_range: the least distance between its ends; 1 % of its largest value if that is more.
        contains: values that it contains besides those that are drawn.
    """

    prefix: str = ""
    unit: str = ""
    signed: bool = False
    least_range: float = 0.0
    contains: tuple[float, ...] = ()


PLAIN = AxisStyle()


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis whose ends are ticks, and which spans at least 1 % of its largest value.

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
        """Return an axis that contains all finite values; without any, an axis around 0.5.

        Values beyond ±1e200 count as ±1e200.
        """
        finite_values = [
            min(max(value, -_LARGEST), _LARGEST)
            for value in (*values, *style.contains)
            if math.isfinite(value)
        ]
        low = min(finite_values, default=0.5)
        high = max(finite_values, default=0.5)
        largest = max(abs(low), abs(high))

        # The axis of nearly equal values would otherwise show rounding errors.
        least_range = max(style.least_range, _LEAST_RANGE_FRAC * largest)
        if least_range < _NEGLIGIBLE_RANGE:
            least_range = 1.0
        if high - low < least_range:
            middle = low + (high - low) / 2
            low = middle - least_range / 2
            high = middle + least_range / 2

        step = _round_step((high - low) / _DISTANCES)

        # A value that differs from a tick only by rounding needs no further tick.
        first = math.floor(low / step + 1e-6)
        last = math.ceil(high / step - 1e-6)
        return cls(low=first * step, high=last * step, step=step, style=style)

    def share(self, value: float) -> float:
        """Return the position of a value, from 0 at the beginning of the axis to 1 at its end.

        A value that isn't a number is drawn in the middle.
        """
        if math.isnan(value):
            return 0.5
        share = (value - self.low) / (self.high - self.low)
        # Infinite values lie outside the axis. By rounding, a value at one of its ends may, too.
        return min(max(share, 0.0), 1.0)

    def ticks(self, length: float, start: float = 0.0) -> tuple[Tick, ...]:
        """Return the ticks.

        Args:
            length: the length of the axis in the unit of the picture; negative if it goes upwards.
            start: the position of its beginning.
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
            # Rounding may have left a minus sign.
            value = 0.0
        prefix = self.style.prefix
        if self.style.signed and value > 0:
            prefix = "+"
        unit = self.style.unit

        # A damaged file may contain any number, whose digits would run across the picture.
        if abs(value) >= _LARGEST_PLAIN:
            return f"{prefix}{value:.4g}{unit}"
        decimals = max(0, -math.floor(math.log10(self.step) + 1e-6))
        return f"{prefix}{value:.{decimals}f}{unit}"


def _round_step(step: float) -> float:
    """Return the least round distance between ticks that is at least two thirds of `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    round_steps = [power * factor for factor in _STEPS]
    # The largest one is always large enough, because it is the next power of ten.
    return next(round_step for round_step in round_steps if round_step * 1.5 >= step)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRow:
    """A row of an interval picture, in the unit of its axis.

    Attributes:
        value: the position of the dot.
        tone: the colour of the dot, as the page's style names it.
        target: the id of the page's element that the row links to; empty without one.
        start: where the bar begins that ends at the dot; None for the picture's reference.
        interval: the ends of the interval; None without one.
        baseline: the position of the upright mark: the baseline, or the energy at rest; None
            without one.
    """

    label: str
    text: str
    value: float
    tone: str = "plain"
    target: str = ""
    start: float | None = None
    interval: tuple[float, float] | None = None
    baseline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPicture:
    """Values with their intervals, one below the other on one axis.

    Attributes:
        note: an explanation of how to read it.
        reference: the value that the others are compared with, such as a change of 0.
        axis: the axis, which contains all values, intervals and marks.
    """

    title: str
    note: str
    reference: float
    axis: Axis
    rows: Sequence[IntervalRow]

    def at(self, value: float) -> float:
        """Return the position of a value in percent of the picture's width."""
        return _rounded(100 * self.axis.share(value))

    @property
    def ticks(self) -> Sequence[Tick]:
        """The ticks of the axis, in percent of the width."""
        return self.axis.ticks(100)


def draw_intervals(
    title: str,
    note: str,
    rows: Sequence[IntervalRow],
    *,
    reference: float,
    style: AxisStyle = PLAIN,
) -> IntervalPicture:
    """Draw values with their intervals on one axis, which also contains the reference."""
    values = [reference]
    for row in rows:
        values += [row.value, *(row.interval or ())]
        if row.baseline is not None:
            values.append(row.baseline)
    axis = Axis.over(values, style)
    return IntervalPicture(title=title, note=note, reference=reference, axis=axis, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A share and its expected value, in percent.

    Attributes:
        expected: its expected value; None if unknown.
        is_lost: whether the share is much smaller than expected, or proven to be smaller.
    """

    share: float
    expected: float | None
    is_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPicture:
    """Shares side by side.

    Attributes:
        target: the id of the page's element that the picture links to; empty without one.
        bars: the shares, from the first position.
    """

    title: str
    target: str
    bars: Sequence[Bar]


class Dot(NamedTuple):
    """A point of a line that is drawn in addition to it.

    Attributes:
        color: its colour, as the page's style names it.
        text: what it stands for.
        label: a text beside it; empty without one.
    """

    x: int
    y: int
    color: str
    text: str
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line through points.

    Attributes:
        color: its colour, a variable of the page's style.
        path: its points, as the attribute of an SVG path.
        dots: points that are drawn in addition.
        diamonds: the points where it crosses the reference: x and y.
    """

    name: str
    color: str
    path: str
    dots: Sequence[Dot] = ()
    diamonds: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePicture:
    """Lines over one axis.

    Attributes:
        note: an explanation of how to read it.
        reference: the height of the dashed line; None without one.
        versions: the positions at which versions of the engine begin, labelled with the version.
        bad: the position of the first bad run of each line that has one.
        legend: the names of the lines of each colour, by the colour.
    """

    title: str
    note: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    curves: Sequence[Curve]
    reference: int | None = None
    versions: Sequence[Tick] = ()
    bad: Sequence[int] = ()
    legend: Mapping[str, str] = field(default_factory=dict)


# A curve picture is 680 wide and 300 high. On a page it is about half as large, so whole numbers
# are precise enough, and they take fewer characters than fractions.
PLOT_LEFT = 96
PLOT_RIGHT = 650
PLOT_TOP = 28
PLOT_BOTTOM = 252


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """The plotting area of a curve picture.

    Attributes:
        y: the vertical axis.
        x_low: the number at its left end, which counts nights or is the logarithm of a load.
        x_high: the number at its right end.
    """

    y: Axis
    x_low: float
    x_high: float

    def x(self, number: float) -> int:
        """Return the horizontal position of a number; the middle if there is only one number."""
        if self.x_high <= self.x_low:
            return (PLOT_LEFT + PLOT_RIGHT) // 2
        share = (number - self.x_low) / (self.x_high - self.x_low)
        return round(PLOT_LEFT + share * (PLOT_RIGHT - PLOT_LEFT))

    def height(self, value: float) -> int:
        """Return the vertical position of a value."""
        return round(PLOT_BOTTOM - self.y.share(value) * (PLOT_BOTTOM - PLOT_TOP))

    def x_ticks(self, axis: Axis) -> Sequence[Tick]:
        """Return the ticks of a horizontal axis from `x_low` to `x_high`."""
        return axis.ticks(PLOT_RIGHT - PLOT_LEFT, PLOT_LEFT)

    @property
    def y_ticks(self) -> tuple[Tick, ...]:
        """The ticks of the vertical axis."""
        ticks = self.y.ticks(PLOT_TOP - PLOT_BOTTOM, PLOT_BOTTOM)
        return tuple(Tick(at=round(tick.at), label=tick.label) for tick in ticks)

    def path(self, line: Iterable[tuple[float, float]]) -> str:
        """Return a line of numbers and values as the attribute of an SVG path.

        The coordinates are relative. They take half as many characters as absolute ones, and lines
        make up a third of the characters of a page of many nights.
        """
        points = [(self.x(number), self.height(value)) for number, value in line]
        if not points:
            return ""
        start_x, start_y = points[0]
        steps = []
        for (x, y), (next_x, next_y) in itertools.pairwise(points):
            step = f"{next_x - x} {next_y - y}"
            # SVG needs no space before a minus sign.
            steps.append(step.replace(" -", "-"))

        return f"M{start_x} {start_y}l{' '.join(steps)}"


def spaced(ticks: Iterable[Tick], room: float) -> Iterator[Tick]:
    """Yield the ticks that are at least `room` apart, beginning with the first one."""
    last_at = -math.inf
    for tick in ticks:
        if tick.at - last_at >= room:
            last_at = tick.at
            yield tick


def _rounded(coordinate: float) -> float:
    """Return a coordinate rounded to a tenth of its unit, which is finer than a screen's pixels."""
    return round(coordinate, 1)
