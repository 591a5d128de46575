"""The toy prompts in the form of each dataset, prepared as a user does, on a real vLLM.

Whatever the form, the same prompts reach the model: the acceptance is the same to the last digit.
`nox -s datasets` runs it: one server, in about three minutes.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specreg.datasets.prompt_files import load_prompt_file
from specreg.datasets.table import SETS
from specreg.report.document import RunVerdict
from specreg.report.files import load_verdict
from tests.unit import builders

TOY = builders.ROOT / "fixtures/prompts/toy.jsonl"
RANDOM = "random-64"
TEXTS = tuple(
    {
        prompt_set.dataset: prompt_set.name
        for prompt_set in reversed(list(SETS.values()))
        if prompt_set.licence
    }.values()
)
TABLE = """
[[cases]]
engine = "vllm"
methods = ["draft_model"]
models = "tiny"
dataset = "{dataset}"
concurrency = [4]
prompts = 8
output_cap_tokens = 48
form = "{form}"
dtype = "float32"
engine_env = {{ OMP_NUM_THREADS = "1" }}
speed = false
"""
MODELS = """
needs_gpus = 0

[models.tiny]
target = "fixtures/models/tiny/target"
drafts = { draft_model = "fixtures/models/tiny/draft" }
"""


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> RunVerdict:
    """What the suite says of a case for each set, after `specreg prepare`."""
    folder = tmp_path_factory.mktemp("datasets")
    environment = os.environ | {"SPECREG_DATA": str(folder / "data")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (sys.executable, "-m", *arguments),
            check=False,
            cwd=builders.ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )

    toy = load_prompt_file(TOY)
    for name in TEXTS:
        path = str(folder / f"{name}.jsonl")
        builders.write_lines(Path(path), builders.rows_in(name, toy))
        done = run("specreg", "prepare", name, "--from", path)
        assert done.returncode == 0, done.stderr
    cases = [TABLE.format(dataset=name, form="chat") for name in ("toy", *TEXTS)]
    cases.append(TABLE.format(dataset=RANDOM, form="completions"))
    (folder / "cpu.toml").write_text(MODELS + "".join(cases))
    run(
        *("pytest", "-q", "-p", "no:cacheprovider", "tests/perf", "-k", "acceptance_length_tokens"),
        *("--specreg-tier=cpu", f"--specreg-matrix={folder}", f"--specreg-runs={folder}/runs"),
        f"--specreg-baselines={folder}/baselines",
    )
    (ended,) = (folder / "runs").iterdir()
    verdict = load_verdict(ended / "verdict.json")
    assert verdict is not None
    return verdict


def test_the_same_prompts_in_any_form_are_accepted_alike(verdict: RunVerdict) -> None:
    lengths = {metric_verdict.case_id: metric_verdict.value for metric_verdict in verdict.verdicts}
    texts = [f"vllm-draft_model-tiny-{name}-c4" for name in ("toy", *TEXTS)]
    assert lengths.keys() == {*texts, f"vllm-draft_model-tiny-{RANDOM}-c4"}
    assert lengths[texts[0]] is not None
    assert {lengths[case_id] for case_id in texts} == {lengths[texts[0]]}


def test_random_ids_are_measured_too(verdict: RunVerdict) -> None:
    lengths = {metric_verdict.case_id: metric_verdict.value for metric_verdict in verdict.verdicts}
    length_tokens = lengths[f"vllm-draft_model-tiny-{RANDOM}-c4"]
    assert length_tokens is not None
    assert 1.0 <= length_tokens <= 4.0
    assert length_tokens != lengths["vllm-draft_model-tiny-toy-c4"]
