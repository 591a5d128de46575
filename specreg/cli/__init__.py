"""The command `specreg`. Each group of its commands is a module, imported when one is typed."""

import ast
import contextlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import specreg
from specreg.core.errors import SpecregError
from specreg.core.files import large_file_line
from specreg.core.readable import readable_block, readable_line
from specreg.core.redaction import hide_secrets_of
from specreg.suite.options import Options

RootOption = Annotated[Path, typer.Option("--root", help="the root of the repository")]
TierOption = Annotated[
    str | None,
    typer.Option("--tier", help="the tier (default: gpu on a machine with a GPU, else cpu)"),
]
HERE = Path()
DEFAULT_OPTIONS = Options()
"""The default options of a run. They say where in a repository the commands find its folders."""
FAILED_STATUS = 10
"""The status of a command that couldn't measure or decide. It isn't 1, which says that something is
worse."""
_COMMANDS: Mapping[str, str] = {
    "init": "init",
    "gate": "gate",
    "bisect": "gate",
    "soak": "gate",
    "prepare": "cases",
    "matrix": "cases",
    "doctor": "suite",
    "report": "report",
    "merge": "suite",
    "judge": "suite",
    "ray": "suite",
    "selftest": "cases",
    "baselines": "cases",
    "engines": "cases",
}
"""The module of each command. A module is imported only when one of its commands is typed."""
_VALUES: Mapping[str, str] = {
    "a": "A",
    "b": "B",
    **dict.fromkeys(("good", "bad"), "ENGINE==VERSION"),
    **dict.fromkeys(("a_overrides", "b_overrides"), "KEY=VALUE"),
    **dict.fromkeys(("case", "case_ids"), "CASE"),
    **dict.fromkeys(("launches", "prompts", "seed", "series", "shards"), "N"),
    **dict.fromkeys(("out", "root", "matrix", "folder", "into", "baselines", "history"), "FOLDER"),
    **dict.fromkeys(("least_s", "ready_within_s"), "SECONDS"),
    **dict.fromkeys(("run", "runs", "without"), "RUN"),
    **dict.fromkeys(("tolerance", "tolerances"), "METRIC=SHARE"),
    "address": "HOST:PORT",
    "arguments": "ARGUMENT",
    "engine": "ENGINE",
    "engine_python": "PYTHON",
    "gpu_kind": "KIND",
    "image": "IMAGE",
    "inconclusive": "nights|fail|warn|warn-speed",
    "memory_gib": "GIB",
    "minutes": "MINUTES",
    "name": "NAME",
    "output": "list|schema",
    "pin_length_tokens": "TOKENS",
    "reason": "TEXT",
    "text": "TEXT",
    "tier": "TIER",
    "to": "FORM",
    "tolerance_frac": "SHARE",
    "user_file": "FILE",
    "versions": "VERSION,VERSION",
}
"""What `--help` shows for the value of each parameter. Typer would show its type in Python."""


_USAGE_ERROR: Any = typer.BadParameter.__base__
"""The base class of Typer's errors about wrong arguments. Typer doesn't export it."""


_PURPOSE = """
specreg keeps speculative decoding fast: it starts LLM servers with and without it, replays
prompts, and says whether acceptance, speed and power are as good as the recorded baselines.

The suite itself is run by pytest: `pytest -k eagle3` measures, and `pytest -k eagle3
--update-baselines` records. The commands below do everything else.
"""


class CommandGroup(typer.core.TyperGroup):
    """The commands of specreg, listed by name with the first line of their docstrings."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - Typer's own
        super().__init__(**settings)
        lines = {name: _first_line(name) for name in _COMMANDS}
        self.commands = {
            name: typer.core.TyperCommand(name, short_help=lines[name]) for name in lines
        }

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override] # noqa: ANN401
        """Run the typed command. An error about its arguments quotes them with secrets hidden."""
        try:
            return super().invoke(ctx)
        except _USAGE_ERROR as error:
            error.message = readable_line(error.message)
            raise

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override] # noqa: ANN401
        """Return the typed command, and import its module."""
        name, _, arguments = super().resolve_command(ctx, args)
        module = importlib.import_module(f"specreg.cli.{_COMMANDS[str(name)]}")
        function = getattr(module, str(name))
        single_command = typer.Typer(add_completion=False, rich_markup_mode=None)
        single_command.command(name, help=_help_of(function))(function)
        command = typer.main.get_command(single_command)
        for parameter in command.params:
            parameter.metavar = _VALUES.get(str(parameter.name), parameter.metavar)
            # Typer shows the type of an argument even beside its name.
            if isinstance(parameter, typer.core.TyperArgument):
                vars(parameter)["display_type_rich"] = lambda **_: ""

        return name, command, arguments


def _help_of(function: Callable[..., object]) -> str:
    """Return the docstring of a command. The lines of its examples aren't joined."""
    return (inspect.getdoc(function) or "").replace("Examples:\n", "\b\nExamples:\n")


def _first_line(name: str) -> str:
    """Return the first line of a command's docstring, without importing its module."""
    tree = ast.parse(Path(__file__).with_name(f"{_COMMANDS[name]}.py").read_bytes())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            docstring = ast.get_docstring(node) or ""
            first_line, _, _ = docstring.partition("\n")
            return first_line
    raise LookupError(name)


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Rich's help formatter takes longer to import than everything else that `--help` needs.
    rich_markup_mode=None,
    help=_PURPOSE,
)


@app.callback(invoke_without_command=True)
def _options(
    *, version: Annotated[bool, typer.Option("--version", help="print the version")] = False
) -> None:
    if version:
        typer.echo(f"specreg {specreg.__version__}")
        raise typer.Exit


def say(text: object, *, err: bool = False, styled: bool = False) -> None:
    """Print a text of several lines, with secrets hidden and control characters made harmless.

    Args:
        text: what to print. A server or another machine may have written parts of it.
        err: whether to print to standard error.
        styled: whether the styles of specreg's own tables are kept.
    """
    typer.echo(readable_block(str(text), styled=styled), err=err)


@contextlib.contextmanager
def naming(*paths: Path) -> Iterator[None]:
    """Name the files that a command reads: the large ones now, and all if it meets a bug."""
    for line in filter(None, map(large_file_line, paths)):
        say(line, err=True)
    try:
        yield
    except SpecregError:
        raise
    except Exception as error:
        names = ", ".join(f"'{path}'" for path in paths)
        error.add_note(f"a bug in specreg, met with {names}; report it with this file")
        raise


def main() -> None:
    """Run the command line. An error of specreg shows only its message.

    Errors and bugs end with status 10, because 1 may be a verdict.
    """
    try:
        # The values of options such as tokens are hidden in all output from here on.
        hide_secrets_of({}, sys.argv[1:])
        app()
    except SpecregError as error:
        say(error, err=True)
        raise SystemExit(FAILED_STATUS) from error
    except Exception:  # noqa: BLE001 - a bug in specreg, whatever it is
        # `say` prints the traceback, because Python would print it with secrets.
        say(traceback.format_exc(), err=True)
        raise SystemExit(FAILED_STATUS) from None
