"""What a run says of a workload that isn't what it seems."""

import json
import re
from typing import Any

from specreg.report.files import FILE_NAME
from tests.doubles.vllm.script import Script
from tests.plugin.conftest import MATRIX, Suite, cases_of

THINKING = Script(thought_tokens=32)
"""The thought takes all tokens that an answer may have."""


def with_turns(suite: Suite) -> str:
    """Writes a tier of one case of conversations; the case's id."""
    models = MATRIX.partition("    [[cases]]")[0]
    settings = {"prompts": 4, "output_cap_tokens": 32, "turns": 3}
    suite.write_tier(models)
    path = suite.folder / "cpu.toml"
    path.write_text(path.read_text() + cases_of("tiny", dataset="toy-turns", **settings))
    return "vllm-eagle3-tiny-toy-turns-c1"


def report_of(suite: Suite) -> dict[str, Any]:
    (path,) = suite.runs.glob(f"*/{FILE_NAME}")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_answers_that_never_left_the_thought_are_counted_everywhere(suite: Suite) -> None:
    """Twelve requests: eight are later turns, whose history holds an empty reply."""
    case_id = with_turns(suite)
    suite.script = THINKING

    done = suite.run("tests/perf", "-q", "-k", "acceptance_length")

    thoughts = f"'{case_id}': 12 of 12 answers never left the thought"
    turns = f"'{case_id}': 8 of 12 requests were later turns that had empty replies"
    parts = f"'{case_id}': the acceptance length is about 2."
    report = report_of(suite)
    (page,) = suite.runs.glob("*/report.md")
    for words in (thoughts, turns, parts):
        assert words in done.stdout
        assert any(remark.startswith(words) for remark in report["remarks"])
        assert words.partition(": ")[2] in page.read_text()
    (case,) = report["cases"]
    answers = case["figures"]["answers"]
    assert (answers["requests"], answers["unfinished_thoughts"]) == (12, 12)
    assert answers["after_empty_replies"] == 8
    assert list(case["figures"]["acceptance"]["by_part"]) == ["thought"]


def test_dynamic_speculation_is_measured_and_its_undrafted_steps_are_counted(suite: Suite) -> None:
    suite.script = Script(undrafted_frac=0.3)

    done = suite.run("tests/perf", "-q", "-k", "acceptance_length and c4")

    assert "INVALID" not in done.stdout, done.stdout
    assert done.returncode == 11, "only the baseline is missing"
    words = (
        r"'vllm-eagle3-tiny-toy-c4': (\d+) of (\d+) steps \(\d+%\) were undrafted, so acceptance"
    )
    match = re.search(words, done.stdout)
    assert match is not None
    (case,) = report_of(suite)["cases"]
    total = case["figures"]["acceptance"]["total"]
    assert [int(number) for number in match.groups()] == [
        total["undrafted_steps"],
        total["steps"] + total["undrafted_steps"],
    ]
    assert total["tokens_per_step"] < total["acceptance_length_tokens"]
