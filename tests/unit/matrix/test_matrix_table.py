"""`specreg matrix`: what a tier runs, what that needs, and about how long it takes."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specreg.baselines.estimate import Estimate
from specreg.cli import app
from specreg.cli.cases import view_of_tier
from specreg.core.errors import UnknownNameError
from specreg.matrix.case import Tier
from specreg.report.terminal import render_view
from specreg.telemetry.identity import Gpus, current_environment
from tests.unit import builders
from tests.unit.builders.tiers import TIER, load


def run(root: Path, text: str) -> Result:
    load(root / "fixtures", text)
    return CliRunner().invoke(app, ["matrix", "--tier", "gpu", "--root", str(root)])


def rendered(tier: Tier, estimates: Mapping[str, Estimate], gpus: Gpus) -> str:
    return render_view(view_of_tier(tier, estimates, gpus))


def row(text: str, case_id: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(f"{case_id} "))


def test_a_set_that_is_not_on_the_hub_is_prepared_from_a_file(tmp_path: Path) -> None:
    text = run(tmp_path, TIER.replace("toy", "spec-bench")).output
    assert "prepare first:\n  specreg prepare spec-bench --from FILE" in text


def test_a_case_says_what_it_needs_and_about_how_long_it_takes(tmp_path: Path) -> None:
    """60 prompts, 64 steps of 16 GiB at 1560 GiB/s for 4 at once, 0.16 s: 10 s; power: 30 s."""
    text = run(tmp_path, TIER.replace("toy", "gsm8k")).output
    assert row(text, "vllm-none-eight-gsm8k-c4")[1:] == ["1", "76", "16", "0.6", "guess"]
    assert row(text, "vllm-eagle3-eight-gsm8k-c4")[1:4] == ["1", "84", "16"]
    assert "prepare first:\n  specreg prepare gsm8k" in text
    # Four cases of 5 min in all, and as many servers, which start in 8 min.
    assert (
        "one run takes about 13 min on one GPU of 80 GiB, 120 s of it for each server's start"
        in text
    )
    assert "recording it, 3 launches, takes about 37 min on one GPU of 80 GiB, and up to" in text
    assert "guess: assumes that a step reads all weights at 1560 GiB/s, and that" in text
    assert "tiers: gpu" in text


def test_the_licences_of_the_models_are_shown_before_they_are_fetched(tmp_path: Path) -> None:
    own_pair = '[models.gated]\ntarget = "a/b"\nlicence = "Some License (gated)"\n'
    text = run(
        tmp_path,
        TIER.replace("[[cases]]", f"{own_pair}[[cases]]").replace(
            '["none", "ngram", "eagle3", "draft_model"]\nmodels = "eight"',
            '["none", "ngram"]\nmodels = "gated"',
        ),
    ).output
    assert "licences of the models:\n  gated: Some License (gated)\n" in text
    assert "licences" not in run(tmp_path, TIER).output


def test_what_was_recorded_is_said_to_be(tmp_path: Path) -> None:
    here = current_environment(gpus=0)
    baseline = builders.baseline({"throughput_tokens_per_s": 1.0}, environment=here)
    builders.record(tmp_path / "baselines", baseline, "vllm-none-eight-toy-c4")
    text = run(tmp_path, TIER.replace("needs_gpus = 1", "needs_gpus = 0")).output
    # 16 prompts and 28 to warm up, of 64 tokens at one per second. Nothing drafts, so that nothing
    # has to be proved.
    assert row(text, "vllm-none-eight-toy-c4")[1:] == ["–", "–", "16", "46.9", "recorded"]
    assert row(text, "vllm-eagle3-eight-toy-c4")[-3:] == ["guess", "and", "recorded"]
    assert "one run takes about 4 h 3 min, 30 s of it for each server's start" in text
    assert "prepare" not in text


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (builders.gpus(), "4 of 4 cases don't fit this machine: no GPU (NVML: none)"),
        (builders.gpus("A", memory_gib=74), "3 of 4 cases don't fit this machine: 74 GiB"),
    ],
)
def test_what_does_not_fit_is_counted(tmp_path: Path, gpus: Gpus, words: str) -> None:
    tier = load(tmp_path)
    estimates = {case.id: Estimate(1.0, "guess") for case in tier.cases}
    assert words in rendered(tier, estimates, gpus)


def test_what_a_smaller_card_leaves_out_is_said_by_pair_with_what_it_needs(tmp_path: Path) -> None:
    tier = load(tmp_path)
    estimates = {case.id: Estimate(1.0, "guess") for case in tier.cases}
    text = rendered(tier, estimates, builders.gpus("A", memory_gib=74))
    words = "3 of 4 cases don't fit this machine: 74 GiB; on each GPU, 3 of eight need 84 GiB"
    assert words in text


def test_a_run_on_several_gpus_takes_as_long_as_the_groups_that_one_of_them_has(
    tmp_path: Path,
) -> None:
    """Four server groups of 58 min and their start of 2 min: on two GPUs two each."""
    tier = load(tmp_path)
    estimates = {case.id: Estimate(58 * 60.0, "guess") for case in tier.cases}
    for names, hours in (("AA", "2 h 0 min"), ("AAAA", "1 h 0 min"), ("AAAAAAAA", "1 h 0 min")):
        text = rendered(tier, estimates, builders.gpus(*names, memory_gib=200))
        words = f"with -n auto on these {len(names)} GPUs a run takes about {hours}, recording it"
        assert words in text
    assert "-n auto" not in rendered(tier, estimates, builders.gpus("A", memory_gib=200))


def test_a_tolerance_of_no_metric_is_refused_with_its_table(tmp_path: Path) -> None:
    done = run(tmp_path, TIER + "[cases.tolerances]\ntpot_p50 = 0.1\n")
    assert isinstance(done.exception, UnknownNameError)
    location = f"tier file '{tmp_path}/fixtures/matrix/gpu.toml', [[cases]] no. 1"
    words = f"{location}: unknown metric in tolerances 'tpot_p50'; did you mean 'tpot_p50_ms'?"
    assert str(done.exception).startswith(words)
