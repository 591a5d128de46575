"""A team: what a run asks of its cases in, errands for a pool of workers out; answers come back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specreg.core.errors import SpecregError, UnsupportedError
from specreg.correctness.checks import CorrectnessCheck
from specreg.many.crew import Crew
from specreg.many.errand import Asked, Errand, Failure, Measured, Proved, Task, Terms
from specreg.many.places import Need
from specreg.many.pool import Pool
from specreg.matrix.case import Case
from specreg.measurement.journal import PARTS_FOLDER, Key, load_journal, parts_in
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Family
from specreg.servers.launch import Launch, launches_of
from specreg.suite.run import Suite
from specreg.verdicts.judge import Verdict

_VISIBLE = "CUDA_VISIBLE_DEVICES"

Wanted = tuple[Case, int, str]
"""A case, the how-manieth launch, and the name of a metric or a proof that a test asks for."""


@dataclass(slots=True, kw_only=True, eq=False)
class Team:
    """Workers that measure for a suite; they begin when it first asks for something.

    Attributes:
        suite: whose.
        wanted: all that its tests will ask for, in their order.
        pool: the workers.
    """

    suite: Suite
    wanted: Sequence[Wanted]
    pool: Pool
    _begun: bool = field(default=False)

    def begin(self) -> None:
        """Sends everything that is wanted, once."""
        if self._begun:
            return
        self._begun = True
        groups: dict[Launch, dict[str, list[str]]] = {}
        cases = {case.id: self.suite.budgeted(case) for case, *_ in self.wanted}
        for case, number, name in self.wanted:
            _, server = launches_of(case, number)
            groups.setdefault(server, {}).setdefault(case.id, []).append(name)
        self._send(
            (launch, [self._asked(cases[case_id], launch.number, names)])
            for launch, by_case in groups.items()
            for case_id, names in by_case.items()
        )

    def send(self, cases: Sequence[Case], launch: int) -> None:
        """Has cases measured on the how-manieth launch of their servers, beside what is wanted."""
        self.begin()
        self._send(
            (launches_of(case, launch)[1], [self._asked(case, launch, METRICS)]) for case in cases
        )

    def measurement(self, case: Case, launch: int, key: Key) -> Measurement:
        """What was measured of a case; waits for it.

        Raises:
            SpecregError: it couldn't be, or its journal can't be read.
        """
        self.begin()
        answer = self.pool.answer(Task(case.id, launch))
        if not isinstance(answer, Measured):
            raise _error(answer)
        part = self.suite.run_folder / PARTS_FOLDER / answer.part
        self.suite.retried.extend(answer.retried)
        found = load_journal(part).get(key) if part.exists() else None
        self.suite.journal.take(part)
        if found is None and len(answer.invalid) < len(Family):
            message = f"case '{case.id}': what a worker measured isn't in its journal; report this"
            raise SpecregError(message)
        return found or Measurement(
            case=case,
            engine_version=answer.engine_version,
            target=answer.target,
            draft=answer.draft,
            invalid=answer.invalid,
        )

    def verdict(self, check: CorrectnessCheck, case: Case, launch: int) -> Verdict:
        """The verdict of a check; waits for it.

        Raises:
            SpecregError: it couldn't be made.
        """
        self.begin()
        answer = self.pool.answer(Task(case.id, launch, check.name))
        if not isinstance(answer, Proved):
            raise _error(answer)
        self.suite.retried.extend(answer.retried)
        return answer.verdict

    def close(self, *, early: bool) -> str:
        """Ends the workers, or waits until they have; what it took, empty where nothing was done.

        Args:
            early: whether what they are at is no longer wanted.

        Raises:
            SpecregError: a server left something behind.
        """
        try:
            if not early:
                self.pool.wait()
        finally:
            self.pool.close()
            self.suite.retried.extend(self.pool.retried)
            self.pool.retried.clear()
            for part in parts_in(self.suite.run_folder):
                self.suite.journal.take(part)
        return self._said()

    def kill(self) -> None:
        """Ends the workers at once."""
        self.pool.kill()

    def why_fewer(self) -> str:
        """Why fewer servers run at once than were asked for; empty where as many do."""
        servers = {case.server: case for case, *_ in self.wanted}
        needs = [self._need([case]) for case in servers.values()]
        fit, why = self.pool.crew.at_once(needs)
        asked = min(self.pool.most_workers, len(needs))
        return f"{self.pool.crew.option}: {fit} at once, {why}" if why and fit < asked else ""

    def _said(self) -> str:
        if not self.pool.wall_s:
            return ""
        took = (
            f"{self.pool.crew.option}: servers ran for {self.pool.wall_s:.0f} s from first to last"
        )
        idle_frac, gpus = self.pool.idle_frac, self.pool.crew.gpus
        if idle_frac is None:
            return took
        idle_s = idle_frac * self.pool.wall_s * gpus
        return f"{took}; the {gpus} GPU(s) stood idle for {idle_s:.0f} GPU s of it, {idle_frac:.0%}"

    def _send(self, asked: Iterable[tuple[Launch, list[Asked]]]) -> None:
        together: dict[Launch, list[Asked]] = {}
        for launch, cases in asked:
            together.setdefault(launch, []).extend(one for one in cases if one.tasks(launch.number))
        self.pool.send(
            Errand(
                name=launch.id,
                launch=launch.number,
                cases=tuple(cases),
                need=self._need([one.case for one in cases]),
                weight_tokens=sum(_weight_tokens(one.case) for one in cases),
            )
            for launch, cases in together.items()
            if cases
        )

    def _asked(self, case: Case, launch: int, names: Iterable[str]) -> Asked:
        """What is asked of a case, less what an earlier run has."""
        names = tuple(names)
        key = self.suite.key(case, launch)
        measures = any(name in METRICS for name in names) and key not in self.suite.earlier
        return Asked(
            case=case,
            key=key,
            measures=measures,
            metrics=frozenset(metric.name for metric in self.suite.asked_of(case)),
            checks=tuple(name for name in names if name not in METRICS),
        )

    def _need(self, cases: Sequence[Case]) -> Need:
        """What the cases of one server take; the server beside it stands on the same GPUs."""
        every = {case.id: case for case, *_ in self.wanted}.values()
        return Need(
            gpus=max(case.needs.gpus for case in cases) if self.suite.provision.on_gpu else 0,
            client_processes=max(case.client_processes for case in cases),
            timed=any(case.speed and self.suite.asks_speed(case) for case in every),
        )


def new_team(suite: Suite, wanted: Sequence[Wanted], crew: Crew, most_workers: int) -> Team:
    """A team for a suite.

    Args:
        suite: for which.
        wanted: all that its tests will ask for, in their order.
        crew: who measures.
        most_workers: how many may work at once, 1 or more.

    Raises:
        UnsupportedError: a case names its own GPUs.
    """
    for case, *_ in wanted:
        _check_names_no_gpu(case, crew.option)
    pool = Pool(
        crew=crew,
        terms=_terms(suite),
        most_workers=most_workers,
        show=suite.provision.show,
        tell=suite.provision.tell,
    )
    return Team(suite=suite, wanted=wanted, pool=pool)


def _check_names_no_gpu(case: Case, option: str) -> None:
    """Silent where a case leaves the choice of its GPUs to us.

    Raises:
        UnsupportedError: it doesn't.
    """
    if _VISIBLE in dict(case.server.engine_env):
        message = (
            f"case '{case.id}': its engine_env sets {_VISIBLE}, and {option} gives each"
            " server GPUs of its own; leave one of them out"
        )
        raise UnsupportedError(message)


def _weight_tokens(case: Case) -> int:
    """About as many steps as a case takes, to begin with the longest."""
    in_flight = case.load.concurrency or case.server.max_sequences
    return case.prompts * case.output_cap_tokens * (2 if case.control else 1) // in_flight


def _terms(suite: Suite) -> Terms:
    provision = suite.provision
    return Terms(
        root=str(suite.root),
        run_folder=str(suite.run_folder),
        baselines=str(suite.store.folder),
        environment=suite.environment,
        launches=suite.launches,
        recording=suite.update_reason is not None,
        on_gpu=provision.on_gpu,
        version=provision.version,
        python=provision.python,
        waits=provision.waits,
        ready_within_s=suite.options.ready_within_s,
    )


def _error(answer: object) -> SpecregError:
    if isinstance(answer, Failure):
        return answer.error()
    return SpecregError("a worker answered what nobody asked; report this")
