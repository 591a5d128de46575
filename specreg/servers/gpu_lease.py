"""Lock GPUs for servers, so that no other run uses them, and check that their memory is freed.

The lock of a GPU is a file in the user's cache, named after the GPU's UUID; the operating system
releases the lock of a process that is killed. Processes of other users, and programs other than
specreg, don't use these locks. Whether such a process computes on a GPU is known from the driver.
"""

import contextlib
import datetime as dt
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

import filelock

from specreg.core.counted import counted
from specreg.core.errors import MemoryHeldError, SensorError, UnkillableError
from specreg.core.files import cache_folder, replace_file
from specreg.core.interrupts import check_signalled
from specreg.core.locks import new_lock
from specreg.core.processes import describe_process, our_ids
from specreg.telemetry.devices import open_probe, wait_until_free
from specreg.telemetry.gpus import VARIABLES, visibility
from specreg.telemetry.identity import find_gpus
from specreg.telemetry.sensor import Device

_POLL_S = 0.2
_BACK_WITHIN_S = 10.0
"""How long a driver may take to free the memory of a server that has ended."""
_BYTES_PER_GIB = 2**30
_SYSFS = Path("/sys")
_SLACK_BYTES = 2**30
"""How much more memory the driver itself may hold after a server than before it."""

_LOCKS: dict[str, filelock.BaseFileLock] = {}
"""The locks of the GPUs that this process has held, by UUID."""
_SERVERS: Counter[str] = Counter()
"""How many servers of this process are on each GPU, by UUID."""
_BEFORE_BYTES: dict[str, int | None] = {}
"""The memory in use before the first server started, by UUID; None if it can't be read."""


@contextlib.contextmanager
def lease_gpus(
    devices: Sequence[Device], *, tell: Callable[[str], None], waits: bool
) -> Iterator[None]:
    """Lock a server's GPUs while the context lasts, in which the server starts and ends.

    A process that already holds a GPU fails instead of waiting for a further one. Otherwise two
    processes could wait for each other forever.

    Args:
        devices: the GPUs; empty for a server without a GPU.
        tell: prints the message that this process waits.
        waits: True to wait for a run that uses one of the GPUs, False to fail then.

    Raises:
        SensorError: another run holds one of the GPUs, and this process doesn't wait for it. Or
            another process computes on a GPU, or a GPU is gone.
        SpecregError: the cache can't be written.
        MemoryHeldError: 10 s after its last server has ended, a GPU has over 1 GiB more in use than
            before its first server.
    """
    waits = waits and not any(lock.is_locked for lock in _LOCKS.values())
    with contextlib.ExitStack() as stack:
        # A lease of several GPUs may wait while it holds the first ones. So all processes lock in
        # the order of the ids, and no two wait for each other.
        for device in sorted(devices, key=lambda device: device.id):
            stack.enter_context(hold(device, waits=waits, tell=tell))
        # A GPU with a server of this process has processes on it, and isn't expected to be free.
        shared_ids = {device.id for device in devices if _SERVERS[device.id]}
        wait_until_free(devices, our_ids(), shared_ids)
        for device in devices:
            if not _SERVERS[device.id]:
                _BEFORE_BYTES[device.id] = _used_bytes(device)
            _SERVERS[device.id] += 1
        awaits_memory = True
        try:
            yield
        except (KeyboardInterrupt, UnkillableError):
            # These already explain why the memory may still be in use.
            awaits_memory = False
            raise
        finally:
            _SERVERS.subtract(device.id for device in devices)
            for device in devices:
                if awaits_memory and not _SERVERS[device.id]:
                    _await_memory(device, _BEFORE_BYTES[device.id])


@contextlib.contextmanager
def hold(device: Device, *, waits: bool, tell: Callable[[str], None] = print) -> Iterator[None]:
    """Lock a GPU while the context lasts.

    If several contexts of this process hold the GPU, it stays locked until all of them have ended.

    Args:
        device: the GPU.
        waits: True to wait for a run that holds the GPU, False to fail then.
        tell: prints the message that this process waits.

    Raises:
        SensorError: another run holds the GPU, and `waits` is False.
        SpecregError: the cache can't be written.
    """
    path = cache_folder("gpus") / f"{device.id}.lock"
    lock = _LOCKS.get(device.id)
    if lock is None:
        lock = _LOCKS[device.id] = new_lock(path)
    holder_path = path.with_suffix(".txt")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        holder = "another run of specreg"
        with contextlib.suppress(OSError):
            holder = holder_path.read_text(errors="replace")
        message = f"{_title(device)}: used by {holder}"
        if not waits:
            advice = f"wait until it is done, or choose another GPU with {device.selector}"
            raise SensorError(f"{message}; {advice}") from error
        tell(f"{message}; waiting until it is done")
        lock.acquire(poll_interval=_POLL_S)

    # This process may hold the lock several times. The first context writes a file that says who
    # holds the GPU, and the last context to end removes the file.
    try:
        if lock.lock_counter == 1:
            since = dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
            holder = f"{describe_process(os.getpid())} since {since}, in {Path.cwd()}"
            replace_file(holder_path, holder.encode())
        yield
    finally:
        if lock.lock_counter == 1:
            holder_path.unlink(missing_ok=True)
        lock.release()


def _await_memory(device: Device, before_bytes: int | None) -> None:
    """Wait until a GPU's memory is free again, which takes the driver a moment.

    Args:
        device: the GPU.
        before_bytes: the memory that was in use before the first server; None if it isn't known,
            and then nothing is checked.

    Raises:
        MemoryHeldError: after 10 s, over 1 GiB more is in use than before.
        SensorError: the GPU is gone.
    """
    if before_bytes is None:
        return
    deadline_s = time.monotonic() + _BACK_WITHIN_S
    while (used_bytes := _used_bytes(device)) is not None:
        kept_bytes = used_bytes - before_bytes
        if kept_bytes <= _SLACK_BYTES:
            return
        if time.monotonic() > deadline_s:
            raise MemoryHeldError(
                f"{_title(device)}: {_BACK_WITHIN_S:g} s after its server's end"
                f" {kept_bytes / _BYTES_PER_GIB:.1f} GiB are still taken, and nothing can be"
                " measured until they are free; end the process that holds them, which nvidia-smi"
                " or amd-smi shows"
            )
        time.sleep(_POLL_S)


def _title(device: Device) -> str:
    """Return a GPU's number, name and UUID for a message."""
    return f"GPU {device.number} ({device.name}, {device.id})"


def _used_bytes(device: Device) -> int | None:
    """Return the memory of a GPU that is in use; None if it can't be read."""
    return open_probe(device).state().used_bytes


@dataclass(slots=True)
class GpuClaim:
    """The GPUs that this process holds for its servers. Its child processes see no other GPUs.

    Attributes:
        _held: when it is closed, it releases the GPUs, and this process gets back the variables
            and the cores that it had before.
    """

    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def take(self, gpus: int, tell: Callable[[str], None]) -> None:
        """Release the GPUs that are held, and wait for new ones.

        Processes wait in a line. Otherwise a server that needs many GPUs might never get them,
        because servers that need one GPU would take each one that becomes free.

        Args:
            gpus: how many GPUs to hold, 0 or more.
            tell: prints the message that this process waits.

        Raises:
            SensorError: this process can't see so many GPUs.
            SpecregError: the cache can't be written.
        """
        self.give_back()
        if not gpus:
            return
        visible_gpus = find_gpus()
        visible_devices = visible_gpus.devices
        if len(visible_devices) < gpus:
            reason = visible_gpus.why_none
            if not reason:
                reason = f"this process sees {len(visible_devices)}; use a machine that has enough"
            raise SensorError(f"{counted(gpus, 'GPU')}: {reason}")

        line_path = cache_folder("gpus") / "line.lock"
        with new_lock(line_path):
            devices = self._take_free(visible_devices, gpus)
            if not devices:
                tell(f"waiting for {gpus} of {len(visible_devices)} GPUs")
            while not devices:
                check_signalled()
                time.sleep(_POLL_S)
                devices = self._take_free(visible_devices, gpus)

        # Let child processes see these GPUs only, until the GPUs are released.
        self._held.callback(_show, {name: os.environ.get(name) for name in VARIABLES})
        _show(visibility(devices, os.environ))

        # Use only this process's share of the cores that are near the GPUs.
        all_cores = os.sched_getaffinity(0)
        cores = own_cores(devices, visible_devices, all_cores)
        if cores:
            self._held.callback(os.sched_setaffinity, 0, all_cores)
            os.sched_setaffinity(0, cores)

    def give_back(self) -> None:
        """Release the GPUs to other processes."""
        self._held.close()

    def _take_free(self, devices: Sequence[Device], gpus: int) -> Sequence[Device]:
        """Hold the first devices that are free and return them; return none if too few are free."""
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
    devices: Sequence[Device],
    visible_devices: Sequence[Device],
    cores: AbstractSet[int],
    sysfs: Path = _SYSFS,
) -> AbstractSet[int]:
    """Return the cores that a process with some of the GPUs should use.

    GPUs that are near the same cores divide these into equal parts, and GPUs of other processes
    count too. Here a core means a hardware thread, as in Linux. Both threads of a physical core go
    to the same GPU if the parts are large enough, although Linux gives them numbers far apart.

    Args:
        devices: the GPUs whose share is returned.
        visible_devices: all GPUs that divide the cores.
        cores: the cores that this process may use.
        sysfs: where Linux describes the machine.

    Returns:
        The numbers of the cores; empty if the system doesn't say which cores are near the GPUs, or
        if this process may use fewer of these cores than there are GPUs near them.
    """
    # Read which cores are near each GPU.
    near: dict[str, AbstractSet[int]] = {}
    for device in visible_devices:
        path = sysfs / "bus/pci/devices" / device.bus_id / "local_cpulist"
        near[device.id] = _listed_cores(path) & cores

    # Sort the cores so that those which share a physical core follow each other.
    siblings: dict[int, AbstractSet[int]] = {}
    for core in cores:
        path = sysfs / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        siblings[core] = _listed_cores(path) or {core}
    sorted_cores = sorted(cores, key=lambda core: (min(siblings[core]), core))

    # Give each GPU its part of them.
    share: set[int] = set()
    for device in devices:
        near_cores = [core for core in sorted_cores if core in near[device.id]]
        neighbour_ids = [
            gpu_id for gpu_id, gpu_cores in near.items() if gpu_cores == near[device.id]
        ]
        size = len(near_cores) // len(neighbour_ids)
        first = neighbour_ids.index(device.id) * size
        share.update(near_cores[first : first + size])

    return share


def _listed_cores(path: Path) -> AbstractSet[int]:
    """Return the cores in one of Linux's lists, such as `0-3,8`; empty if the file isn't there."""
    cores: set[int] = set()
    with contextlib.suppress(OSError, ValueError):
        for part in filter(None, path.read_text().strip().split(",")):
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
    return cores


def _show(settings: Mapping[str, str | None]) -> None:
    """Set the variables by which this process and its child processes see GPUs; None unsets one."""
    for name, value in settings.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
