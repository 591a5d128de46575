"""Have GPUs and the cores near them to oneself, in one of several processes of a run."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

import filelock

from specreg.core.errors import SensorError
from specreg.core.files import cache_dir
from specreg.core.signals import check_signalled
from specreg.servers.gpu_lease import hold
from specreg.telemetry.identity import find_gpus
from specreg.telemetry.sensor import Device

SYSFS = Path("/sys")
_POLL_S = 0.2
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(slots=True)
class GpuClaim:
    """The GPUs that this process has for its servers; all that it starts sees no others.

    Attributes:
        devices: of them; none before the first claim.
    """

    devices: tuple[Device, ...] = ()
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def take(self, gpus: int, tell: Callable[[str], None]) -> None:
        """Wait for so many GPUs, and have them instead of those that it has.

        Processes wait in a line, so that a server that takes many isn't overtaken for ever by those
        that take one.

        Args:
            gpus: how many, 0 for none.
            tell: is told that it waits.

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
        line = cache_dir() / "gpus" / "line.lock"
        line.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(line, thread_local=False):
            told = False
            while not self._take_free(everything.devices, gpus):
                if not told:
                    tell(f"waiting for {gpus} of {len(everything.devices)} GPUs")
                    told = True
                check_signalled()
                time.sleep(_POLL_S)
        before = os.environ.get(_VISIBLE)
        self._held.callback(_show, before)
        _show(",".join(device.id for device in self.devices))
        cores = os.sched_getaffinity(0)
        own = own_cores(self.devices, everything.devices, cores)
        if own:
            self._held.callback(os.sched_setaffinity, 0, cores)
            os.sched_setaffinity(0, own)

    def give_back(self) -> None:
        """Let others have them."""
        self.devices = ()
        self._held.close()

    def _take_free(self, devices: Sequence[Device], gpus: int) -> bool:
        """Hold so many of some GPUs if so many are free; none otherwise."""
        with contextlib.ExitStack() as stack:
            held: list[Device] = []
            for device in devices:
                if len(held) < gpus:
                    with contextlib.suppress(SensorError):
                        stack.enter_context(hold([device], waits=False, tell=lambda _: None))
                        held.append(device)
            if len(held) < gpus:
                return False
            self.devices = tuple(held)
            self._held = stack.pop_all()
        return True


def own_cores(
    ours: Sequence[Device], everything: Sequence[Device], cores: AbstractSet[int]
) -> AbstractSet[int]:
    """The share that some GPUs have of the cores near them; none where the system doesn't say.

    All GPUs on one side of the machine divide its cores alike, those that others use too.

    Args:
        ours: the GPUs.
        everything: all GPUs of the machine.
        cores: that this process may use.
    """
    own: set[int] = set()
    for device in ours:
        near = _near(device) & cores
        beside = [one.id for one in everything if _near(one) & cores == near]
        size = len(near) // len(beside)
        first = beside.index(device.id) * size
        own.update(sorted(near)[first : first + size])
    return own


def _near(device: Device) -> AbstractSet[int]:
    path = SYSFS / "bus/pci/devices" / device.bus_id / "local_cpulist"
    with contextlib.suppress(OSError, ValueError):
        return frozenset(_parse_cores(path.read_text())) if device.bus_id else frozenset()
    return frozenset()


def _parse_cores(text: str) -> Iterator[int]:
    """The cores of Linux's lists, `0-3,8` for instance."""
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _show(devices: str | None) -> None:
    """Have this process, and all that it starts, see some GPUs alone; None for all."""
    if devices is None:
        os.environ.pop(_VISIBLE, None)
    else:
        os.environ[_VISIBLE] = devices
