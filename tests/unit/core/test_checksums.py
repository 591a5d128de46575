"""Sums: a file that stays as it is is read once, one that doesn't is read anew."""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from specreg.core.files import file_sha256

PLANTED = "ab" * 32


def later() -> int:
    """A moment after the last change of any file, in nanoseconds since the epoch."""
    return time.time_ns() + 10**10


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where sums are kept."""
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A file."""
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    return path


def plant(cache: Path) -> None:
    """Has the sum that is kept be another: whoever says that hasn't read the file."""
    (path,) = cache.glob("sums/*")
    kept = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**kept, "sha256": PLANTED}))


def true_sum(path: Path) -> str:
    """What it should be."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_is_read_once(cache: Path, weights: Path) -> None:
    assert file_sha256(weights, later) == true_sum(weights)
    plant(cache)
    assert file_sha256(weights, later) == PLANTED
    link = weights.with_name("link")
    link.symlink_to(weights)
    assert file_sha256(link, later) == PLANTED


def in_place(path: Path) -> None:
    """Another content of the same size, in the same file and of the same time."""
    before = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def by_another_file(path: Path) -> None:
    """Another file of the same size and time in its place."""
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(b"two")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [in_place, by_another_file])
def test_a_file_that_was_changed_is_read_anew(
    cache: Path, weights: Path, change: Callable[[Path], None]
) -> None:
    file_sha256(weights, later)
    plant(cache)
    time.sleep(0.02)  # a file system's clock ticks each 10 ms at most
    change(weights)
    assert file_sha256(weights, later) == true_sum(weights) == hashlib.sha256(b"two").hexdigest()


def test_what_has_just_been_written_is_not_kept(cache: Path, weights: Path) -> None:
    """A second change within the same tick of the clock would look like none."""
    file_sha256(weights, lambda: weights.stat().st_ctime_ns + 10**9)
    assert not (cache / "sums").exists()


@pytest.mark.parametrize("torn", [b"", b'{"stamp":', b"[]", b"{}"])
def test_what_was_kept_and_means_nothing_is_written_anew(
    cache: Path, weights: Path, torn: bytes
) -> None:
    file_sha256(weights, later)
    (path,) = cache.glob("sums/*")
    path.write_bytes(torn)
    assert file_sha256(weights, later) == true_sum(weights)
    plant(cache)
    assert file_sha256(weights, later) == PLANTED


def test_a_cache_that_cannot_be_written_costs_only_time(cache: Path, weights: Path) -> None:
    cache.write_text("in the way")
    assert file_sha256(weights, later) == true_sum(weights)
