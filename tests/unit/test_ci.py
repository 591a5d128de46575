"""The files of CI keep to their schemas, and their shell lines do what they are for."""

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

from specreg.engines.registry import ENGINES
from tests.unit import builders
from tests.unit.builders.checkouts import Checkout, lines_of

ROOT = builders.ROOT
WORKFLOW = ROOT / ".github/workflows"
WORKFLOWS = sorted(WORKFLOW.glob("*.yml"))
WITHOUT_GPU = ("tests", "nightly")
BUILDKITE = ROOT / "docs/examples/ci/buildkite.yml"
GITLAB = ROOT / "docs/examples/ci/gitlab-ci.yml"
NOXFILE = ROOT / "noxfile.py"
PINS = ROOT / ".ci/changed_pins.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

PYPROJECT = """
[project.optional-dependencies]
vllm = ["vllm=={vllm}"]
sglang = ["sglang=={sglang}"]
report = ["jinja2"]
"""


def load(path: Path) -> Any:  # noqa: ANN401 - any YAML
    """Read a file as YAML 1.2, in which `on` is a word."""
    return YAML(typ="safe").load(path)


@pytest.mark.parametrize("path", [*WORKFLOWS, BUILDKITE, GITLAB], ids=lambda path: path.stem)
def test_each_file_keeps_to_the_schema_of_its_tool(path: Path) -> None:
    schemas = {BUILDKITE: "vendor.buildkite", GITLAB: "vendor.gitlab-ci"}
    schema = schemas.get(path, "vendor.github-workflows")
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path))
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A checkout in which the tools of CI are scripted."""
    return Checkout(tmp_path)


def test_each_system_runs_the_same_sessions(checkout: Checkout) -> None:
    """On each push, each night without a GPU, each night with one; and nox has them."""
    tests, nightly = (load(WORKFLOW / f"{name}.yml")["jobs"]["nox"] for name in WITHOUT_GPU)
    gpu_perf = load(WORKFLOW / "gpu_perf.yml")["jobs"]["gpu_perf"]
    for session in tests["strategy"]["matrix"]["session"]:
        assert checkout.run_workflow_job(tests, {"matrix.session": session})
    pushed = checkout.take_calls_of_nox()
    for entry in nightly["strategy"]["matrix"]["include"]:
        known = {f"matrix.{name}": entry.get(name, "") for name in ("session", "arguments")}
        assert checkout.run_workflow_job(nightly, known)
    nights = checkout.take_calls_of_nox()
    by_hand = {"inputs.arguments": "-k mtp", "secrets.HF_TOKEN": "x"}
    assert checkout.run_workflow_job(gpu_perf, by_hand)
    with_gpu = checkout.take_calls_of_nox()

    push, night, _, gpu, *_ = load(BUILDKITE)["steps"]
    for step, expected in ((push, pushed), (night, nights)):
        for words in step["matrix"]:
            assert checkout.run(lines_of(step).replace("{{matrix}}", words))
        assert checkout.take_calls_of_nox() == expected
    assert checkout.run(lines_of(gpu))
    assert checkout.take_calls_of_nox() == with_gpu

    jobs = load(GITLAB)
    before = "\n".join(jobs["default"]["before_script"])
    for name, expected in (("tests", pushed), ("nightly", nights)):
        (matrix,) = jobs[name]["parallel"]["matrix"]
        for words in matrix["SESSION"]:
            assert checkout.run(f"{before}\n{lines_of(jobs[name])}", SESSION=words)
        assert checkout.take_calls_of_nox() == expected
    assert checkout.run(lines_of(jobs["gpu_perf"]))
    assert checkout.take_calls_of_nox() == with_gpu

    known_to_nox = re.findall(r"^def (\w+)\(session", NOXFILE.read_text(), re.MULTILINE)
    assert {words.split()[1] for words in pushed | nights | with_gpu} <= set(known_to_nox)
    assert "-s cpu_perf -- --specreg-inconclusive=warn-speed" in nights


def test_each_system_installs_promtool_for_the_exports_alone(checkout: Checkout) -> None:
    steps = load(WORKFLOW / "tests.yml")["jobs"]["nox"]["steps"]
    (github,) = (step["run"] for step in steps if step.get("if") == "matrix.session == 'exports'")
    push = load(BUILDKITE)["steps"][0]
    gitlab = lines_of(load(GITLAB)["tests"])
    installed = checkout.folder / "installed"
    for session in ("docs", "exports"):
        buildkite = lines_of(push).replace("{{matrix}}", session)
        for lines in (buildkite, gitlab, *([github] if session == "exports" else [])):
            assert checkout.run(lines, SESSION=session)
            assert installed.exists() == (session == "exports")
            if installed.exists():
                assert installed.read_text().endswith(" prometheus\n")
                installed.unlink()


def run_nightly(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the nightly rows with an interpreter that only notes what it is to run."""
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\necho "$SPECREG_KILLS $*" >> {folder}/calls\n[ "$4" != flags ] || exit 3\n'
    )
    python.chmod(0o755)
    command = (sys.executable, ".ci/nightly.py", str(python), *words)
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)


def calls_of(folder: Path) -> list[list[str]]:
    """What was run, and with which number of kills; the words as the shell joined them."""
    return [line.split(" ") for line in (folder / "calls").read_text().splitlines()]


def expected_calls() -> list[list[str]]:
    """What nightly.yml says, with the quotes of its shell removed."""
    rows = load(WORKFLOW / "nightly.yml")["jobs"]["nox"]["strategy"]["matrix"]["include"]
    calls = []
    for row in rows:
        words = row.get("arguments", "").replace('"', "").split()
        calls.append(["50", "-m", "nox", "-s", row["session"], "--", *words])
    return calls


def test_one_command_runs_each_row_of_the_night_and_goes_on_after_a_red_one(tmp_path: Path) -> None:
    done = run_nightly(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert calls_of(tmp_path) == expected_calls()
    results = {
        line.split()[0]: line
        for line in done.stdout.splitlines()
        if re.search(r"\d min \d\d s$", line)
    }
    assert results.keys() == {row[4] for row in expected_calls()}
    assert "RED, status 3" in results["flags"]
    assert all(" green " in line for name, line in results.items() if name != "flags")


def test_the_halves_of_the_night_have_each_row_once(tmp_path: Path) -> None:
    for half in ("1/2", "2/2"):
        run_nightly(tmp_path, half)
    assert sorted(calls_of(tmp_path)) == sorted(expected_calls())


@pytest.mark.parametrize(
    ("words", "status"), [(("readme", "bench"), 0), (("3/2",), 1), (("x",), 1)]
)
def test_some_rows_of_the_night_are_chosen_by_their_sessions(
    tmp_path: Path, words: tuple[str, ...], status: int
) -> None:
    done = run_nightly(tmp_path, *words)
    assert done.returncode == status, done.stdout + done.stderr
    if status == 0:
        assert {call[4] for call in calls_of(tmp_path)} == set(words)
    else:
        assert "is neither a part nor a session; type 1/2" in done.stderr


def test_each_system_kills_as_often_at_night() -> None:
    github = load(WORKFLOW / "nightly.yml")["jobs"]["nox"]["steps"][-1]["env"]
    assert load(BUILDKITE)["steps"][1].get("env") == github
    assert load(GITLAB)["nightly"].get("variables") == github


def test_an_action_is_pinned_by_its_commit_and_has_one_version_everywhere() -> None:
    """A tag can be moved to other code. The documents show what a user copies."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    lines = [line for path in (*WORKFLOWS, *pages) for line in path.read_text().splitlines()]
    uses = [line.partition("uses: ")[2] for line in lines if "uses: " in line]
    pins = {use.split()[0].rstrip(",") for use in uses}
    for pin in pins:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", pin), pin
    assert len(pins) == len({pin.partition("@")[0] for pin in pins}), sorted(pins)
    assert all(re.search(r" # v\d+\.\d+\.\d+$", use) for use in uses)


def test_only_a_job_that_runs_nothing_else_gives_an_action_a_token() -> None:
    """As the page about CI asks for: whoever may write to the repository executes none of it."""
    page = (ROOT / "docs/how-to/run-in-ci.md").read_text()
    recipe = page.partition("## A chart over time")[2]
    block = textwrap.dedent("\n".join(re.findall(r"^(?:    .*)$", recipe, re.MULTILINE)))
    jobs = YAML(typ="safe").load(block)
    with_token = [
        job for job in jobs.values() if any("token" in str(step) for step in job["steps"])
    ]
    assert with_token
    for job in with_token:
        assert not [step for step in job["steps"] if "run" in step]


def test_what_starts_nox_is_pinned_with_checksums_in_each_system() -> None:
    installs = [
        line.partition("pip install")[2]
        for path in (*WORKFLOWS, BUILDKITE, GITLAB)
        for line in path.read_text().splitlines()
        if "pip install" in line
    ]
    assert len(installs) == 13
    assert set(installs) == {" --require-hashes -r .ci/nox.txt"}
    text = (ROOT / ".ci/nox.txt").read_text()
    entries = [entry for entry in re.split(r"\n(?=[a-z])", text) if not entry.startswith("#")]
    names = {entry.partition("==")[0] for entry in entries}
    assert {"nox", "uv", "virtualenv"} <= names
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    locked = (ROOT / "constraints.txt").read_text()
    for entry in entries:
        assert entry.partition(" ")[0] in locked, "it is what the other sessions have"


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, and return what it prints."""
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    command = ("git", "-C", str(folder), *who, *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def repository(folder: Path, *, before: dict[str, str], after: dict[str, str]) -> None:
    """A repository whose last commit pins other versions than its files do."""
    file = folder / "pyproject.toml"
    git(folder, "init", "-q")
    file.write_text(PYPROJECT.format(**before))
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "before")
    file.write_text(PYPROJECT.format(**after))
    (folder / ".ci").mkdir(exist_ok=True)
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
    checkout: Checkout, changed: dict[str, str], pins: list[str]
) -> None:
    """By the step of the workflow, as it stands there."""
    repository(checkout.folder, before=BEFORE, after=BEFORE | changed)
    output = checkout.folder / "said"
    job = load(WORKFLOW / "gate.yml")["jobs"]["pins"]
    known = {"github.event.pull_request.base.sha": "HEAD"}
    assert checkout.run_workflow_job(job, known, GITHUB_OUTPUT=str(output))
    name, _, listed = output.read_text().partition("=")
    assert (name, json.loads(listed)) == ("pins", pins)


def test_a_gate_that_fails_is_red_after_its_report_was_shown(checkout: Checkout) -> None:
    """The other engine is judged all the same."""
    summary = checkout.folder / "summary"
    job = load(WORKFLOW / "gate.yml")["jobs"]["gate"]
    known = {"matrix.pins": "vllm==0.31.0 vllm==0.32.0"}
    assert not checkout.run_workflow_job(job, known, GITHUB_STEP_SUMMARY=str(summary))
    assert summary.read_text() == "UNDECIDED\n"
    (call,) = checkout.take_calls_of_nox()
    assert call == "-s gate -- vllm==0.31.0 vllm==0.32.0 --minutes 440 --out .specreg/gate"

    repository(checkout.folder, before=BEFORE, after={"vllm": "0.32.0", "sglang": "0.5.23"})
    git(checkout.folder, "branch", "-M", "main")
    git(checkout.folder, "remote", "add", "origin", ".")
    _, _, gate, *_ = load(BUILDKITE)["steps"]
    branch = {"BUILDKITE_PULL_REQUEST_BASE_BRANCH": "main"}
    assert not checkout.run(lines_of(gate), **branch)
    shown = {path.read_text() for path in checkout.folder.glob("annotated-*")}
    assert shown == {"UNDECIDED\n"}
    judged = checkout.take_calls_of_nox()
    assert {call.split()[3] for call in judged} == {"vllm==0.31.0", "sglang==0.5.21"}

    assert not checkout.run(lines_of(load(GITLAB)["gate"]), CI_MERGE_REQUEST_DIFF_BASE_SHA="main")
    assert checkout.take_calls_of_nox() == judged


@pytest.mark.parametrize(("name", "folder"), [("gate", "gate a b"), ("gpu_perf", "specreg/runs/1")])
def test_what_a_run_says_is_one_comment_updated_in_place(
    checkout: Checkout, name: str, folder: str
) -> None:
    """Others stay: another workflow's, and one in which somebody quotes it."""
    job = load(WORKFLOW / f"{name}.yml")["jobs"]["comment"]
    (mark,) = (step["env"]["MARK"] for step in job["steps"] if "env" in step)
    known = {
        "github.token": "x",
        "github.server_url": "https://github.com",
        "github.repository": "x/y",
        "github.event.pull_request.number": "7",
        "vars.SPECREG_ISSUE": "https://github.com/x/y/issues/7",
    }
    comments = checkout.folder / "comments"
    comments.mkdir()
    comments_before = {
        "1": f"someone\n{mark}\nPASS\n",
        "2": "github-actions[bot]\nThe coverage is 7 %.\n",
    }
    for number, text in comments_before.items():
        (comments / number).write_text(text)
    for run, report in (("1", None), ("2", "REGRESSED"), ("3", "PASS"), ("4", "x" * 70_000)):
        if report:
            (checkout.folder / folder).mkdir(parents=True, exist_ok=True)
            (checkout.folder / folder / "report.md").write_text(report)
        assert checkout.run_workflow_job(job, known | {"github.run_id": run})
        bodies = {path.name: path.read_text() for path in comments.iterdir()}
        _, line, comment = bodies.pop("3").split("\n", 2)
        assert (bodies, line) == (comments_before, mark)
        assert mark.startswith("<!-- ")
        assert comment.startswith((report or "The ")[:64_000])
        assert comment.endswith(f"/actions/runs/{run}\n")
        assert len(f"{line}\n{comment}") < 65_536


def test_a_run_that_was_asked_for_leaves_the_comment_of_the_night_alone() -> None:
    """It may be of some cases alone."""
    job = load(WORKFLOW / "gpu_perf.yml")["jobs"]["comment"]
    assert "github.event_name == 'schedule'" in job["if"].split(" && ")


def test_a_night_has_all_gpus_its_prompts_and_a_token_for_gated_models(checkout: Checkout) -> None:
    job = load(WORKFLOW / "gpu_perf.yml")["jobs"]["gpu_perf"]
    secrets = [
        step["env"]["HF_TOKEN"] for step in job["steps"] if "HF_TOKEN" in step.get("env", {})
    ]
    assert secrets == ["${{ secrets.HF_TOKEN }}"]
    assert checkout.run_workflow_job(job, {"inputs.arguments": "", "secrets.HF_TOKEN": "x"})
    installing, running = sorted(checkout.take_calls_of_nox(), key=len)
    assert installing == "-s gpu_perf --install-only"
    assert running.startswith("-s gpu_perf -- -n auto --specreg-history=")
    prepared = (checkout.folder / "prepared").read_text()
    assert prepared == "mt-bench\n"


def test_a_recording_has_a_limit_of_its_own_and_no_night_beside_it(checkout: Checkout) -> None:
    jobs = load(WORKFLOW / "gpu_perf.yml")["jobs"]
    assert (jobs["gpu_perf"]["if"], jobs["record"]["if"]) == (
        "${{ !inputs.record }}",
        "inputs.record",
    )
    assert jobs["record"]["timeout-minutes"] >= 3 * jobs["gpu_perf"]["timeout-minutes"]
    known = {"inputs.arguments": "", "secrets.HF_TOKEN": "x"}
    assert checkout.run_workflow_job(jobs["record"], known)
    *_, recording = sorted(checkout.take_calls_of_nox(), key=len)
    # The history is outside the checkout, which is cleaned between jobs.
    assert recording.startswith("-s gpu_perf -- -n auto --update-baselines --specreg-history=/")
    assert recording.endswith("/.local/state/specreg/history")
    assert "permissions" not in jobs["record"], "what measures can't write to the repository"


@pytest.mark.parametrize("is_changed", [True, False])
def test_recorded_baselines_are_proposed_as_a_pull_request(
    checkout: Checkout, tmp_path_factory: pytest.TempPathFactory, *, is_changed: bool
) -> None:
    folder = checkout.folder
    remote = tmp_path_factory.mktemp("remote")
    git(remote, "init", "-q", "--bare")
    git(folder, "init", "-q")
    (folder / "baselines").mkdir()
    (folder / "baselines/old.json").write_text("{}")
    git(folder, "add", "baselines")
    git(folder, "commit", "-qm", "before")
    if is_changed:
        (folder / "baselines/new.json").write_text("{}")
    known = {
        "github.token": "x",
        "github.repository": "x/y",
        "github.run_id": "9",
        "github.server_url": "https://github.com",
    }
    local = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{remote}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://x-access-token:x@github.com/x/y.git",
    }
    job = load(WORKFLOW / "gpu_perf.yml")["jobs"]["propose"]

    assert checkout.run_workflow_job(job, known, **local)

    proposed = folder / "proposed"
    assert proposed.exists() is is_changed
    if is_changed:
        branch, title, body = proposed.read_text().splitlines()
        assert branch == "baselines/9"
        assert title == "Record the baselines of the GPUs"
        assert body.startswith("Recorded by https://github.com/x/y/actions/runs/9.")
        files = git(remote, "ls-tree", "--name-only", "-r", branch)
        assert files.splitlines() == ["baselines/new.json", "baselines/old.json"]


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_what_the_gate_watches_is_what_the_suite_installs(name: str) -> None:
    installed = ENGINES[name].requirement(on_gpu=True)
    pinned = f"{installed.package}=={installed.version}"
    assert PROJECT["project"]["optional-dependencies"][name] == [pinned]


LOCK = ROOT / "constraints.txt"
PYTHONS = ("3.11", "3.12", "3.13")


def locked() -> dict[str, list[Requirement]]:
    """By distribution what the lock says of it; each pinned, with a checksum at least."""
    requirements: dict[str, list[Requirement]] = {}
    entries = re.split(r"\n(?=\S)", LOCK.read_text().replace("\\\n", ""))
    for entry in (entry_line for entry_line in entries if not entry_line.startswith("#")):
        pin, *hashes = re.split(r"\s+--hash=", entry.strip())
        assert hashes, pin
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", checksum) for checksum in hashes), pin
        requirement = Requirement(pin)
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], pin
        requirements.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return requirements


def asked_of(groups: Iterable[str], extras: Iterable[str]) -> Iterator[Requirement]:
    """What the project, some groups and extras ask for."""
    texts = list(PROJECT["project"]["dependencies"])
    texts += [text for name in extras for text in PROJECT["project"]["optional-dependencies"][name]]
    for name in groups:
        texts += [text for text in PROJECT["dependency-groups"][name] if isinstance(text, str)]
    yield from map(Requirement, texts)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_what_sessions_install_on_each_python(python: str) -> None:
    pins = locked()
    here = {"python_version": python, "python_full_version": f"{python}.7"}
    for requirement in asked_of(PROJECT["dependency-groups"], ("datasets",)):
        fitting = [
            pin
            for pin in pins.get(canonicalize_name(requirement.name), [])
            if pin.marker is None or pin.marker.evaluate(here)
        ]
        assert len(fitting) == 1, f"{requirement}: run nox -s lock"
        (pin,) = fitting[0].specifier
        assert requirement.specifier.contains(pin.version), f"{requirement}: run nox -s lock"


def clean(name: str) -> dict[str, object]:
    return {"name": name, "version": "1.0", "vulns": []}


VULNERABLE = {
    "name": "b",
    "version": "2.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"], "aliases": [], "description": "x"}],
}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        ([clean("a"), clean("b")], 0, "NONE: no vulnerability is known of 2 packages"),
        ([clean("a"), VULNERABLE], 1, "VULNERABLE:\nb 2.0: PYSEC-1, fixed in 2.1"),
        ([clean("a"), SKIPPED], 10, "UNKNOWN: 1 of 2 packages weren't looked up"),
        (None, 10, "UNKNOWN: pip-audit gave no answer"),
    ],
    ids=["clean", "vulnerable", "skipped", "no answer"],
)
def test_an_audit_that_could_not_look_is_not_green(
    tmp_path: Path, answer: list[object] | None, status: int, message: str
) -> None:
    program = tmp_path / "pip-audit"
    output = "" if answer is None else json.dumps({"dependencies": answer, "fixes": []})
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit 1\n")
    program.chmod(0o755)
    done = subprocess.run(
        (sys.executable, str(ROOT / ".ci/audit.py"), "constraints.txt", "floors.txt"),
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.returncode == status, done.stderr
    assert done.stdout.startswith(message)
    assert "(floors.txt)" in done.stdout
