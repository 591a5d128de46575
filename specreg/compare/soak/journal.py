"""A soak on disk: `<folder>/soak.jsonl`, a line as it comes; one that is killed keeps them."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from specreg.compare.soak.block import Block
from specreg.compare.soak.drift import Drift, State
from specreg.core.errors import SpecregError
from specreg.core.files import append_lines


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first line: what is soaked.

    Attributes:
        case_id: whose load it is; engine: what is installed; engine_version: by the server's word.
        minutes: how long it is to take.
    """

    case_id: str
    engine: str
    engine_version: str
    minutes: float


class Drifted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How a figure moved: a line for an alarm when it is raised, and one of each at the end.

    Attributes:
        figure: the block's field; state: in a word.
        after_s: so much of the soak had passed.
        change_frac: in an hour, relative to the first blocks; better is positive.
        low_frac, high_frac: the interval of that change.
            All three are None where there is no telling.
    """

    figure: str
    state: State
    after_s: float
    change_frac: float | None
    low_frac: float | None
    high_frac: float | None


Line = Begun | Block | Drifted


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The lines of one soak; one is on its way to disk when the call returns."""

    path: Path

    def write(self, *lines: Line) -> None:
        """Adds lines, all at once.

        Raises:
            SpecregError: the disk refuses.
        """
        try:
            append_lines(self.path, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        except OSError as error:
            message = f"soak '{self.path}': {error.strerror}; make room or mend its rights"
            raise SpecregError(message) from error

    def lines(self) -> tuple[Line, ...]:
        """All whole lines."""
        decoder = msgspec.json.Decoder(Line)
        found = self.path.read_bytes().splitlines(keepends=True)
        return tuple(decoder.decode(line) for line in found if line.endswith(b"\n"))


def line_of(drift: Drift, after_s: float) -> Drifted:
    """How a figure moved until a time of the soak."""
    told = drift.change is not None
    return Drifted(
        figure=drift.watched.name,
        state=drift.state,
        after_s=after_s,
        change_frac=drift.change_frac if told else None,
        low_frac=drift.low_frac if told else None,
        high_frac=drift.high_frac if told else None,
    )
