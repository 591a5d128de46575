"""The live page: shows the verdicts of a run while the run still goes on."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from specreg.report.files import write_whole
from specreg.report.page import render_page
from specreg.report.progress import RunProgress
from specreg.suite.document import report_of, run_verdict
from specreg.suite.result import RunResult

_RENDERINGS_APART = 20
"""The shortest interval between two renderings, in multiples of the time that one takes. Rendering
then takes at most a twentieth of the run's time."""


@dataclass(slots=True, kw_only=True)
class LivePage:
    """Writes the page of a run to its folder before each case, unless that takes too much time.

    If the page can't be rendered or written, that is ignored, because neither the verdicts nor the
    page at the end depend on it.

    Attributes:
        progress: knows the number of the current case.
        clock: returns the monotonic time in nanoseconds.
        _due_ns: when the page may be rendered again.
    """

    progress: RunProgress
    clock: Callable[[], int] = time.monotonic_ns
    _due_ns: int = field(default=0)

    def update(self, get_result: Callable[[], RunResult]) -> None:
        """Write the page if it is due and the run has a verdict.

        Args:
            get_result: returns the result of the run so far.
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
                report, in_progress=f"{self.progress.case_position}, {time_now:%H:%M:%S} UTC"
            )
            write_whole(result.context.run_folder / "report.html", page.encode())

        self._due_ns = began_ns + _RENDERINGS_APART * (self.clock() - began_ns)
