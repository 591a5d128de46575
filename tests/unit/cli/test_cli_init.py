"""`specreg init`: what it writes is this repository's, from a wheel, and what is there stays."""

import ast
import builtins
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
from tests.unit import builders

PROJECT = tomllib.loads((builders.ROOT / "pyproject.toml").read_text())
COPIED = {
    *(".github/workflows/gpu_perf.yml", "conftest.py"),
    *(f"fixtures/{name}.py" for name in ("__init__", "measurements", "servers")),
    *("fixtures/matrix/cpu.toml", "fixtures/models/pairs.toml"),
    *(f"tests/perf/{path.name}" for path in (builders.ROOT / "tests/perf").glob("*.py")),
}
"""The files that are, byte by byte, those of this repository."""
WRITTEN = COPIED | {
    *(".gitignore", "baselines/.gitkeep", "fixtures/matrix/gpu.toml", "noxfile.py", "pytest.toml"),
}


def files(folder: Path) -> set[str]:
    """The files of a folder, as paths from there."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def init(root: Path) -> Result:
    """The command from the checkout."""
    return CliRunner().invoke(app, ["init", "--root", str(root)])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what a wheel does, by pyproject.toml."""
    site = tmp_path_factory.mktemp("site")
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    held = {f"specreg/{one.name}": one for one in (builders.ROOT / "specreg").iterdir()}
    held |= {there: builders.ROOT / here for here, there in wheel["force-include"].items()}
    for there, here in held.items():
        (site / there).parent.mkdir(parents=True, exist_ok=True)
        (site / there).symlink_to(here)
    return site


def run(site: Path, cwd: Path, *arguments: str) -> str:
    """What Python says in a folder, the wheel installed."""
    done = subprocess.run(
        (sys.executable, *arguments),
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_an_empty_folder_becomes_a_repository_whose_cases_are_collected(
    site: Path, tmp_path: Path
) -> None:
    said = run(site, tmp_path, "-m", "specreg", "init")
    assert files(tmp_path) == WRITTEN
    assert set(re.findall(r"^wrote (\S+)$", said, re.MULTILINE)) == WRITTEN
    for name in COPIED:
        assert (tmp_path / name).read_bytes() == (builders.ROOT / name).read_bytes(), name
    collect = (
        "-m",
        "pytest",
        "-k",
        "eagle3",
        "--specreg-tier=cpu",
        "--co",
        "-q",
        "--strict-markers",
    )
    for folder in (tmp_path, tmp_path / "tests/perf"):
        listed = run(site, folder, *collect, "-p", "no:cacheprovider")
        assert "[vllm-eagle3-tiny-toy-c1-acceptance_length_tokens]" in listed
    assert "vllm-eagle3-tiny-toy-c4" in run(site, tmp_path, "-m", "specreg", "matrix", "--tier=cpu")
    diagnosed = run(site, tmp_path, "-m", "specreg", "doctor", "--tier=cpu")
    assert "fixtures/models/tiny/eagle3: is there" in diagnosed
    assert "toy: 160 prompts" in diagnosed


@pytest.mark.parametrize("name", ["matrix/cpu.toml", "models/pairs.toml"])
def test_each_model_that_a_copied_file_names_is_in_the_wheel(site: Path, name: str) -> None:
    text = (builders.ROOT / "fixtures" / name).read_text()
    named = set(re.findall(r'"(fixtures/[^"]+)"', text))
    assert {one for one in named if not (site / "specreg/repository" / one).is_dir()} == set()


def test_an_extra_is_added_to_what_is_installed(site: Path, tmp_path: Path) -> None:
    program = "from specreg.core.commands import install_command; print(install_command('ray'))"
    assert run(site, tmp_path, "-c", program) == 'uv pip install "specreg[ray]"\n'


def test_the_fixtures_are_found_beside_a_distribution_of_that_name(
    site: Path, tmp_path: Path
) -> None:
    other = tmp_path / "site/fixtures/__init__.py"
    other.parent.mkdir(parents=True)
    other.touch()
    assert init(tmp_path / "repository").exit_code == 0
    path = f"{site}:{other.parents[1]}"
    collect = ("-m", "pytest", "--specreg-tier=cpu", "--co", "-q")
    listed = run(Path(path), tmp_path / "repository", *collect)
    assert "[vllm-eagle3-tiny-toy-c1-acceptance_length_tokens]" in listed


def test_its_sessions_are_the_three_and_need_nothing_of_ours(tmp_path: Path) -> None:
    assert init(tmp_path).exit_code == 0
    tree = ast.parse((tmp_path / "noxfile.py").read_text())
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    assert {one.name for one in functions if one.decorator_list} == {"cpu_perf", "gpu_perf", "gate"}
    names = [one for one in ast.walk(tree) if isinstance(one, ast.Name)]
    stored = {one.id for one in names if isinstance(one.ctx, ast.Store)}
    known = {*dir(builtins), *stored, *(one.name for one in functions), "Sequence", "nox"}
    known |= {one.arg for one in ast.walk(tree) if isinstance(one, ast.arg)}
    assert {one.id for one in names} <= known


def test_what_is_there_is_left_alone_and_named_with_what_it_lacks(tmp_path: Path) -> None:
    for name, text in {
        "conftest.py": "collect_ignore = []",
        ".gitignore": ".venv/",
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "tests/perf/test_latency.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    baseline = tmp_path / "baselines/a/b.json"
    baseline.parent.mkdir(parents=True)
    baseline.touch()
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    said = init(tmp_path).output
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert files(tmp_path) - before.keys() == WRITTEN - before.keys() - {
        "baselines/.gitkeep",
        "pytest.toml",
    }
    for words in (
        "left conftest.py as it was; it needs pytest_plugins = [",
        "left .gitignore as it was; it needs .specreg/",
        'left pyproject.toml as it was; it needs pythonpath = ["."]',
        "left tests/perf/test_latency.py as it was\n",
    ):
        assert words in said
    again = init(tmp_path)
    assert "wrote" not in again.output
    assert again.exit_code == 0


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = init(tmp_path / "file").exception
    assert isinstance(error, SpecregError)
    assert "name a folder that can be written" in str(error)


def test_the_tier_to_fill_in_is_one_with_and_without_what_is_commented_out(tmp_path: Path) -> None:
    assert init(tmp_path).exit_code == 0
    matrix = tmp_path / "fixtures/matrix"
    plain = {case.id for case in load_tier(matrix, "gpu").cases}
    assert "vllm-eagle3-wide-8b-toy-c16" in plain
    path = matrix / "gpu.toml"
    path.write_text(re.sub(r"^#   ", "", path.read_text(), flags=re.MULTILINE))
    filled_in = {case.id for case in load_tier(matrix, "gpu").cases}
    assert {one for one in filled_in - plain if "eagle3" in one} == {
        "vllm-eagle3-mine-mt-bench-c1",
        "vllm-eagle3-mine-mt-bench-c16",
    }


def test_installing_it_changes_no_pytest() -> None:
    assert "entry-points" not in PROJECT["project"]
