"""A file is the old or the new one; lines are added whole; and none of it has a secret."""

import os
from pathlib import Path

import pytest

from specreg.files import append_lines, replace_file


def test_a_file_is_made_with_its_folder_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert [one.name for one in path.parent.iterdir()] == ["file"]


def test_a_file_that_must_not_give_way_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old", overwrites=False)
    with pytest.raises(FileExistsError):
        replace_file(path, b"new", overwrites=False)
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_what_the_killed_left_goes_and_what_the_living_write_stays(tmp_path: Path) -> None:
    killed = 2**22 + 1  # no process has such a number
    for name in (f".file.{killed}.part", f".file.{os.getppid()}.part", f".other.{killed}.part"):
        (tmp_path / name).touch()
    replace_file(tmp_path / "file", b"new")
    left = {f".file.{os.getppid()}.part", f".other.{killed}.part", "file"}
    assert {one.name for one in tmp_path.iterdir()} == left


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
