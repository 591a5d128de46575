"""What CI is told to do: the forms keep to their schemas, and each session exists."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from specreg.engines.registry import ENGINES
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
        named |= set(re.findall(r"(?:nox -s|- session:) (\w+)", text))
        for listed in re.findall(r"(?:session|matrix): \[(.+)\]", text):
            named |= {name.strip() for name in listed.split(",")}
    assert {"gpu_perf", "tests", "exports", "docs", "gate", "shards"} <= named
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
        (
            {"vllm": "0.32.0", "sglang": "0.5.23"},
            ["vllm==0.31.0 vllm==0.32.0", "sglang==0.5.21 sglang==0.5.23"],
        ),
    ],
    ids=["as-before", "both"],
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


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = ROOT / "constraints.txt"
PYTHONS = ("3.11", "3.12", "3.13")


def locked() -> dict[str, list[Requirement]]:
    """By distribution what the lock says of it; each pinned, with a checksum at least."""
    found: dict[str, list[Requirement]] = {}
    entries = re.split(r"\n(?=\S)", LOCK.read_text().replace("\\\n", ""))
    for entry in (one for one in entries if not one.startswith("#")):
        pin, *hashes = re.split(r"\s+--hash=", entry.strip())
        assert hashes, pin
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), pin
        requirement = Requirement(pin)
        assert [one.operator for one in requirement.specifier] == ["=="], pin
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def asked_of(groups: Iterable[str], extras: Iterable[str]) -> Iterator[Requirement]:
    """What the project, some groups and extras ask for."""
    texts = list(PROJECT["project"]["dependencies"])
    texts += [one for name in extras for one in PROJECT["project"]["optional-dependencies"][name]]
    for name in groups:
        texts += [one for one in PROJECT["dependency-groups"][name] if isinstance(one, str)]
    yield from map(Requirement, texts)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_what_sessions_install_on_each_python(python: str) -> None:
    pins = locked()
    here = {"python_version": python, "python_full_version": f"{python}.7"}
    for asked in asked_of(PROJECT["dependency-groups"], ("datasets", "report")):
        fitting = [
            one
            for one in pins.get(canonicalize_name(asked.name), [])
            if one.marker is None or one.marker.evaluate(here)
        ]
        assert len(fitting) == 1, f"{asked}: run nox -s lock"
        (pin,) = fitting[0].specifier
        assert asked.specifier.contains(pin.version), f"{asked}: run nox -s lock"


def clean(name: str) -> dict[str, object]:
    return {"name": name, "version": "1.0", "vulns": []}


VULNERABLE = {
    "name": "b",
    "version": "2.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"], "aliases": [], "description": "x"}],
}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ([clean("a"), clean("b")], 0, "NONE: no vulnerability is known of 2 packages"),
        ([clean("a"), VULNERABLE], 1, "VULNERABLE:\nb 2.0: PYSEC-1, mended in 2.1"),
        ([clean("a"), SKIPPED], 10, "UNTOLD: 1 of 2 packages weren't looked up"),
        (None, 10, "UNTOLD: pip-audit gave no answer"),
    ],
    ids=["clean", "vulnerable", "skipped", "no answer"],
)
def test_an_audit_that_could_not_look_is_not_green(
    tmp_path: Path, answer: list[object] | None, status: int, said: str
) -> None:
    program = tmp_path / "pip-audit"
    told = "" if answer is None else json.dumps({"dependencies": answer, "fixes": []})
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{told}\nEND\nexit 1\n")
    program.chmod(0o755)
    done = subprocess.run(
        (sys.executable, str(ROOT / ".ci/audit.py"), "constraints.txt"),
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.returncode == status, done.stderr
    assert done.stdout.startswith(said)
