"""Find the companions of a case: later cases that are measured with it, with the same control."""

from collections.abc import Callable
from dataclasses import dataclass, field

from specreg.matrix.case import Case, companions_of
from specreg.runs.goals import CaseLaunch
from specreg.servers.handle import ServerHandle, Servers
from specreg.servers.launch import Launch
from specreg.suite.context import RunContext
from specreg.suite.selection import Selection


@dataclass(frozen=True, slots=True)
class Member:
    """A case that is measured side by side with others, and its server."""

    case: Case
    handle: ServerHandle

    @property
    def key(self) -> tuple[str, int]:
        """The case and the number of its launch."""
        return self.case.id, self.handle.launch.number


@dataclass(slots=True, kw_only=True)
class Companions:
    """Finds the cases of a run that are measured side by side.

    Attributes:
        context: What is fixed for the run.
        selection: The metrics and checks that the tests need.
        servers: The servers of the run, whose memory limits how many cases are measured together.
        _apart: The launches whose cases are measured alone.
    """

    context: RunContext
    selection: Selection
    servers: Servers
    _apart: set[Launch] = field(default_factory=set)

    def keep_apart(self, launch: Launch) -> None:
        """Measure each case on this launch alone from now on.

        If it is the launch of a control, this holds for all cases with that control.
        """
        self._apart.add(launch)

    def of(
        self, case: Case, launch: Launch, control: ServerHandle, is_pending: Callable[[Case], bool]
    ) -> list[Member]:
        """Return the companions of a case. No server is started here.

        Args:
            case: The case.
            launch: The launch of its server.
            control: Its control; the case's own server if it has none.
            is_pending: Returns whether a case still has to be measured on the launch that has the
                same number as `launch`.
        """
        number = launch.number
        # A worker or a shard doesn't know which of the later cases it will measure itself.
        if self.context.is_part:
            return []
        # A further launch, which confirms a loss, starts the servers of one group only.
        if number > self.context.launches:
            return []
        if control.launch in self._apart:
            return []
        # Find the later cases that the run measures on a launch with this number.
        measured_ids = self.selection.measured_ids
        cases = [
            case_launch.case
            for case_launch in self.context.case_launches()
            if case_launch.server.number == number and case_launch.case.id in measured_ids
        ]
        if case not in cases:
            return []

        def may_join(later_case: Case) -> bool:
            if CaseLaunch.of(later_case, number).server in self._apart:
                return False
            return self._needs_same_measurements(case, later_case) and is_pending(later_case)

        # Choose those that fit into memory together.
        later_cases = cases[cases.index(case) + 1 :]
        companions = companions_of(
            case, later_cases, may_join=may_join, fit=self.servers.fit_beside
        )
        members = []
        for companion in companions:
            companion_launch = CaseLaunch.of(companion, number).server
            # A companion that doesn't speculate is measured on the control itself.
            handle = control
            if companion_launch != control.launch:
                handle = self.servers.handle(companion_launch)
            members.append(Member(companion, handle))
        return members

    def _needs_same_measurements(self, case: Case, later_case: Case) -> bool:
        """Return whether a later case needs a measurement of speed, and of power if `case` does.

        If `case` needs no power, the later case must not need it either.
        """
        selection = self.selection
        if selection.needs_power(later_case) != selection.needs_power(case):
            return False
        return selection.needs_speed(later_case)
