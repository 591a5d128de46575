"""A file is the old or the new one; lines are added whole; and none of it has a secret."""

import os
import platform
from pathlib import Path

import pytest

from specreg.core.files import append_lines, passing_folder, replace_file


def test_a_file_is_made_with_its_folder_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert [one.name for one in path.parent.iterdir()] == ["file"]


def part(writer: int, of: str = "file", node: str = platform.node()) -> str:
    """What somebody writes into."""
    return f".{of}.{node}.{writer}.part"


KILLED = 2**22 + 1  # no process has such a number
OTHERS = {part(os.getppid()), part(KILLED, of="other"), part(KILLED, node="elsewhere")}
"""Of one that lives, of another file, and of another machine, of whose processes nobody knows."""


def test_what_the_killed_left_goes_and_what_the_living_write_stays(tmp_path: Path) -> None:
    for name in (*OTHERS, part(KILLED)):
        (tmp_path / name).touch()
    replace_file(tmp_path / "file", b"new")
    assert {one.name for one in tmp_path.iterdir()} == {*OTHERS, "file"}


def test_a_folder_that_passes_is_empty_at_first_and_gone_at_last(tmp_path: Path) -> None:
    """Whoever was killed in one may have had our number, in a container for instance."""
    for name in (*OTHERS, part(KILLED), part(os.getpid())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "left").touch()
    with passing_folder(tmp_path / "file") as folder:
        assert folder.name == part(os.getpid())
        assert not list(folder.iterdir())
        (folder / "made").touch()
    assert {one.name for one in tmp_path.iterdir()} == OTHERS
    with passing_folder(tmp_path / "file") as folder:
        (folder / "made").touch()
        folder.rename(tmp_path / "file")
    assert {one.name for one in tmp_path.iterdir()} == {*OTHERS, "file"}
    assert (tmp_path / "file/made").exists()


def test_lines_begin_anew_after_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    append_lines(path, b"one\n")
    append_lines(path, b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    path.write_bytes(b"to")
    append_lines(path, b"three\n")
    assert path.read_bytes() == b"to\nthree\n"


def test_no_secret_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "planted-1")
    replace_file(tmp_path / "file", b'{"a": "planted-1"}')
    append_lines(tmp_path / "file", b"planted-1\n")
    assert (tmp_path / "file").read_bytes() == b'{"a": "HIDDEN"}\nHIDDEN\n'
