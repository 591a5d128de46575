"""Declare the options of `specreg.suite.options` to pytest, and read what the user gave."""

import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn, cast

import pytest

from specreg.core.commands import install_command
from specreg.core.readable import readable_block, readable_line
from specreg.core.redaction import hide_secrets_of
from specreg.suite.options import Options, flag_of, hints_of


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare each option, and prepare hints for mistyped ones."""
    config = pluginmanager.get_plugin("pytestconfig")
    arguments: Sequence[str] = ()
    if config is not None:
        arguments = [str(argument) for argument in config.invocation_params.args]

    # pytest prints this extra information below the error about an argument that it doesn't know.
    parser.extra_info.update(hints_of(arguments))
    _hide_secrets_in_errors(parser, arguments)
    group = parser.getgroup("specreg", "specreg: performance regressions of speculative decoding")
    for option in dataclasses.fields(Options):
        destination = f"specreg_{option.name}"
        group.addoption(flag_of(option), dest=destination, **option.metadata["argparse"])
    wants_benchmarks = any(argument.startswith("--benchmark-") for argument in arguments)
    if wants_benchmarks and not pluginmanager.hasplugin("benchmark"):
        parser.extra_info["pytest-benchmark isn't installed"] = install_command("benchmark")


def _hide_secrets_in_errors(parser: pytest.Parser, arguments: Sequence[str]) -> None:
    """Hide secrets in pytest's error about an argument that it doesn't know.

    The error quotes the argument, which may be `--specreg-atach=http://user:password@host`. pytest
    ends without calling any hook, so the parser's own method is replaced.
    """
    hide_secrets_of({}, arguments)
    refuse = parser.optparser.error

    def refuse_readably(message: str) -> NoReturn:
        refuse(readable_line(message))

    parser.optparser.error = refuse_readably  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main() -> Generator[None, int | pytest.ExitCode | None, Any]:
    """Hide secrets in pytest's usage errors that come after it has read the options."""
    try:
        return (yield)
    except pytest.UsageError as error:
        error.args = tuple(readable_block(str(part)) for part in error.args)
        raise


def read_options(config: pytest.Config) -> Options:
    """Return the values of specreg's options, the defaults included."""
    getoption = cast("Callable[[str], Any]", config.getoption)
    names = [option.name for option in dataclasses.fields(Options)]
    return Options(**{name: getoption(f"specreg_{name}") for name in names})
