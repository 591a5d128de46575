"""What a run is compared with: the baselines of its cases, and the nights of its machine."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from specreg.baselines.comparison import CaseBaselines
from specreg.baselines.schema import Baseline
from specreg.matrix.case import Case
from specreg.verdicts.history import NO_HISTORY, History


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """What a run is compared with, and how strictly.

    Attributes:
        baselines_of: returns the baselines of a case, or raises BaselineError.
        run: the name of the run, which begins with its start.
        baselines: the baselines of this machine, by the case's id.
        history: the nights before the run.
        machine_of: returns the identity of the machine that measured a case, by the case's id;
            empty if unknown.
        driver_version: the version of the GPUs' driver; empty without a GPU.
        cases: how many cases the run judges. Chance may show a loss in each of them.
        softened: the metrics whose tests pass although they are INCONCLUSIVE.
        holds_by_nights: whether the test of an INCONCLUSIVE metric passes if some number of nights
            would decide it.
    """

    baselines_of: Callable[[Case], CaseBaselines]
    run: str
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    history: History = NO_HISTORY
    machine_of: Callable[[str], str] = lambda _: ""
    driver_version: str = ""
    cases: int = 1
    softened: AbstractSet[str] = frozenset()
    holds_by_nights: bool = True
