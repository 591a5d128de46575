"""Declare the options of a run to pytest, and read them from it."""

import dataclasses
import difflib
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from specreg.suite.options import Options, flag_of

GROUP = "specreg"
_ATTACH = "start the server yourself, and measure it with --specreg-attach=URL"
GONE = {
    "--specreg-verbose": "report.html and report.json of the run have all percentiles",
    "--specreg-budget-gpu-min": "--num-prompts=N replays N prompts of each case, and"
    " --specreg-shard=I/N cuts the run; specreg matrix says how long it takes",
    "--specreg-workers": "pytest -n auto measures on all GPUs of this machine",
    "--specreg-ray": "specreg ray --address auto runs the shards on a cluster",
    "--specreg-slurm": "an array of jobs with --specreg-shard=I/N, then specreg merge",
    "--specreg-nodes": _ATTACH,
    "--specreg-node-command": _ATTACH,
}
"""Options of earlier versions, and what to use instead."""


def add_options(parser: pytest.Parser, typed: Sequence[str]) -> None:
    """Declare every option to pytest, and what may be meant by what was typed and is none."""
    fields = dataclasses.fields(Options)
    flags = [*map(flag_of, fields)]
    names = [one.partition("=")[0] for one in typed if one.startswith("--")]
    unknown = [one for one in names if one not in flags and one not in GONE]
    close = [difflib.get_close_matches(one, flags, n=1) for one in unknown]
    if any(close):
        parser.extra_info["did you mean"] = ", ".join(one[0] for one in close if one)
    parser.extra_info.update({one: f"is gone; {GONE[one]}" for one in names if one in GONE})
    group = parser.getgroup(GROUP, "specreg: performance regressions of speculative decoding")
    for field in fields:
        dest = f"{GROUP}_{field.name}"
        group.addoption(flag_of(field), dest=dest, **field.metadata["argparse"])


def read_options(config: pytest.Config) -> Options:
    """The options as given."""
    getoption = cast("Callable[[str], Any]", config.getoption)
    names = (field.name for field in dataclasses.fields(Options))
    return Options(**{name: getoption(f"{GROUP}_{name}") for name in names})
