"""Lease GPUs to servers: no other run is on them meanwhile, and their memory is back afterwards.

A process locks each GPU by its UUID, in a file of the user's cache; the system frees the lock of a
process that is killed. Other users, and programs that aren't specreg, are seen by the driver.
"""

import contextlib
import datetime as dt
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

import filelock

from specreg.core.errors import MemoryHeldError, SensorError, UnkillableError
from specreg.core.files import cache_folder, replace_file
from specreg.core.processes import check_signalled, describe, our_ids
from specreg.telemetry.devices import open_probe, wait_until_free
from specreg.telemetry.identity import find_gpus
from specreg.telemetry.sensor import Device

_POLL_S = 0.2
_BACK_WITHIN_S = 10.0
_BYTES_PER_GIB = 2**30
_SYSFS = Path("/sys")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SLACK_BYTES = 2**30
"""How much more the driver itself may hold than before."""

_LOCKS: dict[str, filelock.BaseFileLock] = {}
"""The locks of the GPUs that this process held, by UUID."""
_SERVERS: Counter[str] = Counter()
"""How many of our servers are on each GPU."""
_BEFORE_BYTES: dict[str, int | None] = {}
"""The memory in use before the first of them, by GPU; None where it can't be read."""


@contextlib.contextmanager
def lease_gpus(
    devices: Sequence[Device], *, tell: Callable[[str], None], waits: bool
) -> Iterator[None]:
    """Lock a server's GPUs, if any, for as long as the context lasts: it starts and ends in it.

    It waits for another run that has one, and tells so. A process that has one already never does:
    two that wait for one another would wait for ever.

    Raises:
        SensorError: another run has one, or a process computes on one.
        MemoryHeldError: 10 s after the end of the last server on it a GPU hasn't got back what it
            had before the first.
    """
    waits = waits and not any(lock.is_locked for lock in _LOCKS.values())
    with contextlib.ExitStack() as stack:
        # In the order of their ids, so that two who wait for one another never do so for ever.
        for device in sorted(devices, key=lambda device: device.id):
            stack.enter_context(hold(device, waits=waits, tell=tell))
        wait_until_free(devices, our_ids(), {one.id for one in devices if _SERVERS[one.id]})
        for device in devices:
            if not _SERVERS[device.id]:
                _BEFORE_BYTES[device.id] = _used_bytes(device)
            _SERVERS[device.id] += 1
        is_judged = True
        try:
            yield
        except (KeyboardInterrupt, UnkillableError):  # what still holds memory is already told
            is_judged = False
            raise
        finally:
            _SERVERS.subtract(device.id for device in devices)
            for device in devices if is_judged else ():
                if not _SERVERS[device.id]:
                    _await_memory(device, _BEFORE_BYTES[device.id])


@contextlib.contextmanager
def hold(device: Device, *, waits: bool, tell: Callable[[str], None] = print) -> Iterator[None]:
    """Lock a GPU; it is free again when the last of this process's contexts ends.

    Raises:
        SensorError: another run has it, and we don't wait for that.
    """
    path = cache_folder("gpus") / f"{device.id}.lock"
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
            advice = "wait until it is done, or choose another with CUDA_VISIBLE_DEVICES"
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


def _await_memory(device: Device, before_bytes: int | None) -> None:
    """Return once a GPU has its memory back; a driver takes a moment."""
    deadline = time.monotonic() + _BACK_WITHIN_S
    while before_bytes is not None and (used_bytes := _used_bytes(device)) is not None:
        kept_bytes = used_bytes - before_bytes
        if kept_bytes <= _SLACK_BYTES:
            return
        if time.monotonic() > deadline:
            raise MemoryHeldError(
                f"{_named(device)}: {_BACK_WITHIN_S:g} s after its server's end"
                f" {kept_bytes / _BYTES_PER_GIB:.1f} GiB are still taken, and nothing can be"
                " measured beside them; find with nvidia-smi who holds them, and end it"
            )
        time.sleep(_POLL_S)


def _named(device: Device) -> str:
    return f"GPU {device.number} ({device.name}, {device.id})"


def _used_bytes(device: Device) -> int | None:
    return open_probe(device).state().used_bytes


@dataclass(slots=True)
class GpuClaim:
    """The GPUs that this process has for its servers; all that it starts sees no others."""

    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def take(self, gpus: int, tell: Callable[[str], None]) -> None:
        """Wait for so many GPUs, 0 or more, and have them instead of those that it has.

        Processes wait in a line, so that a server that takes many isn't overtaken for ever by those
        that take one.

        Raises:
            SensorError: this process may not see so many.
        """
        self.give_back()
        if not gpus:
            return
        everything = find_gpus()
        if len(everything.devices) < gpus:
            why = everything.why_none or f"there are {len(everything.devices)}"
            raise SensorError(f"{gpus} GPUs: {why}")
        line = cache_folder("gpus") / "line.lock"
        with filelock.FileLock(line, thread_local=False):
            ours = self._take_free(everything.devices, gpus)
            if not ours:
                tell(f"waiting for {gpus} of {len(everything.devices)} GPUs")
            while not ours:
                check_signalled()
                time.sleep(_POLL_S)
                ours = self._take_free(everything.devices, gpus)
        self._held.callback(_show, os.environ.get(_VISIBLE))
        _show(",".join(device.id for device in ours))
        cores = os.sched_getaffinity(0)
        if own := own_cores(ours, everything.devices, cores):
            self._held.callback(os.sched_setaffinity, 0, cores)
            os.sched_setaffinity(0, own)

    def give_back(self) -> None:
        """Release them to other processes."""
        self._held.close()

    def _take_free(self, devices: Sequence[Device], gpus: int) -> Sequence[Device]:
        """Hold so many of some GPUs, and return them, if so many are free; none otherwise."""
        with contextlib.ExitStack() as stack:
            held: list[Device] = []
            for device in devices:
                if len(held) < gpus:
                    with contextlib.suppress(SensorError):
                        stack.enter_context(hold(device, waits=False))
                        held.append(device)
            if len(held) < gpus:
                return ()
            self._held = stack.pop_all()
        return held


def own_cores(
    ours: Sequence[Device],
    everything: Sequence[Device],
    cores: AbstractSet[int],
    sysfs: Path = _SYSFS,
) -> AbstractSet[int]:
    """The share that some GPUs have of the `cores` near them; none where the system doesn't say.

    All GPUs on one side of the machine divide its cores alike, those that others use too. The
    threads of a core stay together, though their numbers are far apart.
    """
    near = {
        one.id: _listed_cores(sysfs / "bus/pci/devices" / one.bus_id / "local_cpulist") & cores
        for one in everything
    }
    topology = "devices/system/cpu/cpu{}/topology/thread_siblings_list"
    threads = {core: _listed_cores(sysfs / topology.format(core)) or {core} for core in cores}
    by_core = sorted(cores, key=lambda core: (min(threads[core]), core))
    own: set[int] = set()
    for device in ours:
        there = [core for core in by_core if core in near[device.id]]
        beside = [name for name, others in near.items() if others == near[device.id]]
        size = len(there) // len(beside)
        first = beside.index(device.id) * size
        own.update(there[first : first + size])
    return own


def _listed_cores(path: Path) -> AbstractSet[int]:
    """The cores that a file of Linux lists, `0-3,8` for instance; none where there is no such."""
    cores: set[int] = set()
    with contextlib.suppress(OSError, ValueError):
        for part in filter(None, path.read_text().strip().split(",")):
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
    return cores


def _show(devices: str | None) -> None:
    """Let this process, and all that it starts, see only some GPUs; None for all."""
    if devices is None:
        os.environ.pop(_VISIBLE, None)
    else:
        os.environ[_VISIBLE] = devices
