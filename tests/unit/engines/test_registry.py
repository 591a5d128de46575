"""The engines by name."""

import pytest

from specreg.core.errors import UnknownNameError
from specreg.engines.registry import ENGINES, engine_named


def test_the_engines_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        ENGINES["other"] = ENGINES["vllm"]  # type: ignore[index]


def test_an_unknown_engine_is_answered_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"a\.toml: unknown engine 'vlm'; did you"):
        engine_named("vlm", "a.toml")
