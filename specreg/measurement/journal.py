"""The journal: every request on disk as it ends, and from there the measurements of a cut-off run.

Each line of `.specreg/runs/<run>/journal.jsonl` is an `Attempt`, a `Replayed`, an `Ended` or a
`Checked`.
"""

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import msgspec

from specreg.acceptance.record import AcceptanceRecord
from specreg.acceptance.trace import ANSWER_DIGEST
from specreg.core.errors import SpecregError
from specreg.core.files import UNREADABLE, append_lines
from specreg.core.reasons import Invalidity
from specreg.core.received import open_received
from specreg.core.values import hide_values
from specreg.load.chat_client import FinishedRequest, Record
from specreg.load.rounds import Round, RoundBuilder
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement, values_of
from specreg.measurement.metrics import Family, Replay
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


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be equal for a measurement of an earlier run to be taken over.

    Attributes:
        case: the whole of it, as JSON; case_id: for people.
        launch: of its server, from 1.
        asked: what the measurement is for: "all", "acceptance" alone, or to "record".
        engine: what was installed, or whose interpreter.
        files_sha256: of the prompts and the models' files.
    """

    case: str
    case_id: str
    launch: int
    asked: str
    environment: str
    engine: str
    files_sha256: str


class Attempt(msgspec.Struct, frozen=True, kw_only=True, tag="Begun"):
    """The start of a measurement, in seconds since the epoch."""

    key: Key
    at_s: float


class Replayed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request ended: of the control or of the case's server, in which round, from 0."""

    control: bool
    round: int
    finished: FinishedRequest


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The measurement that began last is complete: what its requests don't tell of it.

    `lags` are of each round, the case's first, then the control's; `look` is a name of `Look`.
    """

    engine_version: str
    target: str
    draft: str | None
    lags: tuple[tuple[TimeHistogram, ...], tuple[TimeHistogram, ...]]
    acceptance: AcceptanceRecord | None
    look: str = Look.FULL.name
    power: PowerRecord | None = None
    invalid: dict[Family, Invalidity] = {}


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A correctness check of a case is made; the verdict as `verdict.json` has it.

    `digest` is the definition by which answers counted as equal; without one it is the first.
    """

    key: Key
    check: str
    verdict: dict[str, Any]
    digest: int = 1


Line = Attempt | Replayed | Ended | Checked

_MIB = 2**20
_MOST_LINE_BYTES = 64 * _MIB
_MOST_LINES = 2_000_000
_WRITTEN_AT_ONCE_BYTES = _MIB
_UNREADABLE_LINE = b"null\n"
_AGAIN = "leave that run out, and run it again"
_LOCK = "journal.lock"
"""Beside the journal; held by the process that writes it."""


@contextlib.contextmanager
def _named(path: Path, cure: str) -> Iterator[None]:
    """Raise an error of the disk as a SpecregError."""
    try:
        yield
    except OSError as error:
        raise SpecregError(f"journal '{path}': {error.strerror}; {cure}") from error


@dataclass(slots=True)
class Journal:
    """Write one run's journal; each line is on its way to disk when the call returns."""

    path: Path
    _lock: filelock.BaseFileLock | None = None

    def hold(self) -> None:
        """Keep other processes from the run until this is closed or our process has ended.

        Raises:
            SpecregError: another process holds it, or the disk refuses.
        """
        if self._lock is not None:
            return
        lock = filelock.FileLock(self.path.with_name(_LOCK))
        with _named(self.path, "make room or mend its rights"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(blocking=False)
            except filelock.Timeout as error:
                message = f"'{self.path.parent}': still goes on; wait until it has ended, or end it"
                raise SpecregError(f"{message} first") from error
        self._lock = lock

    def begin(self, key: Key) -> None:
        """Record that a measurement begins."""
        self._write(Attempt(key=key, at_s=time.time()))

    def record_round(self, arm: int, number: int) -> Record:
        """Return what records a round's requests; arm 0 is the case's, 1 its control's."""
        return lambda finished: self._write(
            Replayed(control=arm > 0, round=number, finished=finished)
        )

    def end(self, measurement: Measurement) -> None:
        """Record that it is complete, unless nothing of it is valid."""
        replay = measurement.replay
        if replay is None:
            return
        self._write(
            Ended(
                engine_version=measurement.engine_version,
                target=measurement.target,
                draft=measurement.draft,
                lags=(
                    tuple(part.lags for part in replay.rounds),
                    tuple(part.lags for part in replay.control_rounds),
                ),
                acceptance=replay.acceptance,
                look=measurement.look.name,
                power=replay.power,
                invalid=dict(measurement.invalid),
            )
        )

    def note_check(self, key: Key, check: str, verdict: object) -> None:
        """Record a correctness check's verdict."""
        shown = msgspec.to_builtins(hide_values(verdict))
        self._write(Checked(key=key, check=check, verdict=shown, digest=ANSWER_DIGEST))

    def take(self, part: Path) -> None:
        """Add the lines of another journal, if it is there.

        One that can't be read stays one that can't be read, so that what it is part of is left out.

        Raises:
            SpecregError: the disk refuses, or the other journal is no file of its own.
        """
        if not os.path.lexists(part):
            return
        waiting: list[bytes] = []
        waiting_bytes = 0
        for content, line in _lines(part):
            kept = _UNREADABLE_LINE if line is None else content
            waiting.append(kept)
            waiting_bytes += len(kept)
            if waiting_bytes > _WRITTEN_AT_ONCE_BYTES:
                self._append(b"".join(waiting))
                waiting, waiting_bytes = [], 0
        if waiting:
            self._append(b"".join(waiting))

    def close(self) -> None:
        """Let go of the run; another process may go on with it then."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _write(self, line: Line) -> None:
        self._append(msgspec.json.encode(hide_values(line)) + b"\n")

    def _append(self, content: bytes) -> None:
        with _named(self.path, "make room or mend its rights"):
            append_lines(self.path, content)


def load_journal(
    path: Path, *, last: bool = False, known: Mapping[str, Case] | None = None
) -> Mapping[Key, Measurement]:
    """The complete measurements of a journal.

    A measurement that a torn or unreadable line is part of is left out. Of one that was made twice
    the first counts: a worker that was given up may end after the one that took its place. Or the
    `last`, where no other process writes it, in the order in which those that count were made.

    Args:
        path: of the journal.
        last: see above.
        known: of a journal of another machine the cases here by their keys, which alone count. A
            line that isn't torn and can't be read is an error there. None for a journal of ours.

    Raises:
        SpecregError: the file can't be read, or one of another machine says what can't be.
    """
    found: dict[Key, Measurement] = {}
    key: Key | None = None
    builders: dict[tuple[bool, int], RoundBuilder] = {}
    for _, line in _lines(path, strict=known is not None):
        try:
            if isinstance(line, Attempt):
                key = line.key
                builders = {}
            elif isinstance(line, Replayed) and key is not None:
                check_request(line.finished)
                builders.setdefault((line.control, line.round), RoundBuilder()).take(line.finished)
            elif isinstance(line, Ended) and key is not None:
                measurement = _measurement(key, line, builders, known)
                if last:
                    found.pop(key, None)
                found.setdefault(key, measurement)
                key = None
            elif not isinstance(line, Checked):
                key = None
        except UNREADABLE as error:
            # A case that another version wrote may have another form, which isn't taken over.
            if known is not None and key is not None:
                message = f"journal '{path}': measurement of '{key.case_id}': {error}"
                raise SpecregError(f"{message}; {_AGAIN}") from error
            key = None
    return found


def _measurement(
    key: Key,
    line: Ended,
    builders: Mapping[tuple[bool, int], RoundBuilder],
    known: Mapping[str, Case] | None,
) -> Measurement:
    """Put a measurement together; a msgspec.ValidationError where it can't be one."""
    case = _case_of(key, known)
    if line.look not in Look.__members__:
        raise msgspec.ValidationError(f"no look is called '{line.look}'")
    rounds: tuple[list[Round], list[Round]] = [], []
    for control, side in enumerate(line.lags):
        for number, lags in enumerate(side):
            check_lags(lags)
            builder = builders.get((bool(control), number), RoundBuilder())
            builder.lags = lags
            rounds[control].append(builder.as_round())
    if line.acceptance is not None:
        check_record(line.acceptance)
    if line.power is not None:
        check_power(line.power)
    replay = Replay(
        rounds=tuple(rounds[0]),
        control_rounds=tuple(rounds[1]),
        concurrency=case.load.concurrency,
        acceptance=line.acceptance,
        limits=case.limits,
        power=line.power,
    )
    values = values_of(case, replay, line.invalid)
    check_numbers(values)
    return Measurement(
        case=case,
        engine_version=line.engine_version,
        target=line.target,
        draft=line.draft,
        replay=replay,
        values=values,
        invalid=line.invalid,
        look=Look[line.look],
    )


def _case_of(key: Key, known: Mapping[str, Case] | None) -> Case:
    """The case of a key, which must be among those that are known if any are given."""
    if known is None:
        return msgspec.json.decode(key.case, type=Case)
    case = known.get(key.case)
    if case is None or case.id != key.case_id:
        raise msgspec.ValidationError("measured with other settings than the case has here")
    return case


def load_checks(
    path: Path, *, known: Mapping[str, Case] | None = None
) -> Mapping[tuple[Key, str], Mapping[str, Any]]:
    """By key and check's name the verdicts in a journal; `known` and what is raised as above.

    A check by another definition of equal answers is left out, so that it is made again.
    """
    lines = (line for _, line in _lines(path, strict=known is not None))
    checks = [line for line in lines if isinstance(line, Checked)]
    return {
        (check.key, check.check): check.verdict for check in checks if check.digest == ANSWER_DIGEST
    }


def last_run(runs: Path, part: str = "") -> Path:
    """The folder in `runs` that was written to last; `part` is what a shard's names end with.

    Raises:
        SpecregError: there is none, it still goes on, or it has no journal.
    """
    folders = [
        path
        for path in runs.glob(f"*{part}")
        if path.is_dir() and (part or not re.search(r"-\d+of\d+$", path.name))
    ]
    if not folders:
        raise SpecregError(f"--specreg-resume: there is no run in '{runs}'; run without it")

    def written_ns(run: Path) -> int:  # to ask whether it still goes on touches its lock alone
        written = (path for path in run.rglob("*") if path.name != _LOCK)
        return max(path.stat().st_mtime_ns for path in (run, *written))

    last = max(folders, key=written_ns)
    for lock in last.rglob(_LOCK):  # of the run, or of one that has a share of it
        asked = Journal(lock.with_name("journal.jsonl"))
        asked.hold()
        asked.close()
    if not any(last.rglob("journal.jsonl")):
        raise SpecregError(
            f"--specreg-resume: the last run, '{last}', has no journal: it was cut off before it"
            " measured anything; run without it, or remove that folder to go on with the one before"
        )
    return last


def _lines(path: Path, *, strict: bool = False) -> Iterator[tuple[bytes, Line | None]]:
    """Yield each line, ended and decoded; None for one that can't be read.

    Where a reading is `strict` only a line that isn't JSON may be unreadable: a writer that was
    killed has left part of it.
    """
    decoder = msgspec.json.Decoder(Line)
    with (
        _named(path, "name a run that has one, or measure anew"),
        open_received(path.parent, path.name) as file,
    ):
        for number in itertools.count(1):
            content = file.readline(_MOST_LINE_BYTES)
            if not content:
                return
            if number > _MOST_LINES or len(content) == _MOST_LINE_BYTES:
                limits = f"{_MOST_LINES} lines of {_MOST_LINE_BYTES // _MIB} MiB"
                raise SpecregError(f"journal '{path}': is longer than {limits}; {_AGAIN}")
            line: Line | None = None
            try:
                line = decoder.decode(content)
            except UNREADABLE as error:
                is_torn = not isinstance(error, (msgspec.ValidationError, RecursionError))
                if strict and not is_torn:
                    message = f"journal '{path}', line {number}: {error}"
                    raise SpecregError(f"{message}; {_AGAIN}") from error
            yield content if content.endswith(b"\n") else content + b"\n", line
