"""An errand: one server's cases that a worker is to measure; and what it says of them, in JSON."""

import uuid
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

import msgspec

from specreg.core.errors import MemoryHeldError, SpecregError
from specreg.many.places import Need, Place
from specreg.matrix.case import Case
from specreg.measurement.journal import PARTS_FOLDER, Key
from specreg.measurement.metrics import Family
from specreg.telemetry.identity import Environment
from specreg.verdicts.judge import Verdict


class Task(NamedTuple):
    """Of a case on the how-manieth launch: a proof by its name, or its measurement where empty."""

    case_id: str
    launch: int
    proof: str = ""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of one case.

    Attributes:
        case: with as many prompts as it is to replay.
        key: of its measurement.
        metrics: that the run judges of it.
        measures: whether that is to be made; not where it is there already, or nobody asks for it.
        checks: the names of those to make.
    """

    case: Case
    key: Key
    metrics: frozenset[str]
    measures: bool = True
    checks: tuple[str, ...] = ()

    def tasks(self, launch: int) -> tuple[Task, ...]:
        """What is to be done on a launch, in order."""
        measured = ("",) if self.measures else ()
        return tuple(Task(self.case.id, launch, name) for name in (*measured, *self.checks))


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all errands of a run; see `Suite`, `BaselineStore` and `Provision`."""

    root: str
    run_folder: str
    baselines: str
    environment: Environment
    launches: int
    recording: bool
    on_gpu: bool
    version: str | None
    python: str | None
    waits: bool
    ready_within_s: float


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """The cases of one launch of a server.

    Attributes:
        name: of the launch.
        launch: the how-manieth it is, from 1.
        cases: that share it.
        need: what it takes of the machine.
        weight_tokens: about how much there is to do, more is longer.
    """

    name: str
    launch: int
    cases: tuple[Asked, ...]
    need: Need
    weight_tokens: int

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All that is to be done, in order."""
        return tuple(task for asked in self.cases for task in asked.tasks(self.launch))

    def without(self, done: AbstractSet[Task]) -> "Errand":
        """What is left of it."""
        left = []
        for asked in self.cases:
            tasks = asked.tasks(self.launch)
            checks = tuple(task.proof for task in tasks if task.proof and task not in done)
            measures = asked.measures and Task(asked.case.id, self.launch) not in done
            if measures or checks:
                left.append(msgspec.structs.replace(asked, measures=measures, checks=checks))
        return msgspec.structs.replace(self, cases=tuple(left))


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """An errand, and where it is done.

    Attributes:
        gpus: the UUIDs of those that are the worker's, none for a server without.
        cores: to stay on, none for any.
        checks_files: whether prompts, models and engine may be others than the run's.
        remark: what is to be said of that, empty where nothing is.
        attempt: names what this one writes: one that was given up may still be at it.
    """

    terms: Terms
    errand: Errand
    gpus: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    checks_files: bool = False
    remark: str = ""
    attempt: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)

    def at(self, place: Place) -> "Order":
        """The same, done at a place."""
        gpus, cores = tuple(gpu.id for gpu in place.gpus), tuple(sorted(place.cores))
        return msgspec.structs.replace(self, gpus=gpus, cores=cores, remark=place.remark)


class Shown(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What goes on; one that `stays` must be heard."""

    text: str
    stays: bool = False


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Why there is nothing; `ends_run` where nothing may be measured any more."""

    message: str
    ends_run: bool = False

    def error(self) -> SpecregError:
        """The same, to be raised."""
        return MemoryHeldError(self.message) if self.ends_run else SpecregError(self.message)


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A measurement that is in the journal; or of which nothing is valid, so it isn't.

    Attributes:
        part: the name of the file with its journal, see `part_path`.
        invalid: by family why; the others: see `Measurement`.
        retried: what was measured a second time, in words.
    """

    part: str
    engine_version: str
    target: str
    draft: str | None
    invalid: dict[Family, str]
    retried: tuple[str, ...] = ()


class Proved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What came of a proof; `retried`: what was proved a second time, in words."""

    verdict: Verdict
    retried: tuple[str, ...] = ()


Answer = Measured | Proved | Failure


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A task that ended, and what came of it."""

    task: Task
    answer: Answer


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The errand has: `failure` says why, if its servers didn't start or left something behind."""

    failure: Failure | None = None


Said = Shown | Done | Ended
"""A line of a worker's."""


def failure_of(error: SpecregError) -> Failure:
    """What to tell of an error."""
    return Failure(message=str(error), ends_run=isinstance(error, MemoryHeldError))


def part_path(run_folder: Path, key: Key, attempt: str) -> Path:
    """Where a worker leaves the journal of a measurement until the run takes it into its own.

    Each attempt has its own: where nodes share a disk, two would tear each other's lines.
    """
    name = key.case_id if key.launch == 1 else f"{key.case_id}-launch{key.launch}"
    return run_folder / PARTS_FOLDER / f"{name}.{attempt}.jsonl"
