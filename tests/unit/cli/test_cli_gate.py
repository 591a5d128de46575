"""What the commands say of what they can't do, and with which status."""

import errno
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specreg.cli import app
from specreg.compare.gate import Gate
from specreg.compare.options import BisectOptions
from tests.unit import builders

IN_ROOT = ("--root", str(builders.ROOT), "--tier", "cpu", "--matrix", "fixtures/matrix")
CASE = "vllm-eagle3-tiny-toy-c1"
PLAIN = "vllm-none-tiny-toy-c1"
BISECT = ("bisect", CASE, "--good", "vllm==0.31.0", "--bad", "vllm==0.32.0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gate", "vllm==0.31.0", "vlm==0.32.0"), "unknown engine 'vlm'; did you mean 'vllm'"),
        (("soak", "nope"), "tier 'cpu': unknown case 'nope'"),
        (("soak", CASE, "--engine", "sglang"), f"'{CASE}' needs engine 'vllm'"),
        (("gate", "vllm", "vllm", "--resume"), "needs the folder of a gate; name the folder"),
        (("gate", "vllm", "vllm", "--tier", "nope"), "unknown tier 'nope'"),
        (("gate", "vllm", "vllm@~nobody-of-this-name/x"), "~nobody-of-this-name/x"),
        (
            ("gate", "vllm", "vllm", "--case", PLAIN, "--b", "draft_tokens=5"),
            "--set-b draft_tokens: changes none of 1 cases",
        ),
        (
            ("bisect", CASE, "--good", "vllm==0.31.0", "--bad", "sglang==0.5.23"),
            "of two engines; give two versions of one",
        ),
        (("bisect", CASE, "--good", "vllm", "--bad", "vllm==0.31.0"), "'vllm': is no release"),
    ],
    ids=str,
)
def test_it_is_said_with_status_10(arguments: tuple[str, ...], message: str) -> None:
    named = ("--versions", "0.32.0") if arguments[0] == "bisect" else ()
    done = CliRunner().invoke(app, (arguments[0], *named, *IN_ROOT, *arguments[1:]))
    assert done.exit_code == 10
    assert message in done.output


@pytest.mark.parametrize("tolerance", ["5", "1.01", "-0.1"])
def test_a_soak_takes_no_tolerance_that_everything_keeps(tolerance: str) -> None:
    done = CliRunner().invoke(app, ("soak", "nope", *IN_ROOT, "--tolerance", tolerance))
    assert done.exit_code == 2
    assert "for '--tolerance': Input should be" in done.output


def test_a_fault_of_ours_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Gate:
        raise RuntimeError("nobody foresaw it")

    monkeypatch.setattr(import_module("specreg.cli.gate"), "open_gate", fail)
    done = CliRunner().invoke(app, ("gate", "vllm", "vllm", *IN_ROOT))
    assert done.exit_code == 10
    assert "RuntimeError: nobody foresaw it" in done.output


@pytest.mark.parametrize("option", ["--prompts", "--seconds", "--launches", "--ready-within-s"])
@pytest.mark.parametrize(
    "command", [("gate", "vllm", "vllm"), BISECT], ids=lambda command: command[0]
)
def test_nothing_of_it_is_refused(command: tuple[str, ...], option: str) -> None:
    assert CliRunner().invoke(app, (*command, *IN_ROOT, option, "0")).exit_code == 2


@pytest.mark.parametrize(
    "refused", [("--tier", "nope"), ("--case", "nope"), ("--prompts", "100000")], ids=str
)
def test_a_start_that_is_refused_leaves_no_answer_of_an_earlier_run(
    tmp_path: Path, refused: tuple[str, ...]
) -> None:
    for name in ("report.json", "report.md", "report.html", "ledger.jsonl"):
        (tmp_path / name).write_text(name)
    done = CliRunner().invoke(
        app, ("gate", "vllm", "vllm", *IN_ROOT, "--out", str(tmp_path), *refused)
    )
    assert done.exit_code == 10
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    aside = {f"earlier-report.{kind}": f"report.{kind}" for kind in ("json", "md", "html")}
    assert files == {**aside, "ledger.jsonl": "ledger.jsonl"}


@pytest.mark.parametrize(
    ("result", "status", "message"),
    [
        ("0.30.0 0.31.0", 0, "became worse in 0.31.0; 0.30.0 is good"),
        (
            "0.30.0 0.31.0 0.32.0",
            10,
            "became worse after 0.30.0, and in 0.32.0 at the latest; undecided: 0.31.0",
        ),
        ("", 130, "to continue, type the same command again"),
        ("no files", 10, "this machine: Too many open files; raise the limit"),
        ("no room", 10, "this machine: No space left on device; make room"),
    ],
    ids=["found", "between", "interrupted", "no-files", "no-room"],
)
def test_a_bisect_ends_with_the_status_of_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: str, status: int, message: str
) -> None:
    calls: list[BisectOptions] = []

    def find(options: BisectOptions, *_: object) -> list[str]:
        calls.append(options)
        if not result:
            raise KeyboardInterrupt
        if result == "no files":
            raise OSError(errno.EMFILE, "Too many open files")
        if result == "no room":
            raise OSError(errno.ENOSPC, "No space left on device")
        return result.split()

    monkeypatch.setattr(import_module("specreg.cli.gate"), "find_change", find)
    arguments = ("--seconds", "40", "--ready-within-s", "1800", "--out", str(tmp_path))
    versions = ("--versions", "0.31.1, 0.31.2")
    done = CliRunner().invoke(app, (*BISECT, *IN_ROOT, *arguments, *versions))
    assert done.exit_code == status
    assert message in done.output
    assert f"gates: {tmp_path / CASE}" in done.output
    [options] = calls
    assert (options.least_s, options.ready_within_s) == (40.0, 1800.0)
    assert options.versions == "0.31.1, 0.31.2"
