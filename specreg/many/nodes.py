"""The nodes of a cluster: which of them has a place, on machines that several may share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specreg.core.errors import SpecregError, UnsupportedError
from specreg.many.places import (
    Ground,
    Machine,
    Need,
    Place,
    at_once,
    check_alike,
    cores_for,
    several_kinds,
)
from specreg.telemetry.identity import Host
from specreg.telemetry.sensor import Device


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """A node.

    Attributes:
        id: the cluster's; name: for people.
        gpus, cores: that the cluster gives away on it.
        site: the machine, as the node says.
        ground: what is taken on it; host: on the machine, which it may share with others.
        lost: whether it is gone.
    """

    id: str
    name: str
    gpus: tuple[Device, ...]
    cores: int
    site: Host
    host: Ground
    ground: Ground = field(init=False)
    lost: bool = False

    def __post_init__(self) -> None:
        self.ground = Ground(machine=Machine(gpus=self.gpus, cores=self.cores))

    def holds(self, need: Need) -> bool:
        """Whether there is a place on it once nobody else is there."""
        return not self.lost and len(self.gpus) >= need.gpus

    def take(self, need: Need) -> "Spot | None":
        """A place on it, if there is one now."""
        here = self.host.take(need)
        if here is None:
            return None
        own = self.ground.take(need)
        if own is None:
            self.host.give_back(here)
            return None
        return Spot(need=need, gpus=own.gpus, node=self, here=here, own=own)

    def cores_for(self, need: Need) -> int:
        """How many of its cores a server's cases are given; all of them to one without a GPU."""
        wanted = cores_for(need) if need.timed else 1
        return min(wanted, self.cores) if need.gpus else self.cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot(Place):
    """A place on a node; of its GPUs only the number counts, as the cluster decides which.

    Attributes:
        node: where.
        here: what it takes of the machine; own: of the node.
    """

    node: Node
    here: Place
    own: Place


@dataclass(slots=True, kw_only=True, eq=False)
class Nodes:
    """Those that measure for a run.

    Attributes:
        option: what a user asks for them by.
        nodes: they.
    """

    option: str
    nodes: Sequence[Node]

    @property
    def gpus(self) -> int:
        """How many they had when the run began."""
        return sum(len(one.gpus) for one in self.nodes)

    def place(self, need: Need) -> Spot | None:
        """See `Crew`; the emptiest machine comes first.

        Raises:
            SpecregError: no node that is left is wide enough.
        """
        able = [one for one in self.nodes if one.holds(need)]
        if not able:
            lost = ", ".join(one.name for one in self.nodes if one.lost)
            message = (
                f"{self.option}: no node is left that has {need.gpus} GPU(s) for it, lost:"
                f" {lost or 'none'}; start nodes, and go on with --specreg-resume"
            )
            raise SpecregError(message)
        able.sort(key=lambda one: (one.host.busy, one.ground.busy))
        return next(filter(None, (one.take(need) for one in able)), None)

    def give_back(self, place: Place) -> None:
        """See `Crew`."""
        spot = spot_of(place)
        spot.node.ground.give_back(spot.own)
        spot.node.host.give_back(spot.here)

    def at_once(self, needs: Iterable[Need]) -> tuple[int, str]:
        """See `Crew`."""
        needs = tuple(needs)
        hosts = {id(one.host): one.host.machine for one in self.nodes}.values()
        found = [at_once(machine, needs) for machine in hosts]
        fit = sum(most for most, _ in found)
        return (fit, found[0][1]) if fit < len(needs) else (len(needs), "")


def spot_of(place: Place) -> Spot:
    """A place that is on a node.

    Raises:
        SpecregError: it isn't.
    """
    if not isinstance(place, Spot):
        raise SpecregError("a place is on no node of the cluster; report this")
    return place


def nodes_for(option: str, nodes: Sequence[Node], *, on_gpu: bool) -> Nodes:
    """Those of a cluster's nodes that can measure for a run.

    Args:
        option: what a user asks for them by.
        nodes: all.
        on_gpu: whether servers run on GPUs.

    Raises:
        SpecregError: there are none.
        UnsupportedError: it would make a difference on which one a case is measured.
    """
    able = [one for one in nodes if (one.gpus if on_gpu else one.cores)]
    if not able:
        needed = "a GPU" if on_gpu else "a processor"
        message = f"{option}: no node of the cluster gives {needed} away; start one that does"
        raise SpecregError(message)
    told = _gpus_differ(able) if on_gpu else _processors_differ(able)
    if told:
        message = f"{option}: the nodes are of several kinds ({told}), and a baseline is of one"
        raise UnsupportedError(f"{message}; give it a cluster of nodes of one kind")
    for one in able:
        if on_gpu:
            check_alike(one.ground.machine, option)
        else:  # nor do GPUs stand idle then
            one.gpus = ()
            one.ground = Ground(machine=Machine(gpus=(), cores=one.cores))
            one.host.machine = Machine(gpus=(), cores=one.host.machine.cores)
    return Nodes(option=option, nodes=able)


def _gpus_differ(nodes: Sequence[Node]) -> str:
    return several_kinds([(f"{one.name} #{gpu.number}", gpu) for one in nodes for gpu in one.gpus])


def _processors_differ(nodes: Sequence[Node]) -> str:
    kinds: dict[str, list[str]] = {}
    for one in nodes:
        kinds.setdefault(one.site.cpu.name, []).append(one.name)
    told = [f"{', '.join(names)}: {kind}" for kind, names in kinds.items()]
    return "; ".join(told) if len(told) > 1 else ""
