"""Speeds of a case that are judged by the nights of their machine."""

import math
from collections.abc import Mapping, Sequence

from specreg.baselines.comparison import CaseBaselines
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric
from specreg.verdicts.history import History, RunRecord, settings_sha256
from specreg.verdicts.references import References
from specreg.verdicts.speeds import Speed, SpeedJudge, compare_speed
from specreg.verdicts.verdict import Verdict
from tests.unit.builders.baselines import SETTINGS
from tests.unit.builders.cases import CASE

TONIGHT = "20261231T030000-1"


def steady_nights(
    usual: Mapping[str, float],
    nights: int,
    *,
    case_id: str = CASE.id,
    spread_frac: float = 0.003,
    first: int = 1,
    engine_version: str = "0.32.0",
) -> tuple[RunRecord, ...]:
    """Runs of December whose figures differ alternately from the usual ones by a spread.

    Args:
        usual: the usual value of each metric.
        nights: how many.
        case_id: the case.
        spread_frac: by how much they differ.
        first: the day of the first one.
        engine_version: the version of the engine.
    """
    records = []
    for night in range(first, first + nights):
        factor = math.exp(spread_frac * (-1) ** night)
        values = {name: value * factor for name, value in usual.items()}
        records.append(
            RunRecord(
                run=f"202612{night:02}T030000-1",
                case_id=case_id,
                settings_sha256=settings_sha256(SETTINGS),
                engine_version=engine_version,
                draft_sha256="",
                values=values,
                outcomes=dict.fromkeys(values, "PASS"),
            )
        )
    return tuple(records)


def references(
    known: CaseBaselines,
    *records: RunRecord,
    case_ids: Sequence[str] = (CASE.id,),
    run: str = TONIGHT,
    holds_by_nights: bool = False,
) -> References:
    """What cases with the same baselines and these nights are compared with."""
    by_case = {
        case_id: tuple(record for record in records if record.case_id == case_id)
        for case_id in case_ids
    }
    baselines = {}
    if known.exact is not None:
        baselines = dict.fromkeys(case_ids, known.exact)
    return References(
        baselines_of=lambda _: known,
        run=run,
        baselines=baselines,
        history=History(by_case),
        cases=len(case_ids),
        holds_by_nights=holds_by_nights,
    )


def judge_speeds(
    metrics: Sequence[Metric], launches: Sequence[Sequence[Measurement]], compared_with: References
) -> list[Verdict]:
    """The verdicts on metrics of some cases, each with its launches of tonight."""
    speeds = []
    verdicts = []
    for of_case in launches:
        for metric in metrics:
            comparison = compare_speed(metric, of_case, compared_with)
            if isinstance(comparison, Verdict):
                verdicts.append(comparison)
            else:
                speeds.append(Speed(metric=metric, comparison=comparison))
    return [*verdicts, *SpeedJudge(speeds, compared_with).judge(speeds)]


def judge_speed(
    metric: Metric, launches: Sequence[Measurement], compared_with: References
) -> Verdict:
    """The verdict on a speed of one case."""
    (verdict,) = judge_speeds([metric], [launches], compared_with)
    return verdict


def without_noise(
    metrics: Mapping[str, float], nights: int = 20, case_id: str = CASE.id
) -> tuple[RunRecord, ...]:
    """Nights after which any loss beyond the tolerance is clear."""
    acceptance = {name for name, metric in METRICS.items() if not metric.by_launch}
    known = {name: value for name, value in metrics.items() if name not in acceptance}
    return steady_nights(known, nights, spread_frac=0.001, case_id=case_id)
