"""What an error says: the subject, what is known, and what to do."""

from pathlib import Path

import pytest

from specreg.core.errors import HungError, ServerStartError, UnknownNameError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            UnknownNameError("method", "eagle", iter(["none", "eagle3"]), where="cpu.toml"),
            "cpu.toml: unknown method 'eagle'; did you mean 'eagle3'? known: eagle3, none",
        ),
        (UnknownNameError("engine", "xyz", ["vllm"]), "unknown engine 'xyz'; known: vllm"),
        (UnknownNameError("tier", "cpu", []), "unknown tier 'cpu'; known: none"),
        (
            ServerStartError("server 's'", "out of memory", "free some", Path("a.log"), "boom"),
            "SERVER_NOT_STARTED: server 's': out of memory; free some\nlast lines of a.log:\nboom",
        ),
        (HungError(60.0), "HUNG: no token came for 60 s; look at the server's log"),
    ],
    ids=["nearly-right", "like-no-other", "nothing-known", "failed-start", "invalid"],
)
def test_an_error_says_what_is_wrong_and_what_to_do(error: Exception, text: str) -> None:
    assert str(error) == text


def test_a_line_is_bounded_and_still_ends_with_what_to_do() -> None:
    """A name may be whatever a file holds, and as long."""
    message = str(UnknownNameError("engine", "x" * 100_000, ["vllm"], where="cpu.toml"))
    assert len(message) < 5_000
    assert message.startswith("cpu.toml: unknown engine 'xxx")
    assert message.endswith("xxx'; known: vllm")
