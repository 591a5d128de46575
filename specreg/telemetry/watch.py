"""Watching: devices in, a sampler beside us that ends with us, and the traces it wrote."""

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

from specreg.core.errors import SensorError
from specreg.core.processes import ChildProcess, child_process
from specreg.telemetry.sampler import Devices
from specreg.telemetry.samples import PowerTrace, load_traces
from specreg.telemetry.sensor import Device

_START_S = 10.0
_POLL_S = 0.02
_AFTER_S = 0.6
"""So long after a window there is a sample behind its end, of a busy machine too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A sampler that runs.

    Attributes:
        path: where its samples go; child: its process.
    """

    path: Path
    child: ChildProcess

    def traces(self, until_ns: int) -> Sequence[PowerTrace]:
        """What was sampled so far; waits until it covers a moment of the monotonic clock.

        Raises:
            SensorError: the sampler ended, or wrote nothing.
        """
        left_s = (until_ns - time.monotonic_ns()) / 10**9 + _AFTER_S
        try:
            status = self.child.process.popen.wait(timeout=max(0.0, left_s))
        except TimeoutExpired:
            return load_traces(self.path)
        said = self.child.last_lines().splitlines()
        raise SensorError(
            f"the sampler of power ended with status {status}"
            f" ({said[-1] if said else 'without a word'}); its samples are in '{self.path}'"
        )

    def left(self) -> Sequence[PowerTrace]:
        """What a sampler that ended has written; nothing where that can't be read."""
        with contextlib.suppress(SensorError):
            return load_traces(self.path)
        return ()


@contextlib.contextmanager
def watch(devices: Sequence[Device], path: Path) -> Iterator[Watch]:
    """A sampler for as long as the context lasts; it ends too when this process is killed.

    Args:
        devices: one at least.
        path: where it writes; what stands there stays, and it writes beside it.

    Yields:
        The sampler; one that didn't start says so when its traces are asked for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path = _unused(path)
    log_path = path.with_name(f"{path.name}.log")
    command = (sys.executable, "-m", "specreg.telemetry.sampler")
    with path.open("wb") as output:
        try:
            with child_process(command, log_path=log_path, output=output) as child:
                child.send(Devices(devices=tuple(devices)))
                _wait_until_sampling(child, path)
                yield Watch(path=path, child=child)
        finally:
            if not log_path.stat().st_size:  # nothing, as a rule
                log_path.unlink()


def _unused(path: Path) -> Path:
    """The path, or one beside it that nobody has written: what a killed run saw is kept."""
    others = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([path], others) if not one.exists())


def _wait_until_sampling(child: ChildProcess, path: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not path.stat().st_size:
        if child.process.popen.poll() is not None or time.monotonic() > deadline:
            return
        time.sleep(_POLL_S)
