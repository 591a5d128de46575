"""A log holds the first and the last that was said, whatever that was, and no secret."""

import os
from pathlib import Path

import pytest

from specreg.core.bounded_log import KEPT_BYTES, LONG_LINE_BYTES, BoundedLog
from specreg.core.processes import log_tail

KEPT = 1000


def hide(content: bytes) -> bytes:
    return content.replace(b"secret", b"HIDDEN")


def log_of(path: Path, *pieces: bytes) -> BoundedLog:
    path.write_bytes(b"")
    log = BoundedLog(path, hide, kept_bytes=KEPT)
    for piece in pieces:
        log.take(piece)
    return log


def lines(first: int, last: int) -> bytes:
    return b"".join(b"line %06d\n" % number for number in range(first, last))


@pytest.mark.parametrize("settles", [False, True], ids=["in-a-flood", "piece-by-piece"])
@pytest.mark.parametrize("count", [60, 300, 30_000])
def test_a_long_log_is_its_beginning_and_its_end(
    tmp_path: Path, count: int, *, settles: bool
) -> None:
    """Each line is 12 bytes long."""
    log = log_of(tmp_path / "log")
    for number in range(0, count, 10):
        log.take(lines(number, number + 10))
        if settles:
            log.write()
    log.close()
    content = (tmp_path / "log").read_bytes()
    content_written = lines(0, count)
    assert content[:KEPT] == content_written[:KEPT]
    assert content[-KEPT:] == content_written[-KEPT:]
    assert len(content) < 3 * KEPT + 100
    if content != content_written:
        first, _, end = content.partition(b"\n[specreg: ")
        left_out, _, last = end.partition(b" bytes are left out here]\n")
        assert len(first) + int(left_out) + len(last) == len(content_written)


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "never-ends"])
@pytest.mark.parametrize("piece_bytes", [2**16 + 1, 2**20])
@pytest.mark.parametrize("kept_bytes", [KEPT, KEPT_BYTES])
def test_a_long_line_without_an_end_is_left_out_with_a_remark(
    tmp_path: Path, kept_bytes: int, piece_bytes: int, *, ends: bool
) -> None:
    """A cut could divide a secret, and the line has one everywhere."""
    line = b"a secret, " * 2**20
    path = tmp_path / "log"
    path.write_bytes(b"")
    log = BoundedLog(path, hide, kept_bytes=kept_bytes)
    log.take(b"before\n")
    for first in range(0, len(line), piece_bytes):
        log.take(line[first : first + piece_bytes])
        log.write(unfinished=True)
        assert path.stat().st_size <= LONG_LINE_BYTES + 1000
    if ends:
        log.take(b"\nafter\n")
    log.close()
    remark = f"[specreg: {len(line)} bytes of a long line are left out here]"
    lines_after = ["after"] if ends else []
    assert path.read_text().splitlines() == ["before", remark, *lines_after]


def test_a_secret_is_hidden_though_it_comes_in_pieces(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log", b"a sec")
    log.write()
    assert (tmp_path / "log").read_bytes() == b""
    log.write(unfinished=True)
    assert (tmp_path / "log").read_bytes() == b"a sec"
    log.take(b"ret\nand on")
    log.write()
    assert (tmp_path / "log").read_bytes() == b"a HIDDEN\n"
    log.take(b" a secret")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"a HIDDEN\nand on a HIDDEN"


def test_what_a_full_disk_refuses_is_written_once_there_is_room(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log", lines(0, 10))
    log.write()
    file = log._file  # noqa: SLF001 - a disk can't be filled for one file
    with Path("/dev/full").open("r+b", buffering=0) as full:
        log._file = full  # noqa: SLF001 - the same
        log.take(lines(10, 20))
        log.write()
    log._file = file  # noqa: SLF001 - the same
    log.take(lines(20, 30))
    log.close()
    assert (tmp_path / "log").read_bytes() == lines(0, 30)


def test_the_tail_of_a_long_log_is_its_last_forty_lines(tmp_path: Path) -> None:
    log_path = tmp_path / "log"
    log_path.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert log_tail(log_path).splitlines() == [f"line {n}" for n in range(99_960, 100_000)]


def test_the_tail_of_a_log_is_printable_and_bounded(tmp_path: Path) -> None:
    log_path = tmp_path / "log"
    log_path.write_bytes(b"\xff\xfe\x00\x07\n\x1b[31mred\x1b[0m\tlast\n")
    assert log_tail(log_path) == "\ufffd\ufffd\ufffd\ufffd\nred\tlast"
    log_path.write_bytes(b"")
    assert log_tail(log_path) == ""
    log_path.write_bytes(os.urandom(10**6).replace(b"\n", b" "))
    tail = log_tail(log_path)
    assert len(tail) <= 40 * 1001 + 39
    assert all(character.isprintable() or character in "\t\n" for character in tail)
