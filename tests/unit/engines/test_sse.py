"""Events come out whole, however the network cut the bytes."""

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specreg.core.errors import InvalidMeasurementError
from specreg.core.http import MOST_BYTES
from specreg.engines.wire_format import DONE, EventSplitter

EVENTS = (b'{"text": "one"}', '{"text": "zwölf €"}'.encode(), DONE)
STREAM = b"".join(b"data: " + event + b"\n\n" for event in EVENTS)


def fed(*pieces: bytes) -> list[bytes]:
    """The events of the pieces, in order."""
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


@settings(deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cutting_gives_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert fed(*(STREAM[a:b] for a, b in itertools.pairwise(edges))) == list(EVENTS)


@settings(deadline=None)
@given(st.lists(st.from_regex(rb"\{[ -z\x80-\xff]*\}", fullmatch=True)), st.integers(1, 9))
def test_any_events_come_back(events: list[bytes], size: int) -> None:
    stream = b"".join(b"data: " + event + b"\n\n" for event in events)
    assert fed(*(stream[at : at + size] for at in range(0, len(stream), size))) == events


def test_an_event_comes_as_soon_as_its_line_ends() -> None:
    splitter = EventSplitter()
    assert list(splitter.feed(b"data: a")) == []
    assert list(splitter.feed(b"b\n")) == [b"ab"]


def test_lines_may_end_as_on_windows_and_lack_the_space() -> None:
    assert fed(b"data:one\r\n\r\ndata: two\r\n\r\n") == [b"one", b"two"]


def test_comments_and_other_fields_are_skipped() -> None:
    assert fed(b": ping\nevent: x\nid: 1\ndata: one\n\n") == [b"one"]


def test_a_last_line_that_never_ended_is_no_event() -> None:
    assert fed(b"data: one\n\ndata: tw") == [b"one"]


def test_what_has_no_end_is_given_up() -> None:
    splitter = EventSplitter()
    begun = time.monotonic()
    for _ in range(MOST_BYTES // 1_024):
        assert list(splitter.feed(b"x" * 1_024)) == []
    with pytest.raises(InvalidMeasurementError, match=r"^EVENT_UNREADABLE: after 16777216 bytes"):
        list(splitter.feed(b"x"))
    assert time.monotonic() - begun < 5, "each piece is touched once"
