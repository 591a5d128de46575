"""Judge the last night of each machine: `verdicts_of` is the whole of judging speeds by nights."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from specreg.judging.nights import MachineNights, Prior
from specreg.judging.rules import Evidence, Finding, finding_of
from specreg.judging.samples import Figure, Sample, Table, tables_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedVerdict:
    """What the nights say about one figure on the last night of its machine.

    Attributes:
        figure: the figure.
        machine: the identity of the machine.
        finding: what they say.
        evidence: why.
        level: the logarithm that tonight is compared with; better is positive, NaN if unknown.
        since_s: when the first night of a loss or gain began, in seconds since 1970; None without
            one.
        software_changed: whether the software of the engine on that night differed from that of
            the night before. An engine that is slower since then may have caused it.
    """

    figure: Figure
    machine: str
    finding: Finding
    evidence: Evidence
    level: float
    since_s: float | None = None
    software_changed: bool = False


def verdicts_of(
    samples: Iterable[Sample],
    tolerance_of: Callable[[Figure], float],
    prior: Prior,
    *,
    now_s: float = math.inf,
) -> list[SpeedVerdict]:
    """Judge the last night of each machine by all of its nights.

    The verdicts depend neither on the order of the samples nor on the order of the cases.

    Args:
        samples: what all nights measured, including tonight.
        tolerance_of: returns the tolerated loss of a figure, 0..1.
        prior: the spreads that are assumed at first.
        now_s: the present moment. Nights that began later are left out.
    """
    verdicts = []
    for machine, table in tables_of(samples, now_s).items():
        tolerances_frac = np.array([tolerance_of(figure) for figure in table.figures])
        nights = MachineNights(table.figures, tolerances_frac, prior)
        for night in table.nights:
            nights.add(night)
        tonight = table.nights[-1].levels
        for column, evidence in enumerate(nights.evidence()):
            level = float(tonight[column]) - evidence.own - evidence.shared
            verdict = SpeedVerdict(
                figure=table.figures[column],
                machine=machine,
                finding=finding_of(evidence),
                evidence=evidence,
                level=level,
            )
            verdicts.append(_dated(verdict, table))
    return verdicts


def _dated(verdict: SpeedVerdict, table: Table) -> SpeedVerdict:
    """Add when the loss or gain began, and whether the software changed on that night."""
    evidence = verdict.evidence
    dates = (evidence.since, evidence.engine_since, evidence.machine_since)
    since = next((night for night in dates if night >= 0), -1)
    if since < 0:
        return verdict
    engine = verdict.figure.engine
    return dataclasses.replace(
        verdict,
        since_s=table.began_s[since],
        software_changed=_software_before(table, engine, since)
        != table.software[since].get(engine, ""),
    )


def _software_before(table: Table, engine: str, night: int) -> str:
    """Return the software of an engine on the last night before a night that measured it."""
    for software in reversed(table.software[:night]):
        if engine in software:
            return software[engine]
    return table.software[night].get(engine, "")
