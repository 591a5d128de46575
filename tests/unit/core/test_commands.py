"""Every command that specreg tells a user to type works as it is printed."""

import ast
import dataclasses
import importlib.metadata
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from specreg.cli import app
from specreg.core import commands
from specreg.core.commands import install_command, is_plain_command, record_command, specreg_command
from specreg.suite.options import Options, flag_of
from tests.unit import builders
from tests.unit.builders.library_source import texts, trees

IDS = ("vllm-eagle3-tiny-toy-c1", "vllm-eagle3-tiny-toy-c4")
NAMES = typer.main.get_group(app).list_commands(None)  # type: ignore[arg-type]
BY_HAND = re.compile(rf"pip install|pytest -k|pytest tests/|nox -s|specreg ({'|'.join(NAMES)})\b")
SESSIONS = re.compile(r"^def (\w+)\(session", re.MULTILINE)


def calls(name: str) -> Iterator[tuple[str, ...]]:
    """The arguments of every call of a builder; what isn't known before a run is a word."""
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name:
                words = [a for a in node.args if not isinstance(a, ast.Starred)]
                known = (a.value if isinstance(a, ast.Constant) else "WORD" for a in words)
                yield tuple(map(str, known))


def test_hints_that_name_a_command_have_it_from_one_place() -> None:
    by_hand = [
        (name, text)
        for name, tree in trees()
        for text in texts(tree)
        if name not in {"core/commands.py", "suite/options.py"} and not name.startswith("cli/")
        if BY_HAND.search(text)
    ]
    assert by_hand == []


def test_an_option_that_a_text_names_is_one() -> None:
    known = set(map(flag_of, dataclasses.fields(Options)))
    named = {
        flag
        for _, tree in trees()
        for text in texts(tree)
        for flag in re.findall(r"--specreg-[a-z-]*[a-z]", text)
    }
    # `--specreg-engine-` and what follows are put together.
    assert named - known <= {"--specreg-engine"}


def test_what_records_cases_collects_these_cases() -> None:
    command = record_command(IDS[:1], ("--specreg-tier=cpu", "--num-prompts=6"))
    done = subprocess.run(
        (sys.executable, "-m", *shlex.split(command), "--co", "-q", "-p", "no:cacheprovider"),
        check=False,
        cwd=builders.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    listed = [line for line in done.stdout.splitlines() if "::" in line]
    assert listed
    assert all(f"[{IDS[0]}-" in line for line in listed)


def test_under_nox_all_of_it_is_what_nox_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = SESSIONS.findall((builders.ROOT / "noxfile.py").read_text())
    monkeypatch.setenv(commands.LAUNCHER, "nox -s cpu_perf --")
    words = shlex.split(record_command(IDS, ("--specreg-tier=cpu",)))
    assert words == [
        *("nox", "-s", "cpu_perf", "--", "-k", " or ".join(f"{case_id}-" for case_id in IDS)),
        *("--specreg-tier=cpu", "--update-baselines"),
    ]
    assert "cpu_perf" in sessions
    python, *arguments = shlex.split(specreg_command("prepare", "gsm8k"))
    assert arguments == ["-m", "specreg", "prepare", "gsm8k"]
    assert (Path.cwd() / python).exists()
    assert shlex.split(install_command("datasets"))[:4] == ["uv", "pip", "install", "--python"]


@pytest.mark.parametrize("arguments", sorted(set(calls("specreg_command"))), ids=" ".join)
def test_a_command_of_specreg_that_a_hint_names_is_one(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*arguments, "--help"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("arguments", sorted(set(calls("install_command"))), ids=" ".join)
def test_an_extra_that_a_hint_names_is_one(arguments: tuple[str, ...]) -> None:
    project = tomllib.loads((builders.ROOT / "pyproject.toml").read_text())["project"]
    (extra,) = arguments
    assert extra in project["optional-dependencies"]
    assert install_command(extra) == f'uv pip install -e ".[{extra}]"'
    assert importlib.metadata.version("uv")


@pytest.mark.parametrize("case_id", ["a$(touch x)", "a`x`", "a b", "a'b", 'a"b', "a;b", "a\nb"])
def test_no_name_in_a_command_is_the_shell_s(case_id: str) -> None:
    for case_ids in ((case_id,), ("plain", case_id)):
        words = shlex.split(record_command(case_ids, ("--specreg-tier=a b",)))
        chosen = words[words.index("-k") + 1]
        assert chosen == " or ".join(f"{case_id}-" for case_id in case_ids)
        typed = record_command(case_ids, ())
        quoted = re.sub(r"'[^']*'", "", typed)
        assert not re.search(r"[$`;\n]", quoted)


@pytest.mark.parametrize(
    "line",
    [
        *(
            record_command(IDS, ("--specreg-tier=a b", "--specreg-runs=$(x)")),
            specreg_command("gate"),
        ),
        *('pytest -k "a- or b-"', "", "nox -s cpu_perf -- -k a-", "specreg report 'é;'"),
    ],
)
def test_a_line_of_ours_is_a_plain_command(line: str) -> None:
    assert is_plain_command(line)


@pytest.mark.parametrize(
    "line",
    [
        *("pytest; rm -rf x", "pytest | sh", "pytest $(x)", "pytest `x`", 'pytest -k "$(x)"'),
        *(
            "pytest\nrm x",
            "pytest & x",
            "pytest > x",
            "pytest 'a",
            "pytest \\\nx",
            "é",
            "pytest 'a\nb'",
        ),
    ],
)
def test_a_line_that_is_the_shell_s_is_no_plain_command(line: str) -> None:
    assert not is_plain_command(line)
