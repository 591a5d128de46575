"""What an error says: the subject, what is known, and what to do."""

import inspect
from pathlib import Path

import pytest

from specreg.core import errors
from specreg.core.errors import (
    InvalidMeasurementError,
    ServerStartError,
    SpecregError,
    UnknownNameError,
)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            UnknownNameError("method", "eagle", ["none", "eagle3"], where="cpu.toml"),
            "cpu.toml: unknown method 'eagle'; did you mean 'eagle3'? known: eagle3, none",
        ),
        (UnknownNameError("engine", "xyz", ["vllm"]), "unknown engine 'xyz'; known: vllm"),
        (UnknownNameError("tier", "cpu", []), "unknown tier 'cpu'; known: none"),
    ],
    ids=["nearly-right", "like-no-other", "nothing-known"],
)
def test_a_name_that_is_unknown_is_answered_with_those_that_are(
    error: UnknownNameError, text: str
) -> None:
    assert str(error) == text


def test_an_unknown_name_has_its_facts_as_attributes() -> None:
    error = UnknownNameError("engine", "vlm", iter(["vllm", "sglang"]))
    assert (error.kind, error.name, error.known) == ("engine", "vlm", ("sglang", "vllm"))


def test_a_line_is_bounded_and_still_ends_with_what_to_do() -> None:
    """A name may be whatever somebody wrote, and as long."""
    error = UnknownNameError("engine", "x" * 100_000, ["vllm"], where="cpu.toml")
    assert len(str(error)) < 5_000
    assert str(error).startswith("cpu.toml: unknown engine 'xxx")
    assert str(error).endswith("xxx'; known: vllm")
    assert error.name == "x" * 100_000


def test_a_failed_start_ends_with_its_log() -> None:
    error = ServerStartError("server 's'", "out of memory", "free some", Path("a.log"), "boom")
    assert str(error) == "server 's': out of memory; free some\nlast lines of a.log:\nboom"
    assert (error.failure, error.log_path, error.log_tail) == (
        "out of memory",
        Path("a.log"),
        "boom",
    )


def test_an_invalid_measurement_begins_with_its_reason() -> None:
    error = InvalidMeasurementError("SPEC_DISABLED", "nothing was drafted")
    assert str(error) == "SPEC_DISABLED: nothing was drafted"
    assert error.reason == "SPEC_DISABLED"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(found, id=name)
        for name, found in inspect.getmembers(errors, inspect.isclass)
        if found.__module__ == errors.__name__
    ],
)
def test_each_error_is_in_the_tree_and_in_its_drawing(kind: type[Exception]) -> None:
    assert issubclass(kind, SpecregError)
    assert kind.__name__ in (errors.__doc__ or "")
