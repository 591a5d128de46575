"""Watching: devices in, a sampler beside us that ends with us, and the traces it wrote."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from specreg.errors import SensorError
from specreg.power.samples import PowerTrace, load_traces
from specreg.sensors import Device

_START_S = 10.0
_STOP_S = 5.0
_POLL_S = 0.02
_AFTER_S = 0.6
"""So long after a window there is a tick of the counter for its end, and the samples are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A sampler that runs.

    Attributes:
        devices: what it samples; path: where it writes; popen: its process.
    """

    devices: tuple[Device, ...]
    path: Path
    popen: subprocess.Popen[bytes]

    def traces(self, until_ns: int) -> Sequence[PowerTrace]:
        """What was sampled so far; waits until it covers a moment of the monotonic clock.

        Raises:
            SensorError: the sampler ended, or wrote nothing.
        """
        left_s = (until_ns - time.monotonic_ns()) / 10**9 + _AFTER_S
        try:
            status = self.popen.wait(timeout=max(0.0, left_s))
        except subprocess.TimeoutExpired:
            return load_traces(self.path)
        said = self.path.with_suffix(".log").read_text(errors="replace").strip().splitlines()
        raise SensorError(
            f"the sampler of power ended with status {status}"
            f" ({said[-1] if said else 'without a word'}); its samples are in '{self.path}'"
        )


@contextlib.contextmanager
def watch(devices: Sequence[Device], path: Path) -> Iterator[Watch]:
    """A sampler for as long as the context lasts; it ends too when this process is killed.

    Args:
        devices: one at least.
        path: where it writes; what stands there is replaced.

    Yields:
        The sampler; one that didn't start says so when its traces are asked for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    given = [msgspec.json.encode(device).decode() for device in devices]
    said = path.with_suffix(".log")
    with said.open("wb") as log:
        popen = subprocess.Popen(  # noqa: S603 - our own arguments, no shell
            (sys.executable, "-m", "specreg.power.sampler", str(path), *given),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # so that Ctrl-C reaches us and not it
        )
    try:
        _wait_until_sampling(popen, path)
        yield Watch(devices=tuple(devices), path=path, popen=popen)
    finally:
        _stop(popen)
        if not said.stat().st_size:  # nothing, as a rule
            said.unlink()


def _wait_until_sampling(popen: subprocess.Popen[bytes], path: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not (path.exists() and path.stat().st_size):
        if popen.poll() is not None or time.monotonic() > deadline:
            return
        time.sleep(_POLL_S)


def _stop(popen: subprocess.Popen[bytes]) -> None:
    """Closes its input, which ends it; one that hangs in a driver is killed."""
    with contextlib.suppress(OSError):
        if popen.stdin is not None:
            popen.stdin.close()
    try:
        popen.wait(timeout=_STOP_S)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()
