"""Claims: GPUs in, nobody else's for as long as a server of ours is on them, given back after.

A run locks each GPU by its UUID, in a file of the user's cache; the system frees the lock of a
process that is killed. Who isn't specreg, or another user, is seen by the driver and refused.
"""

import contextlib
import datetime as dt
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from specreg.core.errors import DeviceHeldError, MemoryHeldError, UnkillableError
from specreg.core.paths import cache_dir
from specreg.core.processes import our_ids
from specreg.telemetry.devices import SENSORS, describe, devices_of, wait_until_free
from specreg.telemetry.sensor import Device

_POLL_S = 0.2
_BACK_WITHIN_S = 10.0
_BYTES_PER_GIB = 2**30
_SLACK_BYTES = 2**30
"""What a server beside the one that ended may have come to hold meanwhile."""


@dataclass(slots=True, eq=False)
class _Claim:
    """Of a server of ours: how much of its GPU was taken before; None where nobody can tell."""

    before_bytes: int | None = None


@dataclass(slots=True, eq=False)
class _Lock:
    """Of a GPU that we hold.

    Attributes:
        file: that is locked.
        leases: of those in which servers claim it.
        claims: of our servers on it, in the order of their starts.
    """

    file: BinaryIO
    leases: list[object] = field(default_factory=list)
    claims: list[_Claim] = field(default_factory=list)

    def give_back(self, claim: _Claim) -> int | None:
        """How much of the GPU may be taken from now on; None where that can't be told yet.

        What a server of ours took that started later nobody knows: it answers for both at its end.
        """
        at = self.claims.index(claim)
        self.claims.remove(claim)
        if at == len(self.claims):
            return claim.before_bytes
        later = self.claims[at]
        known = [one.before_bytes for one in (claim, later) if one.before_bytes is not None]
        later.before_bytes = min(known, default=None)
        return None


_OURS: dict[str, _Lock] = {}
"""By UUID, what this process holds."""


def claimed_gpus(
    gpus: int,
    variables: Mapping[str, str],
    *,
    tell: Callable[[str], None],
    waits: bool = True,
    beside_starting: bool = False,
) -> contextlib.AbstractContextManager[None]:
    """A server's GPUs for as long as the context lasts; nothing of one that takes none.

    Args:
        gpus: how many it takes.
        variables: the environment that it is started with.
        tell: is told whom we wait for.
        waits: see `claim`.
        beside_starting: see `claim`.

    Raises:
        SensorError: nothing shows them; or as `claim` says, once it is entered.
    """
    if not gpus:
        return contextlib.nullcontext()
    devices = devices_of(gpus, variables)
    return claim(devices, waits=waits, tell=tell, beside_starting=beside_starting)


@contextlib.contextmanager
def lease(devices: Sequence[Device], *, waits: bool, tell: Callable[[str], None]) -> Iterator[None]:
    """The locks of GPUs for as long as the context lasts, in which several servers claim them.

    Taken in the order of their ids, so that two who wait for one another never do so for ever.

    Args:
        devices: whose.
        waits: whether to wait where another run of specreg holds one.
        tell: is told whom we wait for.

    Raises:
        DeviceHeldError: another run holds one.
    """
    with contextlib.ExitStack() as stack:
        for device in sorted(devices, key=lambda device: device.id):
            lock = stack.enter_context(_locked(device, waits=waits, tell=tell))
            lock.leases.append(stack)
            stack.callback(lock.leases.remove, stack)
        yield


def is_held(device: Device) -> bool:
    """Whether another process has the lock of a GPU at this moment."""
    path = _lock_path(device)
    try:
        # To write: over a network's disk (NFS) a lock that excludes others needs that.
        with path.open("r+b") as file:
            return not _lock(file)
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def claim(
    devices: Sequence[Device],
    *,
    waits: bool,
    tell: Callable[[str], None],
    beside_starting: bool = False,
) -> Iterator[None]:
    """GPUs for as long as the context lasts, in which a server starts and ends.

    Args:
        devices: that it is to run on.
        waits: whether to wait where another run of specreg holds one. Who holds one already never
            does: two that wait for one another would wait for ever.
        tell: is told whom we wait for.
        beside_starting: whether another server of ours is taking its memory meanwhile: the two
            can't be told apart then, and the last of them answers for both at its end.

    Raises:
        DeviceHeldError: another run holds one.
        SensorError: another process computes on one.
        MemoryHeldError: 10 s after the server's end a GPU hasn't got its memory back.
    """
    waits = waits and not _OURS
    with contextlib.ExitStack() as stack:
        devices = sorted(devices, key=lambda device: device.id)
        locks = [stack.enter_context(_locked(device, waits=waits, tell=tell)) for device in devices]
        taken = {device.id for device in devices if _OURS[device.id].claims}
        wait_until_free(tuple(devices), our_ids(), taken)
        claims = [_Claim(None if beside_starting else _used_bytes(device)) for device in devices]
        for lock, mine in zip(locks, claims, strict=True):
            lock.claims.append(mine)
        is_judged = True
        try:
            yield
        except (KeyboardInterrupt, UnkillableError):  # whose memory it is is said already
            is_judged = False
            raise
        finally:
            after = [lock.give_back(mine) for lock, mine in zip(locks, claims, strict=True)]
            for device, used_bytes in zip(devices, after if is_judged else (), strict=False):
                _await_memory(device, used_bytes)


@contextlib.contextmanager
def _locked(device: Device, *, waits: bool, tell: Callable[[str], None]) -> Iterator[_Lock]:
    """The lock of a GPU; the one that this process has already, if it does."""
    if device.id not in _OURS:
        _OURS[device.id] = _Lock(_acquire(device, waits=waits, tell=tell))
    lock = _OURS[device.id]
    try:
        yield lock
    finally:
        if not (lock.leases or lock.claims):
            del _OURS[device.id]
            lock.file.truncate(0)
            lock.file.close()


def _acquire(device: Device, *, waits: bool, tell: Callable[[str], None]) -> BinaryIO:
    path = _lock_path(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b", buffering=0)
    try:
        _await_lock(file, device, waits=waits, tell=tell)
    except BaseException:
        file.close()
        raise
    since = dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    file.truncate(0)
    file.write(f"{describe(os.getpid())} since {since}, in {Path.cwd()}".encode())
    return file


def _lock_path(device: Device) -> Path:
    return cache_dir() / "gpus" / f"{device.id}.lock"


def _await_lock(
    file: BinaryIO, device: Device, *, waits: bool, tell: Callable[[str], None]
) -> None:
    told = ""
    while not _lock(file):
        file.seek(0)
        who = file.read().decode(errors="replace") or "another run of specreg"
        held = f"{_named(device)}: used by {who}"
        if not waits:
            advice = "wait until it is done, or choose another GPU with CUDA_VISIBLE_DEVICES"
            raise DeviceHeldError(f"{held}; {advice}")
        if held != told:
            tell(f"{held}; waiting until it is done")
            told = held
        time.sleep(_POLL_S)


def _named(device: Device) -> str:
    return f"GPU {device.number} ({device.name}, {device.id})"


def _lock(file: BinaryIO) -> bool:
    """Whether the lock is ours now. No child gets the file, so it is free when we are gone."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _await_memory(device: Device, before_bytes: int | None) -> None:
    """Returns once a GPU has its memory back; a driver takes a moment."""
    deadline = time.monotonic() + _BACK_WITHIN_S
    while True:
        used_bytes = _used_bytes(device)
        if before_bytes is None or used_bytes is None:
            return
        kept_bytes = used_bytes - before_bytes
        if kept_bytes <= _SLACK_BYTES:
            return
        if time.monotonic() > deadline:
            message = (
                f"{_named(device)}: {_BACK_WITHIN_S:g} s after its server's end"
                f" {kept_bytes / _BYTES_PER_GIB:.1f} GiB are still taken, and nothing can be"
                " measured beside them; find with nvidia-smi who holds them, and end it"
            )
            raise MemoryHeldError(message)
        time.sleep(_POLL_S)


def _used_bytes(device: Device) -> int | None:
    return SENSORS[device.sensor].open(device).state().used_bytes
