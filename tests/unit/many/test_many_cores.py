"""Cores: which are near a GPU, and which of those are its own, as Linux says."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from specreg.many.cores import near_cores, own_cores, parse_cores

OURS = set(range(32))
NVIDIA, OTHER = "0x10de", "0x1a03"
LEFT, RIGHT = "0-7,16-23", "8-15,24-31"


def device(
    sysfs: Path, bus_id: str, near: str, vendor: str = NVIDIA, kind: str = "0x030200"
) -> str:
    """A device on the bus."""
    folder = sysfs / "bus/pci/devices" / bus_id
    folder.mkdir(parents=True)
    for name, text in (("local_cpulist", near), ("vendor", vendor), ("class", kind)):
        (folder / name).write_text(f"{text}\n")
    return bus_id


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two sides of eight cores, each of which has two threads: 0 and 16, 1 and 17 and so on."""
    for core in range(32):
        folder = tmp_path / f"devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core % 16},{core % 16 + 16}\n")
    return tmp_path


def shares(sysfs: Path, *bus_ids: str) -> Mapping[str, list[int]]:
    """Of each GPU the cores that are its own, in order."""
    return {name: sorted(own) for name, own in own_cores(bus_ids, OURS, sysfs).items()}


def test_gpus_of_one_side_divide_its_cores_and_no_core_between_its_threads(sysfs: Path) -> None:
    a, b, c = (device(sysfs, f"0000:0{n}:00.0", LEFT) for n in (1, 2, 3))
    alone = device(sysfs, "0000:81:00.0", RIGHT)
    assert shares(sysfs, a, b, c, alone) == {
        a: [0, 1, 16, 17],
        b: [2, 3, 4, 18, 19, 20],
        c: [5, 6, 7, 21, 22, 23],
        alone: [*range(8, 16), *range(24, 32)],
    }


def test_a_gpu_that_we_do_not_see_has_its_share(sysfs: Path) -> None:
    ours, other = (device(sysfs, f"0000:0{n}:00.0", LEFT) for n in (1, 2))
    device(sysfs, "0000:03:00.0", LEFT, vendor=OTHER)
    device(sysfs, "0000:04:00.0", LEFT, kind="0x020000")
    assert shares(sysfs, ours)[ours] == [0, 1, 2, 3, 16, 17, 18, 19]
    assert shares(sysfs, other)[other] == [4, 5, 6, 7, 20, 21, 22, 23]


def test_only_cores_that_we_may_use_are_divided(sysfs: Path) -> None:
    a, b = (device(sysfs, f"0000:0{n}:00.0", LEFT) for n in (1, 2))
    assert own_cores([a, b], {0, 1, 9}, sysfs) == {a: {0}, b: {1}}


def test_fewer_cores_than_gpus_are_not_enough_for_each(sysfs: Path) -> None:
    a, b = (device(sysfs, f"0000:0{n}:00.0", LEFT) for n in (1, 2))
    assert own_cores([a, b], {3, 19}, sysfs) == {a: frozenset(), b: {3, 19}}


def test_where_nobody_says_what_is_near_nothing_is(sysfs: Path) -> None:
    device(sysfs, "0000:01:00.0", "near")
    for bus_id in ("", "0000:01:00.0", "0000:99:00.0"):
        assert near_cores(bus_id, sysfs) == frozenset()
        assert own_cores([bus_id], OURS, sysfs)[bus_id] == frozenset()


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("\n", set())],
    ids=["ranges", "one", "none"],
)
def test_linux_lists_of_cores_are_read(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores
