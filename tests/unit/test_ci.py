"""What CI is told to do: the forms keep to their schemas, and each session exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit import builders

ROOT = builders.ROOT
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
BUILDKITE = ROOT / "docs/examples/ci/buildkite.yml"
PINS = ROOT / ".ci/changed_pins.py"

PYPROJECT = """
[project.optional-dependencies]
vllm = ["vllm=={vllm}"]
sglang = ["sglang==0.5.23"]
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
    assert {"gpu_perf", "tests", "docs", "gate"} <= named
    # The gate's session comes with the gate.
    assert named <= known


def git(folder: Path, *arguments: str) -> None:
    """Runs git in a folder."""
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    command = ("git", "-C", str(folder), *who, *arguments)
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("version", "printed"),
    [("0.32.0", "pins=vllm==0.31.0 vllm==0.32.0\n"), ("0.31.0", "")],
    ids=["changed", "as-before"],
)
def test_the_gate_is_told_which_engine_changed(tmp_path: Path, version: str, printed: str) -> None:
    file = tmp_path / "pyproject.toml"
    git(tmp_path, "init", "-q")
    file.write_text(PYPROJECT.format(vllm="0.31.0"))
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "before")
    file.write_text(PYPROJECT.format(vllm=version))
    command = (sys.executable, str(PINS), "HEAD")
    done = subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == printed
