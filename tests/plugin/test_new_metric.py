"""A metric that an engine reports takes its name in the engine's file, and one row of the table."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from specreg.verdicts.verdict import Outcome
from tests.doubles.vllm.script import Script
from tests.plugin.conftest import MATRIX, ROOT, Suite, run_here

NAME = "queue_mean_ms"
ENGINE = """
    further_counters: ClassVar[Mapping[str, str]] = {
        "queue_s": "vllm:request_queue_time_seconds_sum"
    }
    ended_counter: """
ROW = f"""
_SUITE = (
    Metric(
        name="{NAME}",
        family=Family.LATENCY,
        meaning="mean time that a request waits for its prefill",
        formula=lambda replay: 1000 * replay.counters["queue_s"] / len(replay.traces),
        counters=("queue_s",),
        sign=-1,
    ),
"""
ONE_CASE = MATRIX.replace('["none", "eagle3"]', '["eagle3"]').replace("[1, 4]", "[1]")
FAMILIES = ("tests/perf", "-q", "-k", "acceptance or latency")
SCHEMAS = {
    "baselines/schema.json": ("baselines", "schema"),
    "docs/report.schema.json": ("report", "--schema"),
}
# A busy machine can't always resolve a speed.
NIGHT = (*FAMILIES, "--specreg-inconclusive=warn-speed")


@pytest.fixture
def own_suite(tmp_path: Path) -> Suite:
    """A suite in a copy of the checkout, whose files may be changed."""
    root = tmp_path / "checkout"
    for folder in ("specreg", "fixtures", "tests/perf"):
        left_out = shutil.ignore_patterns("__pycache__", "recordings")
        shutil.copytree(ROOT / folder, root / folder, ignore=left_out)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    suite = Suite(tmp_path)
    suite.root = root
    suite.write_tier(ONE_CASE)
    return suite


def add_metric(root: Path) -> None:
    """Name the counter of vLLM, and add the row."""
    for path, before, after in (
        ("specreg/engines/vllm.py", r"\n    ended_counter: ", ENGINE),
        ("specreg/measurement/metrics.py", r"\n_SUITE = \(\n", ROW),
    ):
        text, places = re.subn(before, after, (root / path).read_text(), count=1)
        assert places == 1
        (root / path).write_text(text)


def outcomes(suite: Suite) -> dict[str, Outcome]:
    return {verdict.metric: verdict.outcome for verdict in suite.verdict().verdicts}


def test_a_new_metric_waits_for_its_recording_and_turns_nothing_red(own_suite: Suite) -> None:
    own_suite.record(*FAMILIES[2:])
    recorded = own_suite.recorded()
    assert own_suite.run(*NIGHT).returncode == 0
    before = outcomes(own_suite)

    add_metric(own_suite.root)
    done = own_suite.run(*NIGHT)
    assert done.returncode == 0, done.stdout
    after = outcomes(own_suite)
    assert after.pop(NAME) is Outcome.NOT_COMPARABLE
    assert after.keys() == before.keys()
    assert after["acceptance_length_tokens"] is before["acceptance_length_tokens"] is Outcome.PASS
    assert own_suite.recorded() == recorded

    own_suite.record(*FAMILIES[2:])
    (content,) = own_suite.recorded().values()
    assert [launch[NAME] for launch in json.loads(content)["launches"]] == pytest.approx([2.0, 2.0])
    for committed, command in SCHEMAS.items():
        printed = run_here(*(sys.executable, "-m", "specreg", *command), cwd=own_suite.root)
        assert printed.stdout == (ROOT / committed).read_text()

    own_suite.script = Script(queue_ms=20.0)
    worse = own_suite.run(*NIGHT)
    assert worse.returncode == 1, worse.stdout
    assert outcomes(own_suite)[NAME] is Outcome.REGRESSED
