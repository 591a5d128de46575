"""How uv is called: as the user has set it up, and whatever the working folder says."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from specreg.servers.installer import differing_packages, installed_packages, run_uv, uv_variables
from tests.unit.builders.wheels import write_wheel

MIRROR = "https://mirror.example.org/simple"
NOWHERE = '[[index]]\nurl = "http://127.0.0.1:9/simple"\ndefault = true\n'


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("uv.toml", NOWHERE),
        ("pyproject.toml", "[tool.uv]\n" + NOWHERE.replace("[[index]]", "[[tool.uv.index]]")),
        ("uv.toml", "this is no TOML"),
        ("pyproject.toml", '[project]\nname = "a"\nversion = "1"\nrequires-python = ">=3.99"'),
    ],
    ids=["uv.toml", "pyproject.toml", "broken", "of-another-python"],
)
def test_a_file_in_the_working_folder_decides_nothing(
    file: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / file).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    write_wheel(tmp_path, "specregengine", "1.0")
    python = tmp_path / "environment" / "bin" / "python"
    log_path = tmp_path / "log"
    run_uv(log_path, "venv", "--no-project", "--python", sys.executable, str(python.parents[1]))
    run_uv(log_path, "pip", "install", "--python", str(python), "specregengine==1.0")
    assert installed_packages(str(python)) == ("specregengine==1.0",)


def test_a_package_of_pythonpath_comes_before_that_of_the_environment(tmp_path: Path) -> None:
    """As Python imports them, by the order of the folders."""
    folders = [tmp_path / "first", tmp_path / "second", tmp_path / "environment"]
    versions = {"first": "1.0", "second": "2.0", "environment": "3.0"}
    python = folders[-1] / "bin" / "python"
    log_path = tmp_path / "log"
    run_uv(log_path, "venv", "--no-project", "--python", sys.executable, str(folders[-1]))
    for folder in folders:
        version = versions[folder.name]
        write_wheel(tmp_path, "specregengine", version)
        where = ("--target", str(folder))
        if folder is folders[-1]:
            where = ("--python", str(python))
        wheels = ("--no-index", "--find-links", str(tmp_path))
        run_uv(log_path, "pip", "install", *wheels, *where, f"specregengine=={version}")
    assert installed_packages(str(python)) == ("specregengine==3.0",)
    module_path = f"{folders[0]}:{tmp_path / 'missing'}::{folders[1]}"
    assert installed_packages(str(python), module_path) == ("specregengine==1.0",)
    assert installed_packages(str(python), str(folders[1])) == ("specregengine==2.0",)


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "CLICOLOR_FORCE", "UV_COLOR"])
def test_a_variable_that_asks_for_colours_gives_packages_no_other_names(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = installed_packages(sys.executable)
    monkeypatch.setenv(variable, "always" if variable == "UV_COLOR" else "1")
    installed_packages.cache_clear()
    assert installed_packages(sys.executable) == plain


@pytest.mark.parametrize(
    ("variables", "index"),
    [
        ({}, None),
        ({"UV_DEFAULT_INDEX": MIRROR}, MIRROR),
        ({"UV_DEFAULT_INDEX": MIRROR, "PIP_INDEX_URL": "https://other/"}, MIRROR),
        ({"UV_INDEX_URL": MIRROR, "PIP_INDEX_URL": "https://other/"}, None),
        ({"PIP_INDEX_URL": MIRROR}, MIRROR),
    ],
)
def test_the_index_is_the_one_that_the_environment_names(
    variables: Mapping[str, str], index: str | None, tmp_path: Path
) -> None:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path)}
    variables_given = uv_variables({**home, **variables})
    assert variables_given.get("UV_DEFAULT_INDEX") == index
    assert variables_given.items() >= variables.items()


@pytest.mark.parametrize("variable", ["HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"])
def test_a_file_of_the_user_or_of_the_machine_is_read(variable: str, tmp_path: Path) -> None:
    folder = tmp_path / ".config" if variable == "HOME" else tmp_path
    path = folder / "uv" / "uv.toml"
    path.parent.mkdir(parents=True)
    path.touch()
    variables = {"HOME": "/nowhere", variable: str(tmp_path), "PIP_INDEX_URL": MIRROR}
    uv_settings = uv_variables(variables)
    assert uv_settings["UV_CONFIG_FILE"] == str(path)
    assert "UV_DEFAULT_INDEX" not in uv_settings, "the file may name one"
    assert uv_variables({**variables, "UV_CONFIG_FILE": "own"})["UV_CONFIG_FILE"] == "own"


def test_packages_that_differ_are_named_with_both_versions() -> None:
    before = ("numpy==2.4.5", "six==1.17.0", "gone==1.0", "vllm @ file:///a/vllm.whl")
    after = ("numpy==2.4.6", "six==1.17.0", "new==3", "vllm @ file:///b/vllm.whl")
    assert differing_packages(before, before) == ()
    assert differing_packages(before, after) == (
        "gone 1.0 -> none",
        "new none -> 3",
        "numpy 2.4.5 -> 2.4.6",
        "vllm file:///a/vllm.whl -> file:///b/vllm.whl",
    )


def test_an_interpreter_that_cannot_be_run_has_no_packages() -> None:
    assert installed_packages("/no/such/python") == ()
