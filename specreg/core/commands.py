"""Build the commands that hints tell the user to type, for the launcher in use: nox or pytest.

Hints get their commands from this module, and tests run these commands. Only `specreg init` writes
commands of its own.
"""

import itertools
import os
import re
import shlex
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from specreg.core.files import OWN_REPOSITORY

LAUNCHER = "SPECREG_LAUNCHER"
"""The variable in which a session of nox says how it was started: `nox -s cpu_perf --`."""

LAUNCHER_OPTIONS = "SPECREG_LAUNCHER_OPTIONS"
"""The variable in which a session of nox says which options it gives pytest by itself."""

RUN_THE_SUITE = "pytest tests/perf"
"""How the whole suite is run without a session of nox. With -k, `pytest` alone is enough."""
ATTACH_OPTION = "--specreg-attach"
RECORD_OPTION = "--update-baselines"
_PORTABLE_OPTION = re.compile(
    r"--(?:update-baselines|specreg-(?:oracle|no-wait))"
    r"|--(?:engine|num-prompts|specreg-(?:engine-version|gpu-memory|inconclusive|ready-within-s"
    r"|url-environment"
    # A value with a slash would be a path.
    r"|tier))=[^/\x00-\x1f]+"
    r"|--specreg-(?:attach|control-url|metrics-url)=https?://[^\x00-\x20]+"
)
"""The options that mean the same on any machine. The others name programs or folders of one
particular machine."""
_NUM_PROMPTS_OPTION = "--num-prompts"
"""An option that is left out of commands that record, because a baseline covers all prompts."""


def run_command(
    case_ids: Sequence[str], options: Sequence[str], tier_ids: Collection[str] = ()
) -> str:
    """Return the command that runs exactly these cases of a tier, or the whole tier.

    Options that the launcher gives by itself are left out.

    Args:
        case_ids: the ids of the cases; empty for the whole tier.
        options: the options with which they run.
        tier_ids: the ids of all cases of the tier. If they are given, several cases are named by
            what only their ids have in common, such as `eagle3-`.
    """
    # The dash keeps `…-c1` from also selecting `…-c16`.
    names = [f"{case_id}-".lower() for case_id in case_ids]
    others = [f"{case_id}-".lower() for case_id in tier_ids if case_id not in case_ids]
    shared = ""
    if len(names) > 1 and others:
        shared = _shared_expression(names, others)
    each = " or ".join(f"{case_id}-" for case_id in case_ids)
    return select_command(shared or each, options)


def _shared_expression(names: Sequence[str], others: Sequence[str]) -> str:
    """Return the shortest expression of what these names have in common; empty without one.

    It is a part that no other name has, such as `eagle3-`, or a part without those other names that
    share a second part, such as `c1- and not none-`. pytest takes no account of capitals.
    """
    expressions = []
    for part in _parts_of(names):
        also_selected = [name for name in others if part in name]
        if not also_selected:
            expressions.append(part)
        expressions += [
            f"{part} and not {excluded}"
            for excluded in _parts_of(also_selected)
            if not any(excluded in name for name in names)
        ]

    return min(expressions, key=len, default="")


def _parts_of(names: Sequence[str]) -> Sequence[str]:
    """Return the parts that all names have. A part consists of whole words and ends with a dash.

    No name of a test or of a metric has a dash, so a part selects nothing else.
    """
    words = "".join(names[:1]).removesuffix("-").split("-")
    cuts = itertools.combinations(range(len(words) + 1), 2)
    parts = ["-".join((*words[first:last], "")) for first, last in cuts]
    return [part for part in parts if names and all(part in name for name in names)]


def select_command(expression: str, options: Sequence[str]) -> str:
    """Return the command that runs what an expression of -k selects; the whole tier without one."""
    parts = [os.environ.get(LAUNCHER) or RUN_THE_SUITE]
    if expression:
        program = os.environ.get(LAUNCHER) or "pytest"
        parts = [program, f"-k {_quoted(expression)}"]
    launcher_options = shlex.split(os.environ.get(LAUNCHER_OPTIONS, ""))
    typed_options = [option for option in options if option not in launcher_options]
    if typed_options:
        parts.append(shlex.join(typed_options))

    # nox needs the dashes only before arguments.
    return " ".join(parts).removesuffix(" --")


def _quoted(names: str) -> str:
    """Return an expression of pytest's as one word of the shell, in the quotes that people type."""
    if re.fullmatch(r"[A-Za-z0-9_.-]+( (or|and not) [A-Za-z0-9_.-]+)+", names):
        return f'"{names}"'
    return shlex.quote(names)


def record_command(
    case_ids: Sequence[str], options: Sequence[str], tier_ids: Collection[str] = ()
) -> str:
    """Return the command that records the baselines of these cases; see `run_command`."""
    kept_options = [
        option
        for option in without_recording(options)
        if not option.startswith(_NUM_PROMPTS_OPTION)
    ]
    return run_command(case_ids, (*kept_options, RECORD_OPTION), tier_ids)


def without_recording(options: Sequence[str]) -> tuple[str, ...]:
    """Return the options of a run that compares, if those of a run that records are given."""
    return tuple(option for option in options if option != RECORD_OPTION)


def specreg_command(*arguments: str) -> str:
    """Return a command of specreg, such as `specreg prepare gsm8k`, as the user can type it.

    Under nox, specreg is installed only in the environment of the session, so the command names
    that environment's interpreter.
    """
    if os.environ.get(LAUNCHER):
        return shlex.join((_python(), "-m", "specreg", *arguments))
    return shlex.join(("specreg", *arguments))


def install_command(extra: str) -> str:
    """Return the command that installs an extra into the environment that lacks it."""
    install = "uv pip install"
    if os.environ.get(LAUNCHER):
        install += f" --python {shlex.quote(_python())}"
    if (OWN_REPOSITORY / "pyproject.toml").is_file():
        return f'{install} -e ".[{extra}]"'
    return f'{install} "specreg[{extra}]"'


def portable_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return those options of another machine's run that may be typed on this one.

    A report shows commands with these options, and readers copy the commands. An option that names
    a program or a folder is left out: the files in a folder of tiers, for example, can name
    programs that a run would start. So is the name of a variable, whose value would be sent to a
    server that the report names.
    """
    return tuple(option for option in options if _PORTABLE_OPTION.fullmatch(option))


def is_attached(options: Sequence[str]) -> bool:
    """Return whether the options attach to a server, which is neither launched nor recorded."""
    return any(option.startswith(ATTACH_OPTION) for option in options)


def _python() -> str:
    """Return the path of this interpreter, relative to the current folder if it is below that."""
    current_folder = Path.cwd()
    python = Path(sys.executable)
    if python.is_relative_to(current_folder):
        return str(python.relative_to(current_folder))
    return str(python)
