"""The recipes of docs/many.md, word for word, as far as they go without what they are for."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from specreg.report.document import load_verdict
from tests.doubles.nvml.device import ScriptedGpu
from tests.plugin.conftest import ROOT, Suite
from tests.plugin.test_shards import TIER

SBATCH = """#!{python}
\"\"\"Runs a job's script at once, once for each index of its array, or what --wrap says.\"\"\"
import os, re, subprocess, sys
*options, last = sys.argv[1:]
if "--wrap" in options:
    sys.exit(subprocess.run(last, shell=True).returncode)
first, end = re.search(r"--array=(\\d+)-(\\d+)", open(last).read()).groups()
for index in range(int(first), int(end) + 1):
    subprocess.run(["bash", last], env=os.environ | {{"SLURM_ARRAY_TASK_ID": str(index)}})
print("Submitted batch job 4711")
"""
SPECREG = """#!/bin/sh
exec {python} -m specreg "$@"
"""


def recipe(title: str) -> str:
    """The block under a heading of docs/many.md."""
    text = (ROOT / "docs/many.md").read_text()
    found = re.search(rf"^### {title}\n\n((?:(?:    .*)?\n)+)", text, re.MULTILINE)
    assert found, title
    return textwrap.dedent(found[1])


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of this one whose tier `gpu` has three scripted servers."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in ("conftest.py", "pyproject.toml", "specreg", "tests"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "fixtures", folder / "fixtures")
    (folder / "fixtures/matrix/gpu.toml").write_text(
        TIER.replace("needs_gpus = 0", "needs_gpus = 1")
    )
    return folder


def test_an_array_of_slurm_runs_the_shards_and_a_job_after_it_merges_them(
    repository: Path, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("specreg", SPECREG)):
        (programs / name).write_text(text.format(python=sys.executable))
        (programs / name).chmod(0o755)
    suite = Suite(tmp_path)
    suite.gpus = (ScriptedGpu(),)
    environment = suite.environment() | {
        "PATH": os.pathsep.join(
            (str(programs), str(Path(sys.executable).parent), os.environ["PATH"])
        ),
        "SPECREG_CACHE": str(tmp_path / "cache"),
        "PYTEST_ADDOPTS": f"--specreg-engine-python={sys.executable} -k acceptance",
    }
    script, commands = recipe("Slurm").strip().split("\n\n")
    (repository / "shard.sh").write_text(script)
    said = ""
    for line in commands.strip().splitlines():
        number = "".join(re.findall(r"job (\d+)", said))
        done = subprocess.run(  # noqa: S602 - as a user types it
            line.replace("NUMBER", number),
            shell=True,
            check=False,
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
        )
        said += done.stdout + done.stderr
    verdict = load_verdict(repository / ".specreg/merged/verdict.json")
    assert verdict is not None, said
    assert {one.case_id for one in verdict.verdicts} == {
        f"vllm-{method}-tiny-toy-c{load}" for method in ("eagle3", "ngram") for load in (1, 4)
    }
    assert {str(one.outcome) for one in verdict.verdicts} == {"NO_BASELINE"}
    assert verdict.complete is False, "acceptance alone was asked for"
