"""A side is what was typed, and what is built is told from other builds."""

import subprocess
import sys
from pathlib import Path

import pytest

from specreg.core.errors import UnknownNameError, UnsupportedError
from specreg.servers.provision import installed_version
from specreg.servers.sources import Origin, build_of, parse_origin, provision_side
from tests.unit import builders


def silent(_: str) -> None:
    """Shows nothing."""


@pytest.mark.parametrize(
    ("text", "engine", "version"),
    [
        ("vllm==0.31.0", "vllm", "0.31.0"),
        ("sglang==0.5.21", "sglang", "0.5.21"),
        ("vllm", "vllm", ""),
    ],
)
def test_a_requirement_is_an_engine_and_a_version(text: str, engine: str, version: str) -> None:
    assert parse_origin(text) == Origin(text=text, engine=engine, version=version)


def test_a_wheel_a_checkout_and_an_interpreter_are_known_by_what_lies_there(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0.33.0-py3-none-any.whl"
    wheel.touch()
    (tmp_path / "pyproject.toml").touch()
    interpreter = tmp_path / "env" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(sys.executable)
    for place in (wheel, tmp_path):
        assert parse_origin(str(place)) == Origin(text=str(place), source=str(place))
    text = f"vllm@{tmp_path}"
    assert parse_origin(text) == Origin(text=text, engine="vllm", source=str(tmp_path))
    for place in (interpreter, tmp_path / "env"):
        assert parse_origin(str(place)) == Origin(text=str(place), python=str(interpreter))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vlm==0.31.0", "unknown engine 'vlm'; did you mean 'vllm'"),
        ("vllm==zero", "'zero' is no version; give ENGINE"),
        ("/nowhere/none.whl", "nothing that can be installed or run is at '/nowhere"),
        ("vllm@git+https://example.org/vllm@v1", "nothing that can be installed or run is at 'git"),
    ],
)
def test_what_is_nothing_to_measure_is_said(text: str, words: str) -> None:
    with pytest.raises((UnknownNameError, UnsupportedError), match=words):
        parse_origin(text)


@pytest.mark.parametrize(
    ("text", "engines", "words"),
    [
        ("sglang==0.5.21", ["vllm"], "' is of engine 'vllm'; choose other cases"),
        (sys.executable, ["vllm", "sglang"], "is of one engine, the run has sglang, vllm"),
    ],
)
def test_a_side_of_another_engine_than_the_cases_is_said(
    text: str, engines: list[str], words: str
) -> None:
    cases = [builders.on_server(engine=engine) for engine in engines]
    with pytest.raises(UnsupportedError, match=words):
        provision_side(parse_origin(text), cases, on_gpu=False, show=silent)


def test_an_interpreter_is_taken_as_it_is() -> None:
    origin = parse_origin(f"vllm@{sys.executable}")
    source = provision_side(origin, [], on_gpu=False, show=silent)
    assert source.environment(builders.SPEC)[0] == sys.executable
    assert source.installed(builders.CASE) == f"vllm {sys.executable}"
    assert installed_version(sys.executable, "vllm") == ""


def test_a_wheel_is_known_by_its_name_and_what_it_holds(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0.33.0-py3-none-any.whl"
    wheel.write_bytes(b"one")
    built = build_of(str(wheel))
    assert (built.package, built.version[:7], built.pin) == ("vllm", "0.33.0-", str(wheel))
    wheel.write_bytes(b"others")
    assert build_of(str(wheel)).version != built.version
    with pytest.raises(UnsupportedError, match="give the wheel the name it was built with"):
        build_of(str(wheel.rename(tmp_path / "vllm.whl")))


def test_a_checkout_is_its_commit_and_has_no_files_beside_it(tmp_path: Path) -> None:
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").write_text("")
    (checkout / ".gitignore").write_text("build\n")
    with pytest.raises(UnsupportedError, match="is no git checkout, so what was measured"):
        build_of(str(checkout))

    def git(*arguments: str) -> str:
        named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ("git", "-C", str(checkout), *named, *arguments)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    (checkout / "build").write_text("1")
    assert build_of(str(checkout)).version == git("rev-parse", "HEAD")[:12]
    (checkout / "new.py").touch()
    with pytest.raises(UnsupportedError, match=r"has files of no commit, 'new\.py', so what"):
        build_of(str(checkout))
