"""The ledger: the only record of a run's folder, to which each line is appended when it happens.

A run, a gate and a soak each write one, `ledger.jsonl`. Each line is a `Launched`, a `Replayed`, a
`Measured`, a `Failed`, a `Checked` or a `Segment`. The requests of the warm-up, and those sent only
for the server's counters or power, aren't written.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple

import filelock
import msgspec

from specreg.acceptance.record import AcceptanceRecord
from specreg.acceptance.trace import ANSWER_DIGEST_VERSION
from specreg.core.errors import SpecregError, UnsupportedError
from specreg.core.families import Family
from specreg.core.files import UNREADABLE, append_lines
from specreg.core.locks import new_lock
from specreg.core.readable import Label
from specreg.core.reasons import Reason
from specreg.core.received import open_received, received_files
from specreg.core.values import hide_values
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts
from specreg.engines.methods import METHODS
from specreg.engines.registry import ENGINES
from specreg.engines.wire_format import Transcript
from specreg.load.chat_client import FinishedRequest, Record
from specreg.load.rounds import Round, RoundBuilder
from specreg.matrix.case import Case
from specreg.measurement.figures import Figures, figures_of
from specreg.measurement.measure import Measurement, values_of
from specreg.measurement.metrics import Replay
from specreg.measurement.plausible import (
    check_lags,
    check_numbers,
    check_power,
    check_record,
    check_request,
)
from specreg.stats.intervals import Look
from specreg.stats.percentiles import TimeHistogram
from specreg.telemetry.power_record import PowerRecord

_PackageLine = Annotated[str, msgspec.Meta(max_length=1024, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A line of `uv pip freeze`, which is copied into a baseline's list of packages."""
_MAX_PACKAGES = 10_000


MAX_LAUNCHES = 10_000
"""More launches than every run, gate and soak takes."""
_LaunchNumber = Annotated[int, msgspec.Meta(ge=0, le=MAX_LAUNCHES)]
"""The number of a launch, from 1.

A line with the number 0 is read as well, and a gate says that it is of another gate."""


ArmName = Annotated[str, msgspec.Meta(pattern=r"^(case|A|B|A1|A2)$")]
"""What an arm is in its run: a case of a night, or a side of a gate. A1 and A2 are side A twice."""
_COMPARED_WITH: Mapping[ArmName, ArmName] = MappingProxyType(
    {"A": "B", "B": "A", "A1": "A2", "A2": "A1"}
)
"""The side with which each side of a gate is compared, launch by launch."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """Names a measurement, with all that must be equal for a resumed run to take it over.

    Attributes:
        case: the whole case, as JSON.
        case_id: the id of the case, or of the pair of cases that a gate compares.
        arm: what the measured arm is in its run.
        launch: the number of the server's launch, from 1.
        purpose: what was measured and how, such as "acceptance", "all" or "record"; in a gate how
            its sides took turns.
        environment: the environment in which it is measured.
        engine: the engine's installed packages, or the interpreter that has them.
        files_sha256: the checksums of the prompts and of the models' files.
        packages_sha256: the checksum of the packages in the engine's environment; empty if unknown.
    """

    case: str
    case_id: Label
    arm: ArmName = "case"
    launch: _LaunchNumber
    purpose: str
    environment: Label
    engine: Label
    files_sha256: Label
    packages_sha256: Label = ""


class Place(NamedTuple):
    """Where a launch stands in its run.

    Attributes:
        case_id: the id of the case, or of the pair of cases that a gate compares.
        number: the number of the launch, from 1.
        arm: what the arm is in its run.
    """

    case_id: str
    number: int
    arm: ArmName

    @classmethod
    def of(cls, key: Key) -> "Place":
        """Return the place of the launch with a key."""
        return cls(key.case_id, key.launch, key.arm)


def _replaced_by(place: Place, ended: set[Place]) -> set[Place]:
    """Return the places whose launches no longer count once one is made at a place.

    A launch that is made again replaces the earlier one, even if it measures nothing. In a gate it
    also replaces the other side's, which was made at another hour, so that side is launched again.

    Args:
        place: where a launch is made.
        ended: where launches have ended, measured or failed, without those that were replaced.
    """
    if place not in ended:
        return set()
    other_side = place._replace(arm=_COMPARED_WITH.get(place.arm, place.arm))
    return {place, other_side}


_SegmentTime = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_SegmentFigure = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
"""A figure of a segment, in tokens, milliseconds or bytes."""
_ArmNumber = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
_Counters = dict[Label, Annotated[float, msgspec.Meta(ge=0)]]
"""How much each further counter of the engine rose in a round."""


class Launched(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The start of measurements that are made side by side.

    Attributes:
        keys: the keys of the cases, in the order of the arms. A control that isn't a case of the
            run has no key, and its arm follows those of the cases.
        at_s: when they began, in seconds since the epoch.
    """

    keys: tuple[Key, ...]
    at_s: float


class Replayed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The end of a request.

    Attributes:
        arm_number: the number of the arm that answered, from 0, among those of the last `Launched`.
        round: the number of the round, from 0; null for an extension, whose acceptance is in
            `Measured`.
        finished: the request.
    """

    arm_number: _ArmNumber = msgspec.field(name="arm")
    round: int | None
    finished: FinishedRequest


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The end of a case's measurement, with everything that its requests don't contain.

    The requests of a control are written once, even if it serves several cases.

    Attributes:
        arm_number: the number of the case's arm, among the arms of the last `Launched`.
        control_number: the number of its control's arm; None without a control.
        engine_version: the version that the server reported.
        target: the folder or the hub id of the target model.
        draft: the folder or the hub id of the draft model; None without one.
        lags: the client's lags in each round of the case, and in each round of the control.
        counters: how much the engine's further counters rose in each of these rounds, by the names
            that metrics use for them; empty in a line of an earlier version.
        acceptance: the acceptance; None if it is invalid or the case doesn't speculate.
        look: the name of the last look at the acceptance.
        power: the power of the devices; None if it wasn't sampled.
        invalid: for each invalid family, the reason why its figures can't be used.
        packages: the packages of the server's environment.
        facts: what the engine reported about this launch.
    """

    arm_number: _ArmNumber = msgspec.field(name="arm")
    control_number: _ArmNumber | None = msgspec.field(default=None, name="control")
    engine_version: str
    target: Label
    draft: Label | None
    lags: tuple[tuple[TimeHistogram, ...], tuple[TimeHistogram, ...]]
    counters: tuple[tuple[_Counters, ...], tuple[_Counters, ...]] = ((), ())
    acceptance: AcceptanceRecord | None
    look: Label = Look.FULL.name
    power: PowerRecord | None = None
    invalid: dict[Family, Reason] = {}
    packages: Annotated[tuple[_PackageLine, ...], msgspec.Meta(max_length=_MAX_PACKAGES)] = ()
    facts: LaunchFacts = NOTHING_KNOWN


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Why a case couldn't be measured, or a check of it couldn't be made. It isn't taken over.

    Attributes:
        case_id: the id of the case, or of the pair of cases that a gate compares.
        arm: what the arm is in its run.
        launch: the number of the launch, from 1.
        check: the name of the check; empty for a measurement.
        code: as in `Reason`.
        text: as in `Reason`.
        remedy: as in `Reason`.
        server_died: as in `FailedLaunch`.
        is_beside_others: as in `FailedLaunch`.
    """

    case_id: Label
    arm: ArmName = "case"
    launch: _LaunchNumber
    check: Label = ""
    code: Label = ""
    text: str
    remedy: str = ""
    server_died: bool = False
    is_beside_others: bool = False


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """What a correctness check of an arm found.

    Attributes:
        key: the key of the measurement with which the check was made.
        check: the name of the check.
        verdict: the verdict, as in `verdict.json`; empty for answers that are compared later.
        answers: the answers with which a gate compares those of the other side.
        digest: the version of the checksum by which the check tells whether answers are equal.
    """

    key: Key
    check: Label
    verdict: dict[Label, Any] = {}
    answers: tuple[Transcript, ...] = ()
    digest: int

    @classmethod
    def of(
        cls, key: Key, check: str, verdict: object = None, answers: tuple[Transcript, ...] = ()
    ) -> "Checked":
        """Return the line of a check. Its verdict is None if the answers are compared later."""
        verdict_json: dict[str, Any] = {}
        if verdict is not None:
            verdict_json = msgspec.to_builtins(hide_values(verdict))
        return cls(
            key=key,
            check=check,
            verdict=verdict_json,
            answers=answers,
            digest=ANSWER_DIGEST_VERSION,
        )


class Segment(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """One replay of the prompts in a soak. A missing figure is None.

    Attributes:
        number: the number of the segment, from 1.
        launch: the number of the server's launch, from 1. A resumed soak begins another.
        at_s: the middle of the segment, in seconds from the start of the launch's first segment.
        lasted_s: the duration of the segment, in seconds.
        requests: the number of requests.
        acceptance_length_tokens: the acceptance length (AL).
        step_ms: the mean time between two chunks of a request. It is a mean because chunks that
            arrive together don't change it, while they would change a median.
        memory_bytes: the memory of the server's processes.
        gpu_memory_bytes: the GPU memory of the server's processes.
    """

    number: int
    launch: _LaunchNumber = 1
    at_s: _SegmentTime
    lasted_s: _SegmentTime
    requests: int
    acceptance_length_tokens: _SegmentFigure | None = None
    step_ms: _SegmentFigure | None = None
    memory_bytes: _SegmentFigure | None = None
    gpu_memory_bytes: _SegmentFigure | None = None


Line = Launched | Replayed | Measured | Failed | Checked | Segment
_Builders = dict[tuple[int, int], RoundBuilder]
"""The rounds of a measurement, by the number of the arm and the number of the round."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredLaunch:
    """What was measured on one launch of an arm.

    Attributes:
        case_id: the id of the case, or of the pair of cases that a gate compares.
        arm: what the arm is in its run.
        number: the number of the launch, from 1.
        measurement: the measurement.
        lasted_s: how long it took, with the start of its servers, in seconds.
        is_resumed: whether it was taken over from the interrupted run.
        read_from: the ledger that had it; None if this process measured it.
    """

    case_id: str
    arm: ArmName = "case"
    number: int
    measurement: Measurement
    lasted_s: float = 0.0
    is_resumed: bool = False
    read_from: Path | None = None

    @property
    def case(self) -> Case:
        """The case that was measured."""
        return self.measurement.case

    @functools.cached_property
    def figures(self) -> Figures:
        """The figures of the measurement, which are computed once because that takes a moment."""
        return figures_of(self.measurement, self.number)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FailedLaunch:
    """A launch of an arm on which nothing could be measured, or a check couldn't be made.

    Attributes:
        case_id: as in `MeasuredLaunch`.
        arm: as in `MeasuredLaunch`.
        number: as in `MeasuredLaunch`.
        check: the name of the check; empty for a measurement.
        reason: why it failed.
        server_died: whether a server died meanwhile, so that another attempt may succeed.
        is_beside_others: whether other cases were to be measured at the same time.
        lasted_s: as in `MeasuredLaunch`; 0 if only this case's server didn't start beside others,
            whose launches took that time.
        error: the error itself, with the last lines of a log; None if another process had it.
    """

    is_resumed: ClassVar[bool] = False

    case_id: str
    arm: ArmName = "case"
    number: int
    check: str = ""
    reason: Reason
    server_died: bool = False
    is_beside_others: bool = False
    lasted_s: float = 0.0
    error: SpecregError | None = None

    @property
    def line(self) -> Failed:
        """The line of the ledger."""
        return Failed(
            case_id=self.case_id,
            arm=self.arm,
            launch=self.number,
            check=self.check,
            code=self.reason.code,
            text=self.reason.text,
            remedy=self.reason.remedy,
            server_died=self.server_died,
            is_beside_others=self.is_beside_others,
        )


ArmLaunch = MeasuredLaunch | FailedLaunch
LedgerEntry = MeasuredLaunch | FailedLaunch | Checked | Segment
"""What a step of a run results in."""

LEDGER = "ledger.jsonl"
"""The name of the ledger in the folder of a run, a gate or a soak."""
_OLD_LEDGERS = {"journal.jsonl", "soak.jsonl"}
"""The names of the records that specreg wrote before there were ledgers, in other forms."""
_MIB = 2**20
_MAX_LINE_BYTES = 64 * _MIB
_MAX_LINES = 2_000_000
_WRITTEN_AT_ONCE_BYTES = _MIB
_UNREADABLE_LINE = b"null\n"
_AGAIN = "leave that run out, and run it again"
LOCK = "ledger.lock"
"""The name of the lock next to the ledger; the process that writes the ledger holds it."""


@contextlib.contextmanager
def _map_disk_errors(path: Path, remedy: str) -> Iterator[None]:
    """Turn an OSError into a SpecregError that names the ledger and the remedy."""
    try:
        yield
    except OSError as error:
        raise SpecregError(f"ledger '{path}': {error.strerror}; {remedy}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What ledgers have.

    Attributes:
        begun_s: when the measurements were begun last, by their keys, in seconds since the epoch.
        measured: the complete measurements.
        checked: the newest line of each check, by the check's key and name. A check that used
            another rule for equal answers is left out, so that it is made again.
        failed: the measurements and checks that failed, in the order in which they did.
        segments: the segments of a soak, in order.
        ended: where launches have ended, measured or failed, without those that were replaced.
            Failures and replacements are known only if the last of several with one key counts.
    """

    begun_s: Mapping[Key, float] = field(default_factory=dict)
    measured: Mapping[Key, Measurement] = field(default_factory=dict)
    checked: Mapping[tuple[Key, str], Checked] = field(default_factory=dict)
    failed: Sequence[Failed] = ()
    segments: Sequence[Segment] = ()
    ended: frozenset[Place] = frozenset()

    @property
    def keys(self) -> Sequence[Key]:
        """The keys of all measurements and checks, each once."""
        checked_keys = (key for key, _ in self.checked)
        return tuple(dict.fromkeys((*self.measured, *checked_keys)))


@dataclass(slots=True)
class Ledger:
    """The ledger of one run: its file, and what the run knows of its launches.

    Each method that writes hands its lines to the operating system before it returns.

    Attributes:
        path: the ledger's file.
        recorded: what an interrupted run had measured. It counts only for what has the same key.
        now_s: the clock, in seconds since the epoch.
        _launches: the launches of this run, in its order.
        _measured: those that measured something, by their places.
        _ended: where launches have ended, also those that are recorded and weren't taken over.
        _failures: those that failed.
        _checks: the checks of this run, by case and check.
        _segments: the segments of a soak, in order.
    """

    path: Path
    recorded: Recorded = field(default_factory=Recorded)
    now_s: Callable[[], float] = time.time
    _launches: list[ArmLaunch] = field(default_factory=list)
    _measured: dict[Place, MeasuredLaunch] = field(default_factory=dict)
    _ended: set[Place] = field(default_factory=set)
    _failures: list[FailedLaunch] = field(default_factory=list)
    _checks: dict[tuple[str, str], Checked] = field(default_factory=dict)
    _segments: list[Segment] = field(default_factory=list)
    _lock: filelock.BaseFileLock | None = None

    @property
    def launches(self) -> tuple[ArmLaunch, ...]:
        """All launches of the run so far, in its order."""
        return tuple(self._launches)

    @property
    def measured(self) -> tuple[MeasuredLaunch, ...]:
        """The launches that measured something, in the order of the run."""
        return tuple(self._measured.values())

    @property
    def failures(self) -> tuple[FailedLaunch, ...]:
        """The measurements and checks that failed, in the order of the run."""
        return tuple(self._failures)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of a soak, in order."""
        return tuple(self._segments)

    def extend(self, entries: Iterable[LedgerEntry]) -> None:
        """Add what a step of the run results in, each entry when it is there.

        Raises:
            SpecregError: the ledger can't be written.
        """
        for entry in entries:
            if isinstance(entry, FailedLaunch):
                self._write(entry.line)
            elif isinstance(entry, Checked | Segment):
                self._write(entry)
            self.add(entry)

    def add(self, entry: LedgerEntry) -> None:
        """Add what the ledger's file has already.

        A launch replaces an earlier one at its place, even if it measured nothing.
        """
        if isinstance(entry, Checked):
            self._checks[entry.key.case_id, entry.check] = entry
            return
        if isinstance(entry, Segment):
            self._segments.append(entry)
            return
        if isinstance(entry, FailedLaunch):
            self._failures.append(entry)
            if entry.check:
                return

        place = Place(entry.case_id, entry.number, entry.arm)

        # A measurement that was recorded here has replaced others when it began.
        if isinstance(entry, FailedLaunch):
            self._remove(_replaced_by(place, self._ended))
        self._remove({place})
        self._ended.add(place)
        self._launches.append(entry)
        if isinstance(entry, MeasuredLaunch):
            self._measured[place] = entry

    def _remove(self, places: set[Place]) -> None:
        """Remove the launches at these places, if there are any."""
        self._ended -= places
        for place in places:
            launch = self._measured.pop(place, None)
            if launch is not None:
                self._launches.remove(launch)

    def take_over(
        self,
        is_ours: Callable[[Key], bool] = lambda _: True,
        fits: Callable[[Checked], bool] = lambda _: True,
    ) -> None:
        """Add what an interrupted run has measured and checked.

        Args:
            is_ours: returns whether what has a key is taken over.
            fits: returns whether a check with such a key is taken over.
        """
        for key in filter(is_ours, self.recorded.keys):
            measurement = self.recorded.measured.get(key)
            if measurement is not None:
                launch = MeasuredLaunch(
                    case_id=key.case_id,
                    arm=key.arm,
                    number=key.launch,
                    measurement=measurement,
                    is_resumed=True,
                    read_from=self.path,
                )
                self.add(launch)
            for (checked_key, _), line in self.recorded.checked.items():
                if checked_key == key and fits(line):
                    self.add(line)
        self._ended |= self.recorded.ended
        for segment in self.recorded.segments:
            self.add(segment)

    def failures_of(self, case_id: str, number: int, check: str = "") -> Sequence[FailedLaunch]:
        """Return how measuring a case on a launch, or checking it, failed, in order."""
        return [
            failure
            for failure in self._failures
            if (failure.case_id, failure.number, failure.check) == (case_id, number, check)
        ]

    def check(self, case_id: str, check: str) -> Checked | None:
        """Return what a check of a case found; None if it wasn't made."""
        return self._checks.get((case_id, check))

    def find(self, case_id: str, number: int, arm: ArmName = "case") -> MeasuredLaunch | None:
        """Return the launch of an arm with a number, from 1; None if it measured nothing."""
        return self._measured.get(Place(case_id, number, arm))

    def read(self, paths: Iterable[Path], *, last: bool = False) -> None:
        """Read what interrupted processes of this run have measured.

        Args:
            paths: their ledgers. A later one takes precedence, and a missing one counts as empty.
            last: as for `read_ledger`.

        Raises:
            SpecregError: a ledger can't be read.
        """
        ledgers = [read_ledger(path, last=last) for path in paths if os.path.lexists(path)]
        self.recorded = Recorded(
            begun_s=dict(itertools.chain(*(ledger.begun_s.items() for ledger in ledgers))),
            measured=dict(itertools.chain(*(ledger.measured.items() for ledger in ledgers))),
            checked=dict(itertools.chain(*(ledger.checked.items() for ledger in ledgers))),
            failed=tuple(line for ledger in ledgers for line in ledger.failed),
            segments=tuple(line for ledger in ledgers for line in ledger.segments),
            ended=frozenset(place for ledger in ledgers for place in ledger.ended),
        )

    def hold(self) -> None:
        """Lock the run against other processes, until the ledger is closed or this process ends.

        Raises:
            SpecregError: another process has locked the run, the lock can't be written, or the
                file system has no locks.
        """
        if self._lock is not None:
            return
        with _map_disk_errors(self.path, "make room or repair its rights"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = new_lock(self.path.with_name(LOCK))
            try:
                lock.acquire(blocking=False)
            except filelock.Timeout as error:
                message = f"'{self.path.parent}': is still running; wait for its end, or end it"
                raise SpecregError(message) from error

        self._lock = lock

    def begin(self, *keys: Key) -> None:
        """Record the start of measurements side by side, with one key for each case's arm.

        Launches that they replace are removed, see `_replaced_by`.

        Raises:
            SpecregError: the ledger can't be written.
        """
        self._write(Launched(keys=keys, at_s=self.now_s()))
        for key in keys:
            self._remove(_replaced_by(Place.of(key), self._ended))

    def record_round(self, arm_number: int, number: int | None) -> Record:
        """Return the recorder of a round's requests.

        Args:
            arm_number: the number of the arm, from 0.
            number: the number of the round, from 0; None for an extension.

        Returns:
            The recorder, which raises a SpecregError if the ledger can't be written.
        """

        def record(finished: FinishedRequest) -> None:
            self._write(Replayed(arm_number=arm_number, round=number, finished=finished))

        return record

    def end(
        self, measurement: Measurement, *, arm_number: int = 0, control_number: int | None = None
    ) -> None:
        """Record a case's measurement, if it is complete and not all of it is invalid.

        Args:
            measurement: the measurement.
            arm_number: the number of the arm that made it, from 0.
            control_number: the number of the arm that was its control; None without one.

        Raises:
            SpecregError: the ledger can't be written.
        """
        replay = measurement.replay
        if replay is None:
            return
        lags = tuple(replayed_round.lags for replayed_round in replay.rounds)
        control_lags = tuple(replayed_round.lags for replayed_round in replay.control_rounds)
        counters = tuple(dict(replayed_round.counters) for replayed_round in replay.rounds)
        control_counters = tuple(
            dict(replayed_round.counters) for replayed_round in replay.control_rounds
        )
        measured = Measured(
            arm_number=arm_number,
            control_number=control_number,
            engine_version=measurement.engine_version,
            packages=measurement.packages,
            facts=measurement.facts,
            target=measurement.target,
            draft=measurement.draft,
            lags=(lags, control_lags),
            counters=(counters, control_counters),
            acceptance=replay.acceptance,
            look=measurement.look.name,
            power=replay.power,
            invalid=dict(measurement.invalid),
        )
        self._write(measured)

    def take(self, part: Path) -> None:
        """Append the lines of another ledger, if it exists.

        What this ledger has from elsewhere is left out: the last line of such a measurement, and
        such a check. Whoever reads the file then finds what counts here. A line that can't be read
        is replaced by a short unreadable line, so that its measurement is left out, too.

        Raises:
            SpecregError: a ledger can't be read or written, or the other one is a link.
        """
        if not os.path.lexists(part):
            return
        buffer = bytearray()
        keys: dict[int, Key] = {}
        for content, line in _lines(part):
            if isinstance(line, Launched):
                keys = dict(enumerate(line.keys))
            if self._takes(line, keys, part):
                buffer += _UNREADABLE_LINE if line is None else content
            if len(buffer) > _WRITTEN_AT_ONCE_BYTES:
                self._append(bytes(buffer))
                buffer.clear()

        if buffer:
            self._append(bytes(buffer))

    def _takes(self, line: Line | None, keys: Mapping[int, Key], part: Path) -> bool:
        """Return whether a line is taken: nothing else is in the place of what it completes.

        Args:
            line: the line of a part.
            keys: the keys of the line's arms.
            part: the ledger of the part.
        """
        if isinstance(line, Measured) and line.arm_number in keys:
            launch = self._measured.get(Place.of(keys[line.arm_number]))
            return launch is None or launch.read_from == part
        if isinstance(line, Checked):
            check = self.check(line.key.case_id, line.check)
            return check is None or check == line
        return True

    def close(self) -> None:
        """Unlock the run, so that another process may continue it."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _write(self, line: Line) -> None:
        self._append(msgspec.json.encode(hide_values(line)) + b"\n")

    def _append(self, content: bytes) -> None:
        with _map_disk_errors(self.path, "make room or repair its rights"):
            append_lines(self.path, content)


def read_ledger(
    path: Path, *, last: bool = False, known: Mapping[str, Case] | None = None
) -> Recorded:
    """Return what a ledger has. Measurements with a torn or unreadable line are left out.

    Args:
        path: the ledger's file.
        last: whether a launch replaces earlier ones, see `_replaced_by`. Otherwise the first of
            several measurements with one key is returned. If several processes write the ledger,
            the first is the right one, because a worker that was given up may end after its
            replacement.
        known: the cases of this checkout by `Case.key`, for a ledger from another machine. Only
            these cases count, and an unreadable line is an error unless it is torn. None for a
            ledger of this machine.

    Raises:
        SpecregError: the file can't be read, or a ledger from another machine is invalid.
    """
    measured: dict[Key, Measurement] = {}
    checked: dict[tuple[Key, str], Checked] = {}
    further_lines: list[Failed | Segment] = []
    ended: set[Place] = set()
    begun_s: dict[Key, float] = {}

    # The cases that were launched and not measured yet, by the numbers of their arms. An unreadable
    # line clears them, so that the lines after it are ignored until the next launch.
    keys: dict[int, Key] = {}
    builders: _Builders = {}
    for _, line in _lines(path, strict=known is not None):
        try:
            if last:
                _drop_replaced(measured, ended, line)
            if isinstance(line, Launched):
                keys = dict(enumerate(line.keys))
                begun_s |= dict.fromkeys(line.keys, line.at_s)
                builders = {}
            elif isinstance(line, Replayed) and keys:
                check_request(line.finished)
                _take(builders, line)
            elif isinstance(line, Measured) and line.arm_number in keys:
                measurement = _measurement(keys[line.arm_number], line, builders, known)
                key = keys.pop(line.arm_number)
                measured.setdefault(key, measurement)
                ended.add(Place.of(key))
            elif isinstance(line, Checked):
                _take_check(checked, line)
            elif isinstance(line, Failed | Segment):
                further_lines.append(line)
            else:
                keys = {}
        except Exception as error:
            # The calculations may not be prepared for everything that the lines can contain.
            if known is not None and keys:
                case_ids = ", ".join(f"'{key.case_id}'" for key in keys.values())
                message = f"ledger '{path}': measurement of {case_ids}: {error}"
                raise SpecregError(f"{message}; {_AGAIN}") from error
            # Another version of specreg may have written the case in another form.
            keys = {}

    return Recorded(
        begun_s=begun_s,
        measured=measured,
        checked=checked,
        failed=tuple(line for line in further_lines if isinstance(line, Failed)),
        segments=tuple(line for line in further_lines if isinstance(line, Segment)),
        ended=frozenset(ended),
    )


def _take_check(checked: dict[tuple[Key, str], Checked], line: Checked) -> None:
    """Add a check, unless another rule told its equal answers."""
    if line.digest == ANSWER_DIGEST_VERSION:
        checked[line.key, line.check] = line


def _drop_replaced(measured: dict[Key, Measurement], ended: set[Place], line: Line | None) -> None:
    """Drop the launches that those of a line replace when they begin, or fail."""
    places: list[Place] = []
    if isinstance(line, Launched):
        places = [Place.of(key) for key in line.keys]
    elif isinstance(line, Failed) and not line.check:
        places = [Place(line.case_id, line.launch, line.arm)]

    for place in places:
        replaced = _replaced_by(place, ended)
        ended -= replaced
        for key in [key for key in measured if Place.of(key) in replaced]:
            del measured[key]
        if isinstance(line, Failed):
            ended.add(place)


def _take(builders: _Builders, line: Replayed) -> None:
    """Add a request to its round, unless it belongs to an extension.

    Raises:
        msgspec.ValidationError: the round has that request already. Earlier versions gave an
            extension the number of the next round, so the requests of the two can't be told apart.
    """
    if line.round is None:
        return
    builder = builders.setdefault((line.arm_number, line.round), RoundBuilder())
    finished = line.finished
    if (finished.conversation_index, finished.trace.turn) in builder.traces:
        raise msgspec.ValidationError(f"round {line.round} has a request twice")
    builder.take(finished)


def _measurement(
    key: Key, line: Measured, builders: _Builders, known: Mapping[str, Case] | None
) -> Measurement:
    """Build a measurement from its lines.

    Args:
        key: the key of the measurement.
        line: its last line.
        builders: the rounds with the requests of all arms.
        known: as for `read_ledger`.

    Raises:
        msgspec.ValidationError: the lines contain something impossible.
    """
    # Check the lines, because the calculations rely on possible values.
    case = _case_of(key, known)
    if line.look not in Look.__members__:
        raise msgspec.ValidationError(f"no look is called '{line.look}'")
    lags, control_lags = line.lags
    counters, control_counters = line.counters
    check_numbers(line.counters)
    rounds = _rounds(builders, lags, counters, line.arm_number)
    control_rounds: tuple[Round, ...] = ()
    if line.control_number is not None:
        control_rounds = _rounds(builders, control_lags, control_counters, line.control_number)
    if line.acceptance is not None:
        check_record(line.acceptance)
    if line.power is not None:
        check_power(line.power)

    # The ledger contains no values of metrics, so they are calculated again.
    replay = Replay(
        rounds=rounds,
        control_rounds=control_rounds,
        concurrency=case.load.concurrency,
        acceptance=line.acceptance,
        limits=case.judging.limits,
        power=line.power,
    )
    values = values_of(case, replay, line.invalid)
    check_numbers(values)
    return Measurement(
        case=case,
        engine_version=line.engine_version,
        packages=line.packages,
        facts=line.facts,
        target=line.target,
        draft=line.draft,
        replay=replay,
        values=values,
        invalid=line.invalid,
        look=Look[line.look],
    )


def _rounds(
    builders: _Builders,
    lags_of_rounds: Sequence[TimeHistogram],
    counters_of_rounds: Sequence[_Counters],
    arm_number: int,
) -> tuple[Round, ...]:
    """Return the rounds of an arm that have lags. A round may have no requests.

    Raises:
        ValueError: the numbers of lags and counters differ.
    """
    counters_of_rounds = counters_of_rounds or [{}] * len(lags_of_rounds)
    rounds = []
    pairs = zip(lags_of_rounds, counters_of_rounds, strict=True)
    for number, (lags, counters) in enumerate(pairs):
        check_lags(lags)
        builder = builders.get((arm_number, number), RoundBuilder())
        rounds.append(dataclasses.replace(builder.as_round(), lags=lags, counters=counters))

    return tuple(rounds)


def _case_of(key: Key, known: Mapping[str, Case] | None) -> Case:
    """Return the case of a key.

    Args:
        key: the key.
        known: as for `read_ledger`. If it is set, the case must be one of these.

    Raises:
        msgspec.ValidationError: the case, its engine or its method is unknown here.
    """
    if known is None:
        decoded_case = msgspec.json.decode(key.case, type=Case)
        server = decoded_case.server
        if server.engine not in ENGINES or server.method not in METHODS:
            raise msgspec.ValidationError(f"no engine here has '{server.engine}-{server.method}'")
        return decoded_case

    case = known.get(key.case)
    if case is None or case.id != key.case_id:
        raise msgspec.ValidationError("measured with other settings than the case has here")
    return case


def check_has_no_old_ledger(folder: Path, remedy: str) -> None:
    """Check that the folder of a run, a gate or a soak has no record in an earlier form.

    Args:
        folder: the folder, which needn't exist.
        remedy: what to do otherwise.

    Raises:
        UnsupportedError: it has one.
    """
    # The workers of a run have folders of their own.
    for path in (*folder.glob("*.jsonl"), *folder.glob("shards/*/*.jsonl")):
        if path.name in _OLD_LEDGERS:
            problem = "was written by an earlier version of specreg, which this one can't read"
            raise UnsupportedError(f"'{path}': {problem}; {remedy}")


def last_run(runs: Path, part: str = "") -> Path:
    """Return the folder of the run that was written to last.

    Args:
        runs: the folder of the runs.
        part: the end of the folder's name if it must be the run of a shard.

    Raises:
        SpecregError: there is no run, the last one is still running, its folder holds a link or
            can't be read, or it has no ledger.
        UnsupportedError: the last run was recorded by an earlier version of specreg.
    """
    folders = [
        path
        for path in runs.glob(f"*{part}")
        if path.is_dir() and (part or not re.search(r"-\d+of\d+$", path.name))
    ]
    if not folders:
        raise SpecregError(f"--specreg-resume: there is no run in '{runs}'; run without it")
    folder = max(folders, key=_written_ns)
    try:
        received_files(folder)
    except OSError as error:
        # The folder may come from another machine. A link in it could lead the run to write
        # outside the folder.
        message = f"--specreg-resume: the last run, '{folder}': {error.strerror}"
        raise SpecregError(f"{message}; remove that folder, or run without it") from error

    # A worker may have locked its part of the run, so each ledger below the folder is tried.
    for lock_path in folder.rglob(LOCK):
        ledger = Ledger(lock_path.with_name(LEDGER))
        ledger.hold()
        ledger.close()

    check_has_no_old_ledger(folder, remedy="run without --specreg-resume")
    if not any(folder.rglob(LEDGER)):
        raise SpecregError(
            f"--specreg-resume: the last run, '{folder}', has no ledger: it was cut off before it"
            " measured anything; run without it, or remove that folder to go on with the one before"
        )

    return folder


def _written_ns(run: Path) -> int:
    """Return when a run's folder was last written to."""
    # Asking whether a run still goes on touches its lock, so locks don't count.
    paths = (path for path in run.rglob("*") if path.name != LOCK)
    return max(path.lstat().st_mtime_ns for path in (run, *paths))


def _lines(path: Path, *, strict: bool = False) -> Iterator[tuple[bytes, Line | None]]:
    """Yield each line with a newline, and its decoded value, which is None if it can't be read.

    Args:
        path: the ledger's file.
        strict: whether an unreadable line is an error. A torn line never is: it isn't JSON, because
            its writer was killed.

    Raises:
        SpecregError: the file can't be read or is too long, or `strict` forbids a line.
    """
    decoder = msgspec.json.Decoder(Line)
    with (
        _map_disk_errors(path, "name a run that has one, or measure anew"),
        open_received(path.parent, path.name) as file,
    ):
        for number in itertools.count(1):
            content = file.readline(_MAX_LINE_BYTES)
            if not content:
                return
            if number > _MAX_LINES or len(content) == _MAX_LINE_BYTES:
                limits = f"{_MAX_LINES} lines of {_MAX_LINE_BYTES // _MIB} MiB"
                raise SpecregError(f"ledger '{path}': is longer than {limits}; {_AGAIN}")
            line: Line | None = None
            try:
                line = decoder.decode(content)
            except UNREADABLE as error:
                is_torn = not isinstance(error, (msgspec.ValidationError, RecursionError))
                if strict and not is_torn:
                    message = f"ledger '{path}', line {number}: {error}"
                    raise SpecregError(f"{message}; {_AGAIN}") from error
            yield content if content.endswith(b"\n") else content + b"\n", line
