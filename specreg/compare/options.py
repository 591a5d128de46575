"""The options of gate, bisect and soak, each declared once.

A field with a Typer annotation is an option or an argument of the command; see `cli.gate`.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from typer import Argument, Option

from specreg.core.errors import UnsupportedError, check_name
from specreg.core.files import UNREADABLE, real_path
from specreg.core.readable import readable_block
from specreg.measurement.metrics import Metric

TOLERANCE = "--tolerance"
_Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]
MAX_GATE_LAUNCHES = 1000
"""The most launches of each side of a gate."""
MOST_WORTH_ASKING = 64
"""No hint asks for more launches of each side, because nobody would wait for them."""


def show_status(text: str) -> None:
    """Print a line about the progress of a command."""
    typer.echo(readable_block(text), err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options that gate, bisect and soak share.

    Attributes:
        show: prints a line about the progress. It isn't an option of the command.
    """

    tier: Annotated[
        str | None, Option(help="the tier (default: gpu on a machine with a GPU, else cpu)")
    ] = None
    ready_within_s: Annotated[
        float,
        Option(help="how many seconds a server may take to its first token", min=0.01, max=1e5),
    ] = 600.0
    out: Annotated[
        Path | None, Option(help="the folder to write to (default: one in .specreg)")
    ] = None
    root: Annotated[Path, Option(help="the repository's root")] = Path()
    matrix: Annotated[Path, Option(help="the folder of the tiers, relative to the root")] = Path(
        "fixtures/matrix"
    )
    show: Callable[[str], None] = show_status

    def folder_in(self, kind: str) -> Path:
        """Return the folder to write to: `--out`, or a new one whose name is the time."""
        new_folder = self.root / ".specreg" / kind / time.strftime("%Y-%m-%dT%H-%M-%S")
        return real_path(self.out or new_folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOptions(ServerOptions):
    """The options that a gate shares with a bisect, which is a sequence of gates."""

    launches: Annotated[
        int,
        Option(
            help="the most launches of each side; fewer than 4 can't decide a speed",
            min=1,
            max=MAX_GATE_LAUNCHES,
        ),
    ] = 16
    prompts: Annotated[
        int | None, Option(help="how many prompts each case replays", min=1, max=1_000_000)
    ] = None
    tolerances: Annotated[
        list[str],
        Option(TOLERANCE, help="the tolerated loss of a metric, such as step_p50_ms=0.05"),
    ] = field(default_factory=list)
    least_s: Annotated[
        float,
        Option("--seconds", help="how long each launch is kept under load at least", min=0.01),
    ] = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions(ComparisonOptions):
    """The options of a gate.

    Attributes:
        together: True to run both sides at the same time, False to run them in turn; None to run
            them at the same time if they need no GPU.
        waits: True to wait for a GPU on which another run measures. It isn't an option of the
            command.
    """

    a: Annotated[
        str, Argument(help="A, what is in use: vllm==0.31.0, a wheel, a git checkout or a Python")
    ]
    b: Annotated[str, Argument(help="B, what would take its place")]
    case_ids: Annotated[list[str], Option("--case", help="a case to compare (default: all)")] = (
        field(default_factory=list)
    )
    a_overrides: Annotated[
        list[str],
        Option("--set-a", "--a", help="a setting of A that differs, such as draft_tokens=5"),
    ] = field(default_factory=list)
    b_overrides: Annotated[
        list[str], Option("--set-b", "--b", help="a setting of B that differs")
    ] = field(default_factory=list)
    pin_length_tokens: Annotated[
        float | None,
        Option(
            "--pin",
            help="also compare the cost of a step, with the acceptance length fixed to this value",
        ),
    ] = None
    minutes: Annotated[
        float | None,
        Option(help="how long all launches may take (default: 20 without a GPU)", min=0),
    ] = None
    together: Annotated[
        bool | None,
        Option(
            "--together/--in-turn",
            help="run both sides at the same time, or in turn (default: together without a GPU)",
        ),
    ] = None
    resume: Annotated[bool, Option("--resume", help="continue the gate in --out")] = False
    waits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectOptions(ComparisonOptions):
    """The options of a bisect.

    The gates of an earlier search are resumed if they are in the folder of the case below `out`.
    """

    case: Annotated[str, Argument(help="the case that became worse")]
    good: Annotated[str, Option(help="a release without the loss, such as vllm==0.29.0")]
    bad: Annotated[str, Option(help="a later release with the loss, such as vllm==0.32.0")]
    versions: Annotated[str, Option(help="the releases to search among, such as 0.30.0,0.31.0")] = (
        ""
    )

    @property
    def folder(self) -> Path:
        """The folder of the gates."""
        return real_path(self.out or self.root / ".specreg" / "bisect") / self.case


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions(ServerOptions):
    """The options of a soak."""

    case: Annotated[str, Argument(help="a case id (default: the first that speculates)")] = ""
    minutes: Annotated[float, Option(help="how long to keep the server under load", min=0.1)] = 10.0
    engine: Annotated[str, Option(help="the engine: vllm==0.31.0, a wheel or a git checkout")] = ""
    prompts: Annotated[
        int | None,
        Option(
            help="how many prompts a segment replays (default: four for each request in flight)",
            min=1,
        ),
    ] = None
    tolerance_frac: Annotated[
        float | None,
        Option(
            TOLERANCE,
            help="the tolerated loss per hour, 0..1 (default: the case's, and 5 % for memory)",
            min=0,
            max=1,
        ),
    ] = None
    resume: Annotated[bool, Option("--resume", help="continue the soak in --out")] = False


def parse_tolerances(texts: Iterable[str], metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Return tolerances that were typed as METRIC=SHARE, by the metric's name.

    Raises:
        UnsupportedError: a tolerance isn't a fraction between 0 and 1.
        UnknownNameError: a tolerance names none of the metrics.
    """
    tolerances = {}
    for text in texts:
        name, _, share = text.partition("=")
        where = f"{TOLERANCE} {text}"
        check_name("metric", name, metrics, where)
        try:
            tolerances[name] = msgspec.convert(share, _Share, strict=False)
        except UNREADABLE as error:
            message = f"{where}: '{share}' is no fraction between 0 and 1; 0.03 is 3 %"
            raise UnsupportedError(message) from error

    return tolerances
