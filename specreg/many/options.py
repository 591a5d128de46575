"""What a user says of where a run is measured, and how many servers at once: a team comes of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from specreg.core.errors import SpecregError
from specreg.many.crew import Crew
from specreg.many.here import Here
from specreg.many.on_ray import RAY_OPTION
from specreg.many.places import WORKERS_OPTION, check_alike, this_machine
from specreg.many.ray_survey import connect
from specreg.many.slurm_cluster import join
from specreg.many.slurm_settings import SLURM_OPTION
from specreg.many.team import Team, Wanted, new_team
from specreg.matrix.case import Case
from specreg.suite.run import Suite
from specreg.telemetry.identity import Host, find_gpus

_AS_MANY_AS_FIT = 10**6


class Cluster(Protocol):
    """Machines that measure for this one."""

    @property
    def site(self) -> Host | None:
        """What they are; None where they are as this one."""
        ...

    def crew(self, suite: Suite, cases: Sequence[Case]) -> Crew:
        """Who measures cases of a suite there.

        Raises:
            SpecregError: they differ from one another, or the cases can't be sent.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a run is spread.

    Attributes:
        workers: how many servers are measured at once, a number or `auto`; None for one, or as
            many as a cluster holds.
        ray: the address of a Ray cluster whose nodes measure, None for none.
        slurm: the settings of the jobs that measure, None for none.
    """

    workers: str | None = None
    ray: str | None = None
    slurm: str | None = None

    @property
    def given(self) -> Mapping[str, bool]:
        """By its option, whether the user gave it."""
        return {
            WORKERS_OPTION: self.workers is not None,
            RAY_OPTION: self.ray is not None,
            SLURM_OPTION: self.slurm is not None,
        }

    @property
    def most_workers(self) -> int:
        """How many work at once at most, 1 or more.

        Raises:
            SpecregError: that is no number.
        """
        if self.workers in {None, "auto"}:
            return _AS_MANY_AS_FIT
        given = str(self.workers)
        if given.isdecimal() and int(given) > 0:
            return int(given)
        message = f"{WORKERS_OPTION} '{given}': needs a number, 1 or more, or auto"
        raise SpecregError(f"{message}; leave it out to measure one after another")


def reach(spread: Spread, widest: Callable[[], int], tell: Callable[[str], None]) -> Cluster | None:
    """The cluster that the user names; None where this machine measures.

    Args:
        spread: what the user said.
        widest: says how many GPUs the widest case takes, 0 for none.
        tell: is told whom we wait for.

    Raises:
        SpecregError: what was said can't be, or there is no such cluster.
    """
    if spread.ray is not None and spread.slurm is not None:
        message = f"{RAY_OPTION} with {SLURM_OPTION}: a run has one cluster; leave one of them out"
        raise SpecregError(message)
    if spread.most_workers and spread.ray is not None:
        return connect(spread.ray)
    if spread.most_workers and spread.slurm is not None:
        return join(spread.slurm, widest, tell)
    return None


def form_team(
    suite: Suite, wanted: Sequence[Wanted], spread: Spread, cluster: Cluster | None
) -> Team | None:
    """Who measures for a suite as the user wants it; None where that is the suite itself.

    Args:
        suite: for which.
        wanted: all that its tests will ask for, in their order.
        spread: what the user said.
        cluster: where, None for this machine.

    Raises:
        SpecregError: what was said can't be, here or with one of the cases.
    """
    if not wanted or not any(spread.given.values()):
        return None
    cases = list({case.id: case for case, *_ in wanted}.values())
    crew = _here(suite) if cluster is None else cluster.crew(suite, cases)
    return new_team(suite, wanted, crew, spread.most_workers)


def _here(suite: Suite) -> Crew:
    """Raises UnsupportedError where the GPUs differ."""
    machine = this_machine(find_gpus().devices if suite.provision.on_gpu else ())
    check_alike(machine)
    return Here(machine=machine)
