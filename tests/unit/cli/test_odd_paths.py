"""A path that leads to no usable folder is answered with a line, whatever command gets it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specreg.cli import app
from specreg.compare.options import BisectOptions, GateOptions
from specreg.core.errors import ModelError, SpecregError
from specreg.matrix.models import resolve_model
from tests.unit import builders

EXAMPLE = str(builders.ROOT / "docs/examples/cpu_perf")
IN_ROOT = ("--root", str(builders.ROOT))
SIDES = ("vllm==0.31.0", "vllm==0.32.0", "--tier", "cpu", *IN_ROOT)
COMMANDS: dict[str, Callable[[str, Path], tuple[str, ...]]] = {
    "merge": lambda path, _: ("merge", path, "--into", "merged"),
    "merge-into": lambda path, folder: ("merge", str(folder), "--into", path),
    "report": lambda path, _: ("report", path),
    "report-folder": lambda path, _: ("report", EXAMPLE, "--folder", path),
    "nights": lambda path, _: ("report", "--history", path),
    "matrix": lambda path, _: ("matrix", "--root", path),
    "doctor": lambda path, _: ("doctor", "--tier", "cpu", "--root", path),
    "init": lambda path, _: ("init", "--root", path),
    "resume": lambda path, _: ("gate", *SIDES, "--resume", "--out", path),
}


def link_loop(path: Path) -> None:
    path.symlink_to(path)


KINDS: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_text("x"),
    "fifo": os.mkfifo,
    "loop": link_loop,
}


@pytest.mark.parametrize("below", ["", "/x"], ids=["itself", "below"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_that_is_no_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, kind: str, below: str
) -> None:
    monkeypatch.chdir(tmp_path)
    KINDS[kind](tmp_path / "odd")
    path = f"{tmp_path / 'odd'}{below}"
    done = CliRunner().invoke(app, COMMANDS[command](path, tmp_path))
    assert isinstance(done.exception, SpecregError | SystemExit | None), done.exception
    # The page of the nights is written without a history that can't be read.
    assert done.exit_code in {1, 10} or command == "nights"
    text = f"{done.output}{done.exception}"
    assert path in text
    assert "; " in text
    assert "Traceback" not in text
    assert "[Errno" not in text


def test_a_loop_of_links_is_a_folder_like_others_until_it_is_opened(tmp_path: Path) -> None:
    link_loop(tmp_path / "loop")
    loop = tmp_path / "loop"
    gate = GateOptions(a="vllm", b="vllm", out=loop / "x")
    assert gate.folder_in("gate") == loop / "x"
    bisect = BisectOptions(case="c", good="vllm==0.31.0", bad="vllm==0.32.0", out=loop)
    assert bisect.folder == loop / "c"
    model = tmp_path / "fixtures/models/loop"
    model.parent.mkdir(parents=True)
    link_loop(model)
    with pytest.raises(ModelError, match="is missing; check the path"):
        resolve_model(tmp_path, "fixtures/models/loop")


def test_a_cache_with_a_name_that_is_too_long_is_named_by_the_doctor(tmp_path: Path) -> None:
    cache = {"SPECREG_CACHE": str(tmp_path / ("a" * 300))}
    done = CliRunner().invoke(app, ("doctor", "--tier", "cpu", *IN_ROOT), env=cache)
    words = " ".join(done.output.split())
    assert "File name too long" in words
    assert "OSError" not in words
    assert "[Errno" not in words
