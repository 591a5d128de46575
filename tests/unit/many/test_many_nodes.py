"""Nodes of a cluster: who gets a place where, what is refused, and what a lost one leaves."""

import dataclasses
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from specreg.core.errors import SpecregError, UnsupportedError
from specreg.many.errand import Done, Ended, Failure, Measured, Order, Said, Terms
from specreg.many.nodes import Node, Nodes, Spot, nodes_for, spot_of
from specreg.many.places import Ground, Machine, Need, Place
from specreg.many.pool import Pool
from specreg.telemetry.identity import Host
from tests.unit import builders
from tests.unit.many.test_many_places import ALL, FOUR, ONE, PAIR, gpu
from tests.unit.many.test_many_pool import errand, of

CPU = builders.ENVIRONMENT
OPTION = "--specreg-cluster"
WITHOUT = Need(gpus=0, timed=False)
MEASURED = Measured(part="", engine_version="1", target="t", draft=None, invalid={})


def ground(name: str, count: int = 4, cores: int = 64) -> Ground:
    """A machine with so many GPUs."""
    gpus = tuple(gpu(number, uuid=f"GPU-{name}-") for number in range(count))
    return Ground(machine=Machine(gpus=gpus, cores=cores))


def node(name: str, host: Ground | None = None, cpu: str = "fast") -> Node:
    """A node with all that a machine of its own has, or somebody else's."""
    host = host or ground(name)
    return Node(
        id=name,
        name=name,
        gpus=host.machine.gpus,
        cores=host.machine.cores,
        site=Host(cpu=msgspec.structs.replace(CPU, cpu=cpu), gpus=host.machine.gpus),
        host=host,
    )


def nodes(*names: str, on_gpu: bool = True) -> Nodes:
    """Nodes of these names, four GPUs each."""
    return nodes_for(OPTION, [node(name) for name in names], on_gpu=on_gpu)


def taken(some: Nodes, need: Need) -> Spot:
    """A place that there must be."""
    place = some.place(need)
    assert place is not None
    return place


def test_the_emptiest_machine_comes_first() -> None:
    some = nodes("a", "b")
    names = [taken(some, ONE).node.name for _ in range(4)]
    assert names == ["a", "b", "a", "b"]


def test_a_server_stays_on_one_node() -> None:
    some = nodes("a", "b")
    wide = taken(some, ALL)
    assert (wide.node.name, len(wide.gpus)) == ("a", 4)
    taken(some, ONE)
    assert some.place(ALL) is None
    some.give_back(wide)
    assert taken(some, ALL).node.name == "a"


def test_without_gpus_one_at_a_time_on_each_machine_however_many_nodes_it_has() -> None:
    shared = ground("shared")
    some = nodes_for(OPTION, [node("a", shared), node("b", shared), node("c")], on_gpu=False)
    first, second = taken(some, WITHOUT), taken(some, WITHOUT)
    assert [first.node.name, second.node.name] == ["a", "c"]
    assert some.place(WITHOUT) is None
    assert some.gpus == 0
    some.give_back(first)
    assert taken(some, WITHOUT).node.name == "a"


def test_a_lost_node_gets_nothing_any_more() -> None:
    some = nodes("a", "b")
    place = taken(some, ONE)
    place.node.lost = True
    some.give_back(place)
    assert {taken(some, ONE).node.name for _ in range(4)} == {"b"}
    assert some.place(ONE) is None


def test_what_no_node_that_is_left_holds_is_named() -> None:
    some = nodes("a", "b")
    for one in some.nodes:
        one.lost = True
    with pytest.raises(SpecregError) as caught:
        some.place(PAIR)
    assert str(caught.value) == (
        "--specreg-cluster: no node is left that has 2 GPU(s) for it, lost: a, b; start nodes, and"
        " go on with --specreg-resume"
    )


def test_how_many_at_once_is_that_of_all_machines() -> None:
    some = nodes("a", "b")
    assert some.at_once([ONE] * 8) == (8, "")
    fit, why = some.at_once([ONE] * 9)
    assert (fit, why.partition(":")[0]) == (8, "because of the GPUs")


def test_a_server_gets_the_cores_that_its_rule_says_and_without_a_gpu_all() -> None:
    small = node("a", ground("a", cores=2))
    assert node("b").cores_for(Need(gpus=2, client_processes=3)) == 6
    assert small.cores_for(Need(gpus=2, client_processes=3)) == 2
    assert node("b").cores_for(ONE) == 1
    assert node("b").cores_for(WITHOUT) == 64


def test_nodes_of_several_kinds_are_refused() -> None:
    other = dataclasses.replace(node("b"), gpus=(gpu(7, "L4"),))
    with pytest.raises(UnsupportedError) as caught:
        nodes_for(OPTION, [node("a"), other], on_gpu=True)
    assert str(caught.value) == (
        "--specreg-cluster: the nodes are of several kinds (a #0, a #1, a #2, a #3: H100, 80 GB; b"
        " #7: L4, 80 GB), and a baseline is of one; give it a cluster of nodes of one kind"
    )
    with pytest.raises(UnsupportedError, match=r"several kinds \(a: cpu-fast.*; b: cpu-slow"):
        nodes_for(OPTION, [node("a"), node("b", cpu="slow")], on_gpu=False)
    nodes_for(OPTION, [node("a"), node("b", cpu="slow")], on_gpu=True)


def test_slices_are_refused_by_the_option_that_was_given() -> None:
    sliced = dataclasses.replace(node("a"), gpus=(gpu(0, uuid="MIG-"),))
    with pytest.raises(UnsupportedError, match="leave --specreg-cluster out"):
        nodes_for(OPTION, [sliced], on_gpu=True)


def test_a_cluster_without_a_gpu_is_named() -> None:
    with pytest.raises(SpecregError, match="no node of the cluster gives a GPU away; start one"):
        nodes_for(OPTION, [node("a", ground("a", 0))], on_gpu=True)


def test_a_place_that_is_on_no_node_is_an_error() -> None:
    with pytest.raises(SpecregError, match="report this"):
        spot_of(Place(need=ONE))


@dataclass(kw_only=True)
class Scripted:
    """Workers that do nothing, and whose crew writes down who was where."""

    nodes: Nodes
    option: str = OPTION
    begun: list[str] = field(default_factory=list)
    held: Counter[str] = field(default_factory=Counter)
    most_held: Counter[str] = field(default_factory=Counter)
    lose: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def gpus(self) -> int:
        """See `Crew`."""
        return self.nodes.gpus

    def place(self, need: Need) -> Spot | None:
        """See `Crew`."""
        return self.nodes.place(need)

    def give_back(self, place: Place) -> None:
        """See `Crew`."""
        self.held[spot_of(place).node.name] -= len(place.gpus)
        self.nodes.give_back(place)

    def start(self, order: Order, place: Place, log_path: Path) -> "Idle":
        """See `Crew`."""
        del log_path
        name = spot_of(place).node.name
        self.begun.append(order.errand.name)
        self.held[name] += len(place.gpus)
        self.most_held[name] = max(self.most_held[name], self.held[name])
        return Idle(order=order, node=spot_of(place).node, is_lost=name == self.lose)

    def at_once(self, needs: Iterable[Need]) -> tuple[int, str]:
        """See `Crew`."""
        return self.nodes.at_once(needs)

    def close(self) -> None:
        """See `Crew`."""


@dataclass(kw_only=True)
class Idle:
    """Says at once that all is done; or is lost with its node after the first task."""

    order: Order
    node: Node
    is_lost: bool
    how: str = ""

    def __iter__(self) -> Iterator[Said]:
        """See `Worker`."""
        tasks = self.order.errand.tasks
        for task in tasks[: 1 if self.is_lost else None]:
            yield Done(task=task, answer=MEASURED)
        if self.is_lost:
            self.node.lost, self.how = True, f"was lost with its node {self.node.name}"
            return
        yield Ended()

    def hang_up(self) -> None:
        """See `Worker`."""

    def kill(self) -> None:
        """See `Worker`."""


def pool_of(crew: Scripted, folder: Path) -> Pool:
    """A pool of scripted workers."""
    terms = Terms(
        root=str(folder),
        run_folder=str(folder),
        baselines="",
        environment=CPU,
        launches=1,
        recording=False,
        on_gpu=True,
        version=None,
        python=None,
        waits=True,
        ready_within_s=1.0,
    )
    return Pool(
        crew=crew, terms=terms, most_workers=10**6, show=lambda _: None, tell=lambda _: None
    )


def test_a_thousand_errands_on_64_nodes_each_with_gpus_of_its_own(tmp_path: Path) -> None:
    crew = Scripted(nodes=nodes(*(f"node-{number}" for number in range(64))))
    errands = [
        errand(f"server-{n}", f"word {n}", gpus=(1, 2, 4)[n % 3], weight=n) for n in range(1000)
    ]
    pool = pool_of(crew, tmp_path)
    pool.send(errands)
    pool.wait()
    assert all(pool.answer(of(f"word {n}")) == MEASURED for n in range(1000))
    widths = [errands[int(name.rpartition("-")[2])].need.gpus for name in crew.begun]
    assert sorted(crew.begun) == sorted(one.name for one in errands)
    assert widths == sorted(widths, reverse=True)
    assert max(crew.most_held.values()) <= len(FOUR)
    assert len(crew.most_held) == 64
    assert set(crew.held.values()) == {0}


def test_what_a_lost_node_had_finished_stays_and_the_rest_goes_elsewhere(tmp_path: Path) -> None:
    crew = Scripted(nodes=nodes("a", "b"), lose="a")
    pool = pool_of(crew, tmp_path)
    pool.send([errand("server", "first", "second")])
    assert [pool.answer(of(word)) for word in ("first", "second")] == [MEASURED] * 2
    pool.wait()
    assert pool.retried == ["server: begun again, its worker was lost with its node a"]
    assert crew.begun == ["server", "server"]


def test_what_can_be_done_nowhere_any_more_is_said_of_each_case(tmp_path: Path) -> None:
    crew = Scripted(nodes=nodes("a"), lose="a")
    pool = pool_of(crew, tmp_path)
    pool.send([errand("server", "first", "second")])
    assert pool.answer(of("first")) == MEASURED
    answer = pool.answer(of("second"))
    pool.wait()
    assert isinstance(answer, Failure)
    assert "no node is left that has 1 GPU(s) for it, lost: a" in answer.message
