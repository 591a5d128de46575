"""`specreg gate`: may B take the place of A?"""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from specreg.cli.options import (
    HERE,
    MATRIX,
    WIDTH,
    MatrixOption,
    ReadyOption,
    RootOption,
    SecondsOption,
    TierOption,
    WaitOption,
    fitting_tier_of,
)
from specreg.compare.document import document_of, set_aside, write_document
from specreg.compare.gate import Gate
from specreg.compare.opening import open_gate
from specreg.compare.request import Request
from specreg.core.commands import specreg_command
from specreg.core.errors import SpecregError
from specreg.core.redaction import hide, hide_known
from specreg.core.signals import interrupt_on_signals
from specreg.report.terminal import render_report

FAILED_STATUS, INTERRUPTED_STATUS = 10, 130

_A = Annotated[str, typer.Argument(help="what is there: vllm==0.31.0, a wheel, a git checkout, …")]
_B = Annotated[str, typer.Argument(help="what would take its place")]


def gate(  # noqa: PLR0913, PLR0917 - an option each
    a: _A,
    b: _B,
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
    launches: Annotated[int, typer.Option(help="the most of each side; even")] = 16,
    minutes: Annotated[
        float | None, typer.Option(help="the most that the launches may take")
    ] = None,
    prompts: Annotated[int | None, typer.Option(help="how many each case replays", min=1)] = None,
    tolerance: Annotated[list[str], typer.Option(help="METRIC=FRACTION, a loss that is fine")] = [],  # noqa: B006
    control: Annotated[bool, typer.Option(help="measure side A once more, against itself")] = True,  # noqa: FBT002 - an option
    together: Annotated[
        bool | None,
        typer.Option(
            "--together/--in-turn",
            help="have the servers of all sides up at the same time; without a GPU they are",
        ),
    ] = None,
    seconds: SecondsOption = 20.0,
    resume: Annotated[bool, typer.Option("--resume", help="go on with what lies in --out")] = False,  # noqa: FBT002 - an option
    out: Annotated[Path | None, typer.Option(help="where the report goes")] = None,
    ready_within_s: ReadyOption = 600.0,
    wait: WaitOption = True,  # noqa: FBT002 - an option
    tier: TierOption = None,
    root: RootOption = HERE,
    matrix: MatrixOption = MATRIX,
) -> None:
    """Compare two engines, or two configurations, side by side; say whether to upgrade.

    Exit status: 0 upgrade, 1 don't, 10 undecided or not to be measured.
    """
    with ending():
        if out is not None:
            set_aside(out)
        asked = Request(
            a=a,
            b=b,
            a_overrides=a_set,
            b_overrides=b_set,
            tier=fitting_tier_of(root / matrix, tier),
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
            waits=wait,
            show=lambda text: typer.echo(hide(text), err=True),
        )
        with going_on("type the same again"):
            opened = open_gate(asked)
        asked.show(
            f"{len(opened.pairs)} cases on {len(opened.groups)} servers of each side, at most"
            f" {opened.rules.launches} launches of each"
        )
        raise typer.Exit(_measured(opened))


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
        typer.echo(hide(traceback.format_exc()), err=True)
        raise typer.Exit(FAILED_STATUS) from None


@contextlib.contextmanager
def going_on(how: str) -> Iterator[None]:
    """Says how to go on with what is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"go on: {how}")
        raise


def _measured(gate: Gate) -> int:
    """The exit status; what was measured is told, whatever cuts it short."""
    cut_short = None
    try:
        gate.measure()
    except KeyboardInterrupt:
        cut_short = INTERRUPTED_STATUS
    except (SpecregError, OSError) as error:
        typer.echo(str(error), err=True)
        cut_short = FAILED_STATUS
    except Exception:  # noqa: BLE001 - a fault of ours; what was measured is told all the same
        typer.echo(hide(traceback.format_exc()), err=True)
        cut_short = FAILED_STATUS
    report = document_of(gate, command=specreg_command(*sys.argv[1:]), status=cut_short)
    # First: a terminal that was closed takes nothing any more.
    written = write_document(gate.folder, report, gate.request.show)
    typer.echo(hide_known(render_report(report, width=WIDTH, color=sys.stdout.isatty())))
    if written:
        typer.echo(f"report: {gate.folder / 'report.html'}")
    if not report.run.complete:
        typer.echo(f"go on: type the same with --resume --out {gate.folder}")
    return report.run.exit_status
