"""The options of gate, bisect and soak, each declared once.

A field that Typer describes is an option or an argument of the command, see `cli.gate`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from specreg.core.redaction import hide

TOLERANCE = "--tolerance"


def show_status(text: str) -> None:
    """Print what goes on, without secrets."""
    typer.echo(hide(text), err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of all three; `show` is told what goes on."""

    tier: Annotated[str | None, Option(help="gpu where there is one, else cpu")] = None
    ready_within_s: Annotated[float, Option(help="how long a start may take", min=0.01)] = 600.0
    out: Annotated[Path | None, Option(help="where all is written; else in .specreg")] = None
    root: Annotated[Path, Option(help="the repository's root")] = Path()
    matrix: Annotated[Path, Option(help="the tiers' folder, from the root")] = Path(
        "fixtures/matrix"
    )
    show: Callable[[str], None] = show_status

    def folder_in(self, kind: str) -> Path:
        """Return the folder to write to: `--out`, else one that is named by the time."""
        named = self.root / ".specreg" / kind / time.strftime("%Y-%m-%dT%H-%M-%S")
        return (self.out or named).resolve()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOptions(ServerOptions):
    """The options of a gate, and of a bisect, which is several."""

    launches: Annotated[int, Option(help="the most of each side", min=1)] = 16
    prompts: Annotated[int | None, Option(help="how many each case replays", min=1)] = None
    tolerances: Annotated[
        list[str], Option(TOLERANCE, help="METRIC=FRACTION, a loss that is fine")
    ] = field(default_factory=list)
    least_s: Annotated[
        float, Option("--seconds", help="of a launch, at least, where speed counts", min=0.01)
    ] = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions(ComparisonOptions):
    """The options of a gate; `together` is None where no GPU has to hold all servers."""

    a: Annotated[str, Argument(help="what is there: vllm==0.31.0, a wheel, a git checkout, …")]
    b: Annotated[str, Argument(help="what would take its place")]
    case_ids: Annotated[list[str], Option("--case", help="to compare; all without any")] = field(
        default_factory=list
    )
    a_overrides: Annotated[
        list[str], Option("--a", help="KEY=VALUE, what A's cases have otherwise")
    ] = field(default_factory=list)
    b_overrides: Annotated[list[str], Option("--b", help="the same of B's")] = field(
        default_factory=list
    )
    pin_length_tokens: Annotated[
        float | None, Option("--pin", help="also compare the cost of a step, at this AL")
    ] = None
    minutes: Annotated[
        float | None, Option(help="of all launches, at most; 20 without a GPU", min=0)
    ] = None
    together: Annotated[
        bool | None, Option("--together/--in-turn", help="how servers are up; side by side on CPUs")
    ] = None
    resume: Annotated[bool, Option("--resume", help="go on with what lies in --out")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectOptions(ComparisonOptions):
    """The options of a bisect; `out` has a folder for each case, which a search goes on with."""

    case: Annotated[str, Argument(help="the case that became worse")]
    good: Annotated[str, Option(help="the release that was well: vllm==0.29.0")]
    bad: Annotated[str, Option(help="a later one that isn't: vllm==0.32.0")]
    versions: Annotated[str, Option(help="0.30.0,0.31.0,…: search among these alone")] = ""

    @property
    def folder(self) -> Path:
        """The folder of the gates."""
        return (self.out or self.root / ".specreg" / "bisect").resolve() / self.case


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions(ServerOptions):
    """The options of a soak."""

    case: Annotated[str, Argument(help="its id; else the tier's first that speculates")] = ""
    minutes: Annotated[float, Option(help="how long to keep it under load", min=0.1)] = 10.0
    engine: Annotated[str, Option(help="vllm==0.31.0, a wheel, a git checkout, …")] = ""
    prompts: Annotated[
        int | None, Option(help="of a block; else four times what is in flight", min=1)
    ] = None
    tolerance_frac: Annotated[
        float | None,
        Option(TOLERANCE, help="the loss in an hour that is fine, 0..1; else its own", min=0),
    ] = None
