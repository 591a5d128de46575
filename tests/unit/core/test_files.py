"""A file is the old or the new one, and lines are added whole."""

import errno
import hashlib
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from specreg.core.errors import SpecregError
from specreg.core.files import (
    append_lines,
    cache_dir,
    cache_folder,
    check_cache,
    data_dir,
    file_sha256,
    remedy_of,
    replace_file,
    temporary_folder_beside,
)

PLANTED = "ab" * 32
KILLED = 2**22 + 1  # no process has such a number


def part(writer: int, of: str = "file", node: str = platform.node()) -> str:
    return f".{of}.{node}.{writer}.part"


OTHERS = {part(os.getppid()), part(KILLED, of="other"), part(KILLED, node="elsewhere")}
"""Of one that lives, of another file, and of another machine, whose processes can't be seen."""


def test_a_file_is_made_with_its_folder_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_what_the_killed_left_goes_and_what_the_living_write_stays(tmp_path: Path) -> None:
    """One that was killed may have had our number, in a container for instance."""
    for name in (*OTHERS, part(KILLED)):
        (tmp_path / name).touch()
    for name in (part(KILLED + 1), part(os.getpid())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "left").touch()
    replace_file(tmp_path / "file", b"new")
    assert {path.name for path in tmp_path.iterdir()} == {*OTHERS, "file"}


def test_a_folder_that_passes_is_empty_at_first_and_gone_at_last(tmp_path: Path) -> None:
    for _ in range(2):
        with temporary_folder_beside(tmp_path / "file") as folder:
            assert not list(folder.iterdir())
            (folder / "made").touch()
        assert list(tmp_path.iterdir()) == []
    with temporary_folder_beside(tmp_path / "file") as folder:
        (folder / "made").touch()
        folder.rename(tmp_path / "file")
    assert (tmp_path / "file/made").exists()


@pytest.mark.parametrize(
    ("number", "path", "remedy"),
    [
        (errno.ENOSPC, None, "make room, `df -h`"),
        (errno.ENOSPC, "/disk/log", "make room or"),
        (errno.EACCES, "/disk/log", "make room or repair its rights"),
        (errno.EMFILE, None, "raise the limit"),
        (errno.EMFILE, "/disk/log", "raise the limit"),
        (errno.ENFILE, "/disk/log", "raise the limit"),
        (errno.EAGAIN, None, "raise the limit"),
    ],
)
def test_a_file_is_no_cause_if_too_many_are_open(
    number: int, path: str | None, remedy: str
) -> None:
    error = OSError(number, os.strerror(number), path)
    assert remedy_of(error).startswith(remedy)


def test_lines_begin_anew_after_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    append_lines(path, b"one\n")
    append_lines(path, b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    path.write_bytes(b"to")
    append_lines(path, b"three\n")
    assert path.read_bytes() == b"to\nthree\n"


def test_a_file_holds_the_bytes_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever encodes values hides the secrets in them; a file of bytes could lose a field."""
    monkeypatch.setenv("MY_TOKEN", "planted-1")
    replace_file(tmp_path / "file", b'{"planted-1": 1}')
    append_lines(tmp_path / "file", b"planted-1\n")
    assert (tmp_path / "file").read_bytes() == b'{"planted-1": 1}\nplanted-1\n'


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    return path


def test_the_cache_and_the_prompt_sets_lie_where_a_user_says(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data_dir() == cache_dir() / "datasets" == weights.parent / "cache/datasets"
    monkeypatch.setenv("SPECREG_DATA", "/elsewhere")
    assert data_dir() == Path("/elsewhere")


def plant(content: str) -> None:
    """Have the sum that is kept be another: it is given only where the file wasn't read."""
    (path,) = (cache_dir() / "sums").iterdir()
    path.write_text(content)


def true_sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_that_stays_as_it_is_is_read_once(weights: Path) -> None:
    assert file_sha256(weights) == true_sum(weights)
    plant(PLANTED)
    link = weights.with_name("link")
    link.symlink_to(weights)
    assert file_sha256(weights) == file_sha256(link) == PLANTED
    plant("torn")
    assert file_sha256(weights) == true_sum(weights)


def in_place(path: Path) -> None:
    """Another content of the same size in the same file."""
    path.write_bytes(b"two")


def by_another_file(path: Path) -> None:
    """Another file of the same size in its place."""
    path.with_name("other").write_bytes(b"two")
    path.with_name("other").replace(path)


@pytest.mark.parametrize("change", [in_place, by_another_file])
def test_a_file_that_was_changed_is_read_anew(
    weights: Path, change: Callable[[Path], None]
) -> None:
    before = weights.stat()
    file_sha256(weights)
    plant(PLANTED)
    time.sleep(0.02)  # a file system's clock ticks each 10 ms at most
    change(weights)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_sha256(weights) == hashlib.sha256(b"two").hexdigest()


def test_a_sum_that_cannot_be_kept_costs_only_time(weights: Path) -> None:
    cache_dir().write_text("in the way")
    assert file_sha256(weights) == true_sum(weights)


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to(path)])
def test_a_cache_that_is_no_folder_is_named_before_it_is_needed(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "file")
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path / "file" / "cache"))
    for use in (check_cache, lambda: cache_folder("gpus")):
        with pytest.raises(SpecregError, match=r"cache '.*/file/cache': can't be written"):
            use()


def test_a_cache_that_is_not_there_is_made_once_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path / "cache"))
    check_cache()
    assert not (tmp_path / "cache").exists()
    assert cache_folder("gpus") == tmp_path / "cache" / "gpus"
    assert (tmp_path / "cache" / "gpus").is_dir()
