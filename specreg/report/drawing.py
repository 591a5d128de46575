"""Drawing: layers of marks in, an SVG out.

Vega-Lite draws, here and not in the reader's browser: a page needs no script then, and a screen
reader is told each mark. Colours are variables of the page's style, which knows day from night.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import vl_convert

Spec = Mapping[str, object]

NOW, BASE, ALONE, INK = (f"var(--{name})" for name in ("now", "base", "alone", "ink"))
LINES = tuple(f"var(--line{number})" for number in range(1, 7))
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
        "labelColor": INK,
        "titleColor": INK,
        "domainColor": BASE,
        "tickColor": BASE,
        "grid": False,
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titlePadding": 9,
        "labelAngle": 0,
        "tickCount": 4,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing.

    Attributes:
        title: what is drawn; note: how to read it.
        colors: the variables of the colours that it is drawn in, where it doesn't name them.
    """

    title: str
    note: str
    svg: str
    colors: tuple[str, ...] = ()


def quantity(field: str, title: str, *, zero: bool) -> Spec:
    """A channel of numbers with a title on its axis, which need not begin at 0."""
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": zero}}


def svg(layers: Sequence[Spec], **size: object) -> str:
    """The layers as one drawing, of the usual size unless told."""
    spec = {**_SIZE, **size, "background": None, "config": _CONFIG, "layer": layers}
    return vl_convert.vegalite_to_svg({**spec}, vl_version="6.1")
