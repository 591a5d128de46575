"""What a user says of where a run is measured, and how many servers at once: a team comes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specreg.errors import SpecregError
from specreg.identity import find_gpus
from specreg.many.crew import Crew
from specreg.many.here import Here
from specreg.many.on_slurm import new_slurm
from specreg.many.places import WORKERS_OPTION, check_alike, this_machine
from specreg.many.slurm_settings import SLURM_OPTION, parse_settings
from specreg.many.team import Team, Wanted, new_team
from specreg.suite import Suite

_AS_MANY_AS_FIT = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a run is spread.

    Attributes:
        workers: how many servers are measured at once, a number or `auto`; None for one.
        slurm: the settings of its jobs, as given; None where it has none.
    """

    workers: str | None = None
    slurm: str | None = None

    @property
    def given(self) -> Mapping[str, bool]:
        """By its option, whether the user gave it."""
        return {WORKERS_OPTION: self.workers is not None, SLURM_OPTION: self.slurm is not None}

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


def form_team(suite: Suite, wanted: Sequence[Wanted], spread: Spread) -> Team | None:
    """Who measures for a suite as the user wants it; None where that is the suite itself.

    Args:
        suite: for which.
        wanted: all that its tests will ask for, in their order.
        spread: what the user said.

    Raises:
        SpecregError: what was said can't be, here or with one of the cases.
    """
    if not wanted or not any(spread.given.values()):
        return None
    return new_team(suite, wanted, _crew(suite, spread), spread.most_workers)


def _crew(suite: Suite, spread: Spread) -> Crew:
    """Raises SpecregError where the settings mean nothing, or the GPUs differ."""
    if spread.slurm is not None:
        return new_slurm(parse_settings(spread.slurm), suite.run_folder)
    machine = this_machine(find_gpus().devices if suite.provision.on_gpu else ())
    check_alike(machine)
    return Here(machine=machine)
