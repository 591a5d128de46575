"""The team: of an errand that two workers are at, as one was given up, one measurement comes."""

import dataclasses
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from specreg.correctness.checks import CHECKS, LOSSLESS
from specreg.many.errand import Done, Ended, Measured, Order, Proved, Said, part_path
from specreg.many.places import Need, Place
from specreg.many.team import Team, new_team
from specreg.many.worker import _suite
from specreg.measurement.journal import Journal, Key, load_journal, parts_in
from specreg.measurement.measure import Measurement
from specreg.verdicts.judge import Outcome, Verdict
from tests.unit import builders
from tests.unit.many.test_many_worker import CASE
from tests.unit.many.test_many_worker import order as order_in
from tests.unit.measurement.test_journal import finished

REQUESTS = 3
METRIC = "acceptance_length_tokens"


def measured_by(attempt: int) -> Measurement:
    """What an attempt measures; its engine's version says which it was."""
    return dataclasses.replace(
        builders.measurement({}, case=CASE), engine_version=f"of attempt {attempt}"
    )


@dataclass(kw_only=True, eq=False)
class Attempt:
    """A worker that writes its journal, with whoever was given up before writing between its lines.

    The first of a crew falls silent in the midst, and goes on as if it weren't given up.
    """

    order: Order
    before: list["Attempt"]
    number: int
    how: str = "gave no sign of life for 120 s"
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self.journal = Journal(part_path(self.folder, self.key, self.order.attempt))

    @property
    def folder(self) -> Path:
        """That of the run."""
        return Path(self.order.terms.run_folder)

    @property
    def key(self) -> Key:
        """That of its only case."""
        return self.order.errand.cases[0].key

    def write(self, prompt_id: str) -> None:
        """A request of it has ended."""
        self.journal.record_round(False, 0)(finished(prompt_id))  # noqa: FBT003 - a RecordRound

    def end(self) -> None:
        """It has measured all."""
        self.journal.end(measured_by(self.number))
        self.journal.close()

    def __iter__(self) -> Iterator[Said]:
        """See `Worker`."""
        self.journal.begin(self.key)
        for number in range(REQUESTS):
            self.write(f"{self.number}-{number}")
            for other in self.before:
                other.write(f"{other.number}-late-{number}")
        if not self.before:
            return
        self.end()
        measured = measured_by(self.number)
        answer = Measured(
            part=self.journal.path.name,
            engine_version=measured.engine_version,
            target=measured.target,
            draft=measured.draft,
            invalid={},
        )
        yield Done(task=self.order.errand.tasks[0], answer=answer)
        yield Ended()

    def hang_up(self) -> None:
        """See `Worker`."""

    def kill(self) -> None:
        """See `Worker`."""


@dataclass(kw_only=True, eq=False)
class Silent:
    """A crew whose first worker falls silent; see `Crew`."""

    option: str = "--specreg-crew"
    gpus: int = 0
    attempts: list[Attempt] = field(default_factory=list)

    def place(self, need: Need) -> Place:
        """See `Crew`."""
        return Place(need=need)

    def give_back(self, place: Place) -> None:
        """See `Crew`."""

    def start(self, order: Order, place: Place, log_path: Path) -> Attempt:
        """See `Crew`."""
        del place, log_path
        one = Attempt(order=order, before=list(self.attempts), number=len(self.attempts) + 1)
        self.attempts.append(one)
        return one

    def at_once(self, needs: Iterable[Need]) -> tuple[int, str]:
        """See `Crew`."""
        return len(tuple(needs)), ""

    def close(self) -> None:
        """See `Crew`."""


@pytest.fixture
def crew() -> Silent:
    """Who measures."""
    return Silent()


@pytest.fixture
def team(tmp_path: Path, crew: Silent) -> Iterator[Team]:
    """A team whose only test asks for one metric of one case."""
    suite = _suite(order_in(tmp_path), lambda _: None)
    suite.asked = {CASE.id: {METRIC}}
    yield new_team(suite, [(CASE, 1, METRIC)], crew, 1)
    for journal in (suite.journal, *(one.journal for one in crew.attempts)):
        journal.close()


def prompts_in(path: Path) -> list[str]:
    """The requests of a journal, in order."""
    lines = map(msgspec.json.decode, path.read_bytes().splitlines())
    return [one["finished"]["trace"]["prompt_id"] for one in lines if one["type"] == "Replayed"]


def test_who_was_given_up_and_still_writes_spoils_no_line_of_who_took_its_place(
    team: Team, crew: Silent
) -> None:
    found = team.measurement(CASE, 1, team.suite.key(CASE, 1))
    assert found.engine_version == "of attempt 2"
    journal = team.suite.journal.path
    assert prompts_in(journal) == [f"2-{number}" for number in range(REQUESTS)]
    (left,) = parts_in(team.suite.run_folder)
    assert left == crew.attempts[0].journal.path


def test_what_both_finished_is_kept_and_what_was_judged_counts(team: Team, crew: Silent) -> None:
    key = team.suite.key(CASE, 1)
    judged = team.measurement(CASE, 1, key)
    crew.attempts[0].end()  # it comes to an end after all
    team.close(early=False)
    journal = team.suite.journal.path
    assert len(prompts_in(journal)) == 3 * REQUESTS
    assert load_journal(journal)[key].engine_version == judged.engine_version == "of attempt 2"
    assert parts_in(team.suite.run_folder) == []


def test_a_run_that_was_cut_off_between_them_takes_what_was_measured_first(
    team: Team, crew: Silent
) -> None:
    key = team.suite.key(CASE, 1)
    team.begin()
    team.pool.wait()
    crew.attempts[0].end()
    later_s = time.time() + 1  # a file system's clock may not have ticked since
    os.utime(crew.attempts[0].journal.path, (later_s, later_s))
    for part in parts_in(team.suite.run_folder):
        team.suite.journal.take(part)
    team.suite.journal.close()
    assert load_journal(team.suite.journal.path)[key].engine_version == "of attempt 2"


EQUAL = Verdict(case_id=CASE.id, metric=LOSSLESS, outcome=Outcome.PASS)


@dataclass(kw_only=True, eq=False)
class Prover(Attempt):
    """A worker whose server died once."""

    def __iter__(self) -> Iterator[Said]:
        """See `Worker`."""
        proved = Proved(verdict=EQUAL, retried=("proved again",))
        yield Done(task=self.order.errand.tasks[0], answer=proved)
        yield Ended()


class Provers(Silent):
    """A crew of these."""

    def start(self, order: Order, place: Place, log_path: Path) -> Attempt:
        """See `Crew`."""
        del place, log_path
        return Prover(order=order, before=[], number=1)


def test_what_a_worker_proved_twice_is_said(tmp_path: Path) -> None:
    suite = _suite(order_in(tmp_path), lambda _: None)
    team = new_team(suite, [(CASE, 1, LOSSLESS)], Provers(), 1)
    assert team.verdict(CHECKS[LOSSLESS], CASE, 1) == EQUAL
    team.close(early=False)
    assert suite.retried == ["proved again"]
