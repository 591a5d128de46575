"""Start the servers of a run when they are first asked for, and stop them."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specreg.core.errors import ServerDiedError, SpecregError
from specreg.core.timeline import Phase, Timeline
from specreg.matrix.case import Case, Load, ServerSpec
from specreg.matrix.models import widen_models
from specreg.servers.attach import attach_server
from specreg.servers.gpu_lease import GpuClaim
from specreg.servers.memory import fit_together
from specreg.servers.provision import Provision
from specreg.servers.server import POLL_S, Server
from specreg.servers.start import ServerStart
from specreg.telemetry.identity import find_gpus

Poll = Callable[[], Server | None]
"""Gives a server once it has generated a token, and None before; raises why it never will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The start of a server, by number from 1; `only_for` one case's id, empty for all."""

    spec: ServerSpec
    number: int
    only_for: str = ""

    @property
    def id(self) -> str:
        """`vllm-eagle3-tiny`, or the case that it is for; from the second on with `-launch2`."""
        return (self.only_for or self.spec.id) + self.suffix

    def case_id(self, case: Case) -> str:
        """The id of a case on this launch, from the second on with `-launch2`."""
        return case.id + self.suffix

    @property
    def suffix(self) -> str:
        """The suffix of names from the second launch on."""
        return f"-launch{self.number}" if self.number > 1 else ""


@dataclass(slots=True, kw_only=True, eq=False)
class Starting:
    """A server that starts when it is first asked for; one that failed to isn't tried again.

    Attributes:
        start: starts it and doesn't wait; it ends with the context.
        warm_for: the datasets and loads it was measured under, which need no warm-up again.
    """

    launch: Launch
    start: Callable[[], contextlib.AbstractContextManager[Poll]]
    warm_for: set[tuple[str, Load]] = field(default_factory=set)
    _running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _poll: Poll | None = None
    _server: Server | None = None
    _error: SpecregError | None = None

    @property
    def server(self) -> Server:
        """The running server; started and waited for where it doesn't run. Errors as of `poll`."""
        while (server := self.poll()) is None:
            time.sleep(POLL_S)
        return server

    def poll(self) -> Server | None:
        """The server once it is ready, None before; SpecregError, now and later, if it failed."""
        if self._error is not None:
            raise self._error
        try:
            if self._poll is None:
                self._poll = self._running.enter_context(self.start())
            elif self._server is None:
                self._server = self._poll()
        except SpecregError as error:
            self._error = error
            self.stop()
            raise
        return self._server

    @property
    def running(self) -> bool:
        """Whether it is ready."""
        return self._server is not None

    @property
    def is_up(self) -> bool:
        """Whether it was started and not stopped."""
        return self._poll is not None

    def stop_if_dead(self) -> None:
        """Stop what is left of it if it went away, so that the next one starts afresh."""
        try:
            if self._server is not None:
                self._server.check_alive()
        except ServerDiedError:
            self.stop()

    def stop(self) -> None:
        """Stop it, if it runs or starts; MemoryHeldError if its GPU hasn't got its memory back."""
        self._server = self._poll = None
        self.warm_for.clear()
        self._running.close()


def launches_of(case: Case, number: int) -> tuple[Launch, Launch]:
    """The launches of a case's control and of its server, of a number from 1."""
    only_for = case.id if case.needs_fresh_server else ""
    server = Launch(spec=case.server, number=number, only_for=only_for)
    return Launch(spec=case.control, number=number) if case.control else server, server


@dataclass(slots=True, kw_only=True, eq=False)
class Servers:
    """The servers of a run.

    Attributes:
        claim: of the GPUs, where other processes of the run measure beside this one; None where
            all are its own.
    """

    root: Path
    provision: Provision
    ready_within_s: float
    logs: Path
    claim: GpuClaim | None = None
    timeline: Timeline = field(default_factory=Timeline)
    _startings: list[Starting] = field(default_factory=list)

    @contextlib.contextmanager
    def start(self, launch: Launch, beside: Starting | None = None) -> Iterator[Starting]:
        """The server of a launch while the context lasts; `beside` where that is the same."""
        if beside is not None and beside.launch == launch:
            yield beside
            return
        starting = self._starting(launch)
        try:
            yield starting
        finally:
            self._stop(starting)
            self._startings.remove(starting)

    def _starting(self, launch: Launch) -> Starting:
        """Return the one of a launch, which is kept until its context ends."""
        for one in self._startings:
            if one.launch == launch:
                return one
        self._startings.append(Starting(launch=launch, start=lambda: self._server(launch)))
        return self._startings[-1]

    def start_all(self, startings: Sequence[Starting], ahead: Launch | None = None) -> None:
        """Start servers, at once where memory allows, and return when all are ready.

        Without a GPU one more starts with them, `ahead` of being asked for. SpecregError where one
        of the others didn't start; all others go on, until they are asked for or their contexts
        end.
        """
        idle = [one for one in startings if not one.running]
        if idle and self.claim is not None and not any(one.is_up for one in self._startings):
            gpus = max(one.launch.spec.parallel.gpus for one in idle)
            self.claim.take(gpus if self.provision.on_gpu else 0, self.provision.tell)
        gpus_gib = (find_gpus().memory_gib or (0.0,)) if self.provision.on_gpu else ()
        # Before the others: their time would pass while its environment is installed.
        waiting = [*([self._starting(ahead)] if ahead and not self.provision.on_gpu else []), *idle]
        starts = self.provision.url is None and len(waiting) > 1
        if starts and fit_together([one.launch.spec for one in waiting], gpus_gib):
            for one in idle:  # all that takes the machine is done before the first of them starts
                self._install(one.launch.spec)
                widen_models(self.root, one.launch.spec, show=self.provision.show)

            def waits(one: Starting) -> bool:
                try:
                    return one.poll() is None
                except SpecregError:
                    if one in idle:
                        raise
                    return False

            while waiting := [one for one in waiting if waits(one)]:
                time.sleep(POLL_S)
        for one in idle:
            _ = one.server

    def _install(self, spec: ServerSpec) -> None:
        """Make the environment of a server's engine where it isn't there yet."""
        with self.timeline.during(Phase.INSTALLING, of=spec.engine):
            self.provision.environment(spec)

    def stop(self) -> None:
        """Stop all servers, the last first; one that can't be stopped keeps no other up."""
        with contextlib.ExitStack() as stack:
            for starting in self._startings:
                stack.callback(self._stop, starting)

    def _stop(self, starting: Starting) -> None:
        stopping = self.timeline.during(Phase.STOPPING, of=starting.launch.id)
        with stopping if starting.running else contextlib.nullcontext():
            starting.stop()
        if self.claim is not None and not any(one.is_up for one in self._startings):
            self.claim.give_back()

    def log_paths(self, launch: Launch) -> Sequence[Path]:
        """The logs of a launch, those of further attempts and other processes too."""
        paths = (self.logs / f"{launch.id}.log", *sorted(self.logs.glob(f"{launch.id}-[0-9]*.log")))
        return [path for path in paths if path.is_file()]

    @contextlib.contextmanager
    def _server(self, launch: Launch) -> Iterator[Poll]:
        spec, provision = launch.spec, self.provision
        if provision.url is not None:
            attached = attach_server(
                spec, provision.url, root=self.root, ready_within_s=self.ready_within_s
            )
            yield lambda: attached
            return
        self._install(spec)
        start = ServerStart(
            spec=spec,
            provision=provision,
            root=self.root,
            ready_within_s=self.ready_within_s,
            log_path=self.logs / f"{launch.id}.log",
        )
        with start.begin():
            yield start.poll
