import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from specreg.core.errors import UnknownNameError, UnsupportedError
from specreg.servers.environments import installed_version
from specreg.servers.sources import (
    Kind,
    Source,
    build_of,
    parse_origin,
)
from tests.unit import builders


def silent(_: str) -> None:
    """Shows nothing."""


@pytest.mark.parametrize(
    ("text", "engine", "place"),
    [
        ("vllm==0.31.0", "vllm", "0.31.0"),
        ("sglang==0.5.21", "sglang", "0.5.21"),
        ("vllm", "vllm", ""),
    ],
)
def test_a_requirement_is_an_engine_and_a_version(text: str, engine: str, place: str) -> None:
    found = parse_origin(text)
    assert (found.engine, found.kind, found.place) == (engine, Kind.VERSION, place)


def test_a_wheel_a_checkout_and_an_interpreter_are_known_by_what_lies_there(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0.33.0-py3-none-any.whl"
    wheel.touch()
    (tmp_path / "pyproject.toml").touch()
    interpreter = tmp_path / "env" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(sys.executable)

    assert parse_origin(str(wheel)).kind is Kind.WHEEL
    assert parse_origin(str(tmp_path)).kind is Kind.CHECKOUT
    assert parse_origin(f"vllm@{tmp_path}").engine == "vllm"
    for place in (interpreter, tmp_path / "env"):
        found = parse_origin(str(place))
        assert (found.kind, found.place) == (Kind.PYTHON, str(interpreter))
    assert (
        parse_origin("vllm@git+https://example.org/vllm@v1").place
        == "git+https://example.org/vllm@v1"
    )
    assert parse_origin("git+https://example.org/vllm@v1").engine == ""


def test_an_unknown_engine_is_named_with_those_that_there_are() -> None:
    with pytest.raises(UnknownNameError, match="unknown engine 'vlm'; did you mean 'vllm'"):
        parse_origin("vlm==0.31.0")


def test_no_version_and_nothing_there_are_said(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'zero' is no version; give ENGINE"):
        parse_origin("vllm==zero")
    with pytest.raises(UnsupportedError, match="nothing that can be installed or run is at"):
        parse_origin(str(tmp_path / "none.whl"))


def test_a_side_of_another_engine_than_the_cases_is_said() -> None:
    source = Source(origin=parse_origin("sglang==0.5.21"), on_gpu=False, show=silent)
    with pytest.raises(UnsupportedError, match=r"side 'sglang==0.5.21': .* is of engine 'vllm'"):
        source.check((builders.CASE,))


def test_an_interpreter_is_taken_as_it_is() -> None:
    source = Source(origin=parse_origin(f"vllm@{sys.executable}"), on_gpu=False, show=silent)
    environment = source.environment(builders.CASE)
    assert environment.python == sys.executable
    assert source.installed(builders.CASE) == f"vllm {sys.executable}"
    assert installed_version(sys.executable, "vllm") == ""


def test_a_folder_without_commits_is_no_checkout(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    with pytest.raises(UnsupportedError, match="is no git checkout, so what was measured"):
        build_of(parse_origin(f"vllm@{tmp_path}"))


class Checkout:
    """A repository with a commit and a tag."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pyproject.toml").write_text("")
        (folder / ".gitignore").write_text("build\n")
        self.git("init", "--quiet", "--initial-branch", "main")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "first")

    def git(self, *arguments: str) -> str:
        named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ("git", "-C", str(self.folder), *named, *arguments)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    @property
    def version(self) -> str:
        """What tells it from other builds now."""
        build = build_of(parse_origin(f"vllm@{self.folder}"))
        assert build is not None
        return build.version


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "a checkout"
    folder.mkdir()
    return Checkout(folder)


def test_a_checkout_is_its_commit_and_what_is_built_beside_it_is_none_of_it(
    checkout: Checkout,
) -> None:
    (checkout.folder / "build").write_text("1")
    assert checkout.version == checkout.git("rev-parse", "HEAD")[:12]


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        pytest.param("pyproject.toml", (b"# one", b"# two"), id="a tracked file"),
        pytest.param("kernel.bin", (b"\0one", b"\0two"), id="a binary one that is new"),
    ],
)
def test_a_checkout_is_told_from_what_it_was_by_all_that_its_files_hold(
    checkout: Checkout, name: str, contents: tuple[bytes, bytes]
) -> None:
    seen = [checkout.version]
    for content in contents:
        (checkout.folder / name).write_bytes(content)
        seen.append(checkout.version)
    assert len(set(seen)) == 3
    assert {version[:12] for version in seen} == {seen[0]}
    assert checkout.git("diff", "--cached", "--name-only") == ""  # its own index stays


KILLED = """
import os, signal, sys
from specreg.servers import sources
git = sources._git
def killed(why, *arguments, **variables):
    if "write-tree" in arguments:
        os.kill(os.getpid(), signal.SIGKILL)
    return git(why, *arguments, **variables)
sources._git = killed
sources.build_of(sources.parse_origin(sys.argv[1]))
"""


def test_what_a_killed_gate_left_of_a_checkout_goes(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    for name in ("SPECREG_CACHE", "TMPDIR"):
        monkeypatch.setenv(name, str(temporary))
    command = (sys.executable, "-c", KILLED, f"vllm@{checkout.folder}")
    subprocess.run(command, check=False, cwd=builders.ROOT)
    assert list(temporary.iterdir())
    assert checkout.version
    assert not list(temporary.iterdir())


def test_a_branch_and_a_tag_are_the_commits_that_they_point_to(checkout: Checkout) -> None:
    commit = checkout.git("rev-parse", "HEAD")
    checkout.git("tag", "-a", "v1", "-m", "a tag that is an object of its own")
    checkout.git("branch", "other/v1")
    url = f"git+{checkout.folder.as_uri()}"
    for text in (url, f"{url}@main", f"{url}@v1", f"{url}@other/v1", f"{url}@{commit}"):
        build = build_of(parse_origin(text))
        assert build is not None
        assert (build.version, build.source) == (commit[:12], f"{url}@{commit}")
    build = build_of(parse_origin(f"{url}@v1#subdirectory=python"))
    assert build is not None
    assert build.source == f"{url}@{commit}#subdirectory=python"
    with pytest.raises(UnsupportedError, match="has no branch or tag 'v2'"):
        build_of(parse_origin(f"{url}@v2"))
    with pytest.raises(UnsupportedError, match="can't be asked; check the URL"):
        build_of(parse_origin(f"{url}-gone@v1"))


def test_a_place_without_its_engine_is_not_of_several() -> None:
    source = Source(origin=parse_origin(sys.executable), on_gpu=False, show=silent)
    other = dataclasses.replace(
        builders.CASE, server=dataclasses.replace(builders.SPEC, engine="sglang")
    )
    with pytest.raises(UnsupportedError, match="the cases are of sglang, vllm; give ENGINE@PLACE"):
        source.check((builders.CASE, other))
