"""`specreg gate`: may B take the place of A? `specreg bisect`: since which release not?"""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from specreg.cli import options as of
from specreg.compare.bisect import find_change
from specreg.compare.configure import open_gate
from specreg.compare.document import record_gate, set_aside
from specreg.compare.gate import GateOptions
from specreg.core.commands import specreg_command
from specreg.core.errors import SpecregError
from specreg.core.redaction import hide, hide_known
from specreg.core.signals import interrupt_on_signals
from specreg.report.terminal import render_report

FAILED_STATUS, INTERRUPTED_STATUS = 10, 130

LaunchesOption = Annotated[int, typer.Option("--launches", help="the most of each side; even")]
PromptsOption = Annotated[
    int | None, typer.Option("--prompts", help="how many each case replays", min=1)
]
ToleranceOption = Annotated[
    list[str], typer.Option("--tolerance", help="METRIC=FRACTION, a loss that is fine")
]


def gate(  # noqa: PLR0913, PLR0917 - an option each
    a: Annotated[
        str, typer.Argument(help="what is there: vllm==0.31.0, a wheel, a git checkout, …")
    ],
    b: Annotated[str, typer.Argument(help="what would take its place")],
    case: Annotated[list[str], typer.Option(help="a case to compare; all without any")] = [],  # noqa: B006
    a_set: Annotated[
        list[str], typer.Option("--a", help="KEY=VALUE, what A's cases have otherwise")
    ] = [],  # noqa: B006
    b_set: Annotated[list[str], typer.Option("--b", help="the same of B's")] = [],  # noqa: B006
    pin: Annotated[
        float | None,
        typer.Option(
            help="also compare the cost of a step, at an acceptance length that is pinned"
        ),
    ] = None,
    launches: LaunchesOption = 16,
    minutes: Annotated[
        float | None, typer.Option(help="the most that the launches may take", min=0)
    ] = None,
    prompts: PromptsOption = None,
    tolerance: ToleranceOption = [],  # noqa: B006
    control: Annotated[bool, typer.Option(help="measure side A once more, against itself")] = True,  # noqa: FBT002 - an option
    together: Annotated[
        bool | None,
        typer.Option(
            "--together/--in-turn",
            help="have the servers of all sides up at the same time; without a GPU they are",
        ),
    ] = None,
    seconds: of.SecondsOption = 20.0,
    resume: Annotated[bool, typer.Option("--resume", help="go on with what lies in --out")] = False,  # noqa: FBT002 - an option
    out: Annotated[Path | None, typer.Option(help="where the report goes")] = None,
    ready_within_s: of.ReadyOption = 600.0,
    tier: of.TierOption = None,
    root: of.RootOption = of.HERE,
    matrix: of.MatrixOption = of.MATRIX,
) -> None:
    """Compare two engines, or two configurations, side by side; say whether to upgrade.

    Exit status: 0 upgrade, 1 don't, 10 undecided or not to be measured.
    """
    with ending():
        if out is not None:
            set_aside(out)
        options = GateOptions(
            a=a,
            b=b,
            a_overrides=a_set,
            b_overrides=b_set,
            tier=of.fitting_tier_of(root / matrix, tier),
            case_ids=case,
            pin_length_tokens=pin,
            launches=launches,
            minutes=minutes,
            prompts=prompts,
            tolerances=tolerance,
            with_control=control,
            together=together,
            least_s=seconds,
            resume=resume,
            root=root.resolve(),
            out=out,
            ready_within_s=ready_within_s,
            show=show,
        )
        raise typer.Exit(_measured(options))


def _measured(options: GateOptions) -> int:
    """The exit status; what was measured is told, whatever cuts it short."""
    gate = open_gate(options)
    show(
        f"{len(gate.pairs)} cases on {len(gate.groups)} servers of each side, at most"
        f" {gate.rules.launches} launches of each"
    )
    cut_short = None
    try:
        with ending():
            gate.measure()
    except typer.Exit as ended:
        cut_short = ended.exit_code
    # First: a terminal that was closed takes nothing any more.
    report = record_gate(gate, command=specreg_command(*sys.argv[1:]), status=cut_short)
    typer.echo(hide_known(render_report(report, width=of.WIDTH, color=sys.stdout.isatty())))
    typer.echo(f"report: {gate.folder / 'report.html'}")
    if not report.run.complete:
        typer.echo(f"go on: type the same with --resume --out {gate.folder}")
    return report.run.exit_status


def bisect(  # noqa: PLR0913, PLR0917 - an option each
    case: Annotated[str, typer.Argument(help="the case that became worse")],
    good: Annotated[str, typer.Option(help="the release that was well: vllm==0.29.0")],
    bad: Annotated[str, typer.Option(help="a later one that isn't: vllm==0.32.0")],
    versions: Annotated[str, typer.Option(help="0.30.0,0.31.0,…: search among these alone")] = "",
    launches: LaunchesOption = 16,
    prompts: PromptsOption = None,
    tolerance: ToleranceOption = [],  # noqa: B006
    seconds: of.SecondsOption = 20.0,
    out: Annotated[
        Path | None,
        typer.Option(help="where all gates go; a search goes on with what lies there"),
    ] = None,
    ready_within_s: of.ReadyOption = 600.0,
    tier: of.TierOption = None,
    root: of.RootOption = of.HERE,
    matrix: of.MatrixOption = of.MATRIX,
) -> None:
    """Find the release in which a case became worse, by gates against the good one.

    Exit status: 0 found, 10 not to be found, or only between which releases.
    """
    with ending():
        found_tier = of.fitting_tier_of(root / matrix, tier)
        folder = (out or root / ".specreg" / "bisect").resolve() / case
        options = GateOptions(
            a=good,
            b=bad,
            tier=found_tier,
            case_ids=(case,),
            launches=launches,
            prompts=prompts,
            tolerances=tolerance,
            with_control=False,
            least_s=seconds,
            ready_within_s=ready_within_s,
            root=root.resolve(),
            show=show,
        )
        named = tuple(filter(None, map(str.strip, versions.split(","))))
        try:
            asked = of.case_of(found_tier, case)
            last_good, *between, first_bad = find_change(options, asked, named, folder)
        finally:
            typer.echo(f"gates: {folder}; to go on, type the same again")
        if between:
            unknown = ", ".join(between)
            typer.echo(f"it changed after {last_good} and by {first_bad}; unknown: {unknown}")
            raise typer.Exit(FAILED_STATUS)
        typer.echo(f"it changed in {first_bad}; {last_good} is good")


def show(text: str) -> None:
    """Say what goes on, without what is secret."""
    typer.echo(hide(text), err=True)


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Ends a command that can't go on with a status of its own: 1 is an answer."""
    interrupt_on_signals()
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED_STATUS) from None
    except (SpecregError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(FAILED_STATUS) from error
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception:  # noqa: BLE001 - a fault of ours is no answer either
        show(traceback.format_exc())
        raise typer.Exit(FAILED_STATUS) from None
