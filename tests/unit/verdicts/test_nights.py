"""The nights of a machine: which runs count, and what the others did on the same night."""

import math
from typing import Any

import msgspec
import pytest

from specreg.baselines.schema import load_baseline
from specreg.measurement.metrics import METRICS
from specreg.stats.intervals import LEVEL
from specreg.verdicts.detection import to_frac
from specreg.verdicts.history import (
    History,
    RunRecord,
    baseline_sha256,
    load_history,
    settings_sha256,
)
from specreg.verdicts.nights import MachineNights, NightEvidence
from tests.unit import builders
from tests.unit.builders.histories import LATER

SPEED = METRICS["throughput_tokens_per_s"]
BASELINE = builders.baseline(*({SPEED.name: value} for value in (99.0, 100.0, 101.0)))
H200_CASE = "vllm-eagle3-wide-8b-toy-c16"
H200_HISTORY = builders.ROOT / "fixtures/recordings/h200/history.jsonl"
CASES = tuple(f"case-{number}" for number in range(8))


def record(
    case_id: str,
    night: int,
    speed: float = 100.0,
    **fields: Any,  # noqa: ANN401 - any field of a record
) -> RunRecord:
    """A run after the baseline was recorded, on 2026-11-21."""
    plain = RunRecord(
        run=f"202612{night:02}",
        case_id=case_id,
        settings_sha256=settings_sha256(builders.SETTINGS),
        engine_version="0.32.0",
        draft_sha256="",
        values={SPEED.name: speed},
        outcomes={SPEED.name: "PASS"},
    )
    return msgspec.structs.replace(plain, **fields)


def machine(records: list[RunRecord], cases: tuple[str, ...] = CASES) -> MachineNights:
    by_case = {
        case_id: tuple(record for record in records if record.case_id == case_id)
        for case_id in cases
    }
    return MachineNights(
        baselines=dict.fromkeys(cases, BASELINE), history=History(by_case), cases=len(cases)
    )


def tonight(nights: MachineNights, speeds: dict[str, float], case_id: str) -> NightEvidence:
    """What the nights say of a case, after all cases were measured tonight."""
    for name, speed in speeds.items():
        nights.add(name, SPEED, [speed])
    evidence = nights.evidence(case_id, SPEED, tolerance_frac=0.05)
    assert evidence is not None
    return evidence


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        pytest.param({}, 1, id="as-usual"),
        pytest.param({"settings_sha256": "other"}, 0, id="other-settings"),
        pytest.param({"outcomes": {SPEED.name: "INVALID"}}, 0, id="invalid"),
        pytest.param({"run": "20261101"}, 0, id="before-the-baseline"),
    ],
)
def test_a_run_counts_if_it_is_comparable_and_valid(fields: dict[str, Any], counts: int) -> None:
    nights = machine([record("case-0", 1, **fields)], ("case-0",))
    assert tonight(nights, {"case-0": 100.0}, "case-0").nights == counts


def test_a_baseline_recorded_anew_continues_the_nights_unless_its_level_was_accepted() -> None:
    """A slow loss would hide in a baseline that is recorded each night."""
    anew: dict[str, Any] = {"recorded": True, "baseline_sha256": baseline_sha256(BASELINE)}
    before = [record("case-0", night, 100.0) for night in range(1, 6)]
    hidden = machine([*before, record("case-0", 6, 90.0, **anew)], ("case-0",))
    assert tonight(hidden, {"case-0": 90.0}, "case-0").effect.estimate_frac < -0.08
    accepted = machine([*before, record("case-0", 6, 90.0, accepted=True, **anew)], ("case-0",))
    assert tonight(accepted, {"case-0": 90.0}, "case-0").effect.estimate_frac == pytest.approx(0.0)


def test_a_recording_of_other_metrics_leaves_the_baseline_as_the_first_night() -> None:
    """A baseline holds all speeds, and the run that recorded it only those of selected tests."""
    time = METRICS["ttft_p50_ms"]
    baseline = builders.baseline(*({SPEED.name: 100.0, time.name: 40.0} for _ in range(3)))
    recording = record("case-0", 1, recorded=True, baseline_sha256=baseline_sha256(baseline))
    nights = MachineNights(
        baselines={"case-0": baseline}, history=History({"case-0": (recording,)})
    )
    for metric, value in ((SPEED, 80.0), (time, 50.0)):
        nights.add("case-0", metric, [value])
        evidence = nights.evidence("case-0", metric, tolerance_frac=0.05)
        assert evidence is not None
        assert evidence.nights == 0
        assert evidence.effect.estimate_frac == pytest.approx(math.log(0.8))


@pytest.mark.parametrize(("name", "tonight_value"), [(SPEED.name, 80.0), ("tpot_p50_ms", 125.0)])
def test_a_speed_that_falls_and_a_time_that_grows_are_losses(
    name: str, tonight_value: float
) -> None:
    baseline = builders.baseline({name: 80.0}, {name: 125.0})
    nights = MachineNights(baselines={"case-0": baseline})
    nights.add("case-0", METRICS[name], [tonight_value])
    evidence = nights.evidence("case-0", METRICS[name], tolerance_frac=0.05)
    assert evidence is not None
    assert evidence.effect.estimate_frac == pytest.approx(-math.log(1.25))


def steady(speed: float = 100.0) -> list[RunRecord]:
    """Six nights of all cases, each a little faster or slower than the last."""
    return [
        record(case_id, night, speed * math.exp(0.004 * (-1) ** (night + number)))
        for night in range(1, 7)
        for number, case_id in enumerate(CASES)
    ]


def test_what_all_cases_do_alike_is_taken_off_and_judged_by_itself() -> None:
    evidence = tonight(machine(steady()), dict.fromkeys(CASES, 80.0), "case-0")
    assert evidence.effect.estimate_frac == pytest.approx(0.0, abs=0.01)
    assert evidence.common is not None
    assert evidence.common.effect.estimate_frac == pytest.approx(math.log(0.8), abs=0.01)
    assert (evidence.common.cases, evidence.common.nights) == (7, 6)


def test_a_slower_engine_stays_slower_on_the_nights_after() -> None:
    """A night that the engine lost doesn't show how much the machine varies."""
    slower = [record(case_id, 7, 75.0, outcomes={SPEED.name: "REGRESSED"}) for case_id in CASES]
    by_engine = [msgspec.structs.replace(night, lost=True) for night in slower]

    first = tonight(machine(steady()), dict.fromkeys(CASES, 75.0), "case-0").common
    second = tonight(machine([*steady(), *by_engine]), dict.fromkeys(CASES, 75.0), "case-0").common
    taught = tonight(machine([*steady(), *slower]), dict.fromkeys(CASES, 75.0), "case-0").common

    assert first is not None
    assert first.lasting is None
    assert second is not None
    assert second.effect == first.effect
    assert second.lasting is not None
    assert second.lasting.since == "20261207"
    # The second night is REGRESSED by the nights together, and the loss still began on the first.
    proven = [msgspec.structs.replace(night, run="20261208") for night in slower]
    nights = machine([*steady(), *by_engine, *proven])
    third = tonight(nights, dict.fromkeys(CASES, 75.0), "case-0").common
    assert third is not None
    assert third.lasting is not None
    assert third.lasting.since == "20261207"
    assert taught is not None
    assert taught.effect.error_frac > 1.2 * first.effect.error_frac


@pytest.mark.parametrize("cases", [CASES, CASES[:1]], ids=["beside-others", "alone"])
def test_a_loss_that_is_mended_leaves_the_later_nights_as_sharp_as_before(
    cases: tuple[str, ...],
) -> None:
    """On an H200 a night of -61 % made the next night of the same software INCONCLUSIVE."""
    before = [night for night in steady() if night.case_id in cases]
    lost = record("case-0", 7, 39.0, outcomes={SPEED.name: "REGRESSED"}, lost=True)
    others = [record(case_id, 7) for case_id in cases[1:]]
    usual = dict.fromkeys(cases, 100.0)

    untouched = tonight(machine(before, cases), usual, "case-0")
    mended = tonight(machine([*before, lost, *others], cases), usual, "case-0")

    assert mended.spread.night.value == pytest.approx(untouched.spread.night.value, rel=0.2)
    assert mended.effect.estimate_frac == pytest.approx(0.0, abs=0.01)
    assert mended.lasting is None


def lost_night(night: int, speed: float) -> RunRecord:
    return record("case-0", night, speed, outcomes={SPEED.name: "REGRESSED"}, lost=True)


def proven_by_nights(night: int, speed: float) -> RunRecord:
    return record("case-0", night, speed, outcomes={SPEED.name: "REGRESSED"})


def alone_after(*nights: RunRecord, speed: float) -> NightEvidence:
    """What the nights say of a case without others tonight, after six steady nights and these."""
    before = [night for night in steady() if night.case_id == "case-0"]
    return tonight(machine([*before, *nights], CASES[:1]), {"case-0": speed}, "case-0")


def test_a_loss_that_later_nights_prove_too_began_on_its_first_night() -> None:
    evidence = alone_after(lost_night(7, 70.0), proven_by_nights(8, 70.0), speed=70.0)
    assert evidence.lasting is not None
    assert evidence.lasting.since == "20261207"


def test_a_loss_of_which_a_part_was_mended_is_no_gain() -> None:
    lost = [lost_night(night, 40.0) for night in range(7, 13)]
    less = [proven_by_nights(night, 80.0) for night in range(13, 20)]
    evidence = alone_after(*lost, *less, speed=80.0)
    assert evidence.effect.estimate_frac == pytest.approx(math.log(0.8), abs=0.01)


def test_lost_nights_are_none_of_those_that_are_known() -> None:
    lost = [lost_night(night, 40.0) for night in range(7, 13)]
    assert alone_after(*lost, speed=40.0).nights == 6


def test_a_night_of_which_all_are_lost_has_the_baseline_to_be_compared_with() -> None:
    """Baselines of different days have too few others beside them to take off what is common."""
    baselines = {
        case_id: msgspec.structs.replace(
            BASELINE,
            provenance=msgspec.structs.replace(BASELINE.provenance, recorded_on=f"2026-11-{day}"),
        )
        for day, case_id in enumerate(CASES, start=10)
    }
    first_night = {case_id: (record(case_id, 1),) for case_id in CASES}
    first_night["case-0"] = (lost_night(1, 40.0),)
    nights = MachineNights(baselines=baselines, history=History(first_night), cases=len(CASES))
    evidence = tonight(nights, dict.fromkeys(CASES, 100.0), "case-0")
    assert evidence.effect.estimate_frac == pytest.approx(0.0, abs=0.01)


def test_a_gpu_of_which_one_night_was_lost_still_decides_on_the_next() -> None:
    """The last of six recorded nights of H200s had the same software as all but the one before."""
    baseline = load_baseline(builders.ROOT / f"baselines/h200-141gb-x1/{H200_CASE}.json")
    assert baseline is not None
    *before, last = load_history(H200_HISTORY, LATER).of(H200_CASE)
    before = [
        msgspec.structs.replace(night, lost="REGRESSED" in night.outcomes.values())
        for night in before
    ]
    assert [night.lost for night in before] == [False, False, False, False, True]
    nights = MachineNights(
        baselines={H200_CASE: baseline}, history=History({H200_CASE: tuple(before)})
    )
    nights.add(H200_CASE, SPEED, last.values_of(SPEED.name))
    evidence = nights.evidence(H200_CASE, SPEED, tolerance_frac=0.2)
    assert evidence is not None
    low, _ = evidence.effect.bounds(LEVEL)
    assert to_frac(SPEED, low) > -0.2
    assert evidence.lasting is None


def test_a_case_is_lost_by_how_it_differs_from_the_others() -> None:
    speeds = dict.fromkeys(CASES, 90.0) | {"case-0": 72.0}
    evidence = tonight(machine(steady()), speeds, "case-0")
    assert evidence.effect.estimate_frac == pytest.approx(math.log(0.8), abs=0.02)


def test_with_too_few_others_a_case_has_its_own_nights_alone() -> None:
    chosen = CASES[:4]
    records = [night for night in steady() if night.case_id in chosen]
    evidence = tonight(machine(records, chosen), dict.fromkeys(chosen, 90.0), "case-0")
    assert evidence.common is None
    assert evidence.effect.estimate_frac == pytest.approx(math.log(0.9), abs=0.01)


def test_how_the_others_vary_does_not_depend_on_the_launches_of_the_case() -> None:
    """On the first night after the baselines, each other case has launches of its own."""
    spreads = []
    for launches in (1, 4):
        nights = machine([])
        for number, name in enumerate(CASES[1:]):
            nights.add(name, SPEED, [97.0 + number] * 4)
        nights.add(CASES[0], SPEED, [100.0] * launches)
        spreads.append(tonight(nights, {}, CASES[0]).spread)
    assert spreads[0] == spreads[1]


def test_another_machine_of_the_run_tells_nothing_of_tonight() -> None:
    nights = machine(steady())
    nights.hosts = {"case-0": "here"} | dict.fromkeys(CASES[1:], "there")
    evidence = tonight(nights, dict.fromkeys(CASES, 90.0), "case-0")
    assert evidence.common is None


def test_a_loss_that_lasts_names_the_version_that_brought_it() -> None:
    slower = [record("case-0", night, 85.0, engine_version="0.33.0") for night in range(7, 11)]
    steady_nights = [
        record(case_id, night, 100.0, engine_version="0.33.0")
        for night in range(7, 11)
        for case_id in CASES[1:]
    ]
    speeds = dict.fromkeys(CASES, 100.0) | {"case-0": 85.0}
    lasting = tonight(machine([*steady(), *slower, *steady_nights]), speeds, "case-0").lasting
    assert lasting is not None
    assert (lasting.since, lasting.nights) == ("20261207", 5)
    assert lasting.versions == ("0.32.0", "0.33.0")


def test_a_night_with_other_settings_has_no_version_to_compare_with() -> None:
    """The night before a loss is the last one that is comparable."""
    newer = [record("case-0", night, engine_version="0.33.0") for night in range(7, 11)]
    between = record("case-0", 11, settings_sha256="other", engine_version="0.34.0")
    slower = [record("case-0", night, 80.0, engine_version="0.33.0") for night in range(12, 16)]
    lasting = alone_after(*newer, between, *slower, speed=80.0).lasting
    assert lasting is not None
    assert lasting.since == "20261212"
    assert lasting.versions == ("0.33.0", "0.33.0")


def test_watts_that_rose_for_good_are_named_as_a_rise() -> None:
    power = METRICS["power_w"]
    baseline = builders.baseline(*({power.name: value} for value in (199.0, 200.0, 201.0)))
    records = [
        record(
            "case-0",
            night,
            values={power.name: 200.0 if night < 7 else 240.0},
            outcomes={power.name: "PASS"},
        )
        for night in range(1, 11)
    ]
    nights = MachineNights(
        baselines={"case-0": baseline}, history=History({"case-0": tuple(records)})
    )
    nights.add("case-0", power, [240.0])
    evidence = nights.evidence("case-0", power, tolerance_frac=0.1)
    assert evidence is not None
    assert evidence.lasting is not None
    assert evidence.lasting.since == "20261207"
    assert evidence.lasting.effect.estimate_frac > 0


def test_a_baseline_that_becomes_known_late_keeps_what_tonight_measured() -> None:
    nights = MachineNights(baselines={})
    nights.add_baseline("case-0", BASELINE)
    nights.add("case-0", SPEED, [100.0])
    nights.add_baseline("case-1", BASELINE)
    assert nights.evidence("case-0", SPEED, tolerance_frac=0.05) is not None
