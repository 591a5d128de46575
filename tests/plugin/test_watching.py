"""What a run shows while it goes on: a line in place, a line a phase, and its page."""

import re

import pytest

from tests.doubles.screen import lines_of
from tests.doubles.vllm.script import Script
from tests.faults.running import wait_until
from tests.plugin.conftest import Suite

SLOW = Script(step_ms=20.0)
"""A case takes seconds."""
ACCEPTANCE = ("tests/perf", "-k", "eagle3 and acceptance_length")
PLACE = r"\d:\d\d(?: of about \d:\d\d)?, case 1 of 1: "


@pytest.mark.parametrize(
    ("verbosity", "goes_on"),
    [("-q", r"^[.F]+ +\[100%\]$"), ("-v", r"^tests/perf/.*\] (PASSED|FAILED) .*\[ +\d+%\]$")],
)
def test_a_terminal_has_a_line_in_place_that_is_gone_at_the_end(
    suite: Suite, verbosity: str, goes_on: str
) -> None:
    suite.script = SLOW
    chosen = ("tests/perf/test_acceptance.py", "-k", "eagle3 and toy-c1")
    shown = suite.run_in_terminal(verbosity, *chosen)

    figures = r"\d+ tokens/s, \d\.\d\d tokens a step, round \d+ of \d+"
    assert re.search(rf"\r\x1b\[K{PLACE}measuring vllm-eagle3-tiny-toy-c1, {figures}", shown)
    lines = lines_of(shown)
    assert not any(re.search(PLACE, line) for line in lines)
    assert any(re.search(goes_on, line) for line in lines), lines


def test_without_a_terminal_each_phase_has_a_line(suite: Suite) -> None:
    suite.script = SLOW
    done = suite.run(*ACCEPTANCE[:-1], "eagle3 and toy-c1 and acceptance_length")

    assert "\x1b" not in done.stderr
    phases_shown = re.findall(rf"^specreg {PLACE}(\w.*)$", done.stderr, re.MULTILINE)
    phases = [f"{phase} vllm-eagle3-tiny-toy-c1" for phase in ("warming up", "measuring")]
    assert phases_shown[-2:] == phases  # a start may take less than a second
    assert len(phases_shown) == len(set(phases_shown))


def test_a_run_that_goes_on_has_a_page_that_reloads_itself(suite: Suite) -> None:
    suite.script = SLOW
    with suite.start(*ACCEPTANCE) as run:
        wait_until(lambda: any(suite.runs.glob("*/report.html")))
        (page,) = suite.runs.glob("*/report.html")
        so_far = page.read_text()
        output, _ = run.communicate(timeout=60)

    assert '<meta http-equiv="refresh" content="10">' in so_far
    progress = r"case 2 of 2, \d\d:\d\d:\d\d UTC"
    assert re.search(rf"Run in progress</strong>, {progress}: this page", so_far)
    assert "vllm-eagle3-tiny-toy-c1" in so_far
    assert 'id="vllm-eagle3-tiny-toy-c4"' not in so_far
    assert f"page of the run, from its second case on: {page}\n" in output
    assert "refresh" not in page.read_text()
    assert "Run in progress" not in page.read_text()
