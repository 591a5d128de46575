"""Whatever others wrote is shown as plain text, and nothing obeys it."""

import re
import time
from collections.abc import Callable
from xml.etree import ElementTree as ET

import msgspec
import pytest

from specreg.core.errors import SpecregError
from specreg.core.readable import Label, is_plain, readable_block, readable_line

HOSTILE = {
    "a colour": "\x1b[31mred\x1b[0m",
    "the title of a window": "\x1b]0;title\x07",
    "an unfinished sequence": "\x1b]8;;http://host",
    "a device's control string": "\x1bP1$r0m\x1b\\",
    "8-bit control sequences": "\x9b31m \x9d0;title\x9c \x90x\x9c",
    "the whole of C0": "".join(map(chr, range(0x20))),
    "DEL and the whole of C1": "".join(map(chr, range(0x7F, 0xA0))),
    "NUL": "a\0b",
    "a text that is turned around": "\u202atxt\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
    "marks of direction": "\u200e\u200f\u061c",
    "separators of lines": "a\u2028::error::b\u2029::error::c\x85::error::d",
    "invisible characters": "\u200b\ufeff\u2060\U000e0041\u00ad",
    "half a character": "\ud800 \udcff",
    "no characters": "\ufffe\uffff\ufdd0\U0001ffff",
    "a command of GitHub": "::stop-commands::x",
    "one after a line": "a\n::add-mask::b",
    "one after spaces": "a\n \t \u00a0\u3000::error::b",
    "one after a carriage return": "a\r::error file=x::b",
    "one after a colour": "\x1b[1m::error::b",
    "one behind more colons": "::::error::b",
    "one before which a line may be broken": "a long text ::set-output name=x::y",
    "an older command": "##[error]x",
    "one in the middle": "a ##[set-env name=PATH;]x",
    "a command of Azure": "a ##vso[task.setvariable variable=x]y",
    "a command of TeamCity": "##teamcity[buildStop]",
    "a command in pieces": "\x1b[0m:\x1b[0m:error::x #\x1b[0m#[error]",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "show",
    [readable_block, readable_line, lambda text: str(SpecregError(f"server: {text}\n{text}"))],
    ids=["block", "line", "error"],
)
def test_a_text_of_others_is_plain(text: str, show: Callable[[str], str]) -> None:
    for shown in (show(text), show(f"before {text} after"), show(f"{text}\n{text}")):
        assert all(character.isprintable() or character in "\t\n" for character in shown)
        # GitHub trims a line before it looks for a command; of the older one it looks anywhere.
        assert not any(line.strip().startswith("::") for line in re.split(r"[\r\n\s]", shown))
        assert not re.search(r"##\w*\[", shown)
        element = ET.Element("a", {"b": shown})
        element.text = shown
        ET.fromstring(ET.tostring(element))  # noqa: S314 - our own text
        assert readable_block(shown) == shown, "shown once more it stays as it is"
        shown.encode()


def test_a_line_is_one_line_and_bounded() -> None:
    assert readable_line("  a\n\tb\r\nc\u2028d ") == "a b c d"
    assert readable_line("x" * 20, 10) == "xxxxxxxxx…"
    assert "\n" not in readable_line("\n".join(HOSTILE.values()))


@pytest.mark.parametrize("character", ["\x07", "\u202e", "\ufffc", "\ufffd", "\U000e0001"])
def test_a_line_that_was_made_readable_is_accepted_as_a_name(character: str) -> None:
    """Otherwise a driver whose GPU has an odd name could be read, and its record could not."""
    line = readable_line(f"a{character}b")
    assert is_plain(line)
    assert msgspec.json.decode(msgspec.json.encode(line), type=Label) == line


def test_ordinary_text_stays_as_it_is() -> None:
    text = "a::b c::d() http://[::1]:80 ## heading\n\tdéjà vu, 日本語, 🙂 …\n\n#[x] x[1]\n"
    assert readable_block(text) == text


def test_our_own_styles_stay_on_a_terminal_and_no_others() -> None:
    text = "\x1b[1mcase\x1b[0m \x1b[1;31mWRONG\x1b[0m \x1b[2J\x1b[8mx\n\x1b[32m::error::x\x1b[0m"
    shown = "\x1b[1mcase\x1b[0m \x1b[1;31mWRONG\x1b[0m x\n\x1b[32m: :error::x\x1b[0m"
    assert readable_block(text, styled=True) == shown


def test_a_secret_is_hidden_before_a_line_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "planted-secret")
    assert readable_line(f"{'x' * 10} planted-secret", 20) == f"{'x' * 10} HIDDEN"
    middle = f"{'x' * 46} planted-secret {'y' * 100}"
    assert "plan" not in readable_block(middle, line_characters=100)


def test_a_secret_is_hidden_though_colours_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As programs print that colour digits and words differently."""
    monkeypatch.setenv("MY_TOKEN", "planted-1234")
    assert readable_block("a \x1b[32mplanted\x1b[0m-\x1b[36m1234\x1b[0m b") == "a HIDDEN b"


PIECES = ("\x9d", "\x1b]", "\x1b[0", "://a:", "?a=", "::", "##", "bearer ", "authorization:", "a=")


@pytest.mark.parametrize("piece", PIECES)
def test_a_text_that_is_longer_takes_as_much_longer(piece: str) -> None:
    """A server may send megabytes of what our expressions look for."""
    seconds = []
    for characters in (20_000, 160_000):
        began_s = time.thread_time()
        readable_block(piece * (characters // len(piece)))
        seconds.append(time.thread_time() - began_s)
    # Where the time were that of the square it would be 64 times as much.
    assert seconds[1] < 24 * max(seconds[0], 0.001)
