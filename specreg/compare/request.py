"""What is asked of a gate."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.compare.judging import LAUNCHES_PER_BLOCK
from specreg.core.errors import UnknownNameError, UnsupportedError
from specreg.matrix.case import Tier
from specreg.measurement.metrics import GATE_METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a gate; texts are as they were typed.

    Attributes:
        a, b: the sides; a_overrides, b_overrides: what their cases have otherwise.
        tier: of which; case_ids: which of its cases, none for all.
        pin_length_tokens: the acceptance length of further cases, None for none.
        launches: the most of each side; minutes: the most that all of them may take.
        prompts: how many each case replays, None for its own number.
        tolerances: `METRIC=FRACTION`.
        with_control: whether side A is measured against itself.
        together: whether the servers of all sides are up at the same time, None for where no GPU
            has to hold them.
        least_s: how long a launch is asked, at least, where speed counts.
        resume: whether to go on with what lies in the folder.
        root: the repository's root; out: the folder of the gate, None for a new one in `.specreg`.
        ready_within_s: how long a server may take to its first token.
        waits: whether to wait for a GPU on which another run of specreg measures.
        show: is told what goes on.
    """

    a: str
    b: str
    a_overrides: Sequence[str] = ()
    b_overrides: Sequence[str] = ()
    tier: Tier
    case_ids: Sequence[str] = ()
    pin_length_tokens: float | None = None
    launches: int = 16
    minutes: float | None = None
    prompts: int | None = None
    tolerances: Sequence[str] = ()
    with_control: bool = True
    together: bool | None = None
    least_s: float = 20.0
    resume: bool = False
    root: Path
    out: Path | None = None
    ready_within_s: float = 600.0
    waits: bool = True
    show: Callable[[str], None]

    @property
    def on_gpu(self) -> bool:
        """Whether the engines run on a GPU."""
        return self.tier.needs_gpus > 0

    def check(self) -> None:
        """Check that what has to be a time is one, and launches are whole blocks.

        Raises:
            UnsupportedError: one isn't.
        """
        for option, value in (
            ("--seconds", self.least_s),
            ("--minutes", self.minutes),
            ("--ready-within-s", self.ready_within_s),
        ):
            if value is not None and not 0 < value < math.inf:
                raise UnsupportedError(f"{option} {value:g}: is no time; give a number above 0")
        if self.launches < LAUNCHES_PER_BLOCK or self.launches % LAUNCHES_PER_BLOCK:
            message = (
                f"--launches {self.launches}: a block of ABBA has two of each side; give an even"
                " number from 2 on"
            )
            raise UnsupportedError(message)

    @property
    def tolerance_fracs(self) -> Mapping[str, float]:
        """By metric the loss that is fine, of `METRIC=FRACTION`.

        Raises:
            UnknownNameError: no such metric.
            UnsupportedError: no fraction between 0 and 1.
        """
        found = {}
        for text in self.tolerances:
            name, _, frac = text.partition("=")
            if name not in GATE_METRICS:
                raise UnknownNameError("metric", name, GATE_METRICS, f"--tolerance {text}")
            try:
                found[name] = float(frac)
            except ValueError:
                found[name] = -1.0
            if not 0 < found[name] < 1:
                message = (
                    f"--tolerance {text}: '{frac}' is no fraction between 0 and 1; 0.03 is 3 %"
                )
                raise UnsupportedError(message)
        return found
