"""Every command that specreg tells a user to type works as it is printed."""

import ast
import dataclasses
import importlib.metadata
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from specreg.cli import app
from specreg.core import commands
from specreg.core.commands import (
    install_command,
    is_own_command,
    record_command,
    run_command,
    specreg_command,
)
from specreg.suite.options import Options, flag_of
from tests.unit import builders
from tests.unit.builders.collection import Collection, collect
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


LISTED_TIER = "--specreg-tier=cpu"
HINTS = {
    "all": ((), ()),
    "all of a tier": ((), (LISTED_TIER,)),
    "one case": (IDS[:1], (LISTED_TIER, "--num-prompts=6")),
    "two cases": (IDS, (LISTED_TIER, "--specreg-inconclusive=warn-speed")),
    "with launches": (IDS[:1], (LISTED_TIER, "--specreg-launches=7")),
    "with a version": (IDS[:1], (LISTED_TIER, "--specreg-engine-version=0.32.0")),
    "with a path of several words": (IDS[:1], (LISTED_TIER, "--specreg-runs=my runs")),
}
"""By what it asks for, the cases and the options of each kind of command that runs the suite."""


BUILDERS = (run_command, record_command)


@pytest.fixture(scope="module")
def collections() -> Mapping[str, Collection]:
    """What each command of a hint would run."""
    return collect([build(*arguments) for build in BUILDERS for arguments in HINTS.values()])


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("hint", HINTS)
def test_each_command_that_a_hint_names_collects_what_it_says(
    build: Callable[[Sequence[str], Sequence[str]], str],
    hint: str,
    collections: Mapping[str, Collection],
) -> None:
    case_ids, options = HINTS[hint]
    collection = collections[build(case_ids, options)]
    assert collection.exit_code == 0, collection.output
    assert collection.tests
    for case_id in case_ids:
        assert any(f"[{case_id}-" in test for test in collection.tests)
    if case_ids:
        for test in collection.tests:
            assert any(f"[{case_id}-" in test for case_id in case_ids)


def test_no_case_and_no_option_of_the_launcher_is_in_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions = SESSIONS.findall((builders.ROOT / "noxfile.py").read_text())
    assert "cpu_perf" in sessions
    monkeypatch.setenv(commands.LAUNCHER, "nox -s cpu_perf --")
    monkeypatch.setenv(commands.LAUNCHER_OPTIONS, f"tests/perf {LISTED_TIER}")
    options = (LISTED_TIER,)
    assert run_command((), options) == "nox -s cpu_perf"
    assert record_command((), options) == "nox -s cpu_perf -- --update-baselines"
    command = record_command(IDS[:1], (*options, "--specreg-oracle"))
    assert command == f"nox -s cpu_perf -- -k {IDS[0]}- --specreg-oracle --update-baselines"
    other_tier = run_command((), ("--specreg-tier=gpu",))
    assert other_tier == "nox -s cpu_perf -- --specreg-tier=gpu"


def test_under_nox_a_command_of_specreg_is_run_by_this_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(commands.LAUNCHER, "nox -s cpu_perf --")
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
        *(
            'pytest tests/perf -k "a- or b-"',
            "nox -s cpu_perf -- -k a-",
            "nox -s cpu_perf",
            "specreg report 'é;'",
        ),
    ],
)
def test_a_line_of_ours_is_a_command_of_the_suite(line: str) -> None:
    assert is_own_command(line)


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
            "",
            "rm -rf x",
            "python evil.py",
            "nox -s cpu_perf evil",
            "pytest tests/perf -p evil",
            "pytest tests/perf -c evil.ini",
            "pytest tests/perf --rootdir=evil",
            "pytest tests/perf -k a- evil.py",
            "nox -s cpu_perf -- --override-ini=python_files=evil.py",
        ),
    ],
)
def test_a_line_that_does_anything_else_is_none(line: str) -> None:
    assert not is_own_command(line)
