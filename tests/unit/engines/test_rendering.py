"""Every method renders for every engine that its row names, and no engine names a method."""

import dataclasses
import itertools
from pathlib import Path

import pytest

from specreg.engines.engine import Engine
from specreg.engines.methods import METHODS, Method
from specreg.engines.registry import ENGINES
from tests.unit import builders

ENGINE_FILES = tuple((builders.ROOT / f"specreg/engines/{name}.py") for name in ENGINES)


@pytest.mark.parametrize(
    ("method", "engine"),
    [
        pytest.param(method, engine, id=f"{method.name}-{engine.name}")
        for method in METHODS.values()
        for engine in ENGINES.values()
        if engine.spelling in method.spelling
    ],
)
def test_each_method_renders_for_each_engine_that_has_it(method: Method, engine: Engine) -> None:
    options = dataclasses.replace(
        builders.LAUNCH_OPTIONS,
        engine_args=(),
        speculation=method.settings(engine.spelling, "/models/draft", 776),
    )
    files = engine.files(options)
    words = " ".join((*engine.command(Path("python"), options), *files.values()))
    assert ("/models/draft" in words) == method.needs_draft
    # As drafted, or with the token that they continue.
    assert ("776" in words or "777" in words) == (method.name != "none")
    assert "{" + "draft" not in words
    assert "{" + "verified" not in words


def test_no_engine_names_a_method() -> None:
    """Which engine supports what is data of the methods' rows."""
    names = set(METHODS) - {"none"}
    for path, name in itertools.product(ENGINE_FILES, names):
        assert f'"{name}"' not in path.read_text(), path
