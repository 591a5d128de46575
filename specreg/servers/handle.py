"""Handles of servers, and all servers of a run.

The life of a server is prepared → starting → ready → stopped. A server that was stopped starts
again when it is needed again.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from specreg.core.errors import MemoryHeldError, PortInUseError, ServerDiedError, SpecregError
from specreg.core.timeline import Phase
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Load
from specreg.servers.gpu_lease import GpuClaim
from specreg.servers.launch import Launch
from specreg.servers.launcher import ServerLauncher
from specreg.servers.provision import Provision
from specreg.servers.server import READY_POLL_S, Server, StartingServer, ready_server

_PORTS = 3
"""How many ports a server is started on before its start fails: another program may take one."""


class Launcher(Protocol):
    """Starts servers; see `ServerLauncher`."""

    def prepare(self, spec: ServerSpec, log_path: Path) -> None:
        """Get what a server needs, which takes minutes if it isn't there."""

    def reserve(self, spec: ServerSpec) -> contextlib.AbstractContextManager[None]:
        """Lock the GPUs of a server while the context lasts."""

    def start(
        self, spec: ServerSpec, log_path: Path
    ) -> contextlib.AbstractContextManager[StartingServer | Server]:
        """Start a server once; it ends with the context."""


@dataclass(slots=True, kw_only=True, eq=False)
class ServerHandle:
    """A server that starts when it is first needed.

    If it fails to start, each later use raises the same error, and it isn't started again until
    `forget_failure` is called.

    Attributes:
        launch: the launch of the server.
        launcher: starts the server.
        log_path: the file that gets its output. If it exists, the output goes to a numbered file.
        warm_for: the datasets and loads that the server has been measured with. They need no
            further warm-up.
        _state: the server once it was started; None before, and after it was stopped.
        _is_prepared: True if all that the start needs is there.
        _attempts: how many times this start was attempted.
        _attempt: ends the processes of the latest attempt when it is closed.
        _running: ends these and releases the GPUs when it is closed.
        _error: why the server failed to start; None if it hasn't failed.
    """

    launch: Launch
    launcher: Launcher
    log_path: Path
    warm_for: set[tuple[str, Load]] = field(default_factory=set)
    _state: StartingServer | Server | None = None
    _is_prepared: bool = False
    _attempts: int = 0
    _attempt: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _error: SpecregError | None = None

    @property
    def server(self) -> Server:
        """The ready server, which is started and waited for if need be.

        Raises:
            SpecregError: as in `poll`.
        """
        while (server := self.poll()) is None:
            time.sleep(READY_POLL_S)
        return server

    @property
    def is_ready(self) -> bool:
        """True if the server is ready."""
        return isinstance(self._state, Server)

    @property
    def is_up(self) -> bool:
        """True if the server was started and not stopped."""
        return self._state is not None

    def prepare(self) -> None:
        """Get all that the start needs, which takes minutes if it isn't there.

        Raises:
            SpecregError: the engine's environment or a model isn't available.
        """
        if not self._is_prepared:
            self.launcher.prepare(self.launch.spec, self.log_path)
            self._is_prepared = True

    def poll(self) -> Server | None:
        """Start the server if need be; return it once it is ready, and None before.

        Raises:
            SpecregError: the server failed to start, now or earlier. It ended, refused a request or
                took too long; or other programs took its port on each attempt; or what it needs
                isn't available.
        """
        if self._error is not None:
            raise self._error
        try:
            if self._state is None:
                self._start()
            elif isinstance(self._state, StartingServer):
                self._wait(self._state)
        except SpecregError as error:
            self._error = error
            self.stop()
            raise

        return self._state if isinstance(self._state, Server) else None

    def forget_failure(self) -> None:
        """Allow the server to be started again after it failed to start."""
        self._error = None

    def stop_if_dead(self) -> None:
        """Stop what is left of a server that has died, so that it is started again when needed.

        Raises:
            UnkillableError: as in `stop`.
            MemoryHeldError: as in `stop`.
            SensorError: as in `stop`.
        """
        try:
            if isinstance(self._state, Server):
                self._state.check_alive()
        except ServerDiedError:
            self.stop()

    def stop(self) -> None:
        """Stop the server, whether it is ready or still starting.

        Raises:
            UnkillableError: a process of the server can't be killed.
            MemoryHeldError: the memory of its GPU isn't free afterwards.
            SensorError: its GPU is gone.
        """
        self._state = None
        self.warm_for.clear()
        self._running.close()

    def _start(self) -> None:
        """Lock the GPUs, and start the server on a first port."""
        # The time that this takes doesn't count as a part of the start, and no GPU is locked yet.
        self.prepare()

        self._attempts = 0

        with contextlib.ExitStack() as stack:
            stack.enter_context(self.launcher.reserve(self.launch.spec))
            stack.push(self._attempt)
            self._try()
            self._running = stack.pop_all()

    def _wait(self, starting: StartingServer) -> None:
        """Look whether the server is ready; if another program took its port, start it anew."""
        try:
            self._state = ready_server(starting) or starting
        except PortInUseError:
            if self._attempts == _PORTS:
                raise
            self._attempt.close()
            self._try()

    def _try(self) -> None:
        """Start the server once, on a new port and with a new log."""
        self._attempts += 1
        start = self.launcher.start(self.launch.spec, self.log_path)
        self._state = self._attempt.enter_context(start)


@dataclass(slots=True, kw_only=True, eq=False)
class Servers:
    """The servers of a run: starts them, and stops them.

    Attributes:
        launcher: starts each of them.
        logs: the folder of the logs.
        side_launchers: starts those of some sides of a gate instead, by side.
        claim: the GPUs that this process shares with other processes of the run; None if no other
            process of the run measures at the same time.
        _handles: the servers that were asked for.
    """

    launcher: ServerLauncher
    logs: Path
    side_launchers: Mapping[str, ServerLauncher] = field(default_factory=dict)
    claim: GpuClaim | None = None
    _handles: dict[Launch, ServerHandle] = field(default_factory=dict)

    @property
    def provision(self) -> Provision:
        """Where the engines come from, and on what they run."""
        return self.launcher.provision

    def handle(self, launch: Launch) -> ServerHandle:
        """Return the server of a launch, which starts when first needed; always the same one."""
        if launch not in self._handles:
            self._handles[launch] = ServerHandle(
                launch=launch,
                launcher=self.side_launchers.get(launch.side, self.launcher),
                log_path=self.logs / f"{launch.id}.log",
            )
        return self._handles[launch]

    def start_all(
        self, handles: Sequence[ServerHandle], dispensable: Sequence[ServerHandle] = ()
    ) -> None:
        """Start servers and return when all are ready; they start together if memory allows.

        Args:
            dispensable: further servers that start too. If one of them fails, its error isn't
                raised here, but when that server is used.

        Raises:
            SpecregError: one of `handles` didn't start, or this process can't get the GPUs.
                The servers that were started already keep running.
            MemoryHeldError: any of the servers failed, and the memory of its GPU isn't free.
        """
        to_start = [handle for handle in handles if not handle.is_ready]
        if to_start:
            self._claim_gpus(to_start)
        further = [handle for handle in dispensable if not handle.is_ready]
        together = list(to_start)
        if not self.provision.on_gpu:
            # The dispensable servers come first, because their environments may have to be
            # installed. If the others had started before, the time that they have for their start
            # would pass meanwhile. On a GPU the dispensable servers start last, because the memory
            # that a server takes there is only an estimate.
            together = [*further, *to_start]

        if self._fit_together(together):
            # Installing keeps the machine busy, so everything that the needed servers lack is
            # installed before the first start.
            for handle in to_start:
                handle.prepare()
            waiting = [handle for handle in together if _keep_starting(handle, to_start)]
            while waiting:
                time.sleep(READY_POLL_S)
                waiting = [handle for handle in waiting if _keep_starting(handle, to_start)]

        # Servers that didn't start together are started here, one after the other.
        for handle in to_start:
            _ = handle.server
        while further:
            further = [handle for handle in further if _keep_starting(handle, to_start)]
            time.sleep(READY_POLL_S)

    def fit_beside(self, specs: Sequence[ServerSpec]) -> bool:
        """Return whether the memory is enough for some servers next to those that run.

        Args:
            specs: the servers; one that runs already needs no further memory.
        """
        up_specs = [handle.launch.spec for handle in self._handles.values() if handle.is_up]
        missing_specs = [spec for spec in specs if spec not in up_specs]
        if self.provision.on_gpu:
            return self.provision.fit([*up_specs, *missing_specs])
        # Without a GPU only the free memory is divided, which the running servers have left.
        return self.provision.fit(missing_specs)

    def _claim_gpus(self, handles: Sequence[ServerHandle]) -> None:
        """Wait for the GPUs that servers need, if this process shares them and no server is up.

        Raises:
            SensorError: as in `GpuClaim.take`.
            SpecregError: as in `GpuClaim.take`.
        """
        if self.claim is None or self._is_any_up():
            return
        gpus = 0
        if self.provision.on_gpu:
            gpus = max(handle.launch.spec.parallel.gpus for handle in handles)
        self.claim.take(gpus, self.provision.tell)

    def _fit_together(self, handles: Sequence[ServerHandle]) -> bool:
        """Return whether there are several servers to start, and memory for all of them."""
        specs = [handle.launch.spec for handle in handles]
        return len(specs) > 1 and self.provision.fit(specs)

    def stop(self) -> None:
        """Stop all servers, in the reverse of the order in which they were made.

        Raises:
            SpecregError: a server couldn't be stopped; the others are stopped all the same.
        """
        # The stack calls every callback, and raises an error only after the last one.
        with contextlib.ExitStack() as stack:
            for handle in self._handles.values():
                stack.callback(self._stop, handle)

    def stop_others(self, kept: AbstractSet[Launch]) -> None:
        """Stop all servers but those of some launches.

        Raises:
            SpecregError: a server couldn't be stopped; the others are stopped all the same.
        """
        with contextlib.ExitStack() as stack:
            for launch, handle in self._handles.items():
                if launch not in kept:
                    stack.callback(self._stop, handle)

    def _stop(self, handle: ServerHandle) -> None:
        """Stop a server, and after the last one release the GPUs to other processes."""
        if handle.is_ready:
            with self.launcher.timeline.during(Phase.STOPPING, of=handle.launch.id):
                handle.stop()
        else:
            handle.stop()
        if self.claim is not None and not self._is_any_up():
            self.claim.give_back()

    def _is_any_up(self) -> bool:
        return any(handle.is_up for handle in self._handles.values())


def _keep_starting(handle: ServerHandle, needed: Sequence[ServerHandle]) -> bool:
    """Start a server if need be, and return whether it is still starting.

    Args:
        needed: the servers that must start.

    Returns:
        False if the server is ready, or if it has failed and isn't needed.

    Raises:
        SpecregError: a server that is needed failed to start.
        MemoryHeldError: the memory of a server that failed isn't free.
    """
    try:
        return handle.poll() is None
    except MemoryHeldError:
        # No server can start on that GPU any more, so it doesn't matter which one was needed.
        raise
    except SpecregError:
        if handle in needed:
            raise
        return False
