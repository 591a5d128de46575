"""`specreg init`: what it writes is this repository's, from a wheel, and what is there stays."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specreg.cli import app
from specreg.core.errors import SpecregError
from specreg.matrix.tier import load_tier
from tests.plugin.conftest import run_here
from tests.unit import builders

PROJECT = tomllib.loads((builders.ROOT / "pyproject.toml").read_text())
COPIED = {
    *(".ci/nox.txt", ".github/workflows/gpu_perf.yml", "conftest.py"),
    *(f"fixtures/{name}.py" for name in ("__init__", "measurements", "servers")),
    *("fixtures/matrix/cpu.toml", "fixtures/models/pairs.toml"),
    *(f"tests/perf/{path.name}" for path in (builders.ROOT / "tests/perf").glob("*.py")),
}
"""The files that are, byte by byte, those of this repository."""
WRITTEN = COPIED | {
    *(".gitignore", "baselines/.gitkeep", "fixtures/matrix/gpu.toml", "noxfile.py", "pytest.toml")
}
STAND_IN = """
import types

options = types.SimpleNamespace()

def session(**_):
    return lambda function: function

class Session:
    name = "a-session"
    posargs = ()
    env = {}

    def install(self, requirement):
        print(f"installed {requirement}")

    def run(self, *command, **_):
        print("ran", *command)

    def error(self, message):
        raise SystemExit(f"aborted: {message}")
"""
"""A module like nox, which the tests' environment lacks: a session prints what it does."""
COLLECT = ("-m", "pytest", "-k", "eagle3", "--specreg-tier=cpu", "--co", "-q", "--strict-markers")


def files(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by their paths from there."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def init(root: Path) -> Result:
    return CliRunner().invoke(app, ["init", "--root", str(root)])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what a wheel does, by pyproject.toml."""
    site = tmp_path_factory.mktemp("site")
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    held = {f"specreg/{path.name}": path for path in (builders.ROOT / "specreg").iterdir()}
    held |= {there: builders.ROOT / here for here, there in wheel["force-include"].items()}
    for there, here in held.items():
        (site / there).parent.mkdir(parents=True, exist_ok=True)
        (site / there).symlink_to(here)
    return site


def run(site: Path, cwd: Path, *arguments: str) -> str:
    """What Python says in a folder, the wheel installed beside PyPI's `fixtures`."""
    module = site / "other/fixtures/__init__.py"
    module.parent.mkdir(parents=True, exist_ok=True)
    module.touch()
    path = {"PYTHONPATH": f"{site}:{site}/other", "PYTHONDONTWRITEBYTECODE": "1"}
    return run_here(sys.executable, *arguments, cwd=cwd, env=os.environ | path).stdout


def test_an_empty_folder_becomes_a_repository_that_measures(site: Path, tmp_path: Path) -> None:
    output = run(site, tmp_path, "-m", "specreg", "init")
    written = files(tmp_path)
    assert written.keys() == WRITTEN == set(re.findall(r"^wrote (\S+)$", output, re.MULTILINE))
    for name in COPIED:
        assert written[name] == (builders.ROOT / name).read_bytes(), name
        for model in re.findall(rb'"(fixtures/[^"]+)"', written[name]):
            assert (site / "specreg/repository" / model.decode()).is_dir()
    for folder in (tmp_path, tmp_path / "tests/perf"):
        listed = run(site, folder, *COLLECT, "-p", "no:cacheprovider")
        assert "[vllm-eagle3-tiny-toy-c1-acceptance_length_tokens]" in listed
    diagnosed = run(site, tmp_path, "-m", "specreg", "doctor", "--tier=cpu")
    for words in ("models/tiny/draft: is there", "models/tiny/eagle3: is there", "160 prompts"):
        assert words in diagnosed
    program = "from specreg.core.commands import install_command; print(install_command('ray'))"
    assert run(site, tmp_path, "-c", program) == 'uv pip install "specreg[ray]"\n'


def test_its_sessions_are_three_and_need_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text("[metadata]\n")  # which says nothing to pytest
    assert "wrote pytest.toml" in init(tmp_path).output
    text = (tmp_path / "noxfile.py").read_text()
    sessions = re.findall(r"^@nox\.session\(.*\)\ndef (\w+)", text, re.MULTILINE)
    assert sessions == ["cpu_perf", "gpu_perf", "gate"]
    called = set(re.findall(r"(?<![\w.])_\w+", text))
    assert called == set(re.findall(r"^def (_\w+)", text, re.MULTILINE))


def run_session(folder: Path, name: str, source: str) -> subprocess.CompletedProcess[str]:
    """Run a session of the noxfile that `init` writes, after SPECREG was set to a source."""
    assert init(folder).exit_code == 0
    noxfile = folder / "noxfile.py"
    changed, count = re.subn(r'(?m)^SPECREG = ".*"$', f"SPECREG = {source!r}", noxfile.read_text())
    assert count == 1
    noxfile.write_text(changed)
    (folder / "nox.py").write_text(STAND_IN)
    program = f"import nox, noxfile; noxfile.{name}(nox.Session())"
    command = (sys.executable, "-c", program)
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("name", "extras"),
    [("cpu_perf", "benchmark"), ("gpu_perf", "benchmark,datasets,xdist"), ("gate", "")],
)
@pytest.mark.parametrize("url", ["https://host/specreg", "https://host/{group}/specreg"])
def test_a_session_installs_specreg_with_its_extras(
    tmp_path: Path, name: str, extras: str, url: str
) -> None:
    done = run_session(tmp_path, name, f"specreg[{{}}] @ git+{url}")
    assert done.stdout.startswith(f"installed specreg[{extras}] @ git+{url}\nran python -m ")


@pytest.mark.parametrize("name", ["cpu_perf", "gpu_perf", "gate"])
@pytest.mark.parametrize("source", ["specreg @ git+https://host/specreg", "specreg[xdist]==0.1.0"])
def test_a_session_whose_source_takes_no_extras_installs_nothing(
    tmp_path: Path, name: str, source: str
) -> None:
    done = run_session(tmp_path, name, source)
    assert done.stdout == ""
    assert done.stderr == (
        f"aborted: SPECREG in noxfile.py: '{source}' has no {{}}, in which a session puts the"
        " extras that it needs; write specreg[{}] before its version or URL\n"
    )


def test_what_is_there_is_left_alone_and_named_with_what_it_lacks(tmp_path: Path) -> None:
    for name, text in {
        "conftest.py": "collect_ignore = []",
        ".gitignore": ".venv/",
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "tests/perf/test_latency.py": "",
        "baselines/a/b.json": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = files(tmp_path)
    output = init(tmp_path).output
    files_after = files(tmp_path)
    assert files_after | before == files_after
    assert files_after.keys() - before.keys() == WRITTEN - {
        *before,
        "baselines/.gitkeep",
        "pytest.toml",
    }
    for words in (
        "left conftest.py as it was; it needs pytest_plugins = [",
        "left .gitignore as it was; it needs .specreg/",
        'left pyproject.toml as it was; it needs pythonpath = ["."]',
        "left tests/perf/test_latency.py as it was\n",
    ):
        assert words in output
    assert "wrote" not in init(tmp_path).output
    error = init(tmp_path / "conftest.py").exception
    assert isinstance(error, SpecregError)
    assert "give --root a folder to write into" in str(error)


def test_the_tier_to_fill_in_is_one_with_and_without_its_example(tmp_path: Path) -> None:
    assert init(tmp_path).exit_code == 0
    path = tmp_path / "fixtures/matrix/gpu.toml"
    plain = {case.id for case in load_tier(path.parent, "gpu").cases}
    assert "vllm-eagle3-wide-8b-toy-c16" in plain
    path.write_text(re.sub(r"^#   ", "", path.read_text(), flags=re.MULTILINE))
    added = {case.id for case in load_tier(path.parent, "gpu").cases} - plain
    assert {option for option in added if "eagle3" in option} == {
        "vllm-eagle3-mine-mt-bench-c1",
        "vllm-eagle3-mine-mt-bench-c16",
    }


def test_installing_it_changes_no_pytest() -> None:
    assert "entry-points" not in PROJECT["project"]
