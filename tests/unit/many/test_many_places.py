"""Places: what may run at once, where, and what is refused beforehand."""

import os
from pathlib import Path

import pytest

from specreg.core.errors import UnsupportedError
from specreg.many.places import (
    RULES,
    Ground,
    Machine,
    Need,
    Place,
    at_once,
    check_alike,
    this_machine,
)
from specreg.telemetry.sensor import Device, Scope

ONE, PAIR, ALL = (Need(gpus=gpus, timed=False) for gpus in (1, 2, 4))
TIMED = Need(gpus=1)
LEFT, RIGHT = frozenset(range(10)), frozenset(range(10, 20))


def gpu(number: int, name: str = "H100", limit_w: float = 0.0, uuid: str = "GPU-") -> Device:
    """A GPU of a number."""
    return Device(
        sensor="nvml",
        id=f"{uuid}{number}",
        name=name,
        number=number,
        scope=Scope.GPU,
        limit_w=limit_w,
        memory_bytes=80 * 10**9,
        bus_id=f"0000:0{number}:00.0",
    )


FOUR = tuple(map(gpu, range(4)))
SIDES = {"GPU-0": LEFT, "GPU-1": LEFT, "GPU-2": RIGHT, "GPU-3": RIGHT}
OWN = {
    "GPU-0": frozenset(range(5)),
    "GPU-1": frozenset(range(5, 10)),
    "GPU-2": frozenset({10, 11}),
    "GPU-3": frozenset({12, 13}),
}


def ground(*, cores: int = 64, gpus: tuple[Device, ...] = FOUR) -> Ground:
    """An empty machine with two sides."""
    return Ground(machine=Machine(gpus=gpus, cores=cores, near=SIDES, own=OWN))


def taken(one: Ground, need: Need) -> Place:
    """A place that there must be."""
    place = one.take(need)
    assert place is not None
    return place


def test_no_gpu_is_anybody_elses() -> None:
    one = ground()
    places = [taken(one, ONE) for _ in FOUR]
    assert sorted(gpu.id for place in places for gpu in place.gpus) == sorted(SIDES)
    assert one.take(ONE) is None
    one.give_back(places[2])
    assert taken(one, ONE).gpus == places[2].gpus


def test_a_server_of_several_gpus_takes_all_of_them_or_none() -> None:
    one = ground()
    place = taken(one, ONE)
    assert one.take(ALL) is None
    one.give_back(place)
    assert taken(one, ALL).gpus == FOUR


def test_gpus_of_one_server_lie_on_one_side() -> None:
    one = ground()
    assert taken(one, ONE).gpus == (FOUR[0],)
    assert taken(one, PAIR).gpus == FOUR[2:]


def test_the_side_that_is_fuller_is_filled_first() -> None:
    one = ground()
    assert taken(one, ONE).gpus == (FOUR[0],)
    assert taken(one, ONE).gpus == (FOUR[1],)


def test_cores_near_a_gpu_are_one_servers_alone() -> None:
    one = ground()
    first, second = taken(one, TIMED), taken(one, TIMED)
    assert (first.cores, second.cores) == (OWN["GPU-0"], OWN["GPU-1"])
    assert first.remark == second.remark == ""
    assert taken(one, Need(gpus=2)).cores == OWN["GPU-2"] | OWN["GPU-3"]


def test_too_few_cores_of_its_own_are_said_and_hold_no_server() -> None:
    one = ground(gpus=FOUR[2:])
    place = taken(one, TIMED)
    assert place.cores == frozenset()
    assert place.remark == (
        "2 core(s) near its GPU(s) are its own, and 3 are needed; it may use any, and others may"
        " disturb it: let the run have more cores"
    )


def test_where_nothing_is_timed_nobody_is_told_of_cores() -> None:
    place = taken(ground(gpus=FOUR[2:]), ONE)
    assert (place.cores, place.remark) == (frozenset(), "")


def test_where_nobody_knows_what_is_near_any_core_may_be_used() -> None:
    half_known = Machine(gpus=FOUR[:2], cores=8, near={"GPU-0": LEFT}, own=OWN)
    assert taken(Ground(machine=half_known), PAIR).cores == frozenset()


def test_what_another_run_holds_comes_last_and_is_waited_for_by_nobody_else() -> None:
    one = ground()
    held = {"GPU-0", "GPU-1", "GPU-2"}
    first = one.take(ONE, lambda gpu: gpu.id in held)
    assert first is not None
    assert first.gpus == (FOUR[3],)
    assert one.take(ONE, lambda gpu: gpu.id in held) is None
    one.give_back(first)
    waits = one.take(ONE, lambda gpu: gpu.id in SIDES)
    assert waits is not None
    assert waits.gpus == (FOUR[0],)


def test_without_gpus_one_is_measured_at_a_time() -> None:
    one = ground(gpus=())
    for timed in (True, False):
        place = taken(one, Need(gpus=0, timed=timed))
        assert one.take(Need(gpus=0, timed=False)) is None
        one.give_back(place)


def test_what_is_timed_has_its_cores() -> None:
    timed = Need(gpus=1, client_processes=2)  # and one for the GPU, and the server's front
    one = ground(cores=11)
    taken(one, timed)
    second = taken(one, timed)
    assert one.take(timed) is None
    one.give_back(second)
    assert taken(one, timed)


def test_one_is_always_measured_however_few_cores_there_are() -> None:
    one = ground(cores=1)
    taken(one, Need(gpus=1))
    assert one.take(Need(gpus=1)) is None


def test_acceptance_alone_needs_no_cores() -> None:
    one = ground(cores=1)
    assert all(one.take(ONE) for _ in FOUR)


def test_how_many_at_once_is_said_with_its_rule() -> None:
    machine = Machine(gpus=FOUR, cores=6)
    assert at_once(machine, [ONE, ONE]) == (2, "")
    fit, why = at_once(machine, [Need(gpus=1)] * 8)
    assert fit == 2
    assert why.startswith(
        "because of the cores: a client or server that waits for a core looks slow"
    )
    fit, why = at_once(machine, [ONE] * 8)
    assert (fit, why.partition(":")[0]) == (4, "because of the GPUs")


def test_every_rule_says_why() -> None:
    assert all(rule.name and rule.why for rule in RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (
            (gpu(0), gpu(1, "L4")),
            (
                "--specreg-workers: the GPUs are of several kinds (0: H100, 80 GB; 1: L4, 80 GB),"
                " and a baseline is of one; choose those of one kind with CUDA_VISIBLE_DEVICES"
            ),
        ),
        (
            (gpu(0), gpu(1), gpu(2, limit_w=400.0)),
            (
                "--specreg-workers: the GPUs are of several kinds (0, 1: H100, 80 GB; 2: H100,"
                " 80 GB, held to 400 W), and a baseline is of one; choose those of one kind with"
                " CUDA_VISIBLE_DEVICES"
            ),
        ),
        (
            (gpu(0, uuid="MIG-"), gpu(1, uuid="MIG-")),
            (
                "--specreg-workers: slices of a GPU (MIG) share its power and its clocks, and can't"
                " be measured at once; leave --specreg-workers out"
            ),
        ),
    ],
    ids=["kinds", "limits", "slices"],
)
def test_gpus_that_differ_are_refused(gpus: tuple[Device, ...], said: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        check_alike(Machine(gpus=gpus, cores=8))
    assert str(caught.value) == said


def test_gpus_that_are_alike_are_taken() -> None:
    check_alike(Machine(gpus=FOUR, cores=8))
    check_alike(Machine(gpus=(), cores=8))


def test_a_machine_knows_which_cores_are_near_which_gpu(tmp_path: Path) -> None:
    ours = sorted(os.sched_getaffinity(0))
    device = tmp_path / "bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "local_cpulist").write_text(f"{ours[0]},100000\n")
    machine = this_machine((gpu(0), gpu(1)), sysfs=tmp_path)
    assert machine.near == machine.own == {"GPU-0": frozenset(), "GPU-1": {ours[0]}}
    assert machine.cores == len(ours)


def test_a_list_that_makes_no_sense_says_nothing(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "local_cpulist").write_text("near\n")
    assert this_machine((gpu(1),), sysfs=tmp_path).near == {"GPU-1": frozenset()}
