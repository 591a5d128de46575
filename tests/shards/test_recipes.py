"""The recipes of docs/how-to/use-many-gpus.md, word for word, beside scripted programs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.doubles.nvml.device import ScriptedGpu
from tests.plugin.conftest import ROOT, Suite, decided
from tests.unit.builders.sharded_runs import CASES, TIER

YAML_READER = YAML(typ="safe")

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
SSH = """#!/bin/sh
cd {nodes}/$1 && exec bash -c "$2"
"""
RSYNC = """#!/bin/bash
from={nodes}/${{2/://}}
mkdir -p "$3" && cp -r "$from". "$3"
"""
SPECREG = """#!/bin/sh
exec {python} -m specreg "$@"
"""


def recipe(title: str) -> str:
    """The block under a heading of docs/how-to/use-many-gpus.md."""
    text = (ROOT / "docs/how-to/use-many-gpus.md").read_text()
    section = re.search(rf"^### {title}\n\n((?:(?:    .*)?\n)+)", text, re.MULTILINE)
    assert section, title
    return textwrap.dedent(section[1])


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of this one whose tier `gpu` has three scripted servers."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in ("conftest.py", "pyproject.toml", "specreg", "tests"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "fixtures", folder / "fixtures")
    tier = TIER.replace("needs_gpus = 0", "needs_gpus = 1")
    (folder / "fixtures/matrix/gpu.toml").write_text(tier)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """The variables of a machine that has a GPU, and the programs that the recipes call."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("specreg", SPECREG), ("ssh", SSH), ("rsync", RSYNC)):
        (programs / name).write_text(text.format(python=sys.executable, nodes=tmp_path / "nodes"))
        (programs / name).chmod(0o755)
    suite = Suite(tmp_path)
    suite.gpus = (ScriptedGpu(),)
    places = (str(programs), str(Path(sys.executable).parent), os.environ["PATH"])
    return suite.environment() | {
        "PATH": os.pathsep.join(places),
        "SPECREG_CACHE": str(tmp_path / "cache"),
        "PYTEST_ADDOPTS": f"--specreg-engine-python={sys.executable} -k acceptance",
    }


def type_in(folder: Path, line: str, environment: Mapping[str, str]) -> str:
    """What a line says that is typed in a folder."""
    done = subprocess.run(  # noqa: S602 - as a user types it
        line, shell=True, check=False, cwd=folder, env=environment, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def check_merged(repository: Path, output: str) -> None:
    """All cases of the tier were measured, and nothing is missing."""
    verdict = decided(repository / ".specreg/merged")
    assert {metric_verdict.case_id for metric_verdict in verdict.verdicts} == CASES, output
    assert {str(metric_verdict.outcome) for metric_verdict in verdict.verdicts} == {
        "NO_BASELINE"
    }, output
    assert verdict.complete is False, "acceptance alone was asked for"


def test_an_array_of_slurm_runs_the_shards_and_a_job_after_it_merges_them(
    repository: Path, environment: Mapping[str, str]
) -> None:
    script, commands = recipe("Slurm").strip().split("\n\n")
    (repository / "shard.sh").write_text(script)
    output = ""
    for line in commands.strip().splitlines():
        number = "".join(re.findall(r"job (\d+)", output))
        output += type_in(repository, line.replace("NUMBER", number), environment)
    check_merged(repository, output)


def test_an_indexed_job_of_kubernetes_runs_the_shards(
    repository: Path, environment: Mapping[str, str]
) -> None:
    spec = YAML_READER.load(recipe("Kubernetes"))["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", 8)
    (container,) = spec["template"]["spec"]["containers"]
    output = ""
    for index in range(spec["completions"]):
        variables = {**environment, "JOB_COMPLETION_INDEX": str(index)}
        output += type_in(repository, shlex.join(container["command"]), variables)
    merge = "specreg merge .specreg/runs/*of8 --into .specreg/merged"
    check_merged(repository, output + type_in(repository, merge, environment))


def test_a_matrix_of_github_hands_its_runs_on_as_artifacts(
    repository: Path, environment: Mapping[str, str], tmp_path: Path
) -> None:
    first, last = re.split(r"^#.*\n", recipe("GitHub"), flags=re.MULTILINE)
    job = YAML_READER.load(first)
    output = ""
    for shard in job["strategy"]["matrix"]["shard"]:
        runner = tmp_path / f"runner-{shard}"
        shutil.copytree(repository, runner, symlinks=True)
        run, upload = YAML_READER.load(first.replace("${{ matrix.shard }}", str(shard)))["steps"]
        output += type_in(runner, run["run"], environment)
        assert upload["if"] == "always()"
        artifact = tmp_path / "artifacts" / upload["with"]["name"]
        if (
            runs := runner / upload["with"]["path"]
        ).exists():  # a shard without a group leaves none
            shutil.copytree(runs, artifact)
    download, merge = YAML_READER.load(textwrap.dedent(last))
    for artifact in (tmp_path / "artifacts").glob(download["with"]["pattern"]):
        shutil.copytree(artifact, repository / download["with"]["path"] / artifact.name)
    check_merged(repository, output + type_in(repository, merge["run"], environment))


def test_shards_that_ssh_starts_come_home_by_rsync(
    repository: Path, environment: Mapping[str, str], tmp_path: Path
) -> None:
    for number in range(1, 5):
        shutil.copytree(repository, tmp_path / f"nodes/node{number}/specreg", symlinks=True)
    check_merged(repository, type_in(repository, f"bash -c '{recipe('Plain ssh')}'", environment))
