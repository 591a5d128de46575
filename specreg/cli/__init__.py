"""The command `specreg`; each group of its commands is a module, imported when typed."""

import ast
import importlib
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import specreg
from specreg.core.errors import SpecregError
from specreg.core.readable import readable_block
from specreg.core.redaction import learn
from specreg.suite.options import Options

RootOption = Annotated[Path, typer.Option("--root", help="the root of the repository")]
TierOption = Annotated[
    str | None,
    typer.Option("--tier", help="the tier (default: gpu on a machine with a GPU, else cpu)"),
]
HERE = Path()
USUAL = Options()
"""The folders of a repository, unless pytest is told others."""
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
    "ray": "suite",
    "selftest": "cases",
    "baselines": "cases",
    "engines": "cases",
}
"""By command the module that it is in, which is imported once the command is typed."""


class Commands(typer.core.TyperGroup):
    """All commands; in a list of them each is its name and the first line of its docstring."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - Typer's own
        super().__init__(**settings)
        lines = {name: _first_line(name) for name in _COMMANDS}
        self.commands = {name: typer.core.TyperCommand(name, help=lines[name]) for name in lines}

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override] # noqa: ANN401
        """The command that is typed, whose module is imported for it."""
        name, _, rest = super().resolve_command(ctx, args)
        file = importlib.import_module(f"specreg.cli.{_COMMANDS[str(name)]}")
        alone = typer.Typer(add_completion=False)
        alone.command(name)(getattr(file, str(name)))
        return name, typer.main.get_command(alone), rest


def _first_line(name: str) -> str:
    tree = ast.parse(Path(__file__).with_name(f"{_COMMANDS[name]}.py").read_bytes())
    functions = (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name)
    return (ast.get_docstring(next(functions)) or "").partition("\n")[0]


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Baselines of speculative decoding: what is expected, and what was recorded.",
)


@app.callback(invoke_without_command=True)
def _options(
    *, version: Annotated[bool, typer.Option("--version", help="print the version")] = False
) -> None:
    if version:
        typer.echo(f"specreg {specreg.__version__}")
        raise typer.Exit


def say(text: object, *, err: bool = False, styled: bool = False) -> None:
    """Print a text of several lines, whoever wrote it; `styled` where our tables' styles stay."""
    typer.echo(readable_block(str(text), styled=styled), err=err)


def main() -> None:
    """Run the command line; an error of specreg is its message alone, with status 1."""
    try:
        learn({}, sys.argv[1:])
        app()
    except SpecregError as error:
        say(error, err=True)
        raise SystemExit(1) from error
    except Exception:  # noqa: BLE001 - a fault of ours; Python's own traceback hides no secret
        say(traceback.format_exc(), err=True)
        raise SystemExit(1) from None
