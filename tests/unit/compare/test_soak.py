"""A soak: what is said of segments whose drift is known."""

import dataclasses
import re
import signal
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from specreg.compare.drift import (
    SEGMENT_PARTS,
    Trend,
    change_of_segments,
    detectable_frac,
    times_to_find,
)
from specreg.compare.options import SoakOptions
from specreg.compare.soak import Soak, open_soak, view_of_soak
from specreg.compare.steadiness import (
    ALARM_LEVEL,
    LAST_LEVEL,
    Sensitivity,
    SoakGoal,
    forecast,
    judge_segments,
    news_of,
    next_segment,
    passed_s,
    undecided_servers,
    verdicts_of,
)
from specreg.core.errors import (
    HungError,
    InvalidMeasurementError,
    ServerDiedError,
    SpecregError,
    UnsupportedError,
)
from specreg.core.interrupts import INTERRUPTER, Interrupter
from specreg.matrix.case import Case
from specreg.matrix.tier import load_tier
from specreg.measurement.measure import Measurement
from specreg.report.terminal import render_view
from specreg.runs.ledger import LEDGER, Failed, Ledger, Segment
from specreg.servers.handle import ServerHandle, Servers
from specreg.servers.launch import Launch
from specreg.verdicts.verdict import Outcome, Verdict
from tests.doubles.vllm.script import Script, record_script
from tests.unit import builders

TIER = load_tier(builders.ROOT / "fixtures/matrix", "cpu")
BLOCKS = 100
LENGTH_S = 3600.0
CASE_ID = "vllm-eagle3-tiny-toy-c1"
SOAKS = 1000

Values = NDArray[np.float64]


def segments_of(lengths: Values, steps_ms: Values) -> list[Segment]:
    """Segments that share an hour evenly, with such acceptance lengths and steps."""
    lasted_s = LENGTH_S / len(lengths)
    return [
        Segment(
            number=index + 1,
            at_s=(index + 0.5) * lasted_s,
            lasted_s=lasted_s,
            requests=4,
            acceptance_length_tokens=float(length),
            step_ms=float(step_ms),
            memory_bytes=2.0**30,
        )
        for index, (length, step_ms) in enumerate(zip(lengths, steps_ms, strict=True))
    ]


def drift(
    values: Values, name: str = "acceptance_length_tokens", *, tolerance_frac: float = 0.05
) -> Verdict:
    """The drift of an hour with such values, of which 5 % are fine."""
    verdicts = judge_segments(segments_of(values, values), goal(tolerance_frac), 0.03)
    return {verdict.metric: verdict for verdict in verdicts}[name]


def goal(
    tolerance_frac: float | None = None, case: Case = builders.CASE, *, on_gpu: bool = False
) -> SoakGoal:
    """What a soak of an hour wants to know."""
    return SoakGoal(case=case, on_gpu=on_gpu, minutes=LENGTH_S / 60, tolerance_frac=tolerance_frac)


def fallen(by_frac: float, segments: int = BLOCKS) -> Values:
    """Acceptance lengths whose part beyond 1 falls evenly by a fraction of it in the hour."""
    return 1 + 2 * (1 - by_frac * (np.arange(segments) + 0.5) / segments)


def moody(rng: np.random.Generator) -> Values:
    """Each segment has nine tenths of what moved the one before: a neighbour's moods."""
    moved = rng.normal() / np.sqrt(1 - 0.9**2)
    values = []
    for shock in rng.normal(size=BLOCKS):
        moved = 0.9 * moved + shock
        values.append(moved)
    return np.array(values)


def jumped(rng: np.random.Generator) -> Values:
    """Once, somewhere, to another level that stays: a buffer that is made."""
    return 30 * (np.arange(BLOCKS) >= rng.integers(BLOCKS)) + rng.normal(size=BLOCKS)


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(lambda rng: rng.normal(size=BLOCKS), id="white"),
        pytest.param(lambda rng: rng.standard_t(3, size=BLOCKS), id="heavy"),
        moody,
        jumped,
        pytest.param(lambda _: np.zeros(BLOCKS), id="still"),
    ],
)
def test_a_steady_server_raises_no_more_alarms_than_the_level_allows(
    noise: Callable[[np.random.Generator], Values],
) -> None:
    """Whatever the noise, at all looks and figures together, with nothing for a tolerance."""
    rng = np.random.default_rng(20261122)
    alarms = sum(bool(alarms_of(100 + noise(rng), 100 + noise(rng))) for _ in range(SOAKS))
    # Of 1,000 soaks at 1 % each more than 20 are as rare as one time in a thousand.
    assert alarms <= 2 * ALARM_LEVEL * SOAKS, alarms


def alarms_of(lengths: Values, steps_ms: Values, *, cut_after: Sequence[int] = ()) -> list[str]:
    """The figures that raised an alarm in a soak of such segments."""
    segments = segments_of(lengths, steps_ms)
    verdicts = verdicts_of(resumed(segments, cut_after), goal(0.0))
    return [verdict.metric for verdict in verdicts if verdict.outcome is Outcome.REGRESSED]


def resumed(segments: Sequence[Segment], cut_after: Sequence[int]) -> list[Segment]:
    """The segments as those of a soak that was killed after so many of them, and resumed."""
    parted = []
    for segment in segments:
        cuts = [cut for cut in cut_after if cut < segment.number]
        began_s = max(cuts, default=0) * segment.lasted_s
        parted.append(
            msgspec.structs.replace(segment, launch=1 + len(cuts), at_s=segment.at_s - began_s)
        )
    return parted


@pytest.mark.parametrize("cut_after", [[50], [20, 60]], ids=["two", "three"])
def test_several_servers_raise_no_more_alarms_than_the_level_allows(cut_after: list[int]) -> None:
    """Each has a level of its own, which lies much further apart than its segments do."""
    rng = np.random.default_rng(20261129)
    parts = np.searchsorted(cut_after, np.arange(BLOCKS), side="right")
    alarms = 0
    for _ in range(SOAKS):
        levels = 100 + 30 * rng.normal(size=len(cut_after) + 1)
        values = levels[parts] + rng.normal(size=BLOCKS)
        alarms += bool(alarms_of(values, np.ones(BLOCKS), cut_after=cut_after))
    assert alarms <= 2 * ALARM_LEVEL * SOAKS, alarms


FLAT = np.full(60, 3.0)
FALLING = fallen(0.3)[:40]


@pytest.mark.parametrize(
    ("lengths", "cut"),
    [(np.concatenate([FLAT, FALLING]), 60), (np.concatenate([FALLING, FLAT]), 40)],
    ids=["second", "first"],
)
def test_a_drift_of_one_server_is_found_whatever_another_one_does(
    lengths: Values, cut: int
) -> None:
    noise = np.random.default_rng(4).normal(scale=0.005, size=BLOCKS)
    segments = resumed(segments_of(lengths + noise, np.ones(BLOCKS)), [cut])
    verdict, *_ = judge_segments(segments, goal(0.05), LAST_LEVEL)
    assert verdict.outcome is Outcome.REGRESSED
    first = verdict.comparison.expected or 0.0
    last = verdict.value or 0.0
    assert last < first, "both are of the server that drifts"


def test_without_an_alarm_the_server_that_ran_longest_is_judged() -> None:
    """The other one has too few segments to tell anything."""
    segments = resumed(segments_of(np.full(BLOCKS, 3.0), np.ones(BLOCKS)), [10])
    outcomes = {verdict.outcome for verdict in judge_segments(segments, goal(), LAST_LEVEL)}
    assert outcomes == {Outcome.PASS}


def test_a_server_that_was_cut_off_is_judged_as_one_of_its_own_time() -> None:
    """The whole hour would have been enough, so it doesn't pass for being too short."""
    rng = np.random.default_rng(5)
    lengths = 3 + rng.normal(scale=0.03, size=BLOCKS)
    segments = segments_of(lengths, np.ones(BLOCKS))
    whole, *_ = judge_segments(segments, goal(0.08), LAST_LEVEL)
    cut, *_ = judge_segments(resumed(segments, [50]), goal(0.08), LAST_LEVEL)
    assert whole.outcome is Outcome.PASS
    assert (cut.outcome, cut.softened) == (Outcome.INCONCLUSIVE, False)


def test_a_server_that_is_undecided_is_named_beside_the_verdict_on_the_longest() -> None:
    rng = np.random.default_rng(6)
    lengths = 3 + np.concatenate([np.zeros(70), rng.normal(scale=0.1, size=30)])
    segments = resumed(segments_of(lengths, np.ones(BLOCKS)), [70])
    verdict, *_ = judge_segments(segments, goal(), LAST_LEVEL)
    assert verdict.outcome is Outcome.PASS
    (line,) = undecided_servers(segments, goal())
    assert re.fullmatch(
        r"acceptance_length_tokens: undecided on server 2, which ran 18\.0 min: .* so far", line
    )
    assert list(undecided_servers(segments[:70], goal())) == []


def test_a_resumed_soak_forecasts_nothing_because_it_has_less_time_left() -> None:
    segments = resumed(segments_of(np.ones(20) * 3, np.ones(20)), [5])
    assert list(news_of(segments[:20], goal())) == []


def test_the_time_of_a_resumed_soak_is_that_of_all_launches() -> None:
    segments = resumed(segments_of(np.ones(BLOCKS), np.ones(BLOCKS)), [20, 60])
    assert passed_s(segments) == pytest.approx(LENGTH_S)
    assert passed_s(segments[:60]) == pytest.approx(0.6 * LENGTH_S)
    assert passed_s([]) == 0


def test_a_fall_is_seen_with_its_slope_and_at_an_early_look() -> None:
    verdict = drift(fallen(0.3))
    assert verdict.outcome is Outcome.REGRESSED
    # Relative to the first judged part: the ninth part of the soak after the lead-in, on average.
    first = 1 - 0.3 * (0.1 + 0.9 / SEGMENT_PARTS / 2)
    assert verdict.comparison.change_frac == pytest.approx(-0.3 / first, rel=0.01)
    low, change, high = (
        change or 0
        for change in (
            verdict.comparison.low_frac,
            verdict.comparison.change_frac,
            verdict.comparison.high_frac,
        )
    )
    assert low <= change <= high < 0
    assert f"worse by {0.3 / first:.1%} in an hour" in verdict.explanation
    assert alarms_of(fallen(0.3), np.ones(BLOCKS)) == ["acceptance_length_tokens"]


RNG = np.random.default_rng(1)
STEEP = fallen(0.3) + RNG.normal(scale=0.02, size=BLOCKS)
NOISY = 3 + RNG.normal(scale=0.5, size=BLOCKS)
FIRST_HALF = (np.arange(BLOCKS) - BLOCKS / 2) / BLOCKS
BURNT_IN = np.where(np.arange(BLOCKS) < BLOCKS // 10, 9.0, 3.0)


@pytest.mark.parametrize(
    ("values", "outcome", "reason"),
    [
        (STEEP, Outcome.REGRESSED, "worse by "),
        (fallen(0.03), Outcome.PASS, ""),
        (fallen(-0.3), Outcome.IMPROVED, ""),
        (BURNT_IN, Outcome.PASS, ""),
        (
            NOISY,
            Outcome.INCONCLUSIVE,
            "a soak of 60 min finds a drift of 63.9% in an hour, and one of about 300 min finds",
        ),
        (
            3 - 0.1 * FIRST_HALF + RNG.normal(scale=0.01, size=BLOCKS),
            Outcome.INCONCLUSIVE,
            "the interval doesn't decide yet; soak ",
        ),
        (
            np.full(8, 3.0),
            Outcome.INCONCLUSIVE,
            "7 segments can be judged, and 8 are needed; soak ",
        ),
        (np.ones(BLOCKS), Outcome.INCONCLUSIVE, "its value is 1 at first, so there is nothing to"),
    ],
    ids=[
        "through noise",
        "tolerated",
        "more",
        "lead-in",
        "noise",
        "close",
        "too few",
        "nothing to lose",
    ],
)
def test_a_figure_is_judged_by_all_of_its_interval(
    values: Values, outcome: Outcome, reason: str
) -> None:
    verdict = drift(values)
    assert verdict.outcome is outcome
    assert verdict.explanation.startswith(reason)
    assert bool(verdict.explanation) == bool(reason)


@pytest.mark.parametrize(
    ("tolerance_frac", "sees", "remedy"),
    [
        (0.05, "one of about 300 min finds 5.0%", "soak longer"),
        (
            0.0,
            "a longer one doesn't find 0.0%",
            "raise --tolerance, or make the segments longer with --prompts",
        ),
    ],
)
def test_a_soak_that_is_too_short_says_what_to_do(
    tolerance_frac: float, sees: str, remedy: str
) -> None:
    verdict = drift(NOISY, tolerance_frac=tolerance_frac)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.softened
    assert verdict.reason is not None
    assert verdict.comparison.low_frac is not None
    most = f"the figure is no more than {-verdict.comparison.low_frac:.1%} worse in an hour"
    assert verdict.reason.text.endswith(f"{sees}; {most}")
    assert verdict.reason.remedy == remedy


def test_a_length_that_is_said_to_find_a_drift_finds_it() -> None:
    """A part of ten minutes tells how long a soak must be; soaks of that length find the drift."""
    rng = np.random.default_rng(20261126)
    level = LAST_LEVEL / 3
    segments_in_part = 120

    def noise(segments: int) -> Values:
        return rng.normal(scale=0.01, size=segments)

    part = Trend.of(noise(segments_in_part).tolist(), hours_of(segments_in_part))
    times = times_to_find(part, level, 0.05)
    assert times is not None
    assert detectable_frac(part, level) == pytest.approx(0.17, abs=0.05)
    segments = round(times * segments_in_part)
    finding_soaks = 0
    for _ in range(200):
        hours = hours_of(segments)
        values = 1 - 0.05 * np.array(hours) + noise(segments)
        _, high = change_of_segments(values.tolist(), hours, 1.0).bounds(level)
        finding_soaks += high < 0
    assert finding_soaks >= 190


def hours_of(segments: int) -> list[float]:
    """When segments of five seconds were measured."""
    return [5 * (number + 0.5) / 3600 for number in range(segments)]


def test_ten_minutes_find_a_drift_of_a_third_in_an_hour() -> None:
    """By segments of five seconds that differ by 1.5 %; eight parts would find one in ten."""
    rng = np.random.default_rng(3)
    hours = hours_of(120)
    finding_soaks = 0
    for _ in range(100):
        values = 1 - 0.3 * np.array(hours) + rng.normal(scale=0.015, size=120)
        _, high = change_of_segments(values.tolist(), hours, 1.0).bounds(LAST_LEVEL / 3)
        finding_soaks += high < 0
    assert finding_soaks >= 90


def test_a_soak_says_beforehand_what_it_can_find() -> None:
    rng = np.random.default_rng(2)
    values = 3 + rng.normal(scale=0.03, size=20)
    segments = [
        msgspec.structs.replace(segment, at_s=segment.at_s / 3, lasted_s=segment.lasted_s / 3)
        for segment in segments_of(values, np.full(20, 2.0))
    ]
    assert list(news_of(segments, goal(0.05))) == list(forecast(segments, goal(0.05)))
    [acceptance, *steady] = forecast(segments, goal(0.05))
    assert acceptance == (
        "acceptance_length_tokens: a soak of 60 min finds a drift of 5.1% in an hour, and one of"
        " about 61 min finds 5.0%"
    )
    assert steady == [
        "step_ms: a soak of 60 min finds a drift of 0.0% in an hour",
        "memory_bytes: a soak of 60 min finds a drift of 0.0% in an hour",
    ]


def test_segments_that_move_together_find_nothing() -> None:
    sensitivity = Sensitivity(minutes=10, found_frac=None, tolerance_frac=0.05, enough_minutes=None)
    assert not sensitivity.is_enough
    assert str(sensitivity) == (
        "a soak of 10 min finds no drift, because neighbouring segments move together, and a"
        " longer one doesn't find 5.0%"
    )


def test_a_step_that_takes_longer_than_before_is_a_drift() -> None:
    assert drift(fallen(-0.3), "step_ms").outcome is Outcome.REGRESSED


def test_the_tolerance_is_that_of_the_case_and_a_twentieth_of_memory() -> None:
    case = builders.with_judging(
        builders.CASE, tolerances=(("acceptance_length_tokens", 0.01), ("tpot_p50_ms", 0.5))
    )
    verdicts = judge_segments([], goal(case=case, on_gpu=True), ALARM_LEVEL)
    tolerances = [verdict.comparison.tolerance_frac for verdict in verdicts]
    assert tolerances == [0.01, 0.5, 0.05, 0.05]
    loose = judge_segments([], goal(0.2, case, on_gpu=True), ALARM_LEVEL)
    assert {verdict.comparison.tolerance_frac for verdict in loose} == {0.2}


@pytest.mark.parametrize(
    ("case", "metrics_left"),
    [
        (builders.CASE, {"acceptance_length_tokens", "step_ms", "memory_bytes"}),
        (builders.with_judging(speed=False), {"acceptance_length_tokens", "memory_bytes"}),
        (builders.PLAIN_CASE, {"step_ms", "memory_bytes"}),
    ],
    ids=["all", "no speed", "no speculation"],
)
def test_a_figure_without_meaning_is_not_judged(case: Case, metrics_left: set[str]) -> None:
    assert {figure.name for figure in goal(case=case).figures} == metrics_left


def test_an_alarm_stays_whatever_comes_after_it() -> None:
    """A server that is itself again at the end has lost something all the same."""
    lengths = np.concatenate([fallen(0.8, 60), np.full(40, 3.0)])
    assert alarms_of(lengths, np.ones(BLOCKS)) == ["acceptance_length_tokens"]


def test_an_alarm_is_said_once_when_it_is_first_raised() -> None:
    segments = segments_of(fallen(0.3), np.ones(BLOCKS))
    counts = range(1, BLOCKS + 1)
    news = {count: list(news_of(segments[:count], goal(0.05))) for count in counts}
    said = {count: lines for count, lines in news.items() if lines and count != 20}
    # An alarm of the drift at a fifth of the hour, after 20 segments, stands behind the forecast.
    assert said == {}
    *_, alarm = news[20]
    assert alarm.startswith("after 12.0 min: acceptance_length_tokens: worse by ")
    assert list(news_of(segments, goal(0.05), is_over=True)) == []


def test_an_alarm_of_the_last_look_is_said_at_the_end() -> None:
    """The first look has too few segments to tell the fall from noise; the soak ends early."""
    lengths = fallen(0.5) + np.random.default_rng(1).normal(scale=0.02, size=BLOCKS)
    segments = segments_of(lengths, np.ones(BLOCKS))[:39]
    (line,) = news_of(segments, goal(0.05), is_over=True)
    assert line.startswith("after 23.4 min: acceptance_length_tokens: worse by ")


def test_a_soak_goes_on_until_its_time_is_over() -> None:
    ledger = Ledger(Path("unused"))
    assert next_segment(ledger, goal()) == 1
    for segment in segments_of(np.ones(3), np.ones(3)):
        assert next_segment(ledger, goal()) == segment.number
        ledger.add(segment)
    assert next_segment(ledger, goal()) is None


@pytest.fixture
def scripted_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This interpreter has the scripted server as vLLM."""
    for name, value in record_script(Script(thought_tokens=1000), tmp_path).items():
        monkeypatch.setenv(name, value)


def test_a_soak_keeps_what_a_scripted_server_did_segment_by_segment(
    tmp_path: Path, scripted_engine: None
) -> None:
    del scripted_engine
    shown: list[str] = []
    options = SoakOptions(
        case=CASE_ID,
        engine=sys.executable,
        minutes=0.1,  # twice of what a quiet machine needs
        prompts=2,
        root=builders.ROOT,
        out=tmp_path / "soak",
        show=shown.append,
    )
    soak = open_soak(options, TIER)
    soak.run()
    segments = soak.ledger.segments
    assert passed_s(segments) >= 60 * options.minutes
    _, *lines = soak.ledger.path.read_bytes().splitlines()
    assert lines == [msgspec.json.encode(segment) for segment in segments]
    assert {segment.requests for segment in segments} == {2}
    assert len({segment.acceptance_length_tokens for segment in segments}) == 1
    outcomes = {verdict.metric: verdict.outcome for verdict in soak.verdicts}
    assert outcomes["acceptance_length_tokens"] is Outcome.PASS
    thoughts = [line for line in shown if "2 of 2 answers never left the thought" in line]
    assert len(thoughts) == 1, "of the first segment alone"


@pytest.fixture
def options(tmp_path: Path, scripted_engine: None) -> SoakOptions:
    """A soak of an hour with the scripted server."""
    del scripted_engine
    return SoakOptions(
        case=CASE_ID,
        engine=sys.executable,
        minutes=LENGTH_S / 60,
        tolerance_frac=0.05,
        root=builders.ROOT,
        out=tmp_path / "soak",
        show=lambda _: None,
    )


def said_of(options: SoakOptions, segments: Sequence[Segment]) -> list[str]:
    """The lines about a soak with these segments."""
    soak: Soak = open_soak(options, TIER)
    for segment in segments:
        soak.ledger.add(segment)
    return render_view(view_of_soak(soak, soak.verdicts)).splitlines()


def test_a_soak_without_a_drift_says_first_that_its_server_is_steady(options: SoakOptions) -> None:
    segments = segments_of(np.full(BLOCKS, 3.0), np.ones(BLOCKS))
    assert said_of(options, segments)[0] == f"✓ {CASE_ID} is steady: no drift in 3 figures"
    first_line = said_of(options, segments[:2])[0]
    assert first_line.startswith(f"? Can't tell yet whether {CASE_ID} is steady: 3 of 3")


def test_the_table_compares_the_last_segments_with_the_first(options: SoakOptions) -> None:
    segments = segments_of(np.linspace(3.0, 2.0, BLOCKS), np.ones(BLOCKS))
    answer, _, _, head, _, row, *_ = said_of(options, segments)
    assert answer.startswith(f"✗ {CASE_ID} drifts: acceptance_length_tokens -")
    assert answer.endswith(" in an hour")
    assert head.split()[:6] == ["case", "and", "metric", "first", "last", "change"]
    metric, first, last, *_ = row.split()
    assert metric == "acceptance_length-1"
    assert float(first) > float(last)


def killed(options: SoakOptions, segments: Sequence[Segment]) -> None:
    """A soak that was killed after such segments."""
    soak = open_soak(options, TIER)
    soak.ledger.begin(soak.executor.key)
    soak.ledger.extend(segments)
    soak.ledger.close()


def test_a_soak_that_was_killed_goes_on_with_another_server(options: SoakOptions) -> None:
    segments = segments_of(np.full(BLOCKS, 3.0), np.ones(BLOCKS))
    killed(options, segments[:60])
    soak = open_soak(dataclasses.replace(options, resume=True), TIER)
    assert list(soak.ledger.segments) == segments[:60]
    assert soak.executor.key.launch == 2
    assert next_segment(soak.ledger, soak.goal) == 61
    for segment in resumed(segments, [60])[60:]:
        soak.ledger.add(segment)
    assert soak.is_finished
    answer, measured, *_ = render_view(view_of_soak(soak, soak.verdicts)).splitlines()
    assert answer == f"✓ {CASE_ID} is steady: no drift in 3 figures"
    assert measured.startswith(
        "100 segments in 60.0 min on 2 servers, each judged by itself, the last"
    )


def test_a_launch_without_a_segment_counts_as_one(options: SoakOptions) -> None:
    """Its log is kept, because the next launch has another number."""
    killed(options, [])
    assert open_soak(dataclasses.replace(options, resume=True), TIER).executor.key.launch == 2


def test_a_folder_that_holds_a_soak_is_left_alone(options: SoakOptions) -> None:
    killed(options, segments_of(np.ones(3), np.ones(3)))
    assert options.out is not None
    path = options.out / LEDGER
    before = path.read_bytes()
    with pytest.raises(UnsupportedError, match="holds a soak already; add --resume to continue it"):
        open_soak(options, TIER)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "other",
    [{"case": "vllm-eagle3-tiny-toy-c4"}, {"minutes": 30.0}, {"prompts": 3}],
    ids=["case", "minutes", "prompts"],
)
def test_what_another_soak_left_is_not_continued(
    options: SoakOptions, other: dict[str, Any]
) -> None:
    killed(options, segments_of(np.ones(3), np.ones(3)))
    with pytest.raises(UnsupportedError, match="is of another soak; name the same engines, cases"):
        open_soak(dataclasses.replace(options, resume=True, **other), TIER)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (Segment(number=1, at_s=1.0, lasted_s=1.0, requests=4), "nothing says of which soak"),
        (Failed(case_id=CASE_ID, launch=1, text="it died"), "is of a run, needed that of a soak"),
        (Failed(case_id=CASE_ID, arm="A", launch=1, text="it died"), "is of a gate, needed that"),
    ],
    ids=["earlier version", "run", "gate"],
)
def test_what_is_no_soak_of_known_settings_is_not_continued(
    options: SoakOptions, line: Segment | Failed, problem: str
) -> None:
    assert options.out is not None
    options.out.mkdir()
    (options.out / LEDGER).write_bytes(msgspec.json.encode(line) + b"\n")
    with pytest.raises(UnsupportedError, match=problem):
        open_soak(dataclasses.replace(options, resume=True), TIER)


FIRST, SECOND, THIRD = segments_of(np.ones(3), np.ones(3))


@pytest.mark.parametrize(
    ("segments", "problem"),
    [
        (
            [FIRST, msgspec.structs.replace(SECOND, at_s=FIRST.at_s)],
            "segment 2 isn't later than segment 1; name another --out",
        ),
        ([FIRST, THIRD], "has segment 3 where 2 is needed; name another --out"),
    ],
    ids=["one moment", "a gap"],
)
def test_segments_that_no_soak_has_are_not_continued(
    options: SoakOptions, segments: Sequence[Segment], problem: str
) -> None:
    killed(options, segments)
    with pytest.raises(UnsupportedError, match=problem):
        open_soak(dataclasses.replace(options, resume=True), TIER)


class FailingServers(Servers):
    """Servers that are ready, and none of them is a process."""

    def handle(self, launch: Launch) -> ServerHandle:
        del launch
        return cast("ServerHandle", types.SimpleNamespace(server=None))


def run_failing(
    options: SoakOptions, error: SpecregError, interrupter: Interrupter = INTERRUPTER
) -> Soak:
    """A soak whose first segment fails once its server is ready."""

    def fail(*_: object) -> Sequence[Measurement]:
        raise error

    soak = open_soak(options, TIER)
    launcher = soak.executor.servers.launcher
    executor = dataclasses.replace(
        soak.executor,
        servers=FailingServers(launcher=launcher, logs=soak.ledger.path.parent),
        measure_arms=fail,
        interrupter=interrupter,
    )
    soak = dataclasses.replace(soak, executor=executor)
    with pytest.raises(type(error)):
        soak.run()
    return soak


@pytest.mark.parametrize(
    "error", [ServerDiedError("it ran out of memory"), HungError(60.0)], ids=["died", "hangs"]
)
def test_a_soak_whose_server_failed_under_load_has_ended(
    options: SoakOptions, error: SpecregError
) -> None:
    """Another server would pass, and nobody would learn of the first one."""
    soak = run_failing(options, error)
    assert soak.is_finished
    answer, *_ = render_view(view_of_soak(soak, soak.verdicts)).splitlines()
    assert answer == f"? Can't tell whether {CASE_ID} is steady: its server failed after 0.0 min"
    with pytest.raises(UnsupportedError, match="server 1 failed, which ended the soak: "):
        open_soak(dataclasses.replace(options, resume=True), TIER)


@pytest.mark.parametrize(
    "error",
    [
        SpecregError("ledger 'x': No space left on device; make room"),
        InvalidMeasurementError("CLIENT_DIED", status=1, lines="Killed"),
    ],
    ids=["full disk", "our own client"],
)
def test_a_soak_that_failed_without_its_server_is_continued(
    options: SoakOptions, error: SpecregError
) -> None:
    assert not run_failing(options, error).is_finished
    assert open_soak(dataclasses.replace(options, resume=True), TIER).executor.key.launch == 2


def test_a_server_that_a_signal_ended_with_the_soak_is_none_that_failed(
    options: SoakOptions,
) -> None:
    """A batch system ends all processes of a job at once."""
    ended = Interrupter(interrupting_signals=[signal.SIGTERM])
    soak = run_failing(options, ServerDiedError("ended with status -15"), ended)
    assert not soak.is_finished


def test_a_soak_is_resumed_only_where_there_is_one(options: SoakOptions) -> None:
    with pytest.raises(UnsupportedError, match=r"--resume: there is no soak in '.*'; name the"):
        open_soak(dataclasses.replace(options, resume=True), TIER)
    assert options.out is not None
    options.out.mkdir()
    with pytest.raises(UnsupportedError, match=r"--resume: there is no soak in '.*'; name the"):
        open_soak(dataclasses.replace(options, resume=True), TIER)
    with pytest.raises(UnsupportedError, match="--resume: needs the folder of a soak; name the"):
        open_soak(dataclasses.replace(options, resume=True, out=None), TIER)


def test_two_soaks_do_not_share_a_folder(options: SoakOptions) -> None:
    first = open_soak(options, TIER)
    with pytest.raises(SpecregError, match="is still running; wait for its end"):
        open_soak(options, TIER)
    first.ledger.close()


def test_a_soak_is_not_mixed_with_one_of_an_earlier_version(tmp_path: Path) -> None:
    (tmp_path / "soak.jsonl").touch()
    with pytest.raises(UnsupportedError, match=r"an earlier version of specreg, .* another --out"):
        open_soak(SoakOptions(out=tmp_path), TIER)


def test_a_soak_writes_nothing_behind_a_link_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / LEDGER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsupportedError, match="holds a soak already"):
        open_soak(SoakOptions(out=tmp_path), TIER)
