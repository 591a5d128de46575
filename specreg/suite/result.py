"""The result of a run, from which its reports, its history and its baselines are made."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from specreg.core.timeline import RunTime
from specreg.matrix.case import Case
from specreg.measurement.figures import Figures
from specreg.measurement.measure import Measurement
from specreg.report.launches import last_launches
from specreg.runs.ledger import MeasuredLaunch
from specreg.suite.context import RunContext
from specreg.suite.selection import Selection
from specreg.verdicts.verdict import Verdict

_NO_TIME = RunTime(pairs=(), idle_s=0.0, wall_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run has measured and judged, so far or at its end.

    Attributes:
        context: what is fixed for the run.
        selection: the metrics and checks that its tests needed.
        launches: the measured launches in the order of the run.
        verdicts: the verdicts in the order of the run.
        errors: the full text of the first error of each case that couldn't be judged, by case id.
        skipped: why cases were skipped, by case id.
        retried: a sentence for each case that was measured or checked twice, because a server died.
        time: how the time was spent.
        ended_at: the end of the run as ISO 8601 in UTC.
        driver_version: the version of the GPUs' driver; empty without a GPU.
        torch_version_of: returns the version of torch that the engine of a case ran with; empty if
            it isn't known.
        machine_of: returns the identity of the machine that measured a case; empty if unknown.
        is_merged: True if the run joins the measurements of several processes.
    """

    context: RunContext
    selection: Selection = field(default_factory=Selection)
    launches: tuple[MeasuredLaunch, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    retried: tuple[str, ...] = ()
    time: RunTime = _NO_TIME
    ended_at: str
    driver_version: str = ""
    torch_version_of: Callable[[Case], str] = lambda _: ""
    machine_of: Callable[[str], str] = lambda _: ""
    is_merged: bool = False

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """All measurements, in the order of the run."""
        return tuple(launch.measurement for launch in self.launches)

    @property
    def figures(self) -> tuple[Figures, ...]:
        """The figures of all launches, in the order of the run."""
        return tuple(launch.figures for launch in self.launches)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases that were measured, each once."""
        return tuple({launch.case.id: launch.case for launch in self.launches}.values())

    def measurements_of(self, case: Case) -> list[Measurement]:
        """Return all measurements of a case, in the order of its launches."""
        return [measurement for measurement in self.measurements if measurement.case == case]

    def verdicts_of(self, case_id: str) -> list[Verdict]:
        """Return all verdicts on a case."""
        return [verdict for verdict in self.verdicts if verdict.case_id == case_id]


def empty_result(context: RunContext, selection: Selection) -> RunResult:
    """Return the result of a run that ended before it started."""
    return RunResult(
        context=context,
        selection=selection,
        skipped=selection.skipped,
        ended_at=context.clock.now_text(),
    )


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
