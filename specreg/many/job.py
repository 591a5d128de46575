"""A job of a cluster's queue: an order on a shared disk in, what its worker says out beside it.

`run` is what the queue starts on a node. It measures nothing itself: it looks whether the node is
one of the run's, starts the worker there as a run starts it here, and passes on what that says.
The run and its job share a folder and nothing else.
"""

import contextlib
import os
import platform
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from specreg.core.errors import SpecregError, UnsupportedError
from specreg.many.crew import Worker
from specreg.many.desk import PATIENCE_S, Began, Desk, Gone, Pulse
from specreg.many.errand import Ended, Order, failure_of
from specreg.many.here import given_place, start_process
from specreg.many.on_node import survey
from specreg.telemetry.identity import Environment, current_environment

_LOOK_S = 1.0
_ENDED_BY = {
    signal.SIGTERM: "was cancelled (SIGTERM)",
    signal.SIGINT: "was cancelled (SIGINT)",
    signal.SIGUSR2: "had to go (SIGUSR2): its time was up, or another job came first",
}
"""Signals of the queue, and what they mean; submitit has its own for the last."""


def look(_: str) -> bytes:
    """What this node says of itself: a `Survey`, in JSON, as another specreg may read it."""
    return msgspec.json.encode(survey())


def run(folder: str) -> None:
    """Carries the order out that lies in a folder; what comes of it lies there too.

    Args:
        folder: that of a `Desk`.
    """
    desk = Desk(Path(folder))
    desk.say(Began(node=platform.node()))
    if desk.is_to_end:
        return
    # Some clusters send it to all processes of a job, and who doesn't know it ends untidily.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        order, log_path = desk.take()
        order = given_place(order)
        check_kind(order)
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(order.gpus)} if order.gpus else {}
        worker = start_process(order, log_path, variables=visible)
    except SpecregError as error:
        desk.say(Ended(failure=failure_of(error)))
        return
    why: list[str] = []
    for number in _ENDED_BY:
        signal.signal(number, lambda came, _: why.append(_ENDED_BY[signal.Signals(came)]))
    threading.Thread(target=watch, args=(desk, worker, why), daemon=True).start()
    ended = False
    for said in worker:
        desk.say(said)
        ended = isinstance(said, Ended)
    if not ended:
        desk.say(Gone(how=next(iter(why), worker.how)))


def watch(desk: Desk, worker: Worker, why: Sequence[str], patience_s: float = PATIENCE_S) -> None:
    """Shows that the job lives; ends its worker when that is wanted, or when the run is gone.

    Args:
        desk: of the job.
        worker: whom to end.
        why: what the queue wants it ended for; empty as long as it doesn't.
        patience_s: how long the run may give no sign of life.
    """
    pulse = Pulse(desk.alive_path, patience_s)
    while not (why or desk.is_to_end or pulse.is_lost):
        with contextlib.suppress(OSError):
            os.utime(desk.said_path)
        time.sleep(_LOOK_S)
    worker.hang_up()


def check_kind(order: Order) -> None:
    """Silent where this node is of the kind that the run's figures are of.

    Raises:
        UnsupportedError: it isn't.
    """
    expected = order.terms.environment
    here = current_environment(needs_gpus=order.errand.need.gpus)
    if not _are_alike(here, expected):
        raise UnsupportedError(
            f"node '{platform.node()}': it is '{here.name}', the run's figures are of"
            f" '{expected.name}'; choose nodes of one kind: partition=…, constraint=… or gpu_type=…"
        )


def _are_alike(here: Environment, expected: Environment) -> bool:
    """Whether the machines are; how many GPUs a server has is its case's to say."""
    one, other = (
        msgspec.structs.replace(each, gpus=tuple(dict.fromkeys(each.gpus)))
        for each in (here, expected)
    )
    return one == other
