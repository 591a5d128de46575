"""What CI is told to do: the forms keep to their schemas, and each session exists."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from specreg.engines import ENGINES
from tests.unit import builders

ROOT = builders.ROOT
WORKFLOW = ROOT / ".github/workflows"
WORKFLOWS = sorted(WORKFLOW.glob("*.yml"))
BUILDKITE = ROOT / "docs/examples/ci/buildkite.yml"
PINS = ROOT / ".ci/changed_pins.py"

PYPROJECT = """
[project.optional-dependencies]
vllm = ["vllm=={vllm}"]
sglang = ["sglang=={sglang}"]
report = ["jinja2"]
"""


@pytest.mark.parametrize("path", [*WORKFLOWS, BUILDKITE], ids=lambda path: path.stem)
def test_each_file_keeps_to_the_schema_of_its_tool(path: Path) -> None:
    schema = "vendor.buildkite" if path == BUILDKITE else "vendor.github-workflows"
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path))
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_each_session_that_is_named_exists() -> None:
    known = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    named = set()
    for path in (*WORKFLOWS, BUILDKITE):
        text = path.read_text()
        named |= set(re.findall(r"nox -s (\w+)", text))
        for listed in re.findall(r"(?:session|matrix): \[(.+)\]", text):
            named |= {name.strip() for name in listed.split(",")}
    assert {"gpu_perf", "tests", "exports", "docs", "gate"} <= named
    assert named <= known


def git(folder: Path, *arguments: str) -> None:
    """Runs git in a folder."""
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    command = ("git", "-C", str(folder), *who, *arguments)
    subprocess.run(command, check=True, capture_output=True)


def repository(folder: Path, *, before: dict[str, str], now: dict[str, str]) -> None:
    """A repository whose last commit pins other versions than its files do."""
    file = folder / "pyproject.toml"
    git(folder, "init", "-q")
    file.write_text(PYPROJECT.format(**before))
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "before")
    file.write_text(PYPROJECT.format(**now))
    (folder / ".ci").mkdir()
    (folder / ".ci/changed_pins.py").write_text(PINS.read_text())


BEFORE = {"vllm": "0.31.0", "sglang": "0.5.21"}


@pytest.mark.parametrize(
    ("changed", "pins"),
    [
        ({}, []),
        ({"vllm": "0.32.0"}, ["vllm==0.31.0 vllm==0.32.0"]),
        (
            {"vllm": "0.32.0", "sglang": "0.5.23"},
            ["vllm==0.31.0 vllm==0.32.0", "sglang==0.5.21 sglang==0.5.23"],
        ),
    ],
    ids=["as-before", "one", "both"],
)
def test_the_gate_runs_for_each_engine_that_changed(
    tmp_path: Path, changed: dict[str, str], pins: list[str]
) -> None:
    """By the step of the workflow, as it stands there."""
    repository(tmp_path, before=BEFORE, now=BEFORE | changed)
    step = re.search(r"run: \|\n((?: {10}.+\n)+)", (WORKFLOW / "gate.yml").read_text())
    assert step is not None
    said = tmp_path / "said"
    environment = {"BASE": "HEAD", "GITHUB_OUTPUT": str(said), "PATH": os.environ["PATH"]}
    subprocess.run(("/bin/bash", "-e", "-c", step[1]), check=True, cwd=tmp_path, env=environment)
    name, _, listed = said.read_text().partition("=")
    assert (name, json.loads(listed)) == ("pins", pins)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_what_the_gate_watches_is_what_the_suite_installs(name: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = ENGINES[name].requirement(on_gpu=True)
    pinned = f"{installed.package}=={installed.version}"
    assert extras["optional-dependencies"][name] == [pinned]


@pytest.mark.parametrize("path", [WORKFLOW / "gpu_perf.yml", BUILDKITE], ids=lambda path: path.stem)
def test_the_history_of_a_night_lies_outside_the_checkout_that_is_cleaned(path: Path) -> None:
    text = path.read_text().replace("$$", "$").replace(">-\n", "").replace("\n          --", " --")
    (command,) = re.findall(r"nox -s gpu_perf.*", text)
    (folder,) = [one for one in shlex.split(command) if one.startswith("--specreg-history=")]
    assert folder.removeprefix("--specreg-history=").startswith("$HOME/")
