"""What the commands say of what they can't do, and with which status."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specreg.cli import app
from specreg.compare.bisect import Bisected, Search, SearchReport
from specreg.compare.gate import Gate
from specreg.compare.request import Request
from tests.unit import builders

IN_ROOT = ("--root", str(builders.ROOT), "--tier", "cpu", "--matrix", "fixtures/matrix")
CASE, PLAIN = "vllm-eagle3-tiny-toy-c1", "vllm-none-tiny-toy-c1"
BISECT = ("bisect", CASE, "--good", "vllm==0.31.0", "--bad", "vllm==0.32.0")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gate", "vllm==0.31.0", "vlm==0.32.0"), "unknown engine 'vlm'; did you mean 'vllm'"),
        (("gate", "vllm", "vllm", "--case", "nope"), "tier 'cpu': unknown case 'nope'"),
        (("gate", "vllm", "vllm", "--launches", "3"), "give an even number"),
        (("gate", "vllm", "vllm", "--launches", "1"), "--launches 1: a block of ABBA has two of"),
        (("gate", "vllm", "vllm", "--launches", "0"), "give an even number from 2 on"),
        (("gate", "vllm", "vllm", "--resume"), "nothing to go on with without a folder; name its"),
        (
            ("gate", "vllm", "vllm", "--resume", "--out", "no/where"),
            "--resume: nothing to go on with in 'no/where'; name its --out",
        ),
        (("gate", "vllm", "vllm", "--tier", "nope"), "unknown tier 'nope'"),
        (("gate", "vllm", "vllm@git+http://[x"), "is no URL, "),
        (("gate", "vllm", "vllm@~nobody-of-this-name/x"), "~nobody-of-this-name/x"),
        (
            ("gate", "vllm", "vllm", "--case", PLAIN, "--b", "draft_tokens=5"),
            "--b draft_tokens: changes none of 1 cases",
        ),
        (("gate", "vllm", "vllm", "--case", CASE, "--pin", "nan"), "--pin nan: with 3 draft"),
        (("gate", "vllm", "vllm", "--seconds", "-1"), "--seconds -1: is no time"),
        (("gate", "vllm", "vllm", "--minutes", "nan"), "--minutes nan: is no time"),
        ((*BISECT, "--tier", "nope"), "unknown tier 'nope'"),
        ((*BISECT, "--launches", "1"), "--launches 1: a block of ABBA has two of each side"),
        ((*BISECT, "--versions", "foo"), "'foo': is no version"),
        (
            ("bisect", CASE, "--good", "vllm==0.31.0", "--bad", "sglang==0.5.23"),
            "of two engines; give two versions of one",
        ),
        (("bisect", CASE, "--good", "vllm", "--bad", "vllm==0.31.0"), "'vllm': is no release"),
        (
            ("bisect", CASE, "--good", "vllm==0.32.0", "--bad", "vllm==0.31.0"),
            "the good one must be the older; swap them",
        ),
    ],
    ids=str,
)
def test_it_is_said_with_status_10(arguments: tuple[str, ...], said: str) -> None:
    named = ("--versions", "0.32.0") if arguments[0] == "bisect" else ()
    done = CliRunner().invoke(app, (arguments[0], *named, *IN_ROOT, *arguments[1:]))
    assert done.exit_code == 10
    assert said in done.output


def test_a_fault_of_ours_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Request) -> Gate:
        raise RuntimeError("nobody foresaw it")

    monkeypatch.setattr(sys.modules["specreg.cli.gate"], "open_gate", fail)
    done = CliRunner().invoke(app, ("gate", "vllm", "vllm", *IN_ROOT))
    assert done.exit_code == 10
    assert "RuntimeError: nobody foresaw it" in done.output


def test_an_interruption_before_anything_is_measured_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    command = sys.modules["specreg.cli.gate"]
    monkeypatch.setattr(command, "open_gate", interrupt)
    done = CliRunner().invoke(app, ("gate", "vllm", "vllm", *IN_ROOT))
    assert (done.exit_code, done.stdout) == (130, "go on: type the same again\n")


@pytest.mark.parametrize("prompts", ["0", "-3"])
@pytest.mark.parametrize("command", [("gate", "vllm", "vllm"), BISECT], ids=lambda one: one[0])
def test_no_prompts_are_refused(command: tuple[str, ...], prompts: str) -> None:
    done = CliRunner().invoke(app, (*command, *IN_ROOT, "--prompts", prompts))
    assert done.exit_code == 2
    assert not isinstance(done.exception, ValueError)


@pytest.mark.parametrize(
    "refused", [("--tier", "nope"), ("--case", "nope"), ("--launches", "3")], ids=str
)
def test_a_start_that_is_refused_leaves_no_answer_of_an_earlier_run(
    tmp_path: Path, refused: tuple[str, ...]
) -> None:
    for name in ("report.json", "report.md", "report.html", "journal.jsonl"):
        (tmp_path / name).write_text(name)
    done = CliRunner().invoke(
        app, ("gate", "vllm", "vllm", *IN_ROOT, "--out", str(tmp_path), *refused)
    )
    assert done.exit_code == 10
    left = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert left == {
        "earlier-report.json": "report.json",
        "earlier-report.md": "report.md",
        "earlier-report.html": "report.html",
        "journal.jsonl": "journal.jsonl",
    }


def test_a_bisect_that_is_refused_leaves_no_answer_of_an_earlier_one(tmp_path: Path) -> None:
    page = tmp_path / CASE / "bisect.json"
    page.parent.mkdir()
    page.write_text("old")
    done = CliRunner().invoke(
        app, (*BISECT, *IN_ROOT, "--out", str(tmp_path), "--bad", "sglang==0.5.23")
    )
    assert done.exit_code == 10
    assert not page.exists()
    assert page.with_name("earlier-bisect.json").read_text() == "old"


def test_a_bisect_ends_with_the_status_of_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    between = Bisected(last_good="0.30.0", first_bad="0.32.0", between=("0.31.0",))
    searched = SearchReport(case_id=CASE, good="", bad="", exit_status=10, found=between)
    monkeypatch.setattr(Search, "run", lambda _: searched)
    done = CliRunner().invoke(app, (*BISECT, *IN_ROOT, "--out", str(tmp_path)))
    assert done.exit_code == 10
    assert "it changed after 0.30.0 and by 0.32.0; unknown: 0.31.0" in done.output
    assert f"gates: {tmp_path / CASE}" in done.output
    searched.exit_status = 0
    assert CliRunner().invoke(app, (*BISECT, *IN_ROOT, "--out", str(tmp_path))).exit_code == 0


def test_a_bisect_that_is_interrupted_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(_: Search) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "run", cut_off)
    done = CliRunner().invoke(app, (*BISECT, *IN_ROOT, "--out", str(tmp_path)))
    assert done.exit_code == 130
    assert "go on: type the same again" in done.output


def test_a_bisect_hands_its_options_to_its_gates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Search] = []

    def noted(one: Search) -> SearchReport:
        asked.append(one)
        return SearchReport(case_id=CASE, good="", bad="")

    monkeypatch.setattr(Search, "run", noted)
    monkeypatch.chdir(tmp_path)
    options = ("--seconds", "40", "--ready-within-s", "1800", "--no-wait", "--out", "here")
    versions = ("--versions", "0.31.1, 0.31.2")
    CliRunner().invoke(app, (*BISECT, *IN_ROOT, *options, *versions))
    CliRunner().invoke(app, (*BISECT, *IN_ROOT))
    request = asked[0].request
    assert (request.least_s, request.ready_within_s, request.waits) == (40.0, 1800.0, False)
    assert asked[0].versions == ("0.31.1", "0.31.2")
    assert asked[0].folder == tmp_path / "here"  # as of a gate
    assert asked[1].folder == builders.ROOT / ".specreg" / "bisect"
