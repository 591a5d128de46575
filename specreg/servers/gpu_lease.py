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
from specreg.telemetry.devices import describe, devices_of, open_probe, wait_until_free
from specreg.telemetry.sensor import Device

_POLL_S = 0.2
_BACK_WITHIN_S = 10.0
_BYTES_PER_GIB = 2**30
_SLACK_BYTES = 2**30
"""What a server beside the one that ended may have come to hold meanwhile."""


@dataclass(slots=True, eq=False)
class _Lease:
    """A server's GPU, and how much of it was taken before; None where that can't be told."""

    device: Device
    before_bytes: int | None


_LOCKS: dict[str, filelock.BaseFileLock] = {}
"""Of the GPUs that this process held, by UUID."""
_LEASES: dict[str, list[_Lease]] = defaultdict(list)
"""Of our servers on each GPU, in the order of their starts."""


@contextlib.contextmanager
def lease_gpus(
    gpus: int,
    variables: Mapping[str, str],
    *,
    tell: Callable[[str], None],
    waits: bool = True,
    beside_starting: bool = False,
) -> Iterator[None]:
    """Lock a server's GPUs for as long as the context lasts, in which it starts and ends.

    Args:
        gpus: how many it takes, 0 or more.
        variables: the environment that it is started with.
        tell: is told whom we wait for.
        waits: whether to wait where another run of specreg holds one. A process that holds one
            already never does: two that wait for one another would wait for ever.
        beside_starting: whether another server of ours is taking its memory meanwhile: the two
            can't be told apart then, and the last of them answers for both at its end.

    Raises:
        SensorError: nothing shows them, another run holds one, or a process computes on one.
        MemoryHeldError: 10 s after the server's end a GPU hasn't got its memory back.
    """
    if not gpus:
        yield
        return
    devices = devices_of(gpus, variables)
    is_holding = any(lock.is_locked for lock in _LOCKS.values())
    with hold(devices, waits=waits and not is_holding, tell=tell):
        wait_until_free(devices, our_ids(), {one.id for one in devices if _LEASES[one.id]})
        leases = [_Lease(one, None if beside_starting else _used_bytes(one)) for one in devices]
        for lease in leases:
            _LEASES[lease.device.id].append(lease)
        is_judged = True
        try:
            yield
        except (KeyboardInterrupt, UnkillableError):  # whose memory it is is said already
            is_judged = False
            raise
        finally:
            before = [_end(lease) for lease in leases]
            for device, before_bytes in zip(devices, before if is_judged else (), strict=False):
                _await_memory(device, before_bytes)


@contextlib.contextmanager
def hold(devices: Sequence[Device], *, waits: bool, tell: Callable[[str], None]) -> Iterator[None]:
    """Lock GPUs for as long as the context lasts, in which several servers may lease them.

    In the order of their ids, so that two who wait for one another never do so for ever.

    Raises:
        SensorError: another run holds one, and we don't wait.
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


def _lock_path(device: Device) -> Path:
    return cache_dir() / "gpus" / f"{device.id}.lock"


@contextlib.contextmanager
def _locked(device: Device, *, waits: bool, tell: Callable[[str], None]) -> Iterator[None]:
    """Lock a GPU; it is free again when the last of this process's contexts ends."""
    path = _lock_path(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _LOCKS.setdefault(device.id, filelock.FileLock(path, thread_local=False))
    holder_path = path.with_suffix(".txt")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        holder = "another run of specreg"
        with contextlib.suppress(OSError):
            holder = holder_path.read_text(errors="replace")
        held = f"{_named(device)}: used by {holder}"
        if not waits:
            advice = "wait until it is done, or choose another GPU with CUDA_VISIBLE_DEVICES"
            raise SensorError(f"{held}; {advice}") from error
        tell(f"{held}; waiting until it is done")
        lock.acquire(poll_interval=_POLL_S)
    try:
        if lock.lock_counter == 1:
            since = dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
            ours = f"{describe(os.getpid())} since {since}, in {Path.cwd()}"
            replace_file(holder_path, ours.encode())
        yield
    finally:
        if lock.lock_counter == 1:
            holder_path.unlink(missing_ok=True)
        lock.release()


def _end(lease: _Lease) -> int | None:
    """How much of the GPU may be taken from now on; None where that can't be told yet.

    What a server of ours took that started later isn't known: it answers for both at its end.
    """
    leases = _LEASES[lease.device.id]
    at = leases.index(lease)
    leases.remove(lease)
    if at == len(leases):
        return lease.before_bytes
    known = (one.before_bytes for one in (lease, leases[at]) if one.before_bytes is not None)
    leases[at].before_bytes = min(known, default=None)
    return None


def _await_memory(device: Device, before_bytes: int | None) -> None:
    """Return once a GPU has its memory back; a driver takes a moment."""
    deadline = time.monotonic() + _BACK_WITHIN_S
    while before_bytes is not None and (used_bytes := _used_bytes(device)) is not None:
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


def _named(device: Device) -> str:
    return f"GPU {device.number} ({device.name}, {device.id})"


def _used_bytes(device: Device) -> int | None:
    return open_probe(device).state().used_bytes
