"""What a run hands on, read back by the tool it is for: each says what report.json says.

uv fetches aiperf, once; promtool is of Debian's package prometheus.
"""

import dataclasses
import functools
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import html5lib
import junitparser
import pandas as pd
import pytest
from markdown_it import MarkdownIt

from specreg.report.exports import EXPORT_FORMATS
from specreg.report.files import load_report
from tests.doubles.vllm.script import Script
from tests.plugin.conftest import Suite, run_here
from tests.unit.builders.dashboard import expressions

_AIPERF = ("-m", "uv", "tool", "run", "--from", "aiperf==0.13.0")
_READ = """
import json, sys
from aiperf.common.models import MetricRecordInfo
for path in sys.argv[1:]:
    for line in open(path):
        one = MetricRecordInfo.model_validate_json(line)
        moments, taken = one.metadata, one.spec_decode_acceptance
        print(json.dumps({
            "path": path,
            "turn": f"{moments.conversation_id} {moments.turn_index}",
            "took_ms": (moments.request_end_ns - moments.request_start_ns) / 1e6,
            "accepted": taken and (taken.num_accepted_draft_tokens, taken.num_spec_steps),
            **{name: metric.value for name, metric in one.metrics.items()},
        }))
"""
_LOAD = """
import json, sys
from pathlib import Path
from aiperf.plot.core.data_loader import DataLoader
from aiperf.plot.core.mode_detector import ModeDetector
plotted = {}
for folder in ModeDetector().find_run_directories([Path(sys.argv[1])]):
    run = DataLoader().load_run(folder)
    throughput = run.aggregated.get("output_token_throughput") or {}
    plotted[folder.name] = {
        "concurrency": run.metadata.concurrency,
        "throughput": throughput.get("avg") if isinstance(throughput, dict) else throughput.avg,
    }
print(json.dumps(plotted))
"""
_PROMTOOL = shutil.which("promtool")
_DIGITS = 5e-4
"""What four digits leave out, as a share."""
_JUDGED = {0, 1, 10, 11}
SENTENCES = {"reason", "cause"}
"""The fields that are a sentence in the exports, and have parts in the report."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run in which the draft was accepted less often than when it was recorded, in all forms."""

    folder: Path

    @functools.cached_property
    def report(self) -> Mapping[str, Any]:
        return dict(json.loads((self.folder / "report.json").read_text()))

    @functools.cached_property
    def verdicts(self) -> Mapping[tuple[str, str], Mapping[str, Any]]:
        """By case and metric, with the fields of the comparison beside the others."""
        by_figure = {}
        for entry in self.report["run"]["verdicts"]:
            fields = {name: value for name, value in entry.items() if name != "comparison"}
            by_figure[entry["case_id"], entry["metric"]] = fields | entry["comparison"]
        assert len(by_figure) == len(self.report["run"]["verdicts"])
        return by_figure

    @functools.cached_property
    def failing(self) -> AbstractSet[tuple[str, str]]:
        """The cases and metrics whose tests fail."""
        verdicts = load_report(self.folder / "report.json").run.verdicts
        return {verdict.figure for verdict in verdicts if verdict.fails}

    @functools.cached_property
    def figures(self) -> Mapping[str, Mapping[str, Any]]:
        """By case that was measured."""
        cases = self.report["cases"]
        return {case["case_id"]: case["figures"] for case in cases if case["figures"]}

    @functools.cached_property
    def timed(self) -> Mapping[str, Mapping[str, Any]]:
        """By case whose times are valid; on a busy machine some aren't."""
        return {name: figures for name, figures in self.figures.items() if figures["timing"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    suite = Suite(tmp_path_factory.mktemp("exported"))
    suite.record()
    suite.script = Script(acceptance_probs=(0.6, 0.5, 0.4))
    done = suite.run("tests/perf", "-q")
    assert done.returncode in _JUDGED, done.stdout + done.stderr
    folder = max(suite.runs.iterdir())
    ended = suite.specreg(
        "report", folder, *(word for name in EXPORT_FORMATS for word in ("--to", name))
    )
    assert ended.returncode == 0, ended.stderr
    read_run = Run(folder)
    assert len(read_run.figures) == 4
    assert read_run.timed
    assert {"PASS", "REGRESSED"} <= {verdict["outcome"] for verdict in read_run.verdicts.values()}
    return read_run


def tool(*command: str) -> str:
    """What a command of aiperf's environment prints."""
    done = run_here(sys.executable, *_AIPERF, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def same(shown: str, number: float | None) -> bool:
    """Whether a cell of a table shows a number, or a dash where there is none."""
    if number is None:
        return shown == "–"
    return math.isclose(float(shown), number, rel_tol=_DIGITS)


def test_pandas_reads_all_of_each_verdict(run: Run) -> None:
    frame = pd.read_csv(run.folder / "verdicts.csv")
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert len(rows) == len(run.verdicts)
    for row in rows:
        verdict = run.verdicts[row["case_id"], row["metric"]]
        assert verdict.keys() <= row.keys()
        known = {name: None if value in ("", []) else value for name, value in verdict.items()}
        assert {name: row[name] for name in known.keys() - SENTENCES} == {
            name: known[name] for name in known.keys() - SENTENCES
        }
        for name in SENTENCES:
            assert bool(row[name]) is bool(known[name])
        if known["reason"]:
            assert known["reason"]["text"] in row["reason"]


@pytest.mark.skipif(not _PROMTOOL, reason="apt install prometheus")
def test_promtool_parses_what_the_dashboard_asks_for(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$\w+", ".*", expression)}
        for number, expression in enumerate(expressions())
    ]
    path = tmp_path / "rules.yml"
    # JSON is YAML.
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = run_here(str(_PROMTOOL), "check", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(rules)} rules found" in done.stdout


@pytest.mark.skipif(not _PROMTOOL, reason="apt install prometheus")
def test_promtool_finds_nothing_wrong_with_the_gauges(run: Run) -> None:
    command = (_PROMTOOL or "", "check", "metrics")
    text = (run.folder / "specreg.prom").read_text()
    done = subprocess.run(command, check=False, input=text, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_of_junit_counts_and_shows_each_verdict(run: Run) -> None:
    path = run.folder / "junit.xml"
    (written,) = ET.parse(path).iter("testsuite")  # noqa: S314 - our own
    (suite,) = junitparser.JUnitXml.fromfile(str(path))  # it counts anew
    for name in ("tests", "failures", "errors", "skipped"):
        assert written.get(name) == str(getattr(suite, name))
    assert suite.tests == len(run.verdicts)
    assert suite.failures == len(run.failing)
    for case in suite:
        verdict = run.verdicts[case.classname, case.name]
        shown = {prop.name: prop.value for prop in case.child(junitparser.Properties)}
        known = {name: str(value) for name, value in verdict.items() if value not in (None, "", [])}
        assert shown.keys() == {f"specreg.{name}" for name in known}
        for name in known.keys() - SENTENCES:
            assert shown[f"specreg.{name}"] == known[name]
        failed = [
            result.message for result in case.result if isinstance(result, junitparser.Failure)
        ]
        is_failing = (case.classname, case.name) in run.failing
        assert [message.partition(":")[0] for message in failed] == (
            [verdict["outcome"]] * is_failing
        )


def verdict_of_row(run: Run, case_id: str, name: str) -> tuple[str, Mapping[str, Any]]:
    """The metric of a row in a table, and its verdict with the values that the table shows.

    The acceptance length is compared without the token that needs no draft, and shown so.
    """
    if not name.endswith("-1"):
        return name, run.verdicts[case_id, name]
    metric = f"{name.removesuffix('-1')}_tokens"
    verdict = run.verdicts[case_id, metric]
    return metric, {**verdict, **{key: verdict[key] - 1 for key in ("expected", "value")}}


def test_the_tables_of_the_markdown_have_each_verdict(run: Run) -> None:
    text = (run.folder / "report.md").read_text()
    blocks = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    texts = ["".join(part.content for part in child.children or ()) for child in blocks]
    starts = [index for index, block in enumerate(blocks) if block.type == "tr_open"]
    rows = [
        [texts[start + 2 + 3 * column] for column in range(5)]
        for start in starts
        if blocks[start + 1].type == "td_open"
    ]
    assert len(rows) == len(run.failing) + len(run.verdicts), "those that fail stand above all"
    found = set()
    for case_id, name, outcome, expected, value in rows:
        metric, verdict = verdict_of_row(run, case_id, name)
        found.add((case_id, metric))
        assert outcome == verdict["outcome"]
        assert same(expected, verdict["expected"])
        assert same(value, verdict["value"])
    assert found == run.verdicts.keys()


def test_a_strict_parser_of_html_finds_each_verdict(run: Run) -> None:
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    page = parser.parse((run.folder / "report.html").read_text())
    shown = set()
    for case in page.iter("details"):
        for table in case.iter("table"):
            head, *rows = (["".join(cell.itertext()) for cell in row] for row in table.iter("tr"))
            if "verdict" not in head:
                continue
            for row in rows:
                cells = dict(zip(head, row, strict=True))
                metric, case_verdict = verdict_of_row(run, case.get("id"), cells["metric"])
                assert same(cells["value"], case_verdict["value"])
                assert same(cells["baseline"], case_verdict["expected"])
                assert cells["verdict"].split()[-1] == case_verdict["outcome"]
                shown.add((case.get("id"), metric))
    assert shown == run.verdicts.keys()


def test_pytest_benchmark_lists_and_compares_the_cases(run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "machine/0001_specreg.json"
    table = tmp_path / "table.csv"
    saved.parent.mkdir()
    shutil.copy(run.folder / "benchmark.json", saved)
    command = (sys.executable, "-m", "pytest_benchmark", "--storage", str(tmp_path))
    listed = run_here(*command, "list")
    assert listed.stdout.split() == [str(saved)], listed.stderr
    compared = run_here(*command, "compare", "0001", f"--csv={table.with_suffix('')}")
    assert compared.returncode == 0, compared.stderr
    rows = {
        row["name"].partition("[")[2].rstrip("]"): row
        for row in pd.read_csv(table).to_dict("records")
    }
    entries = {
        benchmark["param"]: benchmark for benchmark in json.loads(saved.read_text())["benchmarks"]
    }
    assert rows.keys() == entries.keys() == {f"{name}-tpot_s" for name in run.timed}
    for name, entry in entries.items():
        case_id = name.removesuffix("-tpot_s")
        info = entry["extra_info"]
        assert rows[name]["median"] == entry["stats"]["median"]
        outcomes = {
            verdict["outcome"] for key, verdict in run.verdicts.items() if key[0] == case_id
        }
        assert info.pop("outcome") in outcomes
        assert info == run.figures[case_id]["judged"]


def test_aiperf_reads_each_record_and_its_checks_hold(run: Run) -> None:
    paths = (run.folder / f"aiperf/{name}/profile_export.jsonl" for name in run.timed)
    lines = tool("python", "-c", _READ, *map(str, paths)).splitlines()
    records = [json.loads(line) for line in lines]
    for case_id, figures in run.timed.items():
        case_records = [record for record in records if case_id in record["path"].split("/")]
        timing = figures["timing"]
        acceptance = figures["acceptance"]
        assert len(case_records) == timing["requests"]
        assert sum(record["output_sequence_length"] for record in case_records) == timing["tokens"]
        names = ("time_to_first_token", "request_latency", "inter_token_latency")
        for name, field in zip(names, ("ttft_ms", "e2e_ms", "tpot_ms"), strict=True):
            mean_ms = statistics.mean(record[name] for record in case_records)
            assert mean_ms == pytest.approx(timing[field]["mean"], rel=1e-9)
        for record in case_records:
            assert record["took_ms"] == pytest.approx(record["request_latency"], abs=1e-6)
        accepted = {
            record["turn"]: record["accepted"] for record in case_records if record["accepted"]
        }
        assert bool(accepted) is (acceptance is not None)
        if acceptance:
            total = acceptance["total"]
            sums = tuple(map(sum, zip(*accepted.values(), strict=True)))
            assert sums == (total["accepted"], total["steps"])


def test_aiperf_takes_the_folder_of_each_case_for_a_run_that_it_plots(run: Run) -> None:
    (printed,) = tool("python", "-c", _LOAD, str(run.folder / "aiperf")).splitlines()[-1:]
    plotted = json.loads(printed)
    assert plotted.keys() == run.figures.keys()
    for case_id, figures in run.timed.items():
        throughput = figures["timing"]["throughput_tokens_per_s"]
        assert plotted[case_id]["throughput"] == pytest.approx(throughput)
        assert case_id.endswith(f"-c{plotted[case_id]['concurrency']}")


def test_aiperf_draws_when_requests_ran(run: Run) -> None:
    folder = run.folder / "aiperf/vllm-eagle3-tiny-toy-c4"
    tool("aiperf", "analyze", "swim-lane", str(folder))
    assert (folder / "swim_lane.png").read_bytes().startswith(b"\x89PNG")
