"""`specreg gate`, `bisect` and `soak`: measurements against each other."""

import contextlib
import dataclasses
import functools
import inspect
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import typer

from specreg.cli import say
from specreg.cli.cases import tier_of
from specreg.compare.bisect import find_change
from specreg.compare.document import record_gate, set_aside
from specreg.compare.gate import open_gate
from specreg.compare.options import BisectOptions, GateOptions, SoakOptions, show_status
from specreg.compare.soak import LAST_LEVEL, open_soak
from specreg.core.commands import specreg_command
from specreg.core.errors import SpecregError
from specreg.core.processes import interrupt_on_signals
from specreg.report.document import exit_status
from specreg.report.terminal import render_report, render_verdicts

FAILED_STATUS, INTERRUPTED_STATUS = 10, 130


def _command(function: Callable[[Any], int]) -> Callable[..., None]:
    """Makes a command of a function that takes options and returns its status.

    What may be typed are the fields of its options that Typer describes.
    """
    kind = get_type_hints(function)["options"]
    described = get_type_hints(kind, include_extras=True)
    hints = {name: hint for name, hint in described.items() if hasattr(hint, "__metadata__")}
    # A dataclass has a signature already, but for the defaults that are made for each.
    lists = {one.name for one in dataclasses.fields(kind) if one.default_factory is list}
    parameters = [
        one.replace(annotation=hints[name], default=[] if name in lists else one.default)
        for name, one in inspect.signature(kind).parameters.items()
        if name in hints
    ]

    @functools.wraps(function)
    def command(**given: Any) -> None:  # noqa: ANN401 - of each its own
        with _ending():
            given["root"] = given["root"].resolve()
            raise typer.Exit(function(kind(**given)))

    command.__annotations__ = hints
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """End a command that can't go on with a status other than 1, which is an answer."""
    interrupt_on_signals()
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED_STATUS) from None
    except (SpecregError, OSError) as error:
        advice = "; make room or mend its rights" if isinstance(error, OSError) else ""
        say(f"{error}{advice}", err=True)
        raise typer.Exit(FAILED_STATUS) from error
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception:  # noqa: BLE001 - a fault of ours is no answer either
        show_status(traceback.format_exc())
        raise typer.Exit(FAILED_STATUS) from None


@_command
def gate(options: GateOptions) -> int:
    """Compare two engines or two configurations on this machine, and say whether to upgrade.

    Exit status: 0 upgrade, 1 don't, 10 undecided or not measurable.
    """
    if options.out is not None:
        set_aside(options.out)
    opened = open_gate(options, tier_of(options.root / options.matrix, options.tier))
    options.show(
        f"cases: {len(opened.pairs)}; servers of each side: {len(opened.groups)}; launches of"
        f" each at most: {opened.rules.launches}"
    )
    cut_short = None
    try:
        with _ending():
            opened.measure()
    except typer.Exit as ended:
        cut_short = ended.exit_code
    # Write the report first: printing fails on a terminal that was closed.
    command = specreg_command(*sys.argv[1:])
    again = shlex.join(("--resume", "--out", str(opened.folder)))
    report = record_gate(opened, command=command, again=again, status=cut_short)
    color = sys.stdout.isatty()
    say(render_report(report, color=color), styled=color)
    say(f"report: {opened.folder / 'report.html'}")
    if not report.run.complete:
        say(f"go on: type the same with {again}")
    return report.run.exit_status


@_command
def bisect(options: BisectOptions) -> int:
    """Find the release in which a case became worse, by gates against the good one.

    Exit status: 0 found, 10 not found or only narrowed down.
    """
    tier = tier_of(options.root / options.matrix, options.tier)
    try:
        last_good, *between, first_bad = find_change(options, tier, tier.named(options.case))
    finally:
        say(f"gates: {options.folder}; to go on, type the same again")
    if between:
        unknown = ", ".join(between)
        say(f"it changed after {last_good} and by {first_bad}; unknown: {unknown}")
        return FAILED_STATUS
    say(f"it changed in {first_bad}; {last_good} is good")
    return 0


@_command
def soak(options: SoakOptions) -> int:
    """Keep one server under a case's load, and say whether acceptance, step time or memory drift.

    Exit status: 0 steady, 1 something drifts, 10 undecided or not measurable.
    """
    soaked = open_soak(options, tier_of(options.root / options.matrix, options.tier))
    try:
        with _ending():
            soaked.run()
    finally:  # what was measured is told, whatever cuts it short
        verdicts = soaked.look(LAST_LEVEL) if soaked.segments else ()
        if soaked.segments:
            color = sys.stdout.isatty()
            say(render_verdicts(verdicts, color=color), styled=color)
            reasons = (f"{one.metric}: {one.explanation}" for one in verdicts if one.reason)
            segments = (
                f"{len(soaked.segments)} segments; a change is that of an hour: {soaked.path}"
            )
            say("\n".join((*reasons, segments)))
    return exit_status(verdicts)
