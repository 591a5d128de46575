"""A worker: an order in, one server's cases measured, what came of them out as JSON lines.

What `here` starts measures as the run itself would, in a suite of its own. When its input ends,
the run is gone or wants no more of it: then it stops its servers and ends.
"""

import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from specreg.baselines.store import BaselineStore
from specreg.core.errors import MemoryHeldError, SpecregError
from specreg.correctness.checks import CHECKS
from specreg.many.errand import (
    Answer,
    Asked,
    Done,
    Ended,
    Errand,
    Measured,
    Order,
    Proved,
    Said,
    Shown,
    failure_of,
    part_path,
)
from specreg.matrix.case import Tier
from specreg.measurement.journal import Journal
from specreg.measurement.measure import Measurement
from specreg.servers.gpu_lease import hold
from specreg.servers.launch import Starting, launches_of
from specreg.servers.provision import Provision
from specreg.suite.options import Options
from specreg.suite.run import Suite
from specreg.telemetry.identity import find_gpus

Say = Callable[[Said], None]


def main() -> None:
    """Does the order that comes in, then ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup and & have it ignored
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    threading.Thread(target=_watch_input, daemon=True).start()
    # Whatever anybody else prints is no line of ours; nor does a child keep our output open.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(said: Said) -> None:
        out.write(msgspec.json.encode(said) + b"\n")
        out.flush()

    if order.cores:
        os.sched_setaffinity(0, order.cores)
    try:
        ended = do(order, say)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: nobody need end us
        say(ended)
    except (KeyboardInterrupt, BrokenPipeError):
        raise SystemExit(1) from None


def _watch_input() -> None:
    """Interrupts us as Ctrl-C would when nobody is left who waits for us."""
    while os.read(sys.stdin.fileno(), 1):  # unbuffered: a buffer is locked when Python ends
        pass
    os.kill(os.getpid(), signal.SIGINT)


def do(order: Order, say: Say) -> Ended:
    """Measures and proves what is asked; each thing is said as it ends.

    Args:
        order: what to do.
        say: is told.

    Returns:
        Why the rest couldn't be done, if it couldn't.
    """
    suite, errand = _suite(order, say), order.errand
    control, launch = launches_of(errand.cases[0].case, errand.launch)
    suite.servers.beside = launch.id
    if order.remark:
        say(Shown(text=order.remark, stays=True))
    gpus = find_gpus().devices if order.gpus else ()
    try:
        if order.checks_files:
            _check_files(suite, errand)
        with (
            hold(gpus, waits=suite.provision.waits, tell=suite.provision.tell),
            suite.servers.start(control) as beside,
            suite.servers.start(launch, beside=beside) as server,
        ):
            for asked in errand.cases:
                plain = beside if asked.case.control else None
                for done in _done(suite, asked, order, server, plain):
                    say(done)
    except SpecregError as error:
        return Ended(failure=failure_of(error))
    return Ended()


def _check_files(suite: Suite, errand: Errand) -> None:
    """Silent where what is measured here is what the run means.

    Raises:
        SpecregError: the prompts, the models or the engine are others; or aren't here.
    """
    for asked in errand.cases:
        found = suite.key(asked.case, asked.key.launch)
        if found.files_sha256 != asked.key.files_sha256:
            message = (
                f"case '{asked.case.id}': its prompts or models on '{platform.node()}' aren't those"
                " of the run; prepare the same prompts there, and put the same models there"
            )
            raise SpecregError(message)
        if found.engine != asked.key.engine:
            message = (
                f"case '{asked.case.id}': its engine on '{platform.node()}' is '{found.engine}',"
                f" the run's is '{asked.key.engine}'; install the same there"
            )
            raise SpecregError(message)


def _done(
    suite: Suite, asked: Asked, order: Order, server: Starting, control: Starting | None
) -> Iterator[Done]:
    for task in asked.tasks(order.errand.launch):
        suite.retried.clear()
        try:
            if task.proof:
                verdict = suite.check(CHECKS[task.proof], asked.case, server, control)
                answer: Answer = Proved(verdict=verdict, retried=tuple(suite.retried))
            else:
                part = part_path(suite.run_folder, asked.key, order.attempt)
                answer = _measured(suite, asked, part, server, control)
        except MemoryHeldError:
            raise
        except SpecregError as error:
            answer = failure_of(error)
        yield Done(task=task, answer=answer)


def _measured(
    suite: Suite, asked: Asked, part: Path, server: Starting, control: Starting | None
) -> Measured:
    suite.journal = Journal(part)
    try:
        found: Measurement = suite.measure_twice(asked.case, asked.key, server, control)
    finally:
        suite.journal.close()
    return Measured(
        part=part.name,
        engine_version=found.engine_version,
        target=found.target,
        draft=found.draft,
        invalid=dict(found.invalid),
        retried=tuple(suite.retried),
    )


def _suite(order: Order, say: Say) -> Suite:
    """A suite that measures what is asked; what it would judge, the run does."""
    terms, asked = order.terms, order.errand.cases
    run_folder = Path(terms.run_folder)
    cases = tuple(one.case for one in asked)
    return Suite(
        root=Path(terms.root),
        tier=Tier(name="", needs_gpus=len(order.gpus), cases=cases),
        store=BaselineStore(folder=Path(terms.baselines), environment=terms.environment),
        launches=terms.launches,
        update_reason="" if terms.recording else None,
        provision=Provision(
            on_gpu=terms.on_gpu,
            version=terms.version,
            python=terms.python,
            url=None,
            show=lambda text: say(Shown(text=text)),
            tell=lambda text: say(Shown(text=text, stays=True)),
            waits=terms.waits,
        ),
        options=Options(ready_within_s=terms.ready_within_s),
        run_folder=run_folder,
        history=run_folder,
        journal=Journal(run_folder / "journal.jsonl"),
        earlier={},
        show=lambda text: say(Shown(text=text)),
        asked={one.case.id: one.metrics for one in asked},
    )
