"""The commands that compare measurements with each other: `specreg gate`, `bisect` and `soak`."""

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

from specreg.cli import FAILED_STATUS, say
from specreg.cli.cases import tier_of
from specreg.compare.bisect import find_change
from specreg.compare.document import INTERRUPTED_STATUS, run_to_end, set_report_aside
from specreg.compare.gate import open_gate
from specreg.compare.options import BisectOptions, GateOptions, SoakOptions, show_status
from specreg.compare.soak import open_soak, view_of_soak
from specreg.core.commands import specreg_command
from specreg.core.errors import SpecregError
from specreg.core.files import cause_of, real_path, remedy_of
from specreg.core.interrupts import interrupt_on_signals
from specreg.report.document import ComparedReport, Tone
from specreg.report.parts import VerdictLine
from specreg.report.screen import screen_here
from specreg.report.terminal import render_report, render_view
from specreg.verdicts.status import exit_status
from specreg.verdicts.verdict import Verdict


def _command(function: Callable[[Any], int]) -> Callable[..., None]:
    """Turn a function that takes options and returns an exit status into a command.

    The fields of its options that have a Typer annotation become options of the command.
    """
    options_type = get_type_hints(function)["options"]
    all_hints = get_type_hints(options_type, include_extras=True)
    hints = {name: hint for name, hint in all_hints.items() if hasattr(hint, "__metadata__")}

    # The signature of the dataclass has all parameters. It only lacks the defaults that are made
    # for each instance, which are lists here.
    list_fields = {
        field.name for field in dataclasses.fields(options_type) if field.default_factory is list
    }
    parameters = []
    for name, parameter in inspect.signature(options_type).parameters.items():
        if name in hints:
            default = [] if name in list_fields else parameter.default
            parameters.append(parameter.replace(annotation=hints[name], default=default))

    @functools.wraps(function)
    def command(**arguments: Any) -> None:  # noqa: ANN401 - each option has its own type
        with _exit_on_failure():
            arguments["root"] = real_path(arguments["root"])
            raise typer.Exit(function(options_type(**arguments)))

    command.__annotations__ = hints
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


@contextlib.contextmanager
def _exit_on_failure() -> Iterator[None]:
    """If a command fails, end it with a status other than 1, because 1 is a result."""
    interrupt_on_signals()
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED_STATUS) from None
    except (SpecregError, OSError) as error:
        message = str(error)
        if isinstance(error, OSError):
            # If a temporary file was to replace a file, the user only knows the second name.
            path = error.filename2 or error.filename
            subject = "this machine" if path is None else f"'{path}'"
            message = f"{subject}: {cause_of(error)}; {remedy_of(error)}"
        say(message, err=True)
        raise typer.Exit(FAILED_STATUS) from error
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception:  # noqa: BLE001 - a bug in specreg must not look like a decision
        show_status(traceback.format_exc())
        raise typer.Exit(FAILED_STATUS) from None


@_command
def gate(options: GateOptions) -> int:
    """Compare two engines or two configurations on this machine, and say whether to upgrade.

    Exit status: 0 upgrade, 1 don't, 10 undecided or not measurable.

    Examples:
        specreg gate vllm==0.31.0 vllm==0.32.0
        specreg gate vllm==0.32.0 ../my-vllm --case vllm-eagle3-tiny-toy-c4
        specreg gate vllm==0.32.0 vllm==0.32.0 --set-a draft_tokens=3 --set-b draft_tokens=5
    """
    if options.out is not None:
        set_report_aside(options.out)
    running_gate = open_gate(options, tier_of(options.root / options.matrix, options.tier))
    goal = running_gate.goal
    options.show(
        f"cases: {len(goal.pairs)}; servers of each side: {len(goal.groups)};"
        f" launches of each at most: {running_gate.rules.launches}"
    )
    resume_options = shlex.join(("--resume", "--out", str(running_gate.folder)))

    def show(report: ComparedReport) -> None:
        screen = screen_here()
        say(render_report(report, screen), styled=screen.color)
        say(f"report: {running_gate.folder / 'report.html'}")
        if not report.run.complete:
            say(f"to continue, type the same command with {resume_options}")

    command = specreg_command(*sys.argv[1:])
    decision = run_to_end(running_gate, command=command, resume_options=resume_options, show=show)
    return exit_status(decision.verdicts)


@_command
def bisect(options: BisectOptions) -> int:
    """Find the release in which a case became worse, by gates against the good release.

    Exit status: 0 found, 10 not found or only narrowed down.

    Examples:
        specreg bisect vllm-eagle3-tiny-toy-c4 --good vllm==0.29.0 --bad vllm==0.32.0
    """
    tier = tier_of(options.root / options.matrix, options.tier)
    try:
        last_good, *between, first_bad = find_change(options, tier, tier.named(options.case))
    finally:
        say(f"gates: {options.folder}; to continue, type the same command again")

    screen = screen_here()
    if not between:
        answer = f"{options.case} became worse in {first_bad}; {last_good} is good"
        say(render_view([VerdictLine(tone=Tone.BAD, text=answer)], screen), styled=screen.color)
        return 0

    change = f"after {last_good}, and in {first_bad} at the latest"
    undecided = f"undecided: {', '.join(between)}"
    answer = f"{options.case} became worse {change}; {undecided}"
    say(render_view([VerdictLine(tone=Tone.DOUBT, text=answer)], screen), styled=screen.color)
    return FAILED_STATUS


@_command
def soak(options: SoakOptions) -> int:
    """Keep one server under a case's load, and say whether acceptance, step time or memory drift.

    Exit status: 0 steady, 1 something drifts, 10 undecided or not measurable.

    Examples:
        specreg soak --minutes 60
        specreg soak vllm-eagle3-tiny-toy-c4 --engine vllm==0.32.0
    """
    running_soak = open_soak(options, tier_of(options.root / options.matrix, options.tier))
    verdicts: tuple[Verdict, ...] = ()
    try:
        with _exit_on_failure():
            running_soak.run()
    finally:
        # What was measured is shown even if the soak was cut short.
        if running_soak.ledger.segments:
            running_soak.show_news(is_over=True)
            verdicts = running_soak.verdicts
            screen = screen_here()
            view = view_of_soak(running_soak, verdicts, screen)
            say(render_view(view, screen), styled=screen.color)
        if not running_soak.is_finished:
            folder = running_soak.ledger.path.parent
            resume_options = shlex.join(("--resume", "--out", str(folder)))
            say(f"to continue, type the same command with {resume_options}")

    return exit_status(verdicts)
