"""The page of a document, one HTML file that needs nothing else, and its summary as Markdown."""

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from specreg.core.commands import run_command
from specreg.core.readable import readable_block, readable_line
from specreg.core.redaction import known_secrets
from specreg.core.values import readable_values
from specreg.engines.launch_facts import known_facts
from specreg.measurement.metrics import render_invalid
from specreg.report.charts import (
    LABEL_ROOM,
    case_colors,
    case_histories,
    change_pictures,
    energy_picture,
    gains_over_load,
    history_by_figure,
    oracle_positions,
    positions_by_method,
    speedup_picture,
)
from specreg.report.document import CaseReport, Report, Tone, last_words
from specreg.report.drawing import Tick, spaced
from specreg.report.failures import by_case, changes_since_baseline, sentence_of, since_when
from specreg.report.summary import MARKS, OUTCOMES, answers_of, notes_of, title_of, tone_of
from specreg.report.tables import (
    PERCENTILES,
    axis_of,
    format_number,
    label_of,
    render_change,
    render_interval,
    settings_of,
    spreads_of,
)
from specreg.report.terminal import columns_of, next_of, render_notes
from specreg.verdicts.verdict import Verdict

_MAX_NEXT_CHARS = 8_000
_MAX_TEXT_CHARS = 300
"""The longest text of others that the Markdown shows."""
_MANY_ROWS = 12
"""So many rows of pictures stand above what needs a look; of more, what fails comes first."""
# GitHub finds names and numbers in what is already plain text, where a backslash stops nothing.
_INERT = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "@": "@\u200b", "#": "\\#\u200b"}
# A line between letters, as in `draft_model`, is no markup, and one that searches for it finds it.
_MARKUP = re.compile(r"[\\`*{}\[\]()#!~$^:@|<>&]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.")
_LOG_PATH = re.compile(r"logs/[A-Za-z0-9@+=:,~-][A-Za-z0-9._@+=:,~-]*")
"""A log that a page may link to. A report of another machine names what it likes."""
_OPTIONAL_TAGS = re.compile(r"</t[dhr]>")
"""What HTML lets one leave out: a page of many cases would have 20,000 of these."""
_SCRIPT = files("specreg.report").joinpath("templates/page.js").read_text()
_SCRIPT_SHA256 = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_SCRIPT_SHA256}'"
"""What a browser lets the page do: nothing is loaded, and only its own script runs."""


class SharedDrawings:
    """Parts of drawings that several pictures of a page have in common, each written once."""

    def __init__(self) -> None:
        self._names: dict[Markup, str] = {}

    def draw(self, part: Markup) -> Markup:
        """Return what draws a part in a picture."""
        name = self._names.setdefault(part, f"drawing-{len(self._names)}")
        return Markup('<use href="#{}"/>').format(name)

    @property
    def definitions(self) -> Markup:
        """The parts that were drawn so far."""
        definition = Markup('<g id="{}">{}</g>')
        parts = (definition.format(name, part) for part, name in self._names.items())
        return Markup("").join(parts)


def render_page(report: Report, in_progress: str = "") -> str:
    """Return the page: the answers, what fails, the pictures, and then the tables.

    Args:
        report: the document.
        in_progress: of a run that goes on, which case it is at, and when. The page then reloads
            itself.
    """
    report = readable_values(report)
    run = report.run
    is_run = not report.arms
    verdicts = last_words(run.verdicts)
    verdicts_by_case = by_case(verdicts)
    failing_by_case = by_case(verdict for verdict in verdicts if verdict.fails)
    red_first = sorted(failing_by_case.items(), key=lambda item: tone_of(item[1]) is not Tone.BAD)
    known = {case.case_id: case for case in report.cases}
    columns = list(dict.fromkeys(_column(verdict.metric) for verdict in verdicts))
    held = [verdict for verdict in verdicts if not verdict.fails]
    # What a run goes on to do isn't left open yet.
    open_notes = []
    if not in_progress:
        open_notes = list(notes_of(report))

    # A gate has no control, no history and no baseline. It shows changes in place of speedups.
    again = report.origin.command
    environment = None
    histories = []
    speedups = None
    if is_run:
        again = run_command((), report.origin.options)
        environment = run.environment
        histories = list(history_by_figure(report.cases))
        speedups = speedup_picture(report)
    gains = [speedups] if speedups is not None else list(change_pictures(report))
    page = TEMPLATES.get_template("page.html.jinja").render(
        report=report,
        secrets=known_secrets(),
        shared=SharedDrawings(),
        run=run,
        is_run=is_run,
        title=title_of(report),
        names=columns_of(report),
        answers=answers_of(report),
        open=open_notes,
        red=dict(red_first),
        by_case=verdicts_by_case,
        found={verdict.outcome for verdict in verdicts},
        known=known,
        columns=columns,
        rows=[
            (case_id, _worst(case_verdicts, columns))
            for case_id, case_verdicts in verdicts_by_case.items()
        ],
        in_progress=in_progress,
        gains=gains,
        has_many=sum(len(picture.rows) for picture in gains) > _MANY_ROWS,
        positions=positions_by_method(report.cases),
        histories=histories,
        line_names={color: case_id for case_id, color in case_colors(report.cases).items()},
        loads=list(gains_over_load(report.cases)),
        notes=render_notes(held, environment),
        next_steps=next_of(report) or f"{_what_is_left(report)}the same again:\n  {again}",
        cases=_in_order(known, (*dict(red_first), *verdicts_by_case, *known)),
    )
    return _OPTIONAL_TAGS.sub("", page)


def _what_is_left(report: Report) -> str:
    """Return what there is to do where no command would help: nothing, if all is well."""
    if any(answer.tone is Tone.BAD for answer in answers_of(report)):
        return ""
    return "nothing needs to be done; "


def _in_order(known: dict[str, CaseReport], case_ids: Sequence[str]) -> list[CaseReport]:
    """Return the known cases in the order in which they are named first."""
    return [known[case_id] for case_id in dict.fromkeys(case_ids) if case_id in known]


def render_markdown(report: Report) -> str:
    """Return the summary for a pull request or a job, as much as GitHub takes; failures first."""
    report = readable_values(report)
    run = report.run
    origin = report.origin
    verdicts = last_words(run.verdicts)
    engines = (
        f"{case.engine} {case.figures.engine_version}" for case in report.cases if case.figures
    )
    made_of = (
        f"run {run.run}",
        ", ".join(dict.fromkeys(engines)),
        origin.specreg_version and f"specreg {origin.specreg_version}",
        origin.commit and f"commit {origin.commit}",
    )
    next_steps = next_of(report)
    if len(next_steps) > _MAX_NEXT_CHARS:
        next_steps = "the commands are too long for here: report.html has them"
    skipped_lines = [f"{case_id}: {reason}" for case_id, reason in run.skipped.items()]
    text = _MARKDOWN.get_template("report.md.jinja").render(
        title=title_of(report),
        names=columns_of(report),
        answers=answers_of(report),
        notes=[*notes_of(report), *skipped_lines, *report.remarks],
        next_steps=Markup(next_steps.replace("```", "'''")),  # noqa: S704 - ours, in a block
        failing=[verdict for verdict in verdicts if verdict.fails],
        verdicts=verdicts,
        why=_cause_and_explanation,
        interval=_interval_and_tolerance,
        origin=_joined(*made_of),
    )
    return f"{text}\n"


def _column(metric: str) -> str:
    """Return a metric's column in the overview; all positions share one."""
    if metric.startswith("acceptance_pos"):
        return "acceptance by position"
    return axis_of(metric)


def _worst(verdicts: Sequence[Verdict], columns: Sequence[str]) -> Sequence[Verdict | None]:
    """Return the worst verdict of a case for each column: by its outcome, then by its change."""
    order = list(OUTCOMES)
    ranked = sorted(
        verdicts,
        key=lambda verdict: (order.index(verdict.outcome), verdict.comparison.change_frac or 0.0),
    )
    worst = {_column(verdict.metric): verdict for verdict in reversed(ranked)}
    return [worst.get(column) for column in columns]


def _cause_and_explanation(verdict: Verdict) -> str:
    return _joined(str(verdict.cause or ""), verdict.explanation)


def _interval_and_tolerance(verdict: Verdict) -> str:
    """Render the interval of a change and what is tolerated; empty without an interval."""
    if verdict.comparison.low_frac is None:
        return ""
    return _joined(_interval_of(verdict), verdict.comparison.tolerated)


def _interval_of(verdict: Verdict) -> str:
    return render_interval(verdict.comparison.low_frac, verdict.comparison.high_frac)


def _log_links(case: CaseReport) -> list[tuple[str, str]]:
    """Return the logs of a case, each with where it leads: nowhere if that isn't a log's place."""
    return [(log, quote(log) if _LOG_PATH.fullmatch(log) else "") for log in case.logs]


def _energy_of(case: CaseReport) -> object:
    """Return the picture of a case's energy; None without one."""
    if case.figures is None or case.figures.power is None:
        return None
    return energy_picture(case.figures.power)


def _histories_of(case: CaseReport) -> list[object]:
    """Return the pictures of a case's earlier runs."""
    expected: dict[str, float] = {}
    if case.expected is not None:
        expected = case.expected.values
    return list(case_histories(case.history, expected))


def _facts_of(case: CaseReport) -> list[tuple[str, str]]:
    """Return the facts of a case's launch with their names, as far as they are known."""
    if case.figures is None:
        return []
    return list(known_facts(case.figures.facts))


def _settings_of(case: CaseReport) -> list[object]:
    """Return the settings of a case."""
    if case.settings is None:
        return []
    return list(settings_of(case.settings))


def _spreads_of(case: CaseReport) -> list[object]:
    """Return how the times and lengths of a case's requests spread."""
    if case.figures is None:
        return []
    return list(spreads_of(case.figures))


def _spaced_versions(versions: Sequence[Tick]) -> list[Tick]:
    """Return the versions whose labels have room; the others have their line alone."""
    return list(spaced(versions, 2 * LABEL_ROOM))


@pass_context
def _readable(context: Context, value: object) -> object:
    """Return what the page shows of a value. Markup is a macro's, whose values were shown so."""
    if isinstance(value, float):
        return f"{value:.10g}"  # places of pictures, mostly; 126.0 is 126
    if isinstance(value, int | Markup):
        return value
    # A page has tens of thousands of texts, and asking for the secrets takes half a millisecond.
    return readable_block(str(value), secrets=context["secrets"])


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _plain(value: object) -> Markup:
    """Return a text that is data, not Markdown, on one line: others may have written it."""
    if isinstance(value, Markup):
        return value
    words = readable_line(str(value), _MAX_TEXT_CHARS)
    plain = _MARKUP.sub(lambda match: _INERT.get(match[0], f"\\{match[0]}"), words)
    return Markup(plain)  # noqa: S704 - that is what makes it so


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
    change=render_change,
    interval=_interval_of,
    changes=changes_since_baseline,
    energy=_energy_of,
    histories=_histories_of,
    invalid=render_invalid,
    label=label_of,
    log_links=_log_links,
    oracle=lambda verdicts: list(oracle_positions(verdicts)),
    sentence=sentence_of,
    facts=_facts_of,
    settings=_settings_of,
    since=since_when,
    spaced=_spaced_versions,
    spreads=_spreads_of,
    tone=tone_of,
    tone_class=lambda verdict: tone_of([verdict]),
)
TEMPLATES.globals.update(
    marks=MARKS,
    outcomes=OUTCOMES,
    policy=_POLICY,
    script=Markup(_SCRIPT),  # noqa: S704 - ours, and its checksum is in the policy
    spread_columns=PERCENTILES,
)
_MARKDOWN = TEMPLATES.overlay(finalize=_plain)
