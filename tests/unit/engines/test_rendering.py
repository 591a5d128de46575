"""Every method renders for every engine that has it."""

import dataclasses
from pathlib import Path

import pytest

from specreg.engines.engine import Engine
from specreg.engines.methods import METHODS, Method
from specreg.engines.registry import ENGINES
from tests.unit import builders


@pytest.mark.parametrize(
    ("method", "engine"),
    [
        pytest.param(method, engine, id=f"{method.name}-{engine.name}")
        for engine in ENGINES.values()
        for method in map(METHODS.__getitem__, engine.methods)
    ],
)
def test_each_method_renders_for_each_engine_that_has_it(method: Method, engine: Engine) -> None:
    options = dataclasses.replace(
        builders.LAUNCH_OPTIONS,
        engine_args=(),
        speculation=engine.methods[method.name].render("/models/draft", 776),
    )
    files = engine.files(options)
    words = " ".join((*engine.command(Path("python"), options), *files.values()))
    assert ("/models/draft" in words) == method.needs_draft
    # As drafted, or with the token that they continue.
    assert ("776" in words or "777" in words) == (method.name != "none")
    assert "{" + "draft" not in words
    assert "{" + "verified" not in words
