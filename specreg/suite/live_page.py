"""The live page: shows the verdicts of a run while the run still goes on."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from specreg.report.document import write_whole
from specreg.report.page import render_page
from specreg.report.progress import RunProgress
from specreg.suite.document import report_of, run_verdict
from specreg.suite.result import RunResult

_TIME_SHARE = 20
"""The page is rendered so seldom that rendering takes at most a twentieth of the run's time."""


@dataclass(slots=True, kw_only=True)
class LivePage:
    """Writes the page of a run to its folder before each case.

    An error in it is ignored, because the verdicts and the page at the end don't depend on it.

    Attributes:
        progress: Gives the number of the current case.
        clock: Returns the monotonic time in nanoseconds.
        _due_ns: When the page may be rendered again.
    """

    progress: RunProgress
    clock: Callable[[], int] = time.monotonic_ns
    _due_ns: int = field(default=0)

    def update(self, get_result: Callable[[], RunResult]) -> None:
        """Write the page if it is due and the run has a verdict.

        Args:
            get_result: Returns the result of the run so far.
        """
        began_ns = self.clock()
        if began_ns < self._due_ns:
            return
        result = get_result()
        if not result.verdicts:
            return
        with contextlib.suppress(Exception):
            report = report_of(result, run_verdict(result, 0, cut_short=True), command="")
            time_now = result.context.clock.now()
            page = render_page(
                report, in_progress=f"{self.progress.place}, {time_now:%H:%M:%S} UTC"
            )
            write_whole(result.context.run_folder / "report.html", page.encode())
        self._due_ns = began_ns + _TIME_SHARE * (self.clock() - began_ns)
