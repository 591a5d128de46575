"""The crew of a Ray cluster: each errand an actor on a node that our own line chose.

Ray gives it its GPUs and cores, and keeps other users of the cluster away from them; what may run
at once is decided here, as on one machine. It is an actor, and no task, as one can hang up
on it while it works; and it is asked for one thing after another rather than streaming them, as a
stream whose node is lost may end in silence (ray-project/ray#47582).
"""

import contextlib
import importlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from specreg.core.files import append_lines
from specreg.core.redaction import hide_bytes
from specreg.many.errand import Order, Said, Shown
from specreg.many.luggage import pack
from specreg.many.nodes import Node, Nodes, Spot, nodes_for, spot_of
from specreg.many.on_node import Begun, Carried, Left, Piece, Runner
from specreg.many.places import Need, Place
from specreg.matrix.case import Case
from specreg.suite.run import Suite
from specreg.telemetry.identity import Host

RAY_OPTION = "--specreg-ray"
_ALIVE_WITHIN_S = 10.0
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """A cluster that we are connected to; see `Cluster`.

    Attributes:
        ray: the package.
        nodes: that live.
    """

    ray: Any
    nodes: Sequence[Node]

    @property
    def site(self) -> Host:
        """Of the widest node; `crew` sees to it that those that measure are of its kind."""
        return max(self.nodes, key=lambda one: len(one.gpus)).site

    def crew(self, suite: Suite, cases: Sequence[Case]) -> "OnRay":
        """See `Cluster`.

        Raises:
            SpecregError: the nodes are of several kinds, none has what the suite needs, or what
                workers read can't be sent.
        """
        nodes = nodes_for(RAY_OPTION, self.nodes, on_gpu=suite.provision.on_gpu)
        luggage = self.ray.put(pack(suite.root, suite.store.folder, cases))
        return OnRay(ray=self.ray, nodes=nodes, luggage=luggage, actors=self.ray.remote(Runner))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OnRay:
    """The nodes that measure; see `Crew`.

    Attributes:
        ray: the package.
        nodes: the nodes.
        luggage: what workers read; actors: what becomes one with a worker. As Ray has them.
        option: what a user asks for it by.
    """

    ray: Any
    nodes: Nodes
    luggage: Any
    actors: Any
    option: str = RAY_OPTION

    @property
    def gpus(self) -> int:
        """See `Crew`."""
        return self.nodes.gpus

    def place(self, need: Need) -> Spot | None:
        """See `Crew`."""
        return self.nodes.place(need)

    def give_back(self, place: Place) -> None:
        """See `Crew`."""
        self.nodes.give_back(place)

    def at_once(self, needs: Iterable[Need]) -> tuple[int, str]:
        """See `Crew`."""
        return self.nodes.at_once(needs)

    def start(self, order: Order, place: Place, log_path: Path) -> "Remote":
        """See `Crew`; returns before the worker runs. Its log comes back with its files."""
        del log_path
        node, need = spot_of(place).node, order.errand.need
        actors = self.actors.options(
            num_gpus=need.gpus,
            num_cpus=node.cores_for(need),
            scheduling_strategy=pinned_to(node.id),
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2,  # one asks what comes, the other hangs up
        )
        actor = actors.remote(msgspec.json.encode(order), self.luggage)
        run_folder = Path(order.terms.run_folder)
        return Remote(ray=self.ray, node=node, actor=actor, folder=run_folder)

    def close(self) -> None:
        """See `Crew`: leaves the cluster."""
        self.ray.shutdown()


@dataclass(slots=True, kw_only=True, eq=False)
class Remote:
    """A worker on a node; see `Worker`.

    Attributes:
        ray: the package.
        node: where.
        actor: who has the worker there, a `Runner`.
        folder: of the run, which its files are added to.
    """

    ray: Any
    node: Node
    actor: Any
    folder: Path
    how: str = ""
    _has_begun: threading.Event = field(default_factory=threading.Event)

    def __iter__(self) -> Iterator[Said]:
        """See `Worker`; files are written on the way."""
        seen: set[str] = set()
        try:
            for carried in self._carried():
                if isinstance(carried, Begun):
                    self._has_begun.set()
                elif isinstance(carried, Piece):
                    # Of a worker that was lost before, a line may be torn: ours begin anew.
                    path = self.folder / carried.path
                    if carried.path in seen:
                        with path.open("ab") as file:
                            file.write(hide_bytes(carried.content))
                    else:
                        append_lines(path, carried.content)
                    seen.add(carried.path)
                elif isinstance(carried, Left):
                    self.how = carried.how
                else:
                    yield carried
        except self.ray.exceptions.RayError as error:
            self.how = self._how_lost(error)
        except OSError as error:
            self.how = f"left '{error.filename}', which can't be written: {error.strerror}"
        finally:
            self.how = self.how or "ended without a word"
            self.kill()

    def hang_up(self) -> None:
        """See `Worker`; one that hasn't begun is no longer waited for."""
        if not self._has_begun.is_set():
            self.kill()
            return
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.actor.hang_up.remote()

    def kill(self) -> None:
        """See `Worker`."""
        with contextlib.suppress(self.ray.exceptions.RayError):
            if self.ray.is_initialized():  # it no longer is once the crew was closed
                self.ray.kill(self.actor)

    def _carried(self) -> Iterator[Carried]:
        """What comes back, as it comes; a word of our own where others have what it needs."""
        decoder = msgspec.msgpack.Decoder(Carried)
        coming = self.actor.next.remote()
        if not self.ray.wait([coming], timeout=_PATIENCE_S)[0]:
            text = f"others have what it needs on node {self.node.name}; waiting for them"
            yield Shown(text=text, stays=True)
        while packed := self.ray.get(coming):
            yield decoder.decode(packed)
            coming = self.actor.next.remote()

    def _how_lost(self, error: Exception) -> str:
        """What became of an actor that is gone; its node may be, and is asked no more then."""
        if not self._node_answers():
            self.node.lost = True
            return f"was lost with its node {self.node.name}"
        first = str(error).strip().partition("\n")[0]
        return f"was lost on node {self.node.name}, {type(error).__name__}: {first}"

    def _node_answers(self) -> bool:
        """Whether it still does something; Ray notices that it doesn't only after a while."""
        asked = self.ray.remote(_nothing).options(
            num_cpus=0, max_retries=0, scheduling_strategy=pinned_to(self.node.id)
        )
        try:
            self.ray.get(asked.remote(), timeout=_ALIVE_WITHIN_S)
        except self.ray.exceptions.RayError:
            return False
        return True


def _nothing() -> None:
    """What a node that still lives can do."""


def pinned_to(node_id: str) -> Any:  # noqa: ANN401 - Ray's own
    """Has Ray run something on one node and nowhere else."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
