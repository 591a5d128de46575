"""Lease GPUs to servers: no other run is on them meanwhile, and their memory is back afterwards.

A process locks each GPU by its UUID, in a file of the user's cache; the system frees the lock of a
process that is killed. Other users, and programs that aren't specreg, are seen by the driver.
"""

import contextlib
import datetime as dt
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from specreg.core.errors import MemoryHeldError, SensorError, UnkillableError
from specreg.core.files import cache_dir, replace_file
from specreg.core.processes import our_ids
from specreg.telemetry.devices import SENSORS, describe, devices_of, wait_until_free
from specreg.telemetry.sensor import Device

_POLL_S = 0.2
_BACK_WITHIN_S = 10.0
_BYTES_PER_GIB = 2**30
_SLACK_BYTES = 2**30
"""What a server beside the one that ended may have come to hold meanwhile."""


@dataclass(slots=True, eq=False)
class _Lease:
    """Of a server: how much of its GPU was taken before; None where that can't be told."""

    before_bytes: int | None = None


_LOCKS: dict[str, filelock.BaseFileLock] = {}
"""Of the GPUs that this process holds, by UUID."""
_LEASES: dict[str, list[_Lease]] = defaultdict(list)
"""Of our servers on each GPU, in the order of their starts."""


def lease_gpus(
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
        waits: see `lease`.
        beside_starting: see `lease`.

    Raises:
        SensorError: nothing shows them; or as `lease` says, once it is entered.
    """
    if not gpus:
        return contextlib.nullcontext()
    devices = devices_of(gpus, variables)
    return lease(devices, waits=waits, tell=tell, beside_starting=beside_starting)


@contextlib.contextmanager
def hold(devices: Sequence[Device], *, waits: bool, tell: Callable[[str], None]) -> Iterator[None]:
    """Lock GPUs for as long as the context lasts, in which several servers may lease them.

    They are taken in the order of their ids, so that two who wait for one another never do so for
    ever.

    Args:
        devices: whose.
        waits: whether to wait where another run of specreg holds one.
        tell: is told whom we wait for.

    Raises:
        SensorError: another run holds one.
    """
    with contextlib.ExitStack() as stack:
        for device in sorted(devices, key=lambda device: device.id):
            stack.enter_context(_locked(device, waits=waits, tell=tell))
        yield


def is_held(device: Device) -> bool:
    """Whether another process has the lock of a GPU at this moment."""
    path = _lock_path(device)
    try:
        with filelock.FileLock(path, timeout=0) if path.exists() else contextlib.nullcontext():
            return False
    except filelock.Timeout:
        return True


@contextlib.contextmanager
def lease(
    devices: Sequence[Device],
    *,
    waits: bool,
    tell: Callable[[str], None],
    beside_starting: bool = False,
) -> Iterator[None]:
    """Lock GPUs for as long as the context lasts, in which a server starts and ends.

    Args:
        devices: that it is to run on.
        waits: whether to wait where another run of specreg holds one. A process that holds one
            already never does: two that wait for one another would wait for ever.
        tell: is told whom we wait for.
        beside_starting: whether another server of ours is taking its memory meanwhile: the two
            can't be told apart then, and the last of them answers for both at its end.

    Raises:
        SensorError: another run holds one.
        SensorError: another process computes on one.
        MemoryHeldError: 10 s after the server's end a GPU hasn't got its memory back.
    """
    with hold(devices, waits=waits and not _LOCKS, tell=tell):
        taken = {device.id for device in devices if _LEASES[device.id]}
        wait_until_free(tuple(devices), our_ids(), taken)
        leases = [_Lease(None if beside_starting else _used_bytes(device)) for device in devices]
        for device, one in zip(devices, leases, strict=True):
            _LEASES[device.id].append(one)
        is_judged = True
        try:
            yield
        except (KeyboardInterrupt, UnkillableError):  # whose memory it is is said already
            is_judged = False
            raise
        finally:
            before = [_end(device, one) for device, one in zip(devices, leases, strict=True)]
            for device, before_bytes in zip(devices, before if is_judged else (), strict=False):
                _await_memory(device, before_bytes)


def _end(device: Device, lease: _Lease) -> int | None:
    """How much of the GPU may be taken from now on; None where that can't be told yet.

    What a server of ours took that started later isn't known: it answers for both at its end.
    """
    leases = _LEASES[device.id]
    at = leases.index(lease)
    leases.remove(lease)
    if at == len(leases):
        return lease.before_bytes
    later = leases[at]
    known = [one.before_bytes for one in (lease, later) if one.before_bytes is not None]
    later.before_bytes = min(known, default=None)
    return None


@contextlib.contextmanager
def _locked(device: Device, *, waits: bool, tell: Callable[[str], None]) -> Iterator[None]:
    """The lock of a GPU; it is free again when the last of this process's contexts ends."""
    path = _lock_path(device)
    lock = _LOCKS.get(device.id) or filelock.FileLock(path, thread_local=False)
    if not lock.is_locked:
        path.parent.mkdir(parents=True, exist_ok=True)
        _await_lock(lock, device, waits=waits, tell=tell)
        since = dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
        holder = f"{describe(os.getpid())} since {since}, in {Path.cwd()}"
        replace_file(_holder_path(device), holder.encode())
    else:
        lock.acquire()
    _LOCKS[device.id] = lock
    try:
        yield
    finally:
        if lock.lock_counter == 1:
            del _LOCKS[device.id]
            _holder_path(device).unlink(missing_ok=True)
        lock.release()


def _await_lock(
    lock: filelock.BaseFileLock, device: Device, *, waits: bool, tell: Callable[[str], None]
) -> None:
    told = ""
    while True:
        with contextlib.suppress(filelock.Timeout):
            lock.acquire(timeout=0)
            return
        holder = "another run of specreg"
        with contextlib.suppress(OSError):
            holder = _holder_path(device).read_text(errors="replace")
        held = f"{_named(device)}: used by {holder}"
        if not waits:
            advice = "wait until it is done, or choose another GPU with CUDA_VISIBLE_DEVICES"
            raise SensorError(f"{held}; {advice}")
        if held != told:
            tell(f"{held}; waiting until it is done")
            told = held
        time.sleep(_POLL_S)


def _lock_path(device: Device) -> Path:
    return cache_dir() / "gpus" / f"{device.id}.lock"


def _holder_path(device: Device) -> Path:
    return cache_dir() / "gpus" / f"{device.id}.txt"


def _named(device: Device) -> str:
    return f"GPU {device.number} ({device.name}, {device.id})"


def _await_memory(device: Device, before_bytes: int | None) -> None:
    """Return once a GPU has its memory back; a driver takes a moment."""
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
