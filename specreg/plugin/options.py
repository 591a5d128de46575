"""The command line: declares the options of `specreg.suite.options`, and reads them back."""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import pytest

from specreg.core.commands import install_command
from specreg.suite.options import Options, flag_of, hints_of


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare each option, and prepare hints for mistyped ones."""
    config = pluginmanager.get_plugin("pytestconfig")
    arguments = tuple(map(str, config.invocation_params.args)) if config else ()
    parser.extra_info.update(hints_of(arguments))
    group = parser.getgroup("specreg", "specreg: performance regressions of speculative decoding")
    for option in dataclasses.fields(Options):
        destination = f"specreg_{option.name}"
        group.addoption(flag_of(option), dest=destination, **option.metadata["argparse"])
    wants_benchmarks = any(argument.startswith("--benchmark-") for argument in arguments)
    if wants_benchmarks and not pluginmanager.hasplugin("benchmark"):
        parser.extra_info["pytest-benchmark isn't installed"] = install_command("benchmark")


def read_options(config: pytest.Config) -> Options:
    """Return the options as the user gave them."""
    getoption = cast("Callable[[str], Any]", config.getoption)
    names = [option.name for option in dataclasses.fields(Options)]
    return Options(**{name: getoption(f"specreg_{name}") for name in names})
