"""Places: what servers need and a machine has in, which of them may run at once and where out."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from specreg.core.errors import UnsupportedError
from specreg.many.cores import SYSFS, near_cores, own_cores
from specreg.telemetry.sensor import Device

WORKERS_OPTION = "--specreg-workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a server's cases take while they are measured.

    Attributes:
        gpus: how many the server and the one beside it share, 0 for none.
        client_processes: that send the requests, the most of any of its cases.
        timed: whether any case of the run is; then nobody's processor may be another's.
    """

    gpus: int
    client_processes: int = 1
    timed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is.

    Attributes:
        gpus: that may be used, in the driver's order; none where servers run on processors.
        cores: that we may use.
        near: by GPU's id the cores on its side of the machine; nothing of one that isn't known.
        own: the share of those that is the GPU's alone.
    """

    gpus: tuple[Device, ...]
    cores: int
    near: Mapping[str, AbstractSet[int]] = field(default_factory=dict)
    own: Mapping[str, AbstractSet[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Something that servers share; they run at once as far as it reaches, and one always may.

    Attributes:
        name: of what they share; why: it must be enough.
        has: how much of it a machine has; takes: how much a server takes.
    """

    name: str
    why: str
    has: Callable[[Machine], int]
    takes: Callable[[Need], int]


def cores_for(need: Need) -> int:
    """How many cores a server's cases have when they are timed."""
    return need.client_processes + need.gpus + 1


RULES = (
    Rule(
        name="GPUs",
        why="servers on one GPU share its memory, its clocks and its power",
        has=lambda machine: len(machine.gpus),
        takes=lambda need: need.gpus,
    ),
    Rule(
        name="processors",
        why="servers without a GPU compute on all of them, and RAPL counts a whole socket",
        has=lambda _: 1,
        takes=lambda need: 0 if need.gpus else 1,
    ),
    Rule(
        name="cores",
        why="a client or server that waits for a core looks slow: each client process, each GPU"
        " and the server's front have one; where nothing is timed, nobody minds",
        has=lambda machine: machine.cores,
        takes=lambda need: cores_for(need) if need.timed else 0,
    ),
)
"""What keeps measurements apart that would disturb one another, one row each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a server's cases are measured.

    Attributes:
        need: of those.
        gpus: theirs alone.
        cores: near those, and theirs alone; none where any may be used.
        remark: what is to be said of it, empty where nothing is.
    """

    need: Need
    gpus: tuple[Device, ...] = ()
    cores: AbstractSet[int] = frozenset()
    remark: str = ""


@dataclass(slots=True, kw_only=True)
class Ground:
    """A machine, and the places on it that are taken."""

    machine: Machine
    _taken: list[Place] = field(default_factory=list)

    def take(self, need: Need, held: Callable[[Device], bool] = lambda _: False) -> Place | None:
        """A place, if there is one now; give it back with `give_back`.

        Args:
            need: what for.
            held: whether another run has a GPU: those come last, and only where none of ours is
                in use, as one would have to wait for them.
        """
        if any(not self._leaves(rule, need) for rule in RULES):
            return None
        used = {gpu.id for place in self._taken for gpu in place.gpus}
        free = [gpu for gpu in self.machine.gpus if gpu.id not in used]
        ready = [gpu for gpu in free if not held(gpu)] if need.gpus else []
        if len(ready) < need.gpus and not self._taken:
            ready = sorted(free, key=ready.__contains__, reverse=True)
        if len(ready) < need.gpus:
            return None
        gpus = self._together(ready, need.gpus)
        cores, remark = self._cores(gpus, need)
        place = Place(need=need, gpus=gpus, cores=cores, remark=remark)
        self._taken.append(place)
        return place

    def give_back(self, place: Place) -> None:
        """Somebody else may have it."""
        self._taken.remove(place)

    @property
    def busy(self) -> int:
        """How many places are taken."""
        return len(self._taken)

    def _leaves(self, rule: Rule, need: Need) -> bool:
        """Whether a rule leaves enough; who runs alone needs no more than there is."""
        used = sum(rule.takes(place.need) for place in self._taken)
        return not used or used + rule.takes(need) <= rule.has(self.machine)

    def _cores(self, gpus: Sequence[Device], need: Need) -> tuple[AbstractSet[int], str]:
        """The cores that are these GPUs' own, and what is to be said of them.

        Any where nobody knows which are near, or where they are fewer than a server needs: then one
        that has to make do with them would look slower than others that disturb it.
        """
        if not gpus or not all(self.machine.near.get(gpu.id) for gpu in gpus):
            return frozenset(), ""
        own = frozenset[int]().union(*(self.machine.own.get(gpu.id, ()) for gpu in gpus))
        if len(own) >= cores_for(need):
            return own, ""
        remark = (
            f"{len(own)} core(s) near its GPU(s) are its own, and {cores_for(need)} are needed; it"
            " may use any, and others may disturb it: let the run have more cores"
        )
        return frozenset(), remark if need.timed else ""

    def _together(self, free: Sequence[Device], count: int) -> tuple[Device, ...]:
        """The first so many GPUs of one side of the machine, of the fullest that has them."""
        sides: dict[AbstractSet[int], list[Device]] = {}
        for gpu in free:
            sides.setdefault(frozenset(self.machine.near.get(gpu.id, ())), []).append(gpu)
        fitting = [side for side in sides.values() if len(side) >= count]
        return tuple(min(fitting, key=len, default=list(free))[:count])


def this_machine(gpus: Sequence[Device], sysfs: Path = SYSFS) -> Machine:
    """This machine, with the GPUs that a run may use.

    Args:
        gpus: that.
        sysfs: where Linux says which cores are near which device.
    """
    ours = os.sched_getaffinity(0)
    own = own_cores([gpu.bus_id for gpu in gpus], ours, sysfs)
    return Machine(
        gpus=tuple(gpus),
        cores=len(ours),
        near={gpu.id: near_cores(gpu.bus_id, sysfs) & ours for gpu in gpus},
        own={gpu.id: own[gpu.bus_id] for gpu in gpus},
    )


def check_alike(machine: Machine, option: str = WORKERS_OPTION) -> None:
    """Silent where it makes no difference which of the GPUs a case is measured on.

    Args:
        machine: with those that may be used.
        option: what a user asks for several servers at once by.

    Raises:
        UnsupportedError: they are of several kinds, or slices of one.
    """
    if told := several_kinds([(str(gpu.number), gpu) for gpu in machine.gpus]):
        message = (
            f"{option}: the GPUs are of several kinds ({told}), and a baseline is of one;"
            " choose those of one kind with CUDA_VISIBLE_DEVICES"
        )
        raise UnsupportedError(message)
    if any(gpu.id.startswith("MIG-") for gpu in machine.gpus):
        message = (
            f"{option}: slices of a GPU (MIG) share its power and its clocks, and can't be"
            f" measured at once; leave {option} out"
        )
        raise UnsupportedError(message)


def several_kinds(named: Iterable[tuple[str, Device]]) -> str:
    """The kinds of GPUs, each after the names of its own; empty where there is but one."""
    kinds: dict[tuple[str, int, float], list[str]] = {}
    for name, gpu in named:
        kinds.setdefault((gpu.name, gpu.memory_bytes, gpu.limit_w), []).append(name)
    told = [
        f"{', '.join(names)}: {kind}, {memory_bytes / 10**9:.0f} GB"
        + (f", held to {limit_w:.0f} W" if limit_w else "")
        for (kind, memory_bytes, limit_w), names in kinds.items()
    ]
    return "; ".join(told) if len(told) > 1 else ""


def at_once(machine: Machine, needs: Iterable[Need]) -> tuple[int, str]:
    """How many servers of the widest need run at once at most, and the rule that says so."""
    needs = tuple(needs)
    fewest, why = len(needs), ""
    for rule in RULES:
        most = max(map(rule.takes, needs), default=0)
        fit = max(rule.has(machine) // most, 1) if most else fewest
        if fit < fewest:
            fewest, why = fit, f"because of the {rule.name}: {rule.why}"
    return fewest, why
