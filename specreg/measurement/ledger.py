"""Write each measured request to disk when it ends, and read what an interrupted run measured.

The requests of the warm-up, and those sent only for the server's counters or power, aren't written.
Each line of `.specreg/runs/<run>/ledger.jsonl` is an `Attempt`, a `Replayed`, an `Ended` or a
`Checked`.
"""

import contextlib
import dataclasses
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import filelock
import msgspec

from specreg.acceptance.record import AcceptanceRecord
from specreg.acceptance.trace import ANSWER_DIGEST_VERSION
from specreg.core.errors import SpecregError
from specreg.core.files import UNREADABLE, append_lines
from specreg.core.reasons import Invalidity
from specreg.core.received import open_received, received_files
from specreg.core.values import check_plain_names, hide_values
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts
from specreg.engines.methods import METHODS
from specreg.engines.registry import ENGINES
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

_PackageLine = Annotated[str, msgspec.Meta(max_length=1024, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A line of `uv pip freeze`, which is copied into a baseline's list of packages."""
_MAX_PACKAGES = 10_000


_LaunchNumber = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
"""The number of a launch. Every run and gate takes fewer launches than the limit."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What must be equal for a resumed run to take over a measurement.

    Attributes:
        case: the whole case, as JSON.
        case_id: the id of the case, for readers.
        launch: the number of the server's launch, from 1.
        asked: the purpose of the measurement: "acceptance", "all", or "record" for a recording. In
            a gate, the side and how it is measured.
        environment: the environment in which it is measured.
        engine: the engine's installed packages, or the interpreter that has them.
        files_sha256: the checksums of the prompts and of the models' files.
        packages_sha256: the checksum of the packages in the engine's environment; empty if unknown.
    """

    case: str
    case_id: str
    launch: _LaunchNumber
    asked: str
    environment: str
    engine: str
    files_sha256: str
    packages_sha256: str = ""


_ArmNumber = Annotated[int, msgspec.Meta(ge=0, le=10_000)]


class Attempt(msgspec.Struct, frozen=True, kw_only=True, tag="Begun"):
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
        arm: the number of the arm that answered, from 0, among the arms of the last `Attempt`.
        round: the number of the round, from 0; null for an extension, whose acceptance is in
            `Ended`.
        finished: the request.
    """

    arm: _ArmNumber
    round: int | None
    finished: FinishedRequest


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The end of a case's measurement, with everything that its requests don't contain.

    The requests of a control are written once, even if it serves several cases.

    Attributes:
        arm: the number of the case's arm, among the arms of the last `Attempt`.
        control: the number of its control's arm; None without a control.
        engine_version: the version that the server reported.
        target: the folder or the hub id of the target model.
        draft: the folder or the hub id of the draft model; None without one.
        lags: the client's lags in each round of the case, and in each round of the control.
        acceptance: the acceptance; None if it is invalid or the case doesn't speculate.
        look: the name of the last look at the acceptance.
        power: the power of the devices; None if it wasn't sampled.
        invalid: for each invalid family, the reason why its figures can't be used.
        packages: the packages of the server's environment.
        facts: what the engine reported about this launch.
    """

    arm: _ArmNumber
    control: _ArmNumber | None = None
    engine_version: str
    target: str
    draft: str | None
    lags: tuple[tuple[TimeHistogram, ...], tuple[TimeHistogram, ...]]
    acceptance: AcceptanceRecord | None
    look: str = Look.FULL.name
    power: PowerRecord | None = None
    invalid: dict[Family, Invalidity] = {}
    packages: Annotated[tuple[_PackageLine, ...], msgspec.Meta(max_length=_MAX_PACKAGES)] = ()
    facts: LaunchFacts = NOTHING_KNOWN


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The end of a correctness check of a case.

    Attributes:
        key: the key of the measurement with which the check was made.
        check: the name of the check.
        verdict: the verdict, as in `verdict.json`.
        digest: the version of the checksum by which the check tells whether answers are equal.
            Ledgers without it are of the first version.
    """

    key: Key
    check: str
    verdict: dict[str, Any]
    digest: int = 1


class _PassedOver(msgspec.Struct, frozen=True, tag="Replayed"):
    """A request whose content isn't decoded, because there may be a million of them."""


Line = Attempt | Replayed | Ended | Checked
_Builders = dict[tuple[int, int], RoundBuilder]
"""The rounds of a measurement, by the number of the arm and the number of the round."""

_MIB = 2**20
_MAX_LINE_BYTES = 64 * _MIB
_MAX_LINES = 2_000_000
_WRITTEN_AT_ONCE_BYTES = _MIB
_UNREADABLE_LINE = b"null\n"
_AGAIN = "leave that run out, and run it again"
_LOCK = "ledger.lock"
"""The name of the lock next to the ledger; the process that writes the ledger holds it."""


@contextlib.contextmanager
def _map_disk_errors(path: Path, remedy: str) -> Iterator[None]:
    """Turn an OSError into a SpecregError that names the ledger and the remedy."""
    try:
        yield
    except OSError as error:
        raise SpecregError(f"ledger '{path}': {error.strerror}; {remedy}") from error


@dataclass(slots=True)
class Ledger:
    """The ledger of one run.

    Each method that writes hands its lines to the operating system before it returns.

    Attributes:
        path: the ledger's file.
    """

    path: Path
    _lock: filelock.BaseFileLock | None = None

    def hold(self) -> None:
        """Lock the run against other processes, until the ledger is closed or this process ends.

        Raises:
            SpecregError: another process has locked the run, or the lock can't be written.
        """
        if self._lock is not None:
            return
        lock = filelock.FileLock(self.path.with_name(_LOCK))
        with _map_disk_errors(self.path, "make room or repair its rights"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(blocking=False)
            except filelock.Timeout as error:
                message = f"'{self.path.parent}': is still running; wait for its end, or end it"
                raise SpecregError(message) from error
        self._lock = lock

    def begin(self, *keys: Key) -> None:
        """Record the start of measurements side by side, with one key for each case's arm.

        Raises:
            SpecregError: the ledger can't be written.
        """
        self._write(Attempt(keys=keys, at_s=time.time()))

    def record_round(self, arm: int, number: int | None) -> Record:
        """Return the recorder of a round's requests.

        Args:
            arm: the index of the arm.
            number: the number of the round, from 0; None for an extension.

        Returns:
            The recorder, which raises a SpecregError if the ledger can't be written.
        """

        def record(finished: FinishedRequest) -> None:
            self._write(Replayed(arm=arm, round=number, finished=finished))

        return record

    def end(self, measurement: Measurement, *, arm: int = 0, control: int | None = None) -> None:
        """Record a case's measurement, if it is complete and not all of it is invalid.

        Args:
            measurement: the measurement.
            arm: the index of the arm that made it.
            control: the index of the arm that was its control; None without one.

        Raises:
            SpecregError: the ledger can't be written.
        """
        replay = measurement.replay
        if replay is None:
            return
        lags = tuple(part.lags for part in replay.rounds)
        control_lags = tuple(part.lags for part in replay.control_rounds)
        ended = Ended(
            arm=arm,
            control=control,
            engine_version=measurement.engine_version,
            packages=measurement.packages,
            facts=measurement.facts,
            target=measurement.target,
            draft=measurement.draft,
            lags=(lags, control_lags),
            acceptance=replay.acceptance,
            look=measurement.look.name,
            power=replay.power,
            invalid=dict(measurement.invalid),
        )
        self._write(ended)

    def note_check(self, key: Key, check: str, verdict: object) -> None:
        """Record a correctness check's verdict.

        Raises:
            SpecregError: the ledger can't be written.
        """
        verdict_json = msgspec.to_builtins(hide_values(verdict))
        self._write(
            Checked(key=key, check=check, verdict=verdict_json, digest=ANSWER_DIGEST_VERSION)
        )

    def take(self, part: Path) -> None:
        """Append the lines of another ledger, if it exists.

        A line that can't be read is replaced by a short unreadable line, so that its measurement is
        left out of this ledger, too.

        Raises:
            SpecregError: a ledger can't be read or written, or the other one is a link.
        """
        if not os.path.lexists(part):
            return
        buffer = bytearray()
        for content, line in _lines(part):
            buffer += _UNREADABLE_LINE if line is None else content
            if len(buffer) > _WRITTEN_AT_ONCE_BYTES:
                self._append(bytes(buffer))
                buffer.clear()
        if buffer:
            self._append(bytes(buffer))

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


def load_ledger(
    path: Path, *, last: bool = False, known: Mapping[str, Case] | None = None
) -> Mapping[Key, Measurement]:
    """Return the complete measurements of a ledger.

    Measurements with a torn or unreadable line are left out.

    Args:
        path: the ledger's file.
        last: whether the last of several measurements with one key is returned, instead of the
            first. If several processes write the ledger, the first is the right one, because a
            worker that was given up may end after its replacement. With `last`, the measurements
            are returned in the order in which they were made.
        known: the cases of this checkout by `Case.key`, for a ledger from another machine. Only
            these cases count, and an unreadable line is an error unless it is torn. None for a
            ledger of this machine.

    Raises:
        SpecregError: the file can't be read, or a ledger from another machine is invalid.
    """
    measurements: dict[Key, Measurement] = {}
    # The cases that have begun and not ended, by their arms. An unreadable line clears them, so
    # that the lines after it are ignored until the next measurements begin.
    keys: dict[int, Key] = {}
    builders: _Builders = {}
    for _, line in _lines(path, strict=known is not None):
        try:
            if isinstance(line, Attempt):
                keys = dict(enumerate(line.keys))
                builders = {}
            elif isinstance(line, Replayed) and keys:
                check_request(line.finished)
                _take(builders, line)
            elif isinstance(line, Ended) and line.arm in keys:
                measurement = _measurement(keys[line.arm], line, builders, known)
                key = keys.pop(line.arm)
                if last:
                    measurements.pop(key, None)
                measurements.setdefault(key, measurement)
            elif not isinstance(line, Checked):
                keys = {}
        except Exception as error:
            # The calculations may not be prepared for everything that the lines can contain.
            if known is not None and keys:
                case_ids = ", ".join(f"'{key.case_id}'" for key in keys.values())
                message = f"ledger '{path}': measurement of {case_ids}: {error}"
                raise SpecregError(f"{message}; {_AGAIN}") from error
            # Another version of specreg may have written the case in another form.
            keys = {}
    return measurements


def _take(builders: _Builders, line: Replayed) -> None:
    """Add a request to its round, unless it belongs to an extension.

    Raises:
        msgspec.ValidationError: the round has that request already. Earlier versions gave an
            extension the number of the next round, so the requests of the two can't be told apart.
    """
    if line.round is None:
        return
    builder = builders.setdefault((line.arm, line.round), RoundBuilder())
    finished = line.finished
    if (finished.conversation_index, finished.trace.turn) in builder.traces:
        raise msgspec.ValidationError(f"round {line.round} has a request twice")
    builder.take(finished)


def _measurement(
    key: Key, line: Ended, builders: _Builders, known: Mapping[str, Case] | None
) -> Measurement:
    """Build a measurement from its lines.

    Args:
        key: the key of the measurement.
        line: its last line.
        builders: the rounds with the requests of all arms.
        known: as for `load_ledger`.

    Raises:
        msgspec.ValidationError: the lines contain something impossible.
    """
    # Check the lines, because the calculations rely on possible values.
    case = _case_of(key, known)
    if line.look not in Look.__members__:
        raise msgspec.ValidationError(f"no look is called '{line.look}'")
    lags, control_lags = line.lags
    rounds = _rounds(builders, lags, line.arm)
    control_rounds: tuple[Round, ...] = ()
    if line.control is not None:
        control_rounds = _rounds(builders, control_lags, line.control)
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
        limits=case.limits,
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
    builders: _Builders, lags_of_rounds: Sequence[TimeHistogram], arm: int
) -> tuple[Round, ...]:
    """Return the rounds of an arm that have lags. A round may have no requests."""
    rounds = []
    for number, lags in enumerate(lags_of_rounds):
        check_lags(lags)
        builder = builders.get((arm, number), RoundBuilder())
        rounds.append(dataclasses.replace(builder.as_round(), lags=lags))
    return tuple(rounds)


def _case_of(key: Key, known: Mapping[str, Case] | None) -> Case:
    """Return the case of a key.

    Args:
        key: the key.
        known: as for `load_ledger`. If it is set, the case must be one of these.

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


def load_checks(
    path: Path, *, known: Mapping[str, Case] | None = None
) -> Mapping[tuple[Key, str], Mapping[str, Any]]:
    """Return the verdicts of the correctness checks in a ledger, by the key and the check's name.

    A check that used another rule for equal answers is left out, so that it is made again.

    Args:
        path: the ledger's file.
        known: as for `load_ledger`. Here it only decides which unreadable lines are errors.

    Raises:
        SpecregError: the file, or a line of a ledger from another machine, can't be read.
    """
    verdicts = {}
    kinds = Attempt | _PassedOver | Ended | Checked
    for _, line in _lines(path, strict=known is not None, kinds=kinds):
        if isinstance(line, Checked) and line.digest == ANSWER_DIGEST_VERSION:
            verdicts[line.key, line.check] = line.verdict
    return verdicts


def last_run(runs: Path, part: str = "") -> Path:
    """Return the folder of the run that was written to last.

    Args:
        runs: the folder of the runs.
        part: the end of the folder's name if it must be the run of a shard.

    Raises:
        SpecregError: there is no run, the last one is still running, its folder holds a link or
            can't be read, or it has no ledger.
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
    for lock_path in folder.rglob(_LOCK):
        ledger = Ledger(lock_path.with_name("ledger.jsonl"))
        ledger.hold()
        ledger.close()
    if not any(folder.rglob("ledger.jsonl")):
        raise SpecregError(
            f"--specreg-resume: the last run, '{folder}', has no ledger: it was cut off before it"
            " measured anything; run without it, or remove that folder to go on with the one before"
        )
    return folder


def _written_ns(run: Path) -> int:
    """Return when a run's folder was last written to."""
    # Asking whether a run still goes on touches its lock, so locks don't count.
    paths = (path for path in run.rglob("*") if path.name != _LOCK)
    return max(path.lstat().st_mtime_ns for path in (run, *paths))


def _lines(
    path: Path,
    *,
    strict: bool = False,
    kinds: Any = Line,  # noqa: ANN401 - a union of types
) -> Iterator[tuple[bytes, Any]]:
    """Yield each line with a newline, and its decoded value, which is None if it can't be read.

    Args:
        path: the ledger's file.
        strict: whether an unreadable line is an error. A torn line never is: it isn't JSON, because
            its writer was killed.
        kinds: the types of the lines.

    Raises:
        SpecregError: the file can't be read or is too long, or `strict` forbids a line.
    """
    decoder = msgspec.json.Decoder(kinds)
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
            line = None
            try:
                line = decoder.decode(content)
                # There are very many requests. `check_request` checks their names.
                if strict and not isinstance(line, (Replayed, _PassedOver)):
                    check_plain_names(msgspec.json.decode(content))
            except UNREADABLE as error:
                is_torn = not isinstance(error, (msgspec.ValidationError, RecursionError))
                if strict and not is_torn:
                    message = f"ledger '{path}', line {number}: {error}"
                    raise SpecregError(f"{message}; {_AGAIN}") from error
            yield content if content.endswith(b"\n") else content + b"\n", line
