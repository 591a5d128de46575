"""The command: what it lists and prepares, and what it answers to a wrong name."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from specreg import __version__ as specreg_version
from specreg.baselines.record import record_baseline
from specreg.cli import app, main, naming
from tests.plugin.conftest import run_here
from tests.plugin.preloaded import PreloadedPython
from tests.unit import builders
from tests.unit.builders import reports
from tests.unit.builders.command_line import specreg

CASE_ID = "a-case"
COMMANDS = typer.main.get_group(app).list_commands(None)  # type: ignore[arg-type]


def test_an_unknown_name_is_answered_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["specreg", "matrix", "--tier=cpv", f"--root={builders.ROOT}"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 10, "1 may be a verdict"
    error = capsys.readouterr().err
    assert "unknown tier 'cpv'; did you mean 'cpu'?" in error
    assert "Traceback" not in error


def test_all_baselines_are_listed_and_one_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    launches = [{"throughput_tokens_per_s": value} for value in (100.0, 101.0, 99.0)]
    baseline = builders.baseline(*launches, of=builders.counts(8, 0, 6, 6))
    environment = baseline.environment.name
    folder = tmp_path / "baselines" / environment
    record_baseline(folder / f"{CASE_ID}.json", baseline)
    torn = folder / "torn.json"
    torn.write_text("{")
    done = specreg(tmp_path, "baselines")
    assert done.exit_code == 1
    lines = done.output.splitlines()
    row = lines[lines.index(environment) + 1].split()
    assert row[0] == CASE_ID
    assert row[1:] == ["2026-11-21", "vllm", "0.32.0", "3", "2.5", "100", "first", "run"]
    assert f"baseline '{torn}': " in done.output


@pytest.mark.parametrize(
    ("command", "schema"), [("baselines schema", "Baseline"), ("report --schema", "RunReport")]
)
def test_a_schema_is_printed(command: str, schema: str) -> None:
    done = CliRunner().invoke(app, command.split())
    assert schema in json.loads(done.output)["$defs"]


def test_the_help_begins_with_what_specreg_is_and_cuts_no_command_short() -> None:
    done = CliRunner().invoke(app, ["--help"])
    usage, first, *_ = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    assert usage.startswith("Usage:")
    assert first.startswith("specreg keeps speculative decoding fast")
    assert "..." not in done.stdout.partition("Commands:")[2]


def test_the_help_imports_no_rich() -> None:
    """It was half of the time of `specreg --help`."""
    code = "import sys, specreg.cli as c; c.app(['--help'], standalone_mode=False)"
    command = (sys.executable, "-c", f"{code}; sys.exit('rich' in sys.modules)")
    done = subprocess.run(command, check=False, cwd=builders.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


READING = (("--help",), ("baselines", "list"), ("matrix", "--tier=cpu"), ("report", "--help"))
IMPORTED = """
import subprocess
import sys
from specreg.cli import main
try:
    main()
finally:
    print([name for name in {slow} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_what_only_reads_imports_nothing_that_asks_a_server(arguments: tuple[str, ...]) -> None:
    slow = ["aiohttp", "httpx", "uvloop", "pytest", "specreg.compare.gate", "huggingface_hub"]
    slow += ["numpy", "pynvml", "specreg.engines"] if arguments[0].startswith("--") else []
    done = run_here(sys.executable, "-c", IMPORTED.format(slow=slow), *arguments)
    assert done.stdout
    assert done.stderr.splitlines()[-1] == "[]"


BUG = """
import sys
import specreg.cli
import specreg.cli.report
specreg.cli.report.write_outputs = lambda *_: 1 / 0
specreg.cli.main()
"""


def test_a_bug_is_no_verdict_and_names_the_file_that_was_read(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(msgspec.json.encode(reports.REPORT))
    done = run_here(sys.executable, "-c", BUG, "report", str(tmp_path))
    assert done.returncode == 10, done.stderr
    assert str(tmp_path / "report.json") in done.stderr.strip().splitlines()[-1]


def test_a_large_file_is_named_before_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    small.write_bytes(b"{}")
    with large.open("wb") as file:
        file.truncate(30 * 2**20)
    with naming(large, small, tmp_path / "missing"):
        assert capsys.readouterr().err == f"reading '{large}', 30 MiB\n"


def test_no_module_of_a_foreign_folder_is_imported(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(msgspec.json.encode(reports.REPORT))
    for name in ("msgspec", "typer", "html", "amdsmi", "sitecustomize", "pathlib"):
        (tmp_path / f"{name}.py").write_text("print('foreign')")
    variables = {**os.environ, "PYTHONPATH": str(builders.ROOT)}
    done = run_here(sys.executable, "-m", "specreg", "report", ".", cwd=tmp_path, env=variables)
    assert "foreign" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_examples_that_can_be_typed_and_no_type_of_python(
    name: str, columns: str
) -> None:
    group: Any = typer.main.get_command(app)
    _, command, _ = group.resolve_command(typer.Context(group), [name])
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": columns}).output

    examples = [line.split()[1:] for line in shown.splitlines() if line.startswith("      specreg")]
    takes_arguments = any(parameter.name != "root" for parameter in command.params)
    assert bool(examples) is takes_arguments
    for typed, *arguments in examples:
        assert typed == name
        command.make_context(name, [*arguments])
    assert not re.search(r"<[a-z]", shown)


def test_the_settings_of_a_side_have_names_of_their_own_and_the_old_ones_are_read() -> None:
    group: Any = typer.main.get_command(app)
    _, command, _ = group.resolve_command(typer.Context(group), ["gate"])
    for name in ("--set-b", "--b"):
        typed = ["vllm==0.31.0", "vllm==0.32.0", name, "draft_tokens=5"]
        assert command.make_context("gate", typed).params["b_overrides"] == ["draft_tokens=5"]


def test_every_command_is_listed_with_its_first_line() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"specreg {specreg_version}\n"
    shown = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output.split())
    for name, words in (("baselines", "List the baselines"), ("selftest", "Simulate nights")):
        assert f"{name} " in shown
        assert words in shown


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(("basline", "list"), "'baselines'"), (("matrix", "--teir=cpu"), "--tier")],
    ids=["a-command", "an-option"],
)
def test_what_is_misspelled_is_answered_with_what_is_meant(
    arguments: tuple[str, ...], meant: str
) -> None:
    done = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert meant in done.output


def test_a_set_is_prepared_from_a_file_that_the_user_has(tmp_path: Path) -> None:
    rows = [{"question_id": row, "category": "qa", "turns": [f"Who {row}?"]} for row in range(80)]
    rows_path = builders.write_lines(tmp_path / "question.jsonl", rows)
    typed, env = (
        ("prepare", "eagle-qa", "--from", str(rows_path)),
        {"SPECREG_DATA": f"{tmp_path}/data"},
    )
    done = CliRunner().invoke(app, typed, env=env)
    assert done.exit_code == 0, done.output
    assert [path.name for path in (tmp_path / "data").glob("*.jsonl")] == ["eagle-qa.jsonl"]
    assert len((tmp_path / "data/eagle-qa.jsonl").read_text().splitlines()) == 80


MISTYPED = (
    ("http://someone:planted-password@host",),
    ("doctor", "http://someone:planted-password@host"),
    ("doctor", "--http://someone:planted-password@host"),
    ("soak", "--minutes=http://someone:planted-password@host", "case"),
    ("report", "--folder", "a", "b", "c", "http://someone:planted-password@host"),
    ("merge", "--inconclusive=http://someone:planted-password@host", "--into=x", "y"),
)


@pytest.mark.parametrize("arguments", MISTYPED, ids=" ".join)
def test_a_secret_in_what_was_mistyped_is_not_quoted(
    arguments: tuple[str, ...], preloaded: PreloadedPython
) -> None:
    done = preloaded.run(("specreg", *arguments))
    assert done.returncode, done.stdout
    assert "planted" not in done.stdout + done.stderr
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr
