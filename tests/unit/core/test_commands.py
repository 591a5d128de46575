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
    portable_options,
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
    """The arguments of every call of a builder; what isn't known before a run is a word.

    Each process that collects tests needs them, so only modules that name the builder are parsed.
    """
    for _, tree in trees(naming=name):
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


@pytest.mark.parametrize(
    ("case_ids", "selection"),
    [
        (("sglang-eagle3-tiny-toy-c1", "sglang-eagle3-tiny-toy-c16"), "sglang-"),
        (("vllm-eagle3-tiny-toy-c1", "vllm-ngram-tiny-toy-c1"), "c1-"),
        (("vllm-ngram-tiny-toy-c1", "vllm-eagle3-tiny-toy-c16"), ""),
        (("vllm-ngram-tiny-toy-c4", "vllm-eagle3-tiny-toy-c4"), "c4- and not none-"),
        (("vllm-ngram-tiny-toy-c1", "vllm-ngram-tiny-toy-c16"), "ngram- and not c4-"),
        (("vllm-eagle3-tiny-toy-c1",), "vllm-eagle3-tiny-toy-c1-"),
    ],
)
def test_several_cases_are_named_by_what_only_they_have_in_common(
    case_ids: tuple[str, ...], selection: str
) -> None:
    loads = ("c1", "c16")
    tier_ids = [f"vllm-{method}-tiny-toy-{c}" for method in ("eagle3", "ngram") for c in loads]
    tier_ids += [f"vllm-{method}-tiny-toy-c4" for method in ("eagle3", "ngram", "none")]
    each = " or ".join(f"{case_id}-" for case_id in case_ids)
    words = shlex.split(run_command(case_ids, (), tier_ids))
    assert words == ["pytest", "-k", selection or each]


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


FOR_ANY_MACHINE = (
    "--specreg-tier=cpu",
    "--specreg-engine-version=0.32.0",
    "--specreg-inconclusive=warn-speed",
    "--specreg-attach=https://10.0.0.7:8000/team-a",
    "--specreg-control-url=http://10.0.0.8:8000",
    "--specreg-metrics-url=http://10.0.0.7:9000/metrics,http://10.0.0.7:9001/metrics",
    "--specreg-oracle",
    "--num-prompts=8",
    "--specreg-url-environment=h100-80gb-x1",
)


def test_options_that_mean_the_same_on_any_machine_are_kept() -> None:
    assert portable_options(FOR_ANY_MACHINE) == FOR_ANY_MACHINE


@pytest.mark.parametrize(
    "option",
    [
        *("--specreg-engine-python=/opt/x/python", "--specreg-engine-python=python"),
        *("--specreg-matrix=/opt/tiers", "--specreg-matrix=tiers", "--specreg-baselines=/opt/x"),
        *("--specreg-runs=/etc", "--specreg-history=x", "--specreg-tier=../../opt/tier"),
        *("--specreg-engine-version=git+https://host/x", "--specreg-attach=file:///etc/passwd"),
        *("--specreg-attach=http://host\n--rootdir=x", "--specreg-tier=a\nb", "--specreg-tier="),
        *("-p evil", "-p", "--rootdir=x", "--override-ini=python_files=evil.py", "evil.py", ""),
        *("--specreg-oracle=x", "; rm -rf x", "--specreg-shard=1/2", "--specreg-resume"),
        # A copied command would send the variable's value to the URL beside it.
        *("--specreg-url-token-env=AWS_SECRET_ACCESS_KEY", "--specreg-url-ca-file=/opt/ca.pem"),
    ],
)
def test_an_option_that_names_a_program_or_a_folder_is_left_out(option: str) -> None:
    assert portable_options((option, "--specreg-tier=cpu")) == ("--specreg-tier=cpu",)


def test_each_option_of_a_run_is_for_any_machine_or_for_one() -> None:
    repeated = [field for field in dataclasses.fields(Options) if field.metadata["is_repeated"]]
    left_out = set()
    for field in repeated:
        flag = flag_of(field)
        value = "http://host:1" if field.name in {"attach", "control_url", "metrics_url"} else "x"
        typed = flag if field.default is False else f"{flag}={value}"
        if not portable_options((typed,)):
            left_out.add(field.name)
    of_one_machine = {"engine_python", "matrix", "baselines", "runs", "history"}
    of_one_machine |= {"image", "container_runtime"}
    assert left_out == of_one_machine | {"url_token_env", "url_ca_file"}
