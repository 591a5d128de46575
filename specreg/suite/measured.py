"""The launches that a run has measured so far, with the figures that reports show."""

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from specreg.matrix.case import Case
from specreg.measurement.figures import Figures, figures_of
from specreg.measurement.measure import Measurement
from specreg.report.document import last_launches
from specreg.suite.context import CaseLaunch


@dataclass(frozen=True, kw_only=True)
class MeasuredLaunch:
    """The measurement of a case on one launch of its servers.

    Attributes:
        measurement: The measurement.
        number: The number of the launch, from 1.
        is_resumed: True if it was taken over from the interrupted run.
    """

    measurement: Measurement
    number: int
    is_resumed: bool = False

    @property
    def case(self) -> Case:
        """The case that was measured."""
        return self.measurement.case

    @property
    def name(self) -> str:
        """The id of the case on this launch."""
        return CaseLaunch.of(self.case, self.number).name

    @functools.cached_property
    def figures(self) -> Figures:
        """The figures of the measurement, which are computed once because that takes a moment."""
        return figures_of(self.measurement, self.number)


@dataclass(slots=True)
class MeasuredLaunches:
    """All launches that a run has measured so far, in the order of the run."""

    _by_case: dict[tuple[str, int], MeasuredLaunch] = field(default_factory=dict)

    def __iter__(self) -> Iterator[MeasuredLaunch]:
        return iter(tuple(self._by_case.values()))

    def __len__(self) -> int:
        return len(self._by_case)

    def add(self, launch: MeasuredLaunch) -> None:
        """Add a launch of a case."""
        self._by_case[launch.case.id, launch.number] = launch

    def find(self, case: Case, number: int) -> MeasuredLaunch | None:
        """Return the launch of a case with a number, from 1; None if it wasn't measured."""
        return self._by_case.get((case.id, number))


def shown_launch(launches: Iterable[MeasuredLaunch], case_id: str) -> MeasuredLaunch | None:
    """Return the launch of a case that reports show.

    Returns:
        The launch with the most valid families of metrics, or the last of several such launches.
        None if the case wasn't measured.
    """
    case_launches = [launch for launch in launches if launch.case.id == case_id]
    if not case_launches:
        return None
    shown_figures = last_launches(launch.figures for launch in case_launches)
    for launch in case_launches:
        if any(launch.figures is figures for figures in shown_figures):
            return launch
    # No figure of any launch is valid.
    return case_launches[-1]
