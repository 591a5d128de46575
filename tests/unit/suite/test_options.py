"""The options: each declared once, read back as given."""

import dataclasses
import sys

import pytest

from specreg.plugin.options import read_options
from specreg.suite.options import Options, flag_of, options_to_repeat
from tests.plugin.conftest import run_here
from tests.unit import builders

pytest_plugins = ["pytester"]


def test_what_is_given_arrives_in_its_type(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig(
        *("-p", "specreg.plugin", "--specreg-tier", "gpu", "--update-baselines"),
        *(
            "--specreg-inconclusive=warn-speed",
            "--specreg-launches=5",
            "--specreg-ready-within-s=2",
        ),
    )
    assert read_options(config) == Options(
        tier="gpu", update_baselines=True, inconclusive="warn-speed", launches=5, ready_within_s=2.0
    )


def test_the_help_names_each_flag(pytester: pytest.Pytester) -> None:
    matrix = str(builders.ROOT / "fixtures/matrix")
    done = pytester.runpytest("-p", "specreg.plugin", "--specreg-matrix", matrix, "--help")
    text = done.stdout.str()
    assert [f.name for f in dataclasses.fields(Options) if flag_of(f) not in text] == []


def test_what_repeats_a_run_is_all_but_what_was_of_it_alone() -> None:
    assert options_to_repeat(Options(), "cpu") == ("--specreg-tier=cpu",)
    assert options_to_repeat(Options(), None) == ()
    of_it_alone = Options(tier="gpu", reason="x", resume=True, launches=3)
    options = dataclasses.replace(of_it_alone, oracle=True, num_prompts=6, engine_version="1")
    repeated = ("--num-prompts=6", "--specreg-oracle", "--specreg-engine-version=1")
    assert options_to_repeat(options, "gpu") == ("--specreg-tier=gpu", *repeated)


LISTED = (sys.executable, "-m", "pytest", "--co", "-q")


def test_an_option_that_is_misspelled_is_answered_with_what_to_type_instead() -> None:
    done = run_here(*LISTED, "--specreg-teir=cpu")
    assert done.returncode == 4
    assert "did you mean: --specreg-tier" in done.stderr


def test_plain_pytest_collects_the_cases_and_nothing_else() -> None:
    done = run_here(*LISTED, "-k", "eagle3 and c4")
    assert done.returncode == 0, done.stdout + done.stderr
    listed = [line for line in done.stdout.splitlines() if "::" in line]
    assert any("[vllm-eagle3-tiny-toy-c4-" in line for line in listed)
    assert all(line.startswith("tests/perf/") for line in listed)
