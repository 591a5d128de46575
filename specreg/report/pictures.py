"""Draw the pictures of a report as SVG files that need no page: their styles are inside."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

from markupsafe import Markup

from specreg.core.commands import install_command
from specreg.core.errors import ReportError
from specreg.core.redaction import known_secrets
from specreg.core.values import readable_values
from specreg.report.charts import (
    CaseNights,
    change_pictures,
    gains_over_load,
    histories,
    positions_picture,
    power_picture,
    speedup_picture,
    throughput_over_latency,
)
from specreg.report.document import ComparedReport, Report, RunReport
from specreg.report.drawing import BarPicture, CurvePicture, IntervalPicture
from specreg.report.failures import by_case
from specreg.report.page import TEMPLATES
from specreg.report.parts import Chart, Section, Text
from specreg.report.sentence import answer_of, comparison_of
from specreg.report.summary import MARKS
from specreg.report.view import view_of
from specreg.report.wording import wording_of

_WIDTH_CHARS = 72
"""How many characters a line of the verdict's card holds."""
_STYLE = files("specreg.report").joinpath("templates/style.css").read_text()
_COLORS = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", _STYLE.partition("@media")[0]))
"""The colours of the page by day. Programs that draw SVG needn't know the variables of a page."""
_LETTER = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    '<text y="16" font-family="sans-serif">M</text></svg>'
)
Picture = IntervalPicture | BarPicture | CurvePicture


class _InlineDrawings:
    """Draws the parts that pictures of a page share in each picture, since each is a file."""

    def draw(self, part: Markup) -> Markup:
        """Return a part as an element."""
        return Markup("<g>{}</g>").format(part)


def render_pictures(report: Report) -> Mapping[str, str]:
    """Return the pictures of a report by the paths of their files.

    They are a card with the answer and the evidence of the worst case, the gains or changes, the
    accepted positions and the power of each case, the last nights, and the gains over the load.
    """
    report = readable_values(report)
    drawn = {"pictures/verdict.svg": _card(report)}
    bars_note = f"grey: {wording_of(report).before}"
    for name, picture in _pictures(report):
        note = bars_note if isinstance(picture, BarPicture) else picture.note
        drawn[f"pictures/{name}.svg"] = _draw(picture.title, [note], [picture])
    return drawn


def render_bitmaps(report: Report) -> Mapping[str, bytes]:
    """Return the pictures of a report as PNG, twice as large, by the paths of their files.

    Raises:
        ReportError: the package that draws them isn't installed, or the machine has no font.
    """
    try:
        from resvg_py import svg_to_bytes  # noqa: PLC0415 - an extra
    except ImportError as error:
        cure = f"{install_command('png')}, or take the SVG"
        raise ReportError(f"report as png: the package resvg-py is missing; {cure}") from error

    # Without a font all texts would be left out, silently.
    if svg_to_bytes(svg_string=_LETTER) == svg_to_bytes(svg_string=_LETTER.replace(">M<", "> <")):
        cure = "install one (fonts-dejavu-core), or take the SVG"
        raise ReportError(f"report as png: this machine has no font for the texts; {cure}")
    return {
        path.replace(".svg", ".png"): svg_to_bytes(svg_string=text, zoom=2)
        for path, text in render_pictures(report).items()
    }


def _pictures(report: Report) -> Iterator[tuple[str, Picture]]:
    """Yield each picture with the name of its file."""
    if isinstance(report, ComparedReport):
        for number, picture in enumerate(change_pictures(report), start=1):
            yield f"change-{number}", picture
    else:
        speedups = speedup_picture(report)
        if speedups is not None:
            yield "speedup", speedups

    verdicts_by_case = by_case(report.run.verdicts)
    for case in report.cases:
        # The id of a case may come from another machine.
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", case.case_id)
        bars = positions_picture(case, verdicts_by_case.get(case.case_id, ()))
        if bars is not None:
            yield f"positions-{name}", bars
        if case.figures is not None and case.figures.power is not None:
            watts = power_picture(case.figures.power)
            if watts is not None:
                yield f"power-{name}", watts

    nights = list(map(CaseNights.of, report.cases))
    for number, curves in enumerate(histories(nights), start=1):
        yield f"nights-{number}", curves
    loads = (*gains_over_load(report.cases), *throughput_over_latency(report.cases))
    for number, curves in enumerate(loads, start=1):
        yield f"load-{number}", curves


def _card(report: Report) -> str:
    """Draw the answer, what was compared, and the evidence of the worst case."""
    tone, sentence = answer_of(report)
    view = view_of(report)
    texts = [part.text for part in view if isinstance(part, Text) and part.is_important]
    texts.append(comparison_of(report))
    pictures: list[Picture] = []
    sections = [part for part in view if isinstance(part, Section)]
    if sections:
        texts += [f"{sections[0].name}: {finding}" for finding in sections[0].findings]
        pictures += [part.picture for part in sections[0].parts if isinstance(part, Chart)]
    elif isinstance(report, RunReport):
        speedups = speedup_picture(report)
        if speedups is not None:
            pictures.append(speedups)

    return _draw(f"{MARKS[tone]} {sentence}", texts, pictures, tone=tone)


def _draw(title: str, texts: Sequence[str], pictures: Sequence[Picture], tone: str = "") -> str:
    """Draw pictures one below the other, under a title and texts."""
    lines = [wrapped for text in texts for wrapped in textwrap.wrap(text, _WIDTH_CHARS + 18)]
    return TEMPLATES.get_template("pictures.svg.jinja").render(
        secrets=known_secrets(),
        shared=_InlineDrawings(),
        colors=_COLORS,
        tone=tone,
        title_lines=textwrap.wrap(title, _WIDTH_CHARS),
        lines=lines,
        pictures=pictures,
    )
