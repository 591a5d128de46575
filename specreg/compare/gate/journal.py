"""The gate's journal: each launch on disk as it ends, and from there a gate that was cut off.

`<folder>/gate.jsonl`; the first line says what is compared, the others what was measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import msgspec

from specreg.compare.gate.launched import Launched
from specreg.compare.gate.texts import TextsJudged, TextsSaid
from specreg.core.errors import SpecregError
from specreg.core.files import UNREADABLE, append_lines
from specreg.core.redaction import hide_bytes


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What has to be equal for a gate to go on from here.

    Attributes:
        a, b: what is installed on each side, or whose interpreter.
        cases: of both sides, as JSON.
        environment: name of the kind of machine.
        files_sha256: of the prompts and the models' files.
        together: whether all sides are up at the same time; with_control: whether side A is
            launched once more; least_s: how long a launch is asked, at least.
    """

    a: str
    b: str
    cases: str
    environment: str
    files_sha256: str
    together: bool = False
    with_control: bool = True
    least_s: float = 0.0


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Every server of both sides has generated a token."""


class Spent(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How long a launch took, from its start to its end."""

    launch_s: float


Line = Begun | Rehearsed | Launched | TextsSaid | TextsJudged | Spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """One gate's journal; a line is on its way to disk when the call returns.

    Attributes:
        path: of the file; lock: of its folder, for as long as somebody holds this.
    """

    path: Path
    lock: filelock.BaseFileLock | None = field(default=None, compare=False, repr=False)

    def write(self, *lines: Line) -> None:
        """Adds lines, all at once.

        Raises:
            SpecregError: the disk refuses.
        """
        try:
            append_lines(self.path, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        except OSError as error:
            message = f"journal '{self.path}': {error.strerror}; make room or mend its rights"
            raise SpecregError(message) from error

    def lines(self) -> Iterator[Line]:
        """All lines that can be read; none where there is no file."""
        if not self.path.exists():
            return
        decoder = msgspec.json.Decoder(Line)
        for line in self.path.read_bytes().splitlines():
            try:
                yield decoder.decode(line)
            except UNREADABLE:
                continue


def resumed(path: Path, begun: Begun, *, resume: bool) -> tuple[Journal, tuple[Line, ...]]:
    """The journal to write on, and what it holds already.

    Args:
        path: of the file.
        begun: what is to be compared.
        resume: whether to go on with what lies there.

    What measured nothing yet, as its rehearsal failed, is in nobody's way.

    Raises:
        SpecregError: something else lies there, or something where nothing should be resumed; or
            another process is at work there, or the disk refuses.
    """
    journal = Journal(path=path, lock=only_one(path, "gate"))
    begun = msgspec.json.decode(hide_bytes(msgspec.json.encode(begun)), type=Begun)
    lines = tuple(journal.lines())
    goes_on = resume and lines[:1] == (begun,)
    if lines and not goes_on and b'"Launched"' not in path.read_bytes():
        path.unlink()
        lines = ()
    if not lines:
        journal.write(begun)
        return journal, ()
    if not resume:
        message = f"'{path}': holds a gate already; say --resume to go on, or another --out"
        raise SpecregError(message)
    if lines[0] != begun:
        message = (
            f"'{path}': is of another gate, {_difference(lines[0], begun)}; name the same sides and"
            " cases as then, or another --out"
        )
        raise SpecregError(message)
    return journal, lines[1:]


def only_one(path: Path, work: str) -> filelock.BaseFileLock:
    """The lock of a file's folder, free again when nobody has it or its process any more.

    Args:
        path: of the file that two would write; its folder is made where it isn't there.
        work: what goes on there, for people: gate.

    Raises:
        SpecregError: another process is at work there, or the disk refuses.
    """
    lock = filelock.FileLock(path.with_suffix(".lock"), blocking=False, is_singleton=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout as error:
        message = (
            f"'{path.parent}': another {work} is at work there; wait for its end, or name another"
            " --out"
        )
        raise SpecregError(message) from error
    except OSError as error:
        message = f"'{lock.lock_file}': {error.strerror}; make room or mend its rights"
        raise SpecregError(message) from error
    return lock


def _difference(was: Line, now: Begun) -> str:
    before, after = msgspec.to_builtins(was), msgspec.to_builtins(now)
    others = [name for name in after if before.get(name) != after[name]]
    return f"with other {' and '.join(others)}" if others else "of an older form"
