"""Find the cases that are measured side by side with a case, beside one control."""

from collections.abc import Callable
from dataclasses import dataclass, field

from specreg.matrix.case import Case, companions_of
from specreg.servers.launch import Launch, Servers, Starting
from specreg.suite.context import CaseLaunch, RunContext
from specreg.suite.selection import Selection


@dataclass(frozen=True, slots=True)
class Member:
    """A case that is measured side by side with others, and its server."""

    case: Case
    starting: Starting

    @property
    def key(self) -> tuple[str, int]:
        """The case and the number of its launch."""
        return self.case.id, self.starting.launch.number


@dataclass(slots=True, kw_only=True)
class Companions:
    """Finds the cases of a run that are measured side by side.

    Attributes:
        context: the run.
        selection: what it judges.
        servers: its servers, whose memory decides how many cases fit.
    """

    context: RunContext
    selection: Selection
    servers: Servers
    _apart: set[Launch] = field(default_factory=set)

    def keep_apart(self, launch: Launch) -> None:
        """Have the cases of a server, or all cases of a control, measured alone from here on."""
        self._apart.add(launch)

    def of(
        self, case: Case, launch: Launch, control: Starting, is_pending: Callable[[Case], bool]
    ) -> list[Member]:
        """Return the companions of a case; no server is started here.

        The workers and the shards of a run have methods beside each other on other GPUs, and which
        case comes next isn't theirs to know. Further launches are those of one server.

        Args:
            case: the case.
            launch: the launch of its server.
            control: the server of its control.
            is_pending: whether a case has still to be measured on a launch of this number.
        """
        number = launch.number
        if self.context.is_part or number > self.context.launches or control.launch in self._apart:
            return []
        measured_ids = self.selection.measured_ids
        cases = [
            case_launch.case
            for case_launch in self.context.case_launches()
            if case_launch.server.number == number and case_launch.case.id in measured_ids
        ]
        if case not in cases:
            return []

        def may_join(later_case: Case) -> bool:
            is_apart = CaseLaunch.of(later_case, number).server in self._apart
            return (
                not is_apart and self._has_same_figures(case, later_case) and is_pending(later_case)
            )

        later_cases = cases[cases.index(case) + 1 :]
        companions = companions_of(
            case, later_cases, may_join=may_join, fit=self.servers.fit_beside
        )
        members = []
        for companion in companions:
            companion_launch = CaseLaunch.of(companion, number).server
            starting = control
            if companion_launch != control.launch:
                starting = self.servers.starting(companion_launch)
            members.append(Member(companion, starting))
        return members

    def _has_same_figures(self, case: Case, later_case: Case) -> bool:
        """Return whether a later case is timed, and its power measured if that of a case is."""
        selection = self.selection
        if selection.needs_power(later_case) != selection.needs_power(case):
            return False
        return selection.needs_speed(later_case)
