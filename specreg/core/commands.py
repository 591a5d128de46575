"""Build the commands that a user is told to type, in the launcher in use: nox, or pytest.

Every hint that names a command has it from here, so that it works as printed.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from specreg.core.files import OWN_REPOSITORY

LAUNCHER = "SPECREG_LAUNCHER"
"""The variable in which a session of nox says how it was started: `nox -s cpu_perf --`."""

LAUNCHER_OPTIONS = "SPECREG_LAUNCHER_OPTIONS"
"""The variable in which a session of nox says which options it gives pytest by itself."""

RUN_THE_SUITE = "pytest tests/perf"
"""How the suite is run without a session of nox."""
ATTACH_OPTION = "--specreg-attach"
_OWN_OPTION = re.compile(
    r"--(?:specreg-[a-z-]+|engine|num-prompts|reason|update-baselines)(?:=[^\x00-\x1f]*)?"
)
_FEWER = "--num-prompts"
"""An option that no recording takes: a baseline is of all prompts."""


def run_command(case_ids: Sequence[str], options: Sequence[str]) -> str:
    """Return the command that runs exactly these cases of a tier, or all of it.

    A dash behind each keeps `…-c1` from meaning `…-c16` too. The options that the launcher gives by
    itself are left out.

    Args:
        case_ids: the cases; none for all of the tier.
        options: how they run.
    """
    names = " or ".join(f"{case_id}-" for case_id in case_ids)
    chosen = [f"-k {_quoted(names)}"] if case_ids else []
    launcher = os.environ.get(LAUNCHER) or RUN_THE_SUITE
    launcher_options = shlex.split(os.environ.get(LAUNCHER_OPTIONS, ""))
    typed = [option for option in options if option not in launcher_options]
    command = " ".join(filter(None, (launcher, *chosen, shlex.join(typed))))
    return command.removesuffix(" --")


def _quoted(names: str) -> str:
    """An expression of pytest's as one word of the shell, in the quotes that people type."""
    plain = re.fullmatch(r"[A-Za-z0-9_.-]+( or [A-Za-z0-9_.-]+)+", names)
    return f'"{names}"' if plain else shlex.quote(names)


def record_command(case_ids: Sequence[str], options: Sequence[str]) -> str:
    """Return the command that records these cases' baselines, or all of the tier."""
    kept_options = [option for option in options if not option.startswith(_FEWER)]
    return run_command(case_ids, (*kept_options, "--update-baselines"))


def specreg_command(*arguments: str) -> str:
    """One of specreg's commands; a session of nox has it in its own environment alone."""
    program = (_python(), "-m", "specreg") if os.environ.get(LAUNCHER) else ("specreg",)
    return shlex.join((*program, *arguments))


def install_command(extra: str) -> str:
    """Return the command that installs an extra into the environment that lacks it."""
    where = f" --python {shlex.quote(_python())}" if os.environ.get(LAUNCHER) else ""
    requirement = '-e ".' if (OWN_REPOSITORY / "pyproject.toml").is_file() else '"specreg'
    return f'uv pip install{where} {requirement}[{extra}]"'


def is_own_command(text: str) -> bool:
    """Return whether a line to be typed runs the suite or specreg, and nothing else.

    A document of another machine shows such lines, and a reader copies them. So nothing in them may
    be the shell's (a substitution, a pipe, a second command), and pytest may be given no option of
    its own but `-k`, because others name programs and files that it runs.
    """
    unquoted = re.sub(r"'[^'\x00-\x1f]*'", "", text)
    if not re.fullmatch(r'[A-Za-z0-9_@%+=:,./~ "-]*', unquoted):
        return False
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    if words[:1] == ["specreg"] or words[1:3] == ["-m", "specreg"]:
        return True
    if words[:2] == ["nox", "-s"] and words[3:4] in ([], ["--"]):
        words = words[4:]
    elif words[:2] == ["pytest", "tests/perf"]:
        words = words[2:]
    else:
        return False
    if words[:1] == ["-k"]:
        words = words[2:]
    return all(map(is_own_option, words))


def is_own_option(text: str) -> bool:
    """Return whether an argument of pytest is an option of the suite, with its value if any."""
    return _OWN_OPTION.fullmatch(text) is not None


def is_attached(options: Sequence[str]) -> bool:
    """Whether the server is one that is neither launched nor recorded here."""
    return any(option.startswith(ATTACH_OPTION) for option in options)


def _python() -> str:
    """This interpreter, as seen from the folder that the user is in."""
    here = Path.cwd()
    python = Path(sys.executable)
    return str(python.relative_to(here)) if python.is_relative_to(here) else str(python)
