"""The package has the addresses of the repository that it is built in, and invents none."""

import email
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from uv import find_uv_bin

ROOT = Path(__file__).parents[2]
VARIABLE = "SPECREG_REPOSITORY_URL"


def build(folder: Path, repository: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel as the release workflow does, which says where the repository is."""
    return subprocess.run(
        (find_uv_bin(), "build", "--wheel", "--out-dir", str(folder)),
        check=False,
        cwd=ROOT,
        env={**os.environ, VARIABLE: repository},
        capture_output=True,
        text=True,
    )


def urls_in(folder: Path) -> dict[str, str]:
    """Return the addresses in the metadata of the wheel in a folder, by their labels."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    rows = (str(row).partition(", ") for row in metadata.get_all("Project-URL", []))
    return {label: address for label, _, address in rows}


def test_a_package_of_a_repository_has_its_addresses(tmp_path: Path) -> None:
    done = build(tmp_path, "https://git.example.org/team/specreg/")
    assert done.returncode == 0, done.stderr
    assert urls_in(tmp_path) == {
        "Repository": "https://git.example.org/team/specreg",
        "Documentation": "https://git.example.org/team/specreg/tree/HEAD/docs",
        "Changelog": "https://git.example.org/team/specreg/blob/HEAD/CHANGELOG.md",
        "Issues": "https://git.example.org/team/specreg/issues",
    }


def test_a_package_of_an_unknown_repository_has_no_addresses(tmp_path: Path) -> None:
    done = build(tmp_path, "")
    assert done.returncode == 0, done.stderr
    assert urls_in(tmp_path) == {}


@pytest.mark.parametrize("repository", ["git.example.org/x/y", "http://a.b/c/d", "https://a.b"])
def test_what_is_no_address_of_a_repository_ends_the_build(tmp_path: Path, repository: str) -> None:
    done = build(tmp_path, repository)
    assert done.returncode != 0
    assert f"{VARIABLE}: '{repository}' is no https address of a repository" in done.stderr
