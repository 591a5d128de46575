"""What is asked of a gate, a bisect and a soak: the options of their commands, each declared once.

A field that Typer describes is an option or an argument of the command, see `cli.gate`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from specreg.core.redaction import hide


def show_status(text: str) -> None:
    """Say what goes on, without what is secret."""
    typer.echo(hide(text), err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What all three are asked; `show` is told what goes on."""

    tier: Annotated[str | None, typer.Option(help="gpu where there is one, else cpu")] = None
    ready_within_s: Annotated[
        float, typer.Option(help="how long a server may take to start", min=0.01)
    ] = 600.0
    out: Annotated[
        Path | None, typer.Option(help="where all that is written goes; else in .specreg")
    ] = None
    root: Annotated[Path, typer.Option(help="the repository's root")] = Path()
    matrix: Annotated[Path, typer.Option(help="the tiers' folder, from the root")] = Path(
        "fixtures/matrix"
    )
    show: Callable[[str], None] = show_status


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions(ServerOptions):
    """What a gate is asked, and a bisect, which is several."""

    launches: Annotated[int, typer.Option(help="the most of each side; even")] = 16
    prompts: Annotated[int | None, typer.Option(help="how many each case replays", min=1)] = None
    tolerances: Annotated[
        list[str], typer.Option("--tolerance", help="METRIC=FRACTION, a loss that is fine")
    ] = field(default_factory=list)
    least_s: Annotated[
        float,
        typer.Option(
            "--seconds", help="how long a launch is asked, at least, where speed counts", min=0.01
        ),
    ] = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions(LaunchOptions):
    """What a gate is asked; `together` is None for where no GPU has to hold all servers."""

    a: Annotated[
        str, typer.Argument(help="what is there: vllm==0.31.0, a wheel, a git checkout, …")
    ]
    b: Annotated[str, typer.Argument(help="what would take its place")]
    case_ids: Annotated[
        list[str], typer.Option("--case", help="a case to compare; all without any")
    ] = field(default_factory=list)
    a_overrides: Annotated[
        list[str], typer.Option("--a", help="KEY=VALUE, what A's cases have otherwise")
    ] = field(default_factory=list)
    b_overrides: Annotated[list[str], typer.Option("--b", help="the same of B's")] = field(
        default_factory=list
    )
    pin_length_tokens: Annotated[
        float | None,
        typer.Option("--pin", help="also compare the cost of a step, at this acceptance length"),
    ] = None
    minutes: Annotated[
        float | None, typer.Option(help="the most that the launches may take", min=0)
    ] = None
    with_control: Annotated[
        bool, typer.Option("--control/--no-control", help="measure A once more, against itself")
    ] = True
    together: Annotated[
        bool | None,
        typer.Option(
            "--together/--in-turn",
            help="have the servers of all sides up at the same time; without a GPU they are",
        ),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="go on with what lies in --out")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectOptions(LaunchOptions):
    """What a bisect is asked; `out` has a folder for each case, which a search goes on with."""

    case: Annotated[str, typer.Argument(help="the case that became worse")]
    good: Annotated[str, typer.Option(help="the release that was well: vllm==0.29.0")]
    bad: Annotated[str, typer.Option(help="a later one that isn't: vllm==0.32.0")]
    versions: Annotated[str, typer.Option(help="0.30.0,0.31.0,…: search among these alone")] = ""

    @property
    def folder(self) -> Path:
        """Where the gates are."""
        return (self.out or self.root / ".specreg" / "bisect").resolve() / self.case


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions(ServerOptions):
    """What a soak is asked."""

    case: Annotated[str, typer.Argument(help="its id; else the tier's first that speculates")] = ""
    minutes: Annotated[float, typer.Option(help="how long to keep it under load", min=0.1)] = 10.0
    engine: Annotated[
        str, typer.Option(help="vllm==0.31.0, a wheel, a git checkout, an interpreter, …")
    ] = ""
    prompts: Annotated[
        int | None, typer.Option(help="of a block; else four times what is in flight", min=1)
    ] = None
    tolerance: Annotated[
        float | None,
        typer.Option(help="the loss in an hour that is fine, as a fraction; else its own", min=0),
    ] = None
