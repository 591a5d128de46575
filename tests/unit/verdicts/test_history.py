"""The history: lines that come back, and what hours differ by once there are enough of them."""

import datetime as dt
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.core.errors import ReportError
from specreg.core.reasons import Reason
from specreg.measurement.metrics import METRICS
from specreg.stats.intervals import Spread
from specreg.verdicts.history import (
    History,
    RunRecord,
    SourceRun,
    baseline_sha256,
    identical_to,
    load_history,
    noise_of,
    record_history,
    run_record,
    settings_sha256,
)
from specreg.verdicts.verdict import Outcome, Verdict
from tests.unit import builders
from tests.unit.builders.histories import LATER

SPEED = METRICS["throughput_tokens_per_s"]
TIME = METRICS["tpot_p50_ms"]
LENGTH = METRICS["acceptance_length_tokens"]


BASELINE = builders.baseline(
    {SPEED.name: 100.0, TIME.name: 10.0}, {SPEED.name: 100.0}, of=builders.counts(5, 0, 5)
)
"""Of 100 tokens/s, 10 ms and AL 2."""


def past_run(case_id: str = "case", *, run: str = "20261121-0730", **values: float) -> RunRecord:
    """What a run did with a case."""
    return RunRecord(
        run=run,
        case_id=case_id,
        settings_sha256="ab",
        engine_version="0.32.0",
        draft_sha256="cd",
        values=values,
        outcomes={SPEED.name: "PASS"},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the history lies; its folder isn't there yet."""
    return tmp_path / "history" / "cpu.jsonl"


def test_lines_come_back_the_oldest_first_and_by_case(path: Path) -> None:
    first, of_another_case = past_run(tpot_p50_ms=8.0), past_run("other")
    second = past_run(run="20261122-0730", tpot_p50_ms=9.0)
    record_history(path, [first, of_another_case])
    record_history(path, [msgspec.structs.replace(second, values={})])
    record_history(path, [second])  # gone on with: it counts once
    assert load_history(path, LATER).of("case") == (first, second)
    assert load_history(path, LATER).of("other") == (of_another_case,)
    assert set(load_history(path, LATER).by_case) == {"case", "other"}


LINE = msgspec.json.encode(past_run())


@pytest.mark.parametrize(
    "torn",
    [
        LINE[:-9],
        b'{"run": "20261121-0730"}',
        LINE.replace(b"PASS", b"\xff\xfe"),
        LINE.replace(b'"launches":1', b'"launches":0'),
        LINE.replace(b'"launches":1', b'"launches":1' + b"0" * 400),
        LINE.replace(b'"values":{}', b'"values":{"tpot_p50_ms":1e308}'),
        LINE.replace(b'"values":{}', b'"values":{"tpot_p50_ms":1e-320}'),
        LINE.replace(b'"values":{}', b'"values":{"tpot_p50_ms":-8.0}'),
        LINE.replace(b'"launch_values":{}', b'"launch_values":{"tpot_p50_ms":[8.0,1e30]}'),
        LINE.replace(b'"launch_values":{}', b'"launch_values":{"tpot_p50_ms":[8.0,NaN]}'),
        LINE.replace(b"20261121-0730", b"last-night"),
        LINE.replace(b"20261121-0730", b"20260230T020000-1"),
        LINE.replace(b"20261121-0730", b"00000000"),
        LINE.replace(b"20261121-0730", b"99999999T999999-1"),
    ],
    ids=[
        *("cut-off", "of-another-form", "no-text", "without-a-launch", "launches-of-400-digits"),
        *("a-huge-value", "a-tiny-value", "a-negative-value", "a-huge-launch", "no-number"),
        *("without-a-date", "30-February", "year-0", "month-99"),
    ],
)
def test_a_line_that_can_not_be_read_is_left_out_and_counted(path: Path, torn: bytes) -> None:
    before, after = past_run(tpot_p50_ms=8.0), past_run(run="20261122-0730", tpot_p50_ms=9.0)
    record_history(path, [before])
    with path.open("ab") as file:
        file.write(torn + b"\n")
    record_history(path, [after])
    assert load_history(path, LATER).of("case") == (before, after)
    assert load_history(path, LATER).problem.endswith(": 1 line(s) can't be read; the rest is used")


@pytest.mark.parametrize("run", ["20300101T000000-1", "99991231", "20261128T120001-7"])
def test_a_night_of_the_future_is_left_out_and_named(path: Path, run: str) -> None:
    now = dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC)
    night = past_run(run="20261128T120000-7")
    record_history(path, [night, past_run(run=run)])
    history = load_history(path, now)
    assert history.of("case") == (night,)
    assert f"1 line(s) are of the future, such as {run}" in history.problem


def test_nights_are_in_the_order_in_which_they_began(path: Path) -> None:
    nights = [past_run(run=f"202611{day}T020000-1") for day in (21, 19, 20)]
    record_history(path, nights)
    runs = [night.run for night in load_history(path, LATER).of("case")]
    assert runs == ["20261119T020000-1", "20261120T020000-1", "20261121T020000-1"]


def test_of_many_nights_the_last_thousand_are_read(path: Path) -> None:
    first = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    moments = [first + dt.timedelta(days=day) for day in range(1_003)]
    record_history(path, [past_run(run=f"{moment:%Y%m%dT%H%M%S}-1") for moment in moments])
    nights = load_history(path, LATER).of("case")
    assert [nights[0].run, len(nights)] == ["20200104T000000-1", 1_000]


def test_a_line_of_another_case_than_those_of_the_run_is_not_looked_at(path: Path) -> None:
    night = past_run()
    record_history(path, [night])
    with path.open("ab") as file:
        file.write(b'{"case_id": "other", "launches": 0}\n')
    history = load_history(path, LATER, {"case"})
    assert history == History({"case": (night,)})


@pytest.mark.parametrize(
    "changes",
    [{"settings_sha256": "x"}, {"engine_version": "x"}, {"draft_sha256": "x"}, {"lost": True}],
    ids=str,
)
def test_only_identical_runs_tell_how_hours_differ(changes: dict[str, Any]) -> None:
    same = msgspec.structs.replace(
        past_run(throughput_tokens_per_s=100.0), settings_sha256=settings_sha256(builders.SETTINGS)
    )
    changed = msgspec.structs.replace(same, **changes)
    assert identical_to([same, changed, same], builders.SETTINGS, "0.32.0", "cd") == [same, same]


def test_a_disk_that_refuses_is_said(path: Path) -> None:
    path.parent.write_text("no folder")
    with pytest.raises(ReportError, match=r"this run isn't in it, (File exists|Not a directory);"):
        record_history(path, [past_run()])
    problem = f"history '{path}': Not a directory, so it isn't used; repair its rights"
    assert load_history(path, LATER) == History({}, problem)


def test_a_run_is_what_its_launches_did_on_average() -> None:
    """Nothing has no logarithm: a launch where nothing was accepted doesn't hide the others."""
    goodput, rate = "goodput_requests_per_s", "acceptance_rate_frac"
    launches = [
        builders.measurement({SPEED.name: 80.0, TIME.name: 8.0, goodput: 0.0, rate: 0.0}),
        builders.measurement({SPEED.name: 125.0, LENGTH.name: 2.5, goodput: 0.0, rate: 0.5}),
    ]
    outcomes = {SPEED.name: "PASS", TIME.name: "INCONCLUSIVE", goodput: "PASS", rate: "PASS"}
    verdicts = [
        Verdict(case_id=builders.CASE.id, metric=name, outcome=Outcome(word))
        for name, word in outcomes.items()
    ]
    origin = SourceRun(
        run="20261121-0730", machine="2f3a", driver_version="570.1", commit="0123456789ab"
    )
    line = run_record(origin, launches, verdicts, builders.SETTINGS, BASELINE)
    assert line.values == pytest.approx({SPEED.name: 100.0, TIME.name: 8.0, goodput: 0, rate: 0.5})
    assert msgspec.structs.replace(line, values={}) == msgspec.structs.replace(
        past_run(builders.CASE.id),
        settings_sha256=settings_sha256(builders.SETTINGS),
        commit="0123456789ab",
        machine="2f3a",
        software={"driver": "570.1"},
        engine="vllm",
        draft_sha256="",
        outcomes=outcomes,
        baseline_sha256=baseline_sha256(BASELINE),
        launches=2,
        launch_values={
            SPEED.name: [80.0, 125.0],
            TIME.name: [8.0],
            goodput: [0.0, 0.0],
            rate: [0.0, 0.5],
        },
    )
    without_baseline = run_record(origin, launches, verdicts, builders.SETTINGS, None)
    assert without_baseline.baseline_sha256 == ""


ALONE = Reason(text="worse on 2 of 2 launches")
OF_ALL = Reason(code="MACHINE_MOVED", text="all 8 cases together changed by -25.0% tonight")
OF_NIGHTS = Reason(code="LASTING", text="-6.1% since the night of 2026-11-21, over 4 nights")
OF_ENGINE = Reason(code="ENGINE_SLOWER", text="it is the engine, not the machine")


@pytest.mark.parametrize(
    ("outcome", "reason", "lost"),
    [
        pytest.param(Outcome.REGRESSED, ALONE, True, id="the-case-alone"),
        pytest.param(Outcome.REGRESSED, OF_ENGINE, True, id="the-engine"),
        pytest.param(Outcome.REGRESSED, OF_ALL, False, id="perhaps-the-machine"),
        pytest.param(Outcome.REGRESSED, OF_NIGHTS, False, id="no-further-than-nights-vary"),
        pytest.param(Outcome.WRONG, ALONE, True, id="wrong"),
        pytest.param(Outcome.INCONCLUSIVE, ALONE, False, id="undecided"),
        pytest.param(Outcome.PASS, None, False, id="as-recorded"),
    ],
)
def test_a_night_is_lost_if_it_alone_proved_a_loss_of_the_software(
    outcome: Outcome, reason: Reason | None, *, lost: bool
) -> None:
    launches = [builders.measurement({SPEED.name: 80.0, TIME.name: 8.0})]
    verdicts = [
        Verdict(case_id=builders.CASE.id, metric=TIME.name, outcome=Outcome.PASS),
        Verdict(case_id=builders.CASE.id, metric=SPEED.name, outcome=outcome, reason=reason),
    ]
    origin = SourceRun(run="20261121-0730")
    record = run_record(origin, launches, verdicts, builders.SETTINGS, BASELINE)
    assert record.lost is lost


def test_five_runs_tell_how_hours_differ_beyond_their_launches() -> None:
    """Logarithms of -0.05 to 0.05 have a variance of 10 · 0.025² / 4, less 0.03²."""
    five = [past_run(throughput_tokens_per_s=math.exp(0.025 * step)) for step in (-2, -1, 0, 1, 2)]
    spreads = {SPEED.name: Spread(within_frac=0.03, between_frac=0.0, freedom=4, between_freedom=0)}
    assert noise_of(five[:4], spreads) == {}
    noise = noise_of(five, spreads)[SPEED.name]
    assert noise.between_frac == pytest.approx(math.sqrt(0.0015625 - 0.0009))
    assert noise.runs == 5
