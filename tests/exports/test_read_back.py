"""What a run hands on, read back by the tools it is meant for; uv fetches them, once."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from specreg.changes import can_find_shifts, shifts_in, turns_in
from specreg.report.charts import charts_of
from specreg.report.exports import aiperf
from specreg.report.trends import render_trends
from tests.unit import reports
from tests.unit.reports import lived
from tests.unit.test_breakdown import CASE
from tests.unit.test_outputs import MEASURED
from tests.unit.test_trends import LENGTH, row_of

_AIPERF = ("-m", "uv", "tool", "run", "--from", "aiperf==0.13.0")
_READ = """
import sys
from aiperf.common.models import MetricRecordInfo
for line in open(sys.argv[1]):
    one = MetricRecordInfo.model_validate_json(line)
    accepted = one.spec_decode_acceptance
    print(one.metadata.conversation_id, one.metadata.request_end_ns - one.metadata.request_start_ns,
          one.metrics["request_latency"].value, accepted and accepted.mean_acceptance_length)
"""
_SUMMARY = """
import sys
from aiperf.common.models.export_models import JsonExportData
found = JsonExportData.model_validate_json(open(sys.argv[1]).read())
print(found.request_latency.p50, found.request_latency.unit, found.output_token_throughput.avg)
"""


def tool(*command: str) -> str:
    """What a command of aiperf's environment prints."""
    done = subprocess.run(
        (sys.executable, *_AIPERF, *command), check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is exported of a case with a prompt of chat and one of maths."""
    found = tmp_path_factory.mktemp("exported")
    for name, text in aiperf.export(reports.REPORT, MEASURED).items():
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text(text)
    return found


def test_aiperf_reads_each_record_and_its_checks_hold(folder: Path) -> None:
    printed = tool("python", "-c", _READ, str(folder / f"aiperf/{CASE.id}/profile_export.jsonl"))
    rows = [line.split() for line in printed.splitlines()]
    assert rows == [["chat-0", "21000000", "21.0", "2.5"], ["math-0", "41000000", "41.0", "4.0"]]


def test_aiperf_refuses_a_record_whose_counts_contradict_one_another(folder: Path) -> None:
    """So that the test above can fail."""
    path = folder / f"aiperf/{CASE.id}/profile_export.jsonl"
    record = json.loads(path.read_text().splitlines()[0])
    record["spec_decode_acceptance"]["num_spec_steps"] += 1
    torn = folder / "torn.jsonl"
    torn.write_text(json.dumps(record))
    with pytest.raises(AssertionError, match="num_spec_steps"):
        tool("python", "-c", _READ, str(torn))


def test_aiperf_reads_the_summary_of_a_case(folder: Path) -> None:
    path = folder / f"aiperf/{CASE.id}/profile_export_aiperf.json"
    assert tool("python", "-c", _SUMMARY, str(path)).split() == ["31.0", "ms", "10.0"]


def test_aiperf_draws_when_requests_ran(folder: Path) -> None:
    tool("aiperf", "analyze", "swim-lane", str(folder / f"aiperf/{CASE.id}"))
    assert (folder / f"aiperf/{CASE.id}/swim_lane.png").read_bytes().startswith(b"\x89PNG")


def test_otava_finds_where_a_case_became_worse() -> None:
    assert can_find_shifts(), "the session installs the extra `changes`"
    noise = [0.0, 0.01, -0.01, 0.005, -0.005]
    values = [2.6 + noise[n % 5] for n in range(20)] + [2.3 + noise[n % 5] for n in range(20)]
    (shift,) = shifts_in(values)
    assert shift.place == 20
    assert shift.change_frac == pytest.approx(2.3 / 2.6 - 1, abs=0.001)
    assert shifts_in(values[:20]) == ()


def test_a_shift_is_named_with_its_run() -> None:
    values = [2.6 + 0.01 * (n % 3) for n in range(14)] + [2.3 + 0.01 * (n % 3) for n in range(14)]
    shown = render_trends({CASE.id: row_of(*values)}, [LENGTH], width=110)
    assert "since 20261115T020000-1, 0.32.0" in shown
    assert "pip install" not in shown


def test_the_page_names_the_run_the_versions_and_the_change_of_a_shift() -> None:
    before = [lived(day, ttft_p50_ms=100.0 + day % 3) for day in range(1, 15)]
    after = [
        msgspec.structs.replace(lived(day, ttft_p50_ms=130.0 + day % 3), engine_version="0.33.0")
        for day in range(15, 29)
    ]
    (turn,) = turns_in((*before, *after), "ttft_p50_ms")
    assert (turn.place, turn.versions) == (14, ("0.32.0", "0.33.0"))
    assert turn.change_frac == pytest.approx(-0.297, abs=0.005)
    lengths = row_of(*[2.6 + 0.01 * (n % 3) for n in range(14)], *[2.3] * 7, *[2.31] * 7)
    (chart,) = [
        chart
        for chart in charts_of(msgspec.structs.replace(reports.CASE_REPORT, history=tuple(lengths)))
        if chart.title == "History of acceptance length"
    ]
    assert "shifted for good: run 20261115T020000-1, 0.32.0, -" in chart.note
    assert "var(--bad)" in chart.svg
