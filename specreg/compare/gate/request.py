"""Requests: what somebody asks of a gate in, the rules that it is judged by out."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from specreg.compare.gate.going import Group
from specreg.compare.gate.judging import LAUNCHES_PER_BLOCK, Rules, count_figures
from specreg.compare.gate.launched import Launched
from specreg.compare.gate.quantities import ACCEPTANCE, QUANTITIES
from specreg.core.errors import UnknownNameError, UnsupportedError
from specreg.matrix.case import Tier

_SPEED_LAUNCHES = 2 * LAUNCHES_PER_BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks a gate; texts are as they were typed.

    Attributes:
        a, b: the sides; a_overrides, b_overrides: what their cases have otherwise.
        tier: of which; case_ids: which of its cases, none for all.
        pin_length_tokens: the acceptance length of further cases, None for none.
        launches: the most of each side; minutes: the most that all of them may take.
        prompts: how many each case replays, None for its own number.
        tolerances: `QUANTITY=FRACTION`.
        with_control: whether side A is measured against itself.
        together: whether the servers of all sides are up at the same time, None for where no GPU
            has to hold them.
        least_s: how long a launch is asked, at least, where speed counts.
        resume: whether to go on with what lies in the folder.
        root: the repository's root; out: the folder of the gate, None for a new one in `.specreg`.
        ready_within_s: how long a server may take to its first token.
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


def check_extent(asked: Request) -> None:
    """Silent where what has to be a time is one, and launches are whole blocks.

    Raises:
        UnsupportedError: a time is not above 0, or no number; or launches are of no whole block.
    """
    for option, value in (
        ("--seconds", asked.least_s),
        ("--minutes", asked.minutes),
        ("--ready-within-s", asked.ready_within_s),
    ):
        if value is not None and not 0 < value < math.inf:
            raise UnsupportedError(f"{option} {value:g}: is no time; give a number above 0")
    if asked.launches < LAUNCHES_PER_BLOCK or asked.launches % LAUNCHES_PER_BLOCK:
        message = (
            f"--launches {asked.launches}: a block of ABBA has two of each side; give an even"
            " number from 2 on"
        )
        raise UnsupportedError(message)


def rules_of(asked: Request, groups: Sequence[Group]) -> Rules:
    """How much evidence there may be, and how it is weighed; says what that can't decide.

    Raises:
        UnsupportedError: a tolerance that is none.
        UnknownNameError: a tolerance of no quantity.
    """
    launches = asked.launches
    subjects = [subject for group in groups for subject in group.subjects]
    rules = Rules(
        blocks=launches // LAUNCHES_PER_BLOCK,
        figures=count_figures(subjects),
        tolerances=tolerances_of(asked.tolerances),
    )
    ours = [subject for subject in subjects if not subject.is_control]
    if launches < _SPEED_LAUNCHES and any(subject.deciding - {ACCEPTANCE} for subject in ours):
        asked.show(
            f"--launches {launches}: a speed is decided by {_SPEED_LAUNCHES} launches of each side"
            f" at least, so these will stay undecided; give --launches {_SPEED_LAUNCHES} or more"
        )
    return rules


def rules_after(rules: Rules, lines: Sequence[object], show: Callable[[str], None]) -> Rules:
    """Rules that share the level among the looks of an earlier run too, of which it may be more.

    Args:
        rules: as they were asked for.
        lines: of the journal.
        show: is told where these launches are more.
    """
    begun = max((one.block for one in lines if isinstance(one, Launched)), default=0)
    if begun <= rules.blocks:
        return rules
    launches = LAUNCHES_PER_BLOCK * begun
    show(
        f"--launches {rules.launches}: {launches} of each side were begun before; all are judged as"
        f" with --launches {launches}"
    )
    return dataclasses.replace(rules, blocks=begun)


def tolerances_of(texts: Sequence[str]) -> Mapping[str, float]:
    """By quantity the loss that is fine, of `QUANTITY=FRACTION`.

    Raises:
        UnknownNameError: no such quantity.
        UnsupportedError: no fraction between 0 and 1.
    """
    found = {}
    for text in texts:
        name, _, frac = text.partition("=")
        if name not in QUANTITIES:
            raise UnknownNameError("quantity", name, QUANTITIES, f"--tolerance {text}")
        try:
            found[name] = float(frac)
        except ValueError:
            found[name] = -1.0
        if not 0 < found[name] < 1:
            message = f"--tolerance {text}: '{frac}' is no fraction between 0 and 1; 0.03 is 3 %"
            raise UnsupportedError(message)
    return MappingProxyType(found)
