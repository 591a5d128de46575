"""Cores: GPUs in, which cores are near each and which of those are its own out, as Linux says."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

SYSFS = Path("/sys")
_DISPLAY = "0x03"
"""What the class of each GPU begins with (PCI Code and ID Assignment, 1.4)."""


def near_cores(bus_id: str, sysfs: Path = SYSFS) -> AbstractSet[int]:
    """The cores on a GPU's side of the machine; none where nobody says.

    Args:
        bus_id: its address on the bus, empty where nobody knows.
        sysfs: where Linux says it.
    """
    return _cores_in(_devices(sysfs) / bus_id / "local_cpulist") if bus_id else frozenset()


def own_cores(
    bus_ids: Collection[str], ours: AbstractSet[int], sysfs: Path = SYSFS
) -> Mapping[str, AbstractSet[int]]:
    """By GPU its share of the cores near it; none for some where there are fewer cores than GPUs.

    The GPUs that we may not use have theirs, too: so processes that each see some of a machine's
    divide its cores alike. The threads of one core stay together.

    Args:
        bus_ids: of the GPUs that we may use.
        ours: the cores that we may use.
        sysfs: where Linux says what is near.
    """
    sides: dict[AbstractSet[int], list[str]] = {}
    for bus_id in sorted({*bus_ids, *_alike(bus_ids, sysfs)}):
        sides.setdefault(near_cores(bus_id, sysfs) & ours, []).append(bus_id)
    own: dict[str, AbstractSet[int]] = {}
    for side, gpus in sides.items():
        cores = _whole(side, sysfs)
        ends = [len(cores) * number // len(gpus) for number in range(len(gpus) + 1)]
        for bus_id, (first, end) in zip(gpus, itertools.pairwise(ends), strict=True):
            own[bus_id] = frozenset(itertools.chain.from_iterable(cores[first:end]))
    return own


def parse_cores(text: str) -> AbstractSet[int]:
    """The cores of Linux's lists, `0-3,8` for instance.

    Raises:
        ValueError: it is no such list.
    """
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _alike(bus_ids: Collection[str], sysfs: Path) -> Iterator[str]:
    """All GPUs of the vendors that these are of."""
    vendors = {_word(_devices(sysfs) / bus_id / "vendor") for bus_id in bus_ids if bus_id} - {""}
    for device in _devices(sysfs).glob("*"):
        if _word(device / "class").startswith(_DISPLAY) and _word(device / "vendor") in vendors:
            yield device.name


def _whole(cores: AbstractSet[int], sysfs: Path) -> Sequence[Sequence[int]]:
    """The cores in order, each with the threads that compute on the same one."""
    found: dict[int, list[int]] = {}
    for core in sorted(cores):
        threads = _cores_in(sysfs / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        found.setdefault(min(threads, default=core), []).append(core)
    return list(found.values())


def _devices(sysfs: Path) -> Path:
    return sysfs / "bus/pci/devices"


def _cores_in(path: Path) -> AbstractSet[int]:
    try:
        return parse_cores(_word(path))
    except ValueError:
        return frozenset()


def _word(path: Path) -> str:
    """What a file of Linux's says; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
