"""A log holds the first and the last that was said, whatever that was, and no secret."""

import functools
import os
from pathlib import Path

import pytest

from specreg.core.bounded_log import BoundedLog
from specreg.core.processes import log_tail
from specreg.core.redaction import hide as hide_text
from specreg.core.redaction import hide_bytes

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


def test_what_has_no_lines_is_kept_too(tmp_path: Path) -> None:
    noise = os.urandom(8 * 2**20).replace(b"\n", b"x").replace(b"\r", b"x")
    log = log_of(tmp_path / "log")
    for at in range(0, len(noise), 2**20):
        log.take(noise[at : at + 2**20])
    log.close()
    content = (tmp_path / "log").read_bytes()
    assert content[:KEPT] == noise[:KEPT]
    assert content[-KEPT:] == noise[-KEPT:]
    assert len(content) < 3 * KEPT + 100


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


MASKED = "pässwörd-secret-ø"
"""A secret with characters of two bytes."""


def hide_masked(content: bytes) -> bytes:
    """As the supervisor hides: known secrets, and passwords in URLs."""
    return hide_bytes(content, functools.partial(hide_text, secrets=[MASKED]))


@pytest.mark.parametrize("kept_bytes", [1000, 8 * 2**20])
@pytest.mark.parametrize("piece_bytes", [2**16 + 1, 2**20, 5 * 2**20])
@pytest.mark.parametrize(
    "secret", [MASKED, f"http://me:{MASKED}@host/", "http://me:another-wörd@host/", MASKED * 9]
)
def test_a_secret_is_never_cut_in_a_line_without_an_end(
    tmp_path: Path, secret: str, piece_bytes: int, kept_bytes: int
) -> None:
    """The line has it everywhere, so also where a piece or a mebibyte ends."""
    unit = secret.encode() + b"." * 61
    content_written = unit * (6 * 2**20 // len(unit))
    path = tmp_path / "log"
    path.write_bytes(b"")
    log = BoundedLog(path, hide_masked, kept_bytes=kept_bytes)
    for first in range(0, len(content_written), piece_bytes):
        log.take(content_written[first : first + piece_bytes])
        log.write()
    log.close()
    written = path.read_bytes()
    assert b"HIDDEN" in written
    for part in (MASKED, "another-wörd"):
        for first in range(len(part.encode()) - 4):
            assert part.encode()[first : first + 5] not in written


def test_a_line_that_can_be_cut_nowhere_is_left_out(tmp_path: Path) -> None:
    def hide_all(content: bytes) -> bytes:
        return b"HIDDEN" if len(content) > 1 else content

    path = tmp_path / "log"
    path.write_bytes(b"")
    log = BoundedLog(path, hide_all, kept_bytes=KEPT)
    for _ in range(20):
        log.take(b"s" * 2**20)
        log.write()
    log.close()
    first, _, end = path.read_bytes().partition(b"\n[specreg: ")
    left_out, _, last = end.partition(b" bytes are left out here]\n")
    assert int(left_out) > 16 * 2**20
    assert first + last == b""
