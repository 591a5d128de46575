"""What a benchmark says of a case, and the statistics of its rounds."""

import dataclasses
import json
from typing import Any

import pytest

from specreg.load.rounds import Round
from specreg.measurement.metrics import Family
from specreg.report.benchmark import describe, render_benchmarks
from specreg.verdicts.judge import Outcome
from tests.unit import reports


def stats_of(*rounds: Round) -> dict[str, Any]:
    measured = reports.measured()
    assert measured.replay is not None
    replay = dataclasses.replace(measured.replay, rounds=rounds)
    measured = dataclasses.replace(measured, replay=replay)
    text = render_benchmarks(reports.REPORT, {reports.CASE.id: measured})["benchmark.json"]
    (found,) = json.loads(text)["benchmarks"]
    return dict(found["stats"])


@pytest.mark.parametrize(
    ("times_ms", "quartiles", "outliers", "ends"),
    [
        ((3,), (0.003, 0.003, 0.003), "0;0", (0.003, 0.003)),
        ((4, 1, 2, 3), (0.0015, 0.0025, 0.0035), "2;0", (0.001, 0.004)),
        ((1, 2, 3, 4, 50), (0.00175, 0.003, 0.0155), "1;1", (0.001, 0.004)),
    ],
)
def test_quartiles_and_outliers_are_those_of_pytest_benchmark(
    times_ms: tuple[int, ...],
    quartiles: tuple[float, ...],
    outliers: str,
    ends: tuple[float, float],
) -> None:
    stats = stats_of(*(reports.a_round(one, categories=("chat",)) for one in times_ms))
    assert [stats[name] for name in ("q1", "median", "q3")] == pytest.approx(quartiles)
    assert stats["outliers"] == outliers
    assert (stats["ld15iqr"], stats["hd15iqr"]) == pytest.approx(ends)
    assert stats["ops"] == pytest.approx(1000 * len(times_ms) / sum(times_ms))


def test_its_outcome_is_the_worst_last_word_on_its_case() -> None:
    words = (Outcome.PASS, Outcome.REGRESSED, Outcome.MEASURED, Outcome.NO_BASELINE)
    ours = [reports.verdict(one, metric=one, case_id=reports.CASE.id) for one in words]
    measured = reports.measured()
    others = [reports.verdict(Outcome.WRONG)]
    for verdicts, outcome in ((ours + others, "REGRESSED"), (others, "")):
        info = describe(measured, verdicts)["extra_info"]
        assert info == {**measured.values, "outcome": outcome}


@pytest.mark.parametrize("family", [Family.THROUGHPUT, Family.LATENCY])
def test_a_case_whose_speeds_mean_nothing_is_no_benchmark(family: Family) -> None:
    invalid = dataclasses.replace(reports.measured(), invalid={family: "CLIENT_BEHIND: late"})
    assert render_benchmarks(reports.REPORT, {reports.CASE.id: invalid}) == {}
