"""The options: each declared once, read back as given."""

import dataclasses
import subprocess
import sys

import pytest

from specreg.options import read_options
from specreg.suite.options import Options, options_to_repeat
from tests.unit import builders

pytest_plugins = ["pytester"]


def read(pytester: pytest.Pytester, *arguments: str) -> Options:
    """The options of a command line."""
    return read_options(pytester.parseconfig("-p", "specreg.plugin", *arguments))


def test_what_is_given_arrives_in_its_type(pytester: pytest.Pytester) -> None:
    options = read(
        pytester,
        *("--specreg-tier", "gpu", "--specreg-require-tier", "--update-baselines"),
        *("--reason", "first run", "--specreg-launches", "5", "--specreg-ready-within-s", "1.5"),
        *("--specreg-matrix", "m", "--specreg-baselines", "b", "--specreg-runs", "r"),
        *("--specreg-engine-version", "0.31.0", "--specreg-engine-python", "p"),
        *("--specreg-no-wait", "--specreg-resume", "--specreg-inconclusive", "warn"),
        *("--specreg-attach", "http://h:1", "--engine", "sglang", "--specreg-oracle"),
        *("--specreg-verbose", "--specreg-history", "past", "--specreg-shard", "1/4"),
        *("--num-prompts", "20", "--specreg-budget-gpu-min", "7.5"),
    )
    assert options == Options(
        tier="gpu",
        require_tier=True,
        update_baselines=True,
        reason="first run",
        launches=5,
        num_prompts=20,
        budget_gpu_min=7.5,
        inconclusive="warn",
        verbose=True,
        shard="1/4",
        history="past",
        oracle=True,
        matrix="m",
        baselines="b",
        runs="r",
        resume=True,
        no_wait=True,
        engine_version="0.31.0",
        engine_python="p",
        attach="http://h:1",
        engine="sglang",
        ready_within_s=1.5,
    )
    fields = dataclasses.fields(Options)
    assert [f.name for f in fields if getattr(options, f.name) == f.default] == []


def test_the_help_names_each_flag(pytester: pytest.Pytester) -> None:
    matrix = str(builders.ROOT / "fixtures/matrix")
    done = pytester.runpytest("-p", "specreg.plugin", "--specreg-matrix", matrix, "--help")
    text = done.stdout.str()
    assert [f.name for f in dataclasses.fields(Options) if f.metadata["flag"] not in text] == []


def test_what_repeats_a_run_is_all_but_what_was_of_it_alone() -> None:
    assert options_to_repeat(Options(), "cpu") == ("--specreg-tier=cpu",)
    options = Options(
        tier="gpu",
        reason="x",
        resume=True,
        launches=3,
        oracle=True,
        num_prompts=6,
        matrix="m",
        engine_version="0.31.0",
    )
    assert options_to_repeat(options, "gpu") == (
        "--specreg-tier=gpu",
        "--num-prompts=6",
        "--specreg-oracle",
        "--specreg-matrix=m",
        "--specreg-engine-version=0.31.0",
    )


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("--specreg-teir=cpu", "did you mean: --specreg-tier"),
        ("--specreg-nodes=a,b", "--specreg-nodes: is gone; start the server yourself, and measure"),
    ],
    ids=["misspelled", "gone"],
)
def test_an_option_that_is_none_is_answered_with_what_to_type_instead(
    typed: str, answer: str
) -> None:
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "--co", typed),
        check=False,
        cwd=builders.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 4
    assert answer in done.stderr


def test_plain_pytest_collects_the_cases_and_nothing_else() -> None:
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "--co", "-q", "-k", "eagle3 and c4"),
        check=False,
        cwd=builders.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    listed = [line for line in done.stdout.splitlines() if "::" in line]
    assert any("[vllm-eagle3-tiny-toy-c4-" in line for line in listed)
    assert all(line.startswith("tests/perf/") for line in listed)
