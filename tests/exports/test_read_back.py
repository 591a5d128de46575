"""What a run hands on, read back by the tools it is meant for; uv fetches them, once."""

import subprocess
import sys
from pathlib import Path

import pytest

from specreg.report.exports import render_aiperf
from tests.unit import reports
from tests.unit.report.test_exports import MEASURED
from tests.unit.reports import CASE

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
    for name, text in render_aiperf(reports.REPORT, MEASURED).items():
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text(text)
    return found


def test_aiperf_reads_each_record_and_its_checks_hold(folder: Path) -> None:
    printed = tool("python", "-c", _READ, str(folder / f"aiperf/{CASE.id}/profile_export.jsonl"))
    rows = [line.split() for line in printed.splitlines()]
    assert rows == [["chat-0", "21000000", "21.0", "2.5"], ["math-0", "41000000", "41.0", "4.0"]]


def test_aiperf_draws_when_requests_ran(folder: Path) -> None:
    tool("aiperf", "analyze", "swim-lane", str(folder / f"aiperf/{CASE.id}"))
    assert (folder / f"aiperf/{CASE.id}/swim_lane.png").read_bytes().startswith(b"\x89PNG")
