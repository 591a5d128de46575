"""Render a report document as a self-contained HTML page, and its summary as Markdown."""

import base64
import hashlib
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from specreg.core.readable import readable_block, readable_line
from specreg.core.redaction import known_secrets
from specreg.core.values import readable_values
from specreg.engines.launch_facts import known_facts
from specreg.measurement.metrics import render_invalid
from specreg.report import parts
from specreg.report.charts import (
    LABEL_ROOM,
    CaseNights,
    category_map,
    change_pictures,
    energy_picture,
    gains_over_load,
    histories,
    nights_needed,
    oracle_positions,
    positions_picture,
    power_picture,
    speedup_picture,
    spread_pictures,
    throughput_over_latency,
)
from specreg.report.document import CaseReport, ComparedReport, Report, last_verdicts
from specreg.report.drawing import BarPicture, CurvePicture, IntervalPicture, spaced
from specreg.report.failures import by_case
from specreg.report.parts import Commands, Part, Text
from specreg.report.summary import MARKS, OUTCOMES, tone_of
from specreg.report.tables import (
    PERCENTILES,
    axis_of,
    changed_settings,
    compared_cells,
    distributions_of,
    format_number,
    interval_of,
    label_of,
    render_change,
    render_interval,
    render_value,
)
from specreg.report.terminal import render_notes
from specreg.report.view import failing_by_case, view_of
from specreg.report.wording import wording_of
from specreg.verdicts.verdict import Verdict

_MAX_NEXT_CHARS = 8_000
"""Longer commands are left out of the Markdown, whose length GitHub limits."""
_MAX_TEXT_CHARS = 300
"""The longest untrusted text that the Markdown shows."""
# GitHub links names and numbers even in plain text, and a backslash doesn't prevent it.
_INERT = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "@": "@\u200b", "#": "\\#\u200b"}
# An underscore between letters, as in `draft_model`, isn't markup. It stays, so that readers can
# search for the name.
_MARKUP = re.compile(r"[\\`*{}\[\]()#!~$^:@|<>&]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.")
_LOG_PATH = re.compile(r"logs/[A-Za-z0-9@+=:,~-][A-Za-z0-9._@+=:,~-]*")
"""A log that a page may link to. The report of another machine may contain any path."""
_OPTIONAL_TAGS = re.compile(r"</t[dhr]>")
"""Closing tags that HTML makes optional. A page of many cases would have 20,000 of them."""
_SCRIPT = files("specreg.report").joinpath("templates/page.js").read_text()
_SCRIPT_SHA256 = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_SCRIPT_SHA256}'"
"""The content security policy of a page: it loads nothing, and only its own script runs."""


class SharedDrawings:
    """Collects parts of drawings that several pictures of a page share, and writes each once."""

    def __init__(self) -> None:
        self._names: dict[Markup, str] = {}

    def draw(self, part: Markup) -> Markup:
        """Return the element that draws a shared part in a picture."""
        name = self._names.setdefault(part, f"drawing-{len(self._names)}")
        return Markup('<use href="#{}"/>').format(name)

    @property
    def definitions(self) -> Markup:
        """The parts that were drawn so far."""
        definition = Markup('<g id="{}">{}</g>')
        parts = (definition.format(name, part) for part, name in self._names.items())
        return Markup("").join(parts)


def render_page(report: Report, in_progress: str = "") -> str:
    """Render the page: the answer first, then what needs a look, the pictures, and the tables.

    Args:
        report: the document.
        in_progress: how far an unfinished run is; empty for a finished one. The page of an
            unfinished run reloads itself.
    """
    # Sort the verdicts for the parts of the page.
    report = readable_values(report)
    run = report.run
    verdicts = last_verdicts(run.verdicts)
    verdicts_by_case = by_case(verdicts)
    failing = failing_by_case(report)
    case_by_id = {case.case_id: case for case in report.cases}
    columns = list(dict.fromkeys(_column(verdict.metric) for verdict in verdicts))
    passing = [verdict for verdict in verdicts if not verdict.fails]

    # Choose pictures. A document with two sides has no history and no baseline. It shows changes
    # instead of speedups.
    environment = None
    nights: Sequence[CurvePicture] = ()
    undecided = None
    control: Sequence[Verdict] = ()
    gains: list[IntervalPicture] = []
    if isinstance(report, ComparedReport):
        gains.extend(change_pictures(report))
        control = report.control
    else:
        environment = run.environment
        nights = list(histories(list(map(CaseNights.of, report.cases))))
        undecided = nights_needed(report)
        speedups = speedup_picture(report)
        if speedups is not None:
            gains.append(speedups)

    rows = []
    for case_id, case_verdicts in verdicts_by_case.items():
        rows.append((case_id, _worst(case_verdicts, columns)))

    # A colour stands for the same case in each picture.
    lines = [curve for picture in nights for curve in picture.curves]
    line_names = {line.color: line.name for line in lines if line.color not in {"base", "bad"}}

    # The details begin with the cases that failed.
    ids_in_order = (*failing, *verdicts_by_case, *case_by_id)
    page = TEMPLATES.get_template("page.html.jinja").render(
        report=report,
        secrets=known_secrets(),
        shared=SharedDrawings(),
        run=run,
        is_run=not isinstance(report, ComparedReport),
        control=control,
        # What to type comes at the end of a run.
        view=[part for part in view_of(report) if not (in_progress and isinstance(part, Commands))],
        subject=run.tier,
        wording=wording_of(report),
        failing_by_case=failing,
        verdicts_by_case=verdicts_by_case,
        shown_outcomes={verdict.outcome for verdict in verdicts},
        case_by_id=case_by_id,
        columns=columns,
        rows=rows,
        in_progress=in_progress,
        gains=gains,
        # The cards of the cases that fail have pictures of their positions already.
        held=_held_positions(report.cases, failing, verdicts_by_case),
        histories=nights,
        line_names=line_names,
        nights_needed=undecided,
        loads=[*gains_over_load(report.cases), *throughput_over_latency(report.cases)],
        categories=category_map(_in_order(case_by_id, ids_in_order)),
        notes=render_notes(passing, environment),
        cases=_in_order(case_by_id, ids_in_order),
    )
    return _OPTIONAL_TAGS.sub("", page)


def _held_positions(
    cases: Iterable[CaseReport],
    failing: Collection[str],
    verdicts_by_case: Mapping[str, Sequence[Verdict]],
) -> Mapping[str, list[BarPicture]]:
    """Return the pictures of the positions of the cases that don't fail, by method."""
    by_method: dict[str, list[BarPicture]] = {}
    for case in cases:
        picture = positions_picture(case, verdicts_by_case.get(case.case_id, ()))
        if case.case_id not in failing and picture is not None:
            by_method.setdefault(case.method, []).append(picture)
    return dict(sorted(by_method.items()))


def _in_order(case_by_id: dict[str, CaseReport], case_ids: Sequence[str]) -> list[CaseReport]:
    """Return the cases in the order in which their ids appear first."""
    different_ids = dict.fromkeys(case_ids)
    # A verdict may be on a case without a report of its own.
    return [case_by_id[case_id] for case_id in different_ids if case_id in case_by_id]


def render_markdown(report: Report) -> str:
    """Render the summary for a pull request or a job, with the failures first.

    It is short enough for GitHub.
    """
    report = readable_values(report)
    run = report.run
    verdicts = last_verdicts(run.verdicts)
    view: list[Part] = []
    for part in view_of(report):
        if isinstance(part, Commands) and sum(map(len, part.commands)) > _MAX_NEXT_CHARS:
            view.append(Text("The commands are too long for here: report.html has them."))
        else:
            view.append(part)

    skipped_lines = [f"{case_id}: {reason}" for case_id, reason in run.skipped.items()]
    text = _MARKDOWN.get_template("report.md.jinja").render(
        view=view,
        wording=wording_of(report),
        remarks=[*skipped_lines, *report.remarks],
        failing=list(itertools.chain.from_iterable(failing_by_case(report).values())),
        verdicts=verdicts,
        why=_cause_and_explanation,
        interval=_interval_and_tolerance,
        origin=f"run {run.run}; specreg {report.origin.specreg_version}",
    )
    return f"{text}\n"


def _column(metric: str) -> str:
    """Return the column of a metric in the overview. All draft positions share one column."""
    if metric.startswith("acceptance_pos"):
        return "acceptance by position"
    return axis_of(metric)


def _worst(verdicts: Sequence[Verdict], columns: Sequence[str]) -> Sequence[Verdict | None]:
    """Return a case's worst verdict for each column, by its outcome and then by its change."""
    order = list(OUTCOMES)

    def rank(verdict: Verdict) -> tuple[int, float]:
        return order.index(verdict.outcome), verdict.comparison.change_frac or 0.0

    ranked = sorted(verdicts, key=rank)

    # In reverse, so that the worst verdict of a column replaces the others.
    worst = {_column(verdict.metric): verdict for verdict in reversed(ranked)}
    return [worst.get(column) for column in columns]


def _cause_and_explanation(verdict: Verdict) -> str:
    return _joined(str(verdict.cause or ""), verdict.explanation)


def _interval_and_tolerance(verdict: Verdict) -> str:
    """Render the interval of a change and its tolerance; empty without an interval."""
    if verdict.comparison.low_frac is None:
        return ""
    return _joined(_interval_of(verdict), verdict.comparison.tolerated)


def _interval_of(verdict: Verdict) -> str:
    return render_interval(*interval_of(verdict))


def _change_or_values(verdict: Verdict) -> str:
    """Return the change of a figure, or else its values."""
    comparison = verdict.comparison
    if comparison.change_frac is not None:
        return render_change(comparison.change_frac)
    if comparison.expected is not None:
        return f"{format_number(comparison.expected)} → {format_number(verdict.value)}"

    # The head of a column has the unit, but a share has none.
    if verdict.metric.endswith("_frac"):
        return render_value(verdict.metric, verdict.value)
    return format_number(verdict.value)


def _log_links(case: CaseReport) -> list[tuple[str, str]]:
    """Return the logs of a case, each with its link; the link is empty if the path isn't safe."""
    links = []
    for log in case.logs:
        link = ""
        if _LOG_PATH.fullmatch(log):
            link = quote(log)
        links.append((log, link))
    return links


@pass_context
def _readable(context: Context, value: object) -> object:
    """Return a value as the page shows it."""
    if isinstance(value, float):
        # Most floats are coordinates of pictures. 126.0 becomes 126.
        return f"{value:.10g}"
    if isinstance(value, int | Markup):
        # Markup comes from a macro, which has made its values readable already.
        return value

    # A page has tens of thousands of texts, and looking up the secrets takes half a millisecond, so
    # they are looked up once for each page.
    return readable_block(str(value), secrets=context["secrets"])


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _in_code(command: str) -> Markup:
    """Return a command for a block of code of Markdown, which ends at three backquotes."""
    return Markup(command.replace("```", "'''"))  # noqa: S704 - in a block of code, nothing is markup


def _plain(value: object) -> Markup:
    """Return an untrusted text as one line of Markdown that is shown literally."""
    if isinstance(value, Markup):
        return value
    words = readable_line(str(value), _MAX_TEXT_CHARS)
    plain = _MARKUP.sub(lambda match: _INERT.get(match[0], f"\\{match[0]}"), words)
    return Markup(plain)  # noqa: S704 - the line above has made it harmless


TEMPLATES = Environment(
    loader=PackageLoader("specreg.report"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_readable,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""The templates of all pages."""
TEMPLATES.filters.update(
    number=format_number,
    compared=lambda verdict: compared_cells(
        verdict.metric, verdict.comparison.expected, verdict.value
    ),
    change=_change_or_values,
    percent=render_change,
    interval=_interval_of,
    energy=energy_picture,
    watts=power_picture,
    histories=lambda case: list(histories([CaseNights.of(case)])),
    invalid=render_invalid,
    label=label_of,
    log_links=_log_links,
    # A line alone, and grey lines of many cases, need no name.
    named=lambda curves: [curve for curve in curves if len(curves) > 1 and curve.color != "base"],
    oracle=lambda verdicts: list(oracle_positions(verdicts)),
    facts=known_facts,
    settings=changed_settings,
    spaced=lambda versions: spaced(versions, 2 * LABEL_ROOM),
    distributions=distributions_of,
    spreads=lambda figures: list(spread_pictures(figures)),
    tone=tone_of,
    in_code=_in_code,
    tone_class=lambda verdict: tone_of([verdict]),
)
TEMPLATES.globals.update(
    marks=MARKS,
    outcomes=OUTCOMES,
    policy=_POLICY,
    script=Markup(_SCRIPT),  # noqa: S704 - the file of this package; the policy has its checksum
    summary_columns=PERCENTILES,
)
TEMPLATES.tests["part"] = lambda part, kind: isinstance(part, getattr(parts, kind))
_MARKDOWN = TEMPLATES.overlay(finalize=_plain)
