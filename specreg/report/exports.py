"""The forms in which a run is handed on: page, Markdown, CSV, Prometheus and other tools' own.

aiperf's is its 0.13's file of a record for each request. The moments of requests are exact to one
another; that the first was sent when the run began is an assumption.

A benchmark of pytest-benchmark's is a measured case, and its rounds are the case's. What is timed
is TPOT, the median of each round, in seconds. Where one process measures, pytest-benchmark computes
the statistics and writes the file; a merged run gets the same from here.
"""

import contextlib
import csv
import io
import json
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from specreg.acceptance.record import StepCounts
from specreg.core.errors import ReportError
from specreg.core.names import MOST_CASE_CHARACTERS, check_spelling
from specreg.core.readable import readable_line
from specreg.core.values import readable_values
from specreg.measurement.journal import load_journal
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, RECORDED, Family, Replay, e2e_ms, tpot_ms, ttft_ms
from specreg.report.document import CaseReport, Report, began_at, flat_fields, last_words, write_in
from specreg.report.failures import properties, render_skip, sentence_of
from specreg.report.page import render_markdown, render_page
from specreg.report.summary import OUTCOMES
from specreg.telemetry.identity import Environment
from specreg.verdicts.verdict import Outcome, Verdict

ALWAYS = ("html", "markdown")
"""What each run leaves."""
SAVING = ("json", "save", "autosave")
SHOWING = ("compare", "columns", "histogram", "only", "verbose")
"""Options of pytest-benchmark: those that take its file, and those that take its table."""
_LABELS = ("tier", "environment", "case_id", "engine", "method", "models", "dataset", "metric")
_SPEEDS = {Family.THROUGHPUT, Family.LATENCY}
_BENCHMARKS = "benchmark.json"
_NS_PER_S, _MS_PER_S = 10**9, 1000


def write_outputs(
    names: Iterable[str], report: Report, run_folder: Path, folder: Path
) -> list[Path]:
    """Write forms of a document, named as in FORMS, into a folder; the files that were written.

    The run's folder holds the journal.

    Raises:
        SpecregError: the journal can't be read, no case has what a form takes, or the disk refuses.
    """
    written: list[Path] = []
    for name in names:
        _, file, render = FORMS[name]
        files = {file: render(report)} if render else _render_journal(name, report, run_folder)
        for path, text in files.items():
            # At once: the node exporter may be reading.
            written.append(write_in(folder, path, text.encode()))
    return written


def render_junit(report: Report) -> str:
    """JUnit's XML with a test for each verdict: its last word, after all of them were looked at."""
    run = readable_values(report).run
    failed = sum(one.fails for one in run.verdicts)
    skipped = sum(not (one.fails or one.holds) for one in run.verdicts)
    counts = {"tests": len(run.verdicts), "failures": failed, "errors": 0, "skipped": skipped}
    suites = ET.Element("testsuites")
    suite = ET.SubElement(suites, "testsuite", {"name": readable_line(f"specreg {run.tier}")})
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    for one in run.verdicts:
        names = {"classname": readable_line(one.case_id), "name": readable_line(one.metric)}
        test = ET.SubElement(suite, "testcase", names)
        held = ET.SubElement(test, "properties")
        for name, value in properties(one):
            ET.SubElement(held, "property", {"name": name, "value": value})
        if one.fails:
            message = readable_line(f"{one.outcome}: {sentence_of(one)}")
            ET.SubElement(test, "failure", {"message": message}).text = one.explanation
        elif not one.holds:
            ET.SubElement(test, "skipped", {"message": render_skip(one)})
    ET.indent(suites)
    return f"{ET.tostring(suites, encoding='unicode', xml_declaration=True)}\n"


def append_job_summary(text: str) -> None:
    """Add to the summary of a GitHub job, where one runs. A disk that refuses loses it."""
    if place := os.environ.get("GITHUB_STEP_SUMMARY"):
        with contextlib.suppress(OSError), Path(place).open("a", encoding="utf-8") as file:
            file.write(text)


def render_verdict_rows(report: Report) -> str:
    """CSV with a row for each verdict with all that it says; what is unknown is empty."""
    report = readable_values(report)
    text = io.StringIO()
    columns = flat_fields(Verdict(case_id="", metric="", outcome=Outcome.PASS))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for verdict in report.run.verdicts:
        fields = flat_fields(verdict)
        writer.writerow({name: "" if value == () else value for name, value in fields.items()})
    return text.getvalue()


def render_metrics(
    report: Report, render: Callable[[CollectorRegistry], bytes] = generate_latest
) -> str:
    """Gauges for a file that the node exporter collects; `render` may be OpenMetrics' own."""
    registry = CollectorRegistry()
    report = readable_values(report)
    run = {"tier": report.run.tier, "environment": report.run.environment}
    cases = {case.case_id: case for case in report.cases}

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"specreg_{name}", text, labels, registry=registry)

    gauges = (
        gauge("value", "What was measured, in the unit of the metric.", *_LABELS),
        gauge("expected", "What the baseline holds.", *_LABELS),
        gauge("change_ratio", "Change against the baseline; better is positive.", *_LABELS),
    )
    verdict = gauge("verdict", "1 for the outcome of a verdict.", *_LABELS, "outcome")
    for one in last_words(report.run.verdicts):
        case = cases.get(one.case_id)
        made_of = {name: getattr(case, name, "") for name in _LABELS[3:-1]}
        labels = {**run, "case_id": one.case_id, **made_of, "metric": one.metric}
        verdict.labels(**labels, outcome=str(one.outcome)).set(1)
        for which, number in zip(
            gauges, (one.value, one.comparison.expected, one.comparison.change_frac), strict=True
        ):
            if number is not None:
                which.labels(**labels).set(number)
    status = gauge("exit_status", "Of the run: 0, 1, 10 or 11, or one of pytest's own.", *run)
    status.labels(**run).set(report.run.exit_status)
    if moment := began_at(report.run.run):
        began = gauge("started_timestamp_seconds", "When the run began.", *run)
        began.labels(**run).set(moment.timestamp())
    return render(registry).decode()


def _render_journal(name: str, report: Report, run_folder: Path) -> Mapping[str, str]:
    """The files, by path, of a form that takes the journal: of each case the launch in the report.

    Of a case without figures it is the last one.
    """
    shown = {case.case_id: case.figures.launch for case in report.cases if case.figures}
    launches = load_journal(run_folder / "journal.jsonl").items()
    measured = {
        key.case_id: one
        for key, one in sorted(launches, key=lambda item: item[0].launch)
        if key.launch == shown.get(key.case_id, key.launch)
    }
    files = _OF_JOURNAL[name](report, measured)
    if not files:
        message = f"report as {name}: no case of run '{report.run.run}' holds what it takes"
        raise ReportError(f"{message}; name a run that measured one")
    return files


def render_aiperf(report: Report, measured: Mapping[str, Measurement]) -> Mapping[str, str]:
    """By path, aiperf's records of the requests of a case, whose id is the key of its launch."""
    moment = began_at(report.run.run)
    began_ns = int(moment.timestamp()) * _NS_PER_S if moment else 0
    cases = [case for case in report.cases if case.case_id in measured]
    for case in cases:  # each becomes the name of a folder
        check_spelling("case", case.case_id, MOST_CASE_CHARACTERS)
    return {
        f"aiperf/{case.case_id}/profile_export.jsonl": "".join(
            f"{json.dumps(readable_values(record))}\n"
            for record in _aiperf_records(case, measured[case.case_id], began_ns)
        )
        for case in cases
    }


def _aiperf_records(
    case: CaseReport, measurement: Measurement, began_ns: int
) -> Iterator[Mapping[str, object]]:
    traces = measurement.replay.traces if measurement.replay else ()
    shift_ns = began_ns - min((trace.sent_ns for trace in traces), default=0)
    counts: dict[tuple[str, int], list[StepCounts]] = {}
    for prompt in measurement.acceptance.prompts if measurement.acceptance else ():
        counts.setdefault((prompt.prompt_id, prompt.turn), []).append(prompt.counts)
    replays = Counter[tuple[str, int]]()
    sessions: dict[tuple[str, int], int] = {}
    for trace in traces:
        place = trace.prompt_id, trace.turn
        replay = replays[place]
        replays[place] += 1
        steps = next(iter(counts.get(place, [])[replay:]), None)
        yield {
            "metadata": {
                "session_num": sessions.setdefault((trace.prompt_id, replay), len(sessions)),
                "conversation_id": trace.prompt_id,
                "turn_index": trace.turn - 1,
                "credit_issued_ns": trace.planned_ns + shift_ns,
                "request_start_ns": trace.sent_ns + shift_ns,
                "request_end_ns": (trace.last_ns or trace.sent_ns) + shift_ns,
                "worker_id": "specreg",
                "record_processor_id": "specreg",
                "benchmark_phase": "profiling",
            },
            "metrics": {
                name: {"value": value, "unit": unit}
                for name, value, unit in (
                    ("time_to_first_token", ttft_ms(trace), "ms"),
                    ("request_latency", e2e_ms(trace), "ms"),
                    ("inter_token_latency", tpot_ms(trace), "ms"),
                    ("input_sequence_length", trace.prompt_tokens, "tokens"),
                    ("output_sequence_length", trace.tokens, "tokens"),
                )
                if value is not None
            },
            "spec_decode_acceptance": {
                "engine": case.engine,
                "mean_acceptance_length": steps.acceptance_length,
                "draft_acceptance_rate": steps.acceptance_rate,
                "acceptance_histogram": {str(j): n for j, n in enumerate(steps.histogram) if n},
                "num_accepted_draft_tokens": steps.accepted,
                "num_draft_tokens": steps.proposed,
                "num_spec_steps": steps.steps,
                "num_spec_tokens": case.settings.draft_tokens if case.settings else None,
                "completion_tokens": trace.tokens,
            }
            # Its record needs to know what was drafted.
            if steps and steps.steps and steps.proposed
            else None,
            "error": None,
        }


def is_given(getoption: Callable[[str, object], object], names: Iterable[str]) -> bool:
    """Whether one of pytest-benchmark's options is given, or it is told what to group by."""
    grouped = getoption("benchmark_group_by", "group") != "group"
    return grouped or any(getoption(f"benchmark_{name}", None) for name in names)


def times_of(measurement: Measurement) -> tuple[float, ...]:
    """The median TPOT of each round that has one, in seconds; none where speeds mean nothing."""
    replay = measurement.replay
    if replay is None or not _SPEEDS.isdisjoint(measurement.invalid):
        return ()
    median_ms = METRICS["tpot_p50_ms"].value_of
    found_ms = [median_ms(Replay(rounds=(part,))) for part in replay.rounds]
    return tuple(one / _MS_PER_S for one in found_ms if one is not None)


def benchmark_of(measurement: Measurement, verdicts: Iterable[Verdict]) -> Mapping[str, object]:
    """What the entry of a case says beside its times: what it can be grouped by, and its figures.

    The outcome is the worst of a run's verdicts on the case, empty without any.
    """
    case, server = measurement.case, measurement.case.server
    names = ("engine", "models", "dataset", "load", "method")
    values = (server.engine, server.models, case.dataset, case.load.id, server.method)
    words = [one.outcome for one in last_words(verdicts) if one.case_id == case.id]
    outcome = min(words, key=list(OUTCOMES).index, default="")
    return {
        "group": " ".join(values[:-1]),
        "params": dict(zip(names, values, strict=True)),
        "extra_info": {**measurement.values, "outcome": str(outcome)},
        "options": {"timer": RECORDED.name},  # pytest-benchmark's own choose no rounds here
    }


def machine_info_of(environment: Environment) -> Mapping[str, object]:
    """What must be equal for two speeds to be comparable; pytest-benchmark warns where it isn't."""
    return {"name": environment.name, **msgspec.to_builtins(environment)}


def render_benchmarks(report: Report, measured: Mapping[str, Measurement]) -> Mapping[str, str]:
    """What `--benchmark-json` writes, of a whole run, by its file; none where no case has a time.

    Args:
        report: the run's.
        measured: by case's id, the launch whose figures the report has.
    """
    benchmarks = []
    for case in report.cases:
        one = measured.get(case.case_id)
        if one and (times_s := times_of(one)):
            param = f"{case.case_id}-{RECORDED.name}"
            name = f"test_throughput_is_recorded[{param}]"  # as pytest calls the test of a case
            test = {"name": name, "fullname": f"tests/perf/test_throughput.py::{name}"}
            of = benchmark_of(one, report.run.verdicts)
            benchmarks.append({**test, "param": param, **of, "stats": _stats(times_s)})
    content = {
        "machine_info": machine_info_of(report.machine),
        "commit_info": {"id": report.origin.commit},
        "benchmarks": benchmarks,
        "datetime": report.ended_at,
        "version": f"specreg {report.origin.specreg_version}",
    }
    if not benchmarks:
        return {}
    return {_BENCHMARKS: json.dumps(readable_values(content), indent=4) + "\n"}


def _stats(times_s: Sequence[float]) -> Mapping[str, object]:
    """pytest-benchmark's statistics of one round or more, with Tukey's rule for outliers."""
    q1, median, q3 = map(float, np.quantile(times_s, (0.25, 0.5, 0.75), method="hazen"))
    rounds, total, mean, iqr = len(times_s), sum(times_s), statistics.mean(times_s), q3 - q1
    stddev = statistics.stdev(times_s) if rounds > 1 else 0
    near = [one for one in times_s if q1 - 1.5 * iqr <= one <= q3 + 1.5 * iqr]
    far = sum(abs(one - mean) > stddev for one in times_s)
    ends = {"min": min(times_s), "max": max(times_s), "ld15iqr": min(near), "hd15iqr": max(near)}
    middle = {"mean": mean, "stddev": stddev, "q1": q1, "median": median, "q3": q3, "iqr": iqr}
    outliers = {"stddev_outliers": far, "iqr_outliers": rounds - len(near)}
    words = {"outliers": f"{far};{rounds - len(near)}", "iterations": 1, "data": list(times_s)}
    sums = {"rounds": rounds, "total": total, "ops": rounds / total}
    return {**ends, **middle, **outliers, **words, **sums}


FORMS: Mapping[str, tuple[str, str, Callable[[Report], str] | None]] = {
    "html": ("one page for people, which needs nothing else", "report.html", render_page),
    "markdown": ("a summary for a pull request or a job", "report.md", render_markdown),
    "junit": ("JUnit's XML, a test for each verdict", "junit.xml", render_junit),
    "csv": ("verdicts, a row each", "verdicts.csv", render_verdict_rows),
    "prometheus": ("gauges for the node exporter's text files", "specreg.prom", render_metrics),
    "openmetrics": (
        *("the same gauges as OpenMetrics", "specreg.openmetrics"),
        lambda report: render_metrics(report, generate_openmetrics),
    ),
    "benchmark": ("what pytest --benchmark-json writes", _BENCHMARKS, None),
    "aiperf": ("aiperf's records of each request", "aiperf", None),
}
"""By name what it is, its file, and what renders that; None of one that takes the journal."""
_OF_JOURNAL = {"benchmark": render_benchmarks, "aiperf": render_aiperf}
