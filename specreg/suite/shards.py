"""Share a run out: cut it into shards, or deal its server groups to workers of pytest-xdist.

A shard is a set of server groups that an ordinary pytest process runs. The cut depends on committed
files alone, so it is the same on every machine at the same commit.
"""

import dataclasses
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from specreg.baselines.estimate import START_S, estimate_of
from specreg.baselines.store import BaselineStore
from specreg.core.errors import SpecregError
from specreg.matrix.case import Case
from specreg.measurement.metrics import METRICS
from specreg.report.document import record_document
from specreg.servers.launch import Launch, launches_of
from specreg.suite.scope import Scope
from specreg.telemetry.identity import UNKNOWN_ENVIRONMENT

SHARDS = Path(".specreg/shards.json")
"""Where in the repository the listed shards are written."""


class ServerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The cases that share a server and its control; a shard has all of them or none.

    `gpus` are those of the widest case, `memory_gib` of each, None where it isn't known.
    `expected_s` is of the start of the server and of all cases, on all launches.
    """

    id: str
    cases: tuple[str, ...]
    gpus: int
    memory_gib: float | None
    expected_s: float


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a run, by number from 1; the longest of its groups comes first."""

    number: int
    groups: tuple[ServerGroup, ...]

    @property
    def case_ids(self) -> tuple[str, ...]:
        """The cases of all its groups."""
        return tuple(case for group in self.groups for case in group.cases)


def server_groups(cases: Iterable[Case], scope: Scope) -> list[ServerGroup]:
    """The server groups of some cases, the widest and longest first, by committed baselines."""
    folder, needs_gpus = scope.store.folder, scope.tier.needs_gpus > 0
    store = BaselineStore(folder=folder, environment=UNKNOWN_ENVIRONMENT)
    kind, committed = "gpu" if needs_gpus else "cpu", committed_in(folder)
    together: dict[tuple[Launch, Launch], list[Case]] = {}
    for case in cases:
        together.setdefault(launches_of(case, 1), []).append(case)
    groups = []
    for (_, server), ours in together.items():
        measured_s = sum(estimate_of(case, store, kind, committed).case_s for case in ours)
        group = ServerGroup(
            id=server.id,
            cases=tuple(case.id for case in ours),
            gpus=ours[0].server.parallel.gpus_by_node if needs_gpus else 0,
            memory_gib=max(case.memory_gib or 0.0 for case in ours) or None,
            expected_s=scope.launches * (START_S[kind] + measured_s),
        )
        groups.append(group)
    return sorted(groups, key=lambda one: (-one.gpus, -one.expected_s, one.id))


def expected_times(scope: Scope) -> dict[str, float]:
    """By each case to measure on each launch, in order, about how long it takes, in seconds.

    The first one on a server takes its start as well, unless that runs already.
    """
    kind = "gpu" if scope.tier.needs_gpus else "cpu"
    times_s: dict[str, float] = {}
    started = set()
    for _, server, case in scope.setups():
        if case.id in scope.asked.keys() - scope.unfetched.keys():
            start_s = 0.0 if server in started or scope.provision.url else START_S[kind]
            started.add(server)
            asked = dataclasses.replace(case, least_s=scope.least_s(case))
            if not scope.asks_speed(case):
                asked = dataclasses.replace(asked, control=None, power_s=0.0)
            times_s[server.case_id(case)] = start_s + estimate_of(asked, scope.store, kind).case_s
    return times_s


def cut(groups: Sequence[ServerGroup], of: int) -> tuple[Shard, ...]:
    """Deal server groups in order to so many shards, 0 for one each, to the one with the least."""
    dealt: list[list[ServerGroup]] = [[] for _ in range(of or len(groups))]
    for group in groups:
        least = min(dealt, key=lambda shard: sum(one.expected_s for one in shard))
        least.append(group)
    numbered = enumerate(dealt, start=1)
    return tuple(Shard(number=number, groups=tuple(mine)) for number, mine in numbered)


def list_shards(root: Path, shards: Sequence[Shard]) -> str:
    """A table of the shards, with GPUs, memory and minutes; they are written as JSON too."""
    lines = ["shard  GPUs  GiB of each  minutes  cases"]
    for shard in shards:
        gpus = max((group.gpus for group in shard.groups), default=0)
        gib = max((group.memory_gib or 0.0 for group in shard.groups), default=0.0)
        minutes = sum(group.expected_s for group in shard.groups) / 60
        row = f"{shard.number:>5}  {gpus:>4}  {f'{gib:.0f}' if gib else '-':>11}  {minutes:>7.1f}"
        lines.append(f"{row}  {' '.join(shard.case_ids) or 'none'}")
    record_document(root / SHARDS, shards)
    return "\n".join((*lines, f"as JSON: {root / SHARDS}"))


def committed_in(folder: Path) -> frozenset[Path] | None:
    """The files of a folder that its repository has; None outside a repository."""
    command = ("git", "-C", str(folder), "ls-files", "-z")
    try:
        listed = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
    return frozenset(folder / name for name in filter(None, listed.split("\0")))


def make_scheduler(scope: Scope, config: Any, log: Any) -> Any:  # noqa: ANN401 - xdist's
    """What hands a worker the tests of a server group together, in our order.

    The group that a mark names doesn't reach pytest-xdist 3.8 with pytest 9.
    """
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - an extra

    groups = {case.id: launches_of(case, 1)[1].id for case in scope.tier.cases}

    class ServerGroupScheduling(LoadScopeScheduling):  # type: ignore[misc] # Any without its types
        """Deals out server groups, and any other test alone."""

        def _split_scope(self, nodeid: str) -> str:
            found = [group for case, group in groups.items() if f"[{case}-" in nodeid]
            return found[0] if found else nodeid

        def _reschedule(self, node: Any) -> None:  # noqa: ANN401 - xdist's
            """Give a worker a group more once its last test is left, which waits for the next one.

            pytest-xdist gives it with two left, which are all that a group of one case may have.
            """
            if not self.workqueue or self._pending_of(self.assigned_work[node]) <= 1:
                super()._reschedule(node)

    return ServerGroupScheduling(config, log)


def check_workers(scope: Scope, *, grouped: bool) -> None:
    """Check that workers keep server groups together, and disturb no speed; else a SpecregError."""
    if not scope.shares_machine:
        return
    if not grouped:
        why = "cases that share a server stay together; leave out --dist, or give --dist=loadgroup"
        raise SpecregError(f"pytest-xdist: {why}")
    speeds = {name for name, metric in METRICS.items() if metric.by_launch}
    if not scope.tier.needs_gpus and any(speeds & names for names in scope.asked.values()):
        why = "servers share the processor, and speeds measured at the same time mean nothing"
        cure = "leave out -n, or choose acceptance alone: -k acceptance"
        raise SpecregError(f"pytest-xdist: without a GPU {why}; {cure}")
