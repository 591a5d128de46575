"""Declare the options of a run to pytest, and read them from it."""

import dataclasses
import difflib
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from specreg.suite.options import Options, flag_of

GROUP = "specreg"


def add_options(parser: pytest.Parser, typed: Sequence[str]) -> None:
    """Declare every option to pytest, which says what may be meant where it takes none of them."""
    fields = dataclasses.fields(Options)
    flags = [*map(flag_of, fields)]
    names = [one.partition("=")[0] for one in typed if one.startswith("--")]
    close = [difflib.get_close_matches(one, flags, n=1) for one in names if one not in flags]
    if any(close):
        parser.extra_info["did you mean"] = ", ".join(one[0] for one in close if one)
    group = parser.getgroup(GROUP, "specreg: performance regressions of speculative decoding")
    for field in fields:
        group.addoption(flag_of(field), dest=_dest(field.name), **field.metadata["argparse"])


def read_options(config: pytest.Config) -> Options:
    """The options as given."""
    getoption = cast("Callable[[str], Any]", config.getoption)
    return Options(**{f.name: getoption(_dest(f.name)) for f in dataclasses.fields(Options)})


def _dest(name: str) -> str:
    return f"{GROUP}_{name}"
