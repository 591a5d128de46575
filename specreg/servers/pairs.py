"""Servers: launches in, the servers of a run out, and where each says what it says."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specreg.core.timeline import Phase, Timeline
from specreg.matrix import ServerSpec
from specreg.matrix.widening import widen_models
from specreg.servers.attach import attach_server
from specreg.servers.environments import EngineEnvironment
from specreg.servers.launch import Launch, Poll, Starting, wait_until_ready
from specreg.servers.memory import fit_together
from specreg.servers.provision import Provision
from specreg.servers.start import begin_server


@dataclass(slots=True, kw_only=True, eq=False)
class Servers:
    """The servers of a run.

    Attributes:
        root: the repository's root.
        provision: where the engines come from.
        ready_within_s: how long a server may take to its first token.
        logs: the folder of what they say.
        show: is told what goes on.
        beside: the id of the launch beside which controls stand, where several of one may run.
        timeline: is told when one stops.
    """

    root: Path
    provision: Provision
    ready_within_s: float
    logs: Path
    show: Callable[[str], None]
    beside: str = ""
    timeline: Timeline = field(default_factory=Timeline)
    _startings: list[Starting] = field(default_factory=list)

    @contextlib.contextmanager
    def start(self, launch: Launch, beside: Starting | None = None) -> Iterator[Starting]:
        """The server of a launch for as long as the context lasts; it starts when first asked for.

        One that runs beside it already is taken if it is the same.
        """
        if beside is not None and beside.launch == launch:
            yield beside
            return
        starting = Starting(launch=launch, start=lambda: self._server(launch))
        self._startings.append(starting)
        try:
            yield starting
        finally:
            self._stop(starting)
            self._startings.remove(starting)

    def start_all(self, startings: Sequence[Starting]) -> None:
        """Start servers, at once where memory allows, and return when all are ready.

        Raises:
            SpecregError: one didn't start. What else was begun goes on, until it is asked for or
                its context ends.
        """
        idle = [one for one in startings if not one.running]
        if len(idle) > 1 and self._fit_together([one.launch.spec for one in idle]):
            for one in idle:  # all that takes the machine is done before the first of them starts
                self._environment(one.launch.spec)
                widen_models(self.root, one.launch.spec, show=self.show)
            wait_until_ready(idle)
        for one in idle:
            wait_until_ready([one])

    def _environment(self, spec: ServerSpec) -> EngineEnvironment:
        """What a server's engine runs in, installed where it isn't yet."""
        with self.timeline.during(Phase.INSTALLING, of=spec.engine):
            return self.provision.environment(spec)

    def _fit_together(self, specs: Sequence[ServerSpec]) -> bool:
        """Whether there are servers to start, which may take their memory at the same time."""
        provision = self.provision
        if provision.url is not None:
            return False
        versions = [provision.requirement(spec).version for spec in specs]
        gpus_gib = (provision.found_gpus.memory_gib or (0.0,)) if provision.on_gpu else ()
        return fit_together(self.root, specs, versions, gpus_gib)

    def stop(self) -> None:
        """Stops all servers that run, the last one first; who asks for one again gets a fresh one.

        Raises:
            MemoryHeldError: a GPU hasn't got its memory back.
        """
        with contextlib.ExitStack() as stack:  # one that can't be stopped keeps no other up
            for starting in self._startings:
                stack.callback(self._stop, starting)

    def _stop(self, starting: Starting) -> None:
        stopping = self.timeline.during(Phase.STOPPING, of=starting.launch.id)
        with stopping if starting.running else contextlib.nullcontext():
            starting.stop()

    def log_paths(self, launch: Launch, server: Launch) -> Sequence[Path]:
        """What was said there, in further attempts too, also by one of its own beside a server."""
        names = (launch.id, f"{launch.id}-beside-{server.id}")
        paths = (
            path
            for name in names
            for path in (
                self.logs / f"{name}.log",
                *sorted(self.logs.glob(f"{name}-[0-9]*.log")),
            )
        )
        return [path for path in paths if path.is_file()]

    def _log_path(self, launch: Launch) -> Path:
        """Where the server of a launch says what it says."""
        beside = f"-beside-{self.beside}" if self.beside not in {"", launch.id} else ""
        return self.logs / f"{launch.id}{beside}.log"

    @contextlib.contextmanager
    def _server(self, launch: Launch) -> Iterator[Poll]:
        spec, provision = launch.spec, self.provision
        if provision.url is not None:
            within_s = self.ready_within_s
            with attach_server(
                spec, provision.url, root=self.root, ready_within_s=within_s
            ) as attached:
                yield lambda: attached
            return
        environment = self._environment(spec)
        with (
            provision.leased(spec, beside_starting=any(one.is_starting for one in self._startings)),
            begin_server(
                spec,
                environment,
                root=self.root,
                log_path=self._log_path(launch),
                on_gpu=provision.on_gpu,
                ready_within_s=self.ready_within_s,
                show=self.show,
            ) as poll,
        ):
            yield poll
