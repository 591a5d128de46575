"""Judge a night of a machine by all nights before it: the whole of judging speeds by nights."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specreg.judging.nights import MachineNights, Prior
from specreg.judging.rules import Evidence, NightFinding, finding_of
from specreg.judging.samples import Figure, Sample, SoftwareItems, night_of, software_of, table_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedVerdict:
    """What the nights say about one figure on the last night of its machine.

    Attributes:
        finding: what they say.
        evidence: why.
        level: the logarithm that tonight is compared with; better is positive, NaN if unknown.
        since_s: when the first night of a loss or gain began, in seconds since 1970; None without
            one.
        lasted: how many nights the loss or gain has lasted, including tonight; 0 without one.
        software: the software of the case on the night before the loss or gain, and on its first
            night; without one, before tonight and tonight. If they differ, the change of software
            may have caused it.
    """

    figure: Figure
    finding: NightFinding
    evidence: Evidence
    level: float
    since_s: float | None = None
    lasted: int = 0
    software: tuple[SoftwareItems, SoftwareItems] = ((), ())


class NightJudge:
    """Judges tonight by the earlier nights of a machine, which it goes through once.

    The verdicts depend neither on the order of the samples nor on the order of the cases.

    Args:
        earlier: what the earlier nights measured.
        tonight: what tonight has measured so far. Later calls may have further launches of it.
        tolerance_of: returns the tolerated loss of a figure, 0..1.
        prior: the spreads that are assumed at first.
    """

    def __init__(
        self,
        earlier: Iterable[Sample],
        tonight: Sequence[Sample],
        tolerance_of: Callable[[Figure], float],
        prior: Prior,
    ) -> None:
        earlier = list(earlier)
        self._table = table_of(earlier, [sample.figure for sample in tonight])
        tolerances_frac = np.array([tolerance_of(figure) for figure in self._table.figures])
        self._nights = MachineNights(
            self._table.figures,
            tolerances_frac,
            prior,
            has_controls=any(sample.control_logs for sample in earlier or tonight),
        )
        for night in self._table.nights:
            self._nights.add(night)

    def looks_lost(self, tonight: Iterable[Sample]) -> list[Figure]:
        """Return the figures that look worse than tolerated, so that a further launch helps."""
        looks_lost = self._nights.looks_lost(night_of(tonight, self._table.figures))
        return [
            figure
            for figure, is_lost in zip(self._table.figures, looks_lost, strict=True)
            if is_lost
        ]

    def judge(self, tonight: Sequence[Sample]) -> list[SpeedVerdict]:
        """Return the verdict on each figure of tonight."""
        if not self._table.figures:
            return []
        night = night_of(tonight, self._table.figures)
        nights = copy.deepcopy(self._nights)
        nights.add(night)
        began_s = [*self._table.began_s, *(sample.began_s for sample in tonight[:1])]
        software = [*self._table.software, software_of(tonight)]
        verdicts = []
        for column, (figure, evidence) in enumerate(
            zip(self._table.figures, nights.evidence(), strict=True)
        ):
            level = night.levels[column]
            if np.isnan(level):
                continue
            first = _first_night(evidence)
            # A machine may be too slow tonight alone.
            changed_on = first if first >= 0 else len(began_s) - 1
            verdicts.append(
                SpeedVerdict(
                    figure=figure,
                    finding=finding_of(evidence),
                    evidence=evidence,
                    level=float(level) - evidence.own - evidence.shared,
                    since_s=began_s[first] if first >= 0 else None,
                    lasted=self._nights_since(first, column) + 1 if first >= 0 else 0,
                    software=_software_around(software, figure.case, changed_on),
                )
            )

        return verdicts

    def _nights_since(self, first: int, column: int) -> int:
        """Return on how many earlier nights from one on a figure was measured."""
        earlier = self._table.nights[first:]
        return sum(bool(np.isfinite(night.levels[column])) for night in earlier)


def _first_night(evidence: Evidence) -> int:
    """Return the first night of a figure's open loss or gain; -1 without one."""
    dates = (evidence.since, evidence.engine_since, evidence.machine_since)
    return next((night for night in dates if night >= 0), -1)


def _software_around(
    software: Sequence[Mapping[str, SoftwareItems]], case: str, night: int
) -> tuple[SoftwareItems, SoftwareItems]:
    """Return the software of a case before a night, and on it or on the first one after it."""
    before = [cases[case] for cases in software[:night] if case in cases]
    after = [cases[case] for cases in software[night:] if case in cases]
    return before[-1] if before else (), after[0]
