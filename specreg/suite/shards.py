"""Divide a run into shards, which are sets of server groups.

Each shard is run by an ordinary pytest process. The division depends on committed files only, so it
is the same on every machine at the same commit.
"""

import dataclasses
import math
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from specreg.baselines.estimate import (
    START_S,
    Estimate,
    Fit,
    estimate_of,
    group_s,
    measured_together,
)
from specreg.baselines.store import BaselineStore
from specreg.core.errors import SpecregError
from specreg.matrix.case import Case
from specreg.measurement.metrics import METRICS
from specreg.report.files import record_document
from specreg.report.progress import ExpectedTime
from specreg.servers.launch import Launch, cases_by_server
from specreg.suite.context import RunContext
from specreg.suite.selection import Selection, least_time_s
from specreg.telemetry.identity import UNKNOWN_ENVIRONMENT

SHARDS_FILE = Path(".specreg/shards.json")
"""The file in the repository to which the shards are written for other programs."""
_S_PER_MIN = 60


class ServerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The cases that share a server and its control. A shard has all of them or none.

    Attributes:
        id: the id of the server's first launch.
        cases: the ids of the cases.
        gpus: the number of GPUs that the server takes on each machine.
        memory_gib: the memory that each GPU must have for the largest case; None if it isn't known.
        expected_s: how long the group takes on all planned launches, with the starts of its server.
    """

    id: str
    cases: tuple[str, ...]
    gpus: int
    memory_gib: float | None
    expected_s: float


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a run.

    Attributes:
        number: the number of the shard, from 1.
        groups: its server groups, in the order of `server_groups`.
    """

    number: int
    groups: tuple[ServerGroup, ...]

    @property
    def case_ids(self) -> tuple[str, ...]:
        """The ids of the cases of all its groups."""
        return tuple(case_id for group in self.groups for case_id in group.cases)


def server_groups(cases: Iterable[Case], context: RunContext) -> list[ServerGroup]:
    """Return the server groups of some cases.

    The groups with the most GPUs come first, and of these the ones that take the longest.
    """
    # The times come from committed baselines only, so that every machine makes the same shards.
    folder = context.store.folder
    needs_gpus = context.tier.needs_gpus > 0
    kind = "gpu" if needs_gpus else "cpu"
    store = BaselineStore(folder=folder, environment=UNKNOWN_ENVIRONMENT)
    committed = committed_in(folder)
    groups = []
    for server, group_cases in cases_by_server(cases).items():
        estimates = [estimate_of(case, store, kind, committed) for case in group_cases]
        measured_s = sum(estimate.case_s for estimate in estimates)
        gpus = 0
        if needs_gpus:
            # The cases of a group share the server, and so its GPUs.
            gpus = group_cases[0].server.parallel.gpus_by_node
        group = ServerGroup(
            id=server.id,
            cases=tuple(case.id for case in group_cases),
            gpus=gpus,
            memory_gib=_largest_gib([case.memory_gib for case in group_cases]),
            expected_s=context.launches * (START_S[kind] + measured_s),
        )
        groups.append(group)

    # The id decides between equal groups, so that every machine sorts them in the same way.
    return sorted(groups, key=lambda group: (-group.gpus, -group.expected_s, group.id))


def expected_times(context: RunContext, selection: Selection, fit: Fit) -> dict[str, ExpectedTime]:
    """Return the expected time of each case on each launch, in the order of the run.

    The first of several cases that are measured side by side has the time of all of them, and the
    first case on a server has the time of its start.

    Args:
        selection: the metrics and checks that it judges.
        fit: returns whether the memory is enough for several servers at the same time.

    Raises:
        SpecregError: the models or the prompts of a case whose speed is measured can't be read.
    """
    # Estimate the time of each case by itself.
    kind = "gpu" if context.tier.needs_gpus else "cpu"
    case_launches = [
        case_launch
        for case_launch in context.case_launches()
        if case_launch.case.id in selection.measured_ids
    ]
    estimates: dict[str, Estimate] = {}
    timed_cases: list[Case] = []
    for case_launch in case_launches:
        case = case_launch.case
        if case.id in estimates:
            continue
        # Estimate the case as this run measures it, which may be shorter than the tier says.
        least_s = least_time_s(case, selection, context)
        judging = dataclasses.replace(case.judging, least_s=least_s)
        measured_case = dataclasses.replace(case, judging=judging)
        if selection.needs_speed(case):
            timed_cases.append(case)
        else:
            judging = dataclasses.replace(judging, power_s=0.0)
            measured_case = dataclasses.replace(case, control=None, judging=judging)
        estimates[case.id] = estimate_of(measured_case, context.store, kind)

    # Give the time of cases that are measured together to the first one of them.
    cases_s = {case_id: estimate.case_s for case_id, estimate in estimates.items()}
    started_with: set[str] = set()
    if not context.is_part:
        for group in measured_together(timed_cases, fit):
            # The servers of the later cases start together with those of the first one.
            started_with.update(case.id for case in group[1:])
            cases_s.update(dict.fromkeys((case.id for case in group), 0.0))
            cases_s[group[0].id] = group_s(group, estimates)

    # Add the time of a server's start to its first case.
    times: dict[str, ExpectedTime] = {}
    started: set[Launch] = set()
    for case_launch in case_launches:
        case_id = case_launch.case.id
        start_s = 0.0
        has_server = case_launch.server in started or case_id in started_with
        if not has_server and context.provision.attached is None:
            start_s = START_S[kind]
        started.add(case_launch.server)
        times[case_launch.name] = ExpectedTime(
            case_s=cases_s[case_id],
            start_s=start_s,
            is_of_this_machine=estimates[case_id].is_of_this_machine,
        )

    return times


def cut(groups: Sequence[ServerGroup], shards_in_all: int) -> tuple[Shard, ...]:
    """Divide server groups into shards. Each group goes to the shard with the least time so far.

    Args:
        groups: the groups in the order in which they are assigned.
        shards_in_all: the number of shards; 0 for one shard for each group.
    """
    dealt: list[list[ServerGroup]] = [[] for _ in range(shards_in_all or len(groups))]
    for group in groups:
        shortest = min(dealt, key=_expected_s)
        shortest.append(group)
    return tuple(
        Shard(number=number, groups=tuple(shard_groups))
        for number, shard_groups in enumerate(dealt, start=1)
    )


def _expected_s(groups: Iterable[ServerGroup]) -> float:
    """Return how long server groups take one after the other, in seconds."""
    return sum(group.expected_s for group in groups)


def list_shards(root: Path, shards: Sequence[Shard]) -> str:
    """Write the shards as JSON for the program that starts them, and return them as a table."""
    lines = ["shard  GPUs  GiB of each  minutes  cases"]
    for shard in shards:
        gpus = max((group.gpus for group in shard.groups), default=0)
        memory = _render_memory([group.memory_gib for group in shard.groups])
        minutes = _expected_s(shard.groups) / _S_PER_MIN
        cases = " ".join(shard.case_ids) or "none"
        lines.append(f"{shard.number:>5}  {gpus:>4}  {memory:>11}  {minutes:>7.1f}  {cases}")

    path = root / SHARDS_FILE
    record_document(path, shards)
    return "\n".join((*lines, f"as JSON: {path}"))


def committed_in(folder: Path) -> frozenset[Path] | None:
    """Return the files of a folder that git tracks.

    Returns:
        None if the folder doesn't exist or isn't in a git repository, or if git isn't installed.
    """
    command = ("git", "-C", str(folder), "ls-files", "-z")
    try:
        listing = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
    return frozenset(folder / name for name in listing.split("\0") if name)


def check_workers(context: RunContext, selection: Selection, *, grouped: bool) -> None:
    """Check that workers of pytest-xdist don't split server groups or disturb each other's speeds.

    Args:
        context: the run, of which this process may be a worker.
        selection: the metrics and checks that it judges.
        grouped: True if workers get whole server groups.

    Raises:
        SpecregError: the workers would split a group, or several servers whose speed is judged
            would share a processor.
    """
    if not context.is_worker:
        return
    if not grouped:
        problem = "the tests of cases that share a server must run in the same worker"
        cure = "leave out --dist, or give --dist=loadgroup"
        raise SpecregError(f"pytest-xdist: {problem}; {cure}")

    speeds = {name for name, metric in METRICS.items() if metric.by_launch}
    selected = {name for names in selection.names.values() for name in names}
    if not context.tier.needs_gpus and speeds & selected:
        problem = (
            "without a GPU servers share the processor, and speeds measured at the same time"
            " can't be compared"
        )
        cure = "leave out -n, or choose only acceptance: -k acceptance"
        raise SpecregError(f"pytest-xdist: {problem}; {cure}")


def _largest_gib(needs_gib: Sequence[float | None]) -> float | None:
    """Return the largest of several needs of memory; None if one isn't known."""
    known_gib = [need_gib for need_gib in needs_gib if need_gib is not None]
    if len(known_gib) < len(needs_gib):
        return None
    return max(known_gib)


def _render_memory(needs_gib: Sequence[float | None]) -> str:
    """Return the memory of each GPU that a shard needs, in GiB: a number, `unknown`, or `-`.

    The result is `-` for a shard without groups.
    """
    if not needs_gib:
        return "-"
    largest_gib = _largest_gib(needs_gib)
    if largest_gib is None:
        return "unknown"
    return str(math.ceil(largest_gib))
