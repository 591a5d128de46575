"""A search halves what is left, for what the bad release lost; it says what it can't tell."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Never

import pytest

from specreg.compare import bisect
from specreg.compare.bisect import (
    VersionState,
    bisect_versions,
    find_change,
    state_of,
    versions_between,
)
from specreg.compare.gate import Gate, SideError, open_gate
from specreg.compare.judging import Decision, GateAnswer, SideLaunch
from specreg.compare.options import BisectOptions, GateOptions
from specreg.compare.pairs import Group, Side
from specreg.core.errors import UnsupportedError
from specreg.correctness.checks import LOSSLESS
from specreg.matrix.case import Tier
from specreg.matrix.tier import load_tier
from specreg.report.document import load_report
from specreg.verdicts.verdict import Outcome, Verdict
from tests.unit import builders
from tests.unit.builders.gates import failed, launch, scripted_sides

TIER = load_tier(builders.ROOT / "fixtures/matrix", "cpu")
[CASE] = [case for case in TIER.cases if case.id == "vllm-eagle3-tiny-toy-c1"]
VERSIONS = tuple(f"0.{minor}.0" for minor in range(20, 33))


def decision(
    answer: GateAnswer = GateAnswer.UNDECIDED, texts: Outcome = Outcome.PASS, **outcomes: Outcome
) -> Decision:
    """By metric's name its outcome."""
    verdicts = [
        Verdict(case_id=CASE.id, metric=name, outcome=outcome, launches=6)
        for name, outcome in {**outcomes, LOSSLESS: texts}.items()
    ]
    return Decision(answer=answer, verdicts=tuple(verdicts))


FOUND = decision(
    step_p50_ms=Outcome.PASS,
    ttft_p50_ms=Outcome.REGRESSED,
    throughput_tokens_per_s=Outcome.INCONCLUSIVE,
)


@pytest.mark.parametrize(
    ("shown_decision", "lost", "state"),
    [
        (FOUND, {"step_p50_ms"}, VersionState.GOOD),
        (FOUND, {"ttft_p50_ms"}, VersionState.BAD),
        (FOUND, {"throughput_tokens_per_s"}, VersionState.UNKNOWN),
        (FOUND, {"step_p50_ms", "throughput_tokens_per_s"}, VersionState.UNKNOWN),
        (
            decision(texts=Outcome.WRONG, step_p50_ms=Outcome.PASS),
            {"step_p50_ms"},
            VersionState.GOOD,
        ),
        (decision(texts=Outcome.WRONG, step_p50_ms=Outcome.PASS), {LOSSLESS}, VersionState.BAD),
        (decision(GateAnswer.UPGRADE), None, VersionState.GOOD),
        (decision(GateAnswer.UNDECIDED), None, VersionState.UNKNOWN),
        (FOUND, None, VersionState.BAD),
    ],
)
def test_a_version_is_what_it_is_by_what_the_last_one_lost(
    shown_decision: Decision, lost: set[str] | None, state: VersionState
) -> None:
    assert state_of(shown_decision, None if lost is None else frozenset(lost)) is state


@pytest.fixture
def options(tmp_path: Path) -> BisectOptions:
    """Of a search from 0.29.0 to 0.32.0."""
    return BisectOptions(
        case=CASE.id,
        good="vllm==0.29.0",
        bad="vllm==0.32.0",
        versions="0.31.0",
        launches=8,
        root=builders.ROOT,
        out=tmp_path,
        show=lambda _: None,
    )


Plant = Callable[[str, Side, int], SideLaunch]


@pytest.fixture
def plant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Plant], list[tuple[str, int]]]:
    """Makes releases of the scripted server, whose launches are what a function says."""
    sides = scripted_sides(tmp_path)

    def planted(plant: Plant) -> list[tuple[str, int]]:
        launches: list[tuple[str, int]] = []

        def opened(asked_for: GateOptions, tier: Tier) -> Gate:
            gate = open_gate(dataclasses.replace(asked_for, **sides), tier)
            gate.options = asked_for
            return gate

        def launched(gate: Gate, _: Group, number: int, sides: tuple[Side, ...]) -> None:
            version = gate.options.b.removeprefix("vllm==")
            launches.append((version, number))
            for side in sides:
                script = plant(version, side, number)
                gate.launches.append(dataclasses.replace(script, pair_id=gate.pairs[0].id))

        monkeypatch.setattr(bisect, "open_gate", opened)
        monkeypatch.setattr(Gate, "_launch", launched)
        monkeypatch.setattr("specreg.compare.answers.AnswerComparison.wants", lambda *_: False)
        return launches

    return planted


def test_each_figure_is_traced_to_the_version_that_lost_it(
    options: BisectOptions, plant: Callable[[Plant], list[tuple[str, int]]]
) -> None:
    """0.31.0 lost prefill, 0.32.0 the step that is searched for; each gate leaves its report."""

    def made(version: str, side: Side, number: int) -> SideLaunch:
        slow = version if side is Side.B else ""
        step_ms = 11.0 if slow == "0.32.0" else 10.0
        ttft_ms = 30.0 if slow == "0.31.0" else 20.0
        return launch(side, number, step_ms=step_ms, ttft_ms=ttft_ms)

    launches = plant(made)
    change = find_change(options, TIER, CASE)
    assert change == ("0.31.0", "0.32.0")
    assert [number for version, number in launches if version == "0.31.0"] == [1, 2, 3, 4]
    [folder] = options.folder.glob("0.29.0..0.32.0-*")
    report = load_report(folder / "report.json")
    (answer,) = report.answers
    assert (answer.subject, report.run.exit_status) == ("DON'T", 1)
    assert f"{CASE.id} is worse by the cost of a step: step_p50_ms -10." in answer.text


@pytest.mark.parametrize("side", [Side.A, Side.B])
def test_a_good_release_that_dies_ends_the_search_and_another_is_unknown(
    options: BisectOptions, plant: Callable[[Plant], list[tuple[str, int]]], side: Side
) -> None:
    def made(version: str, of: Side, number: int) -> SideLaunch:
        if version == "0.31.0" and of is side:
            return failed(of, number)
        return launch(of, number, step_ms=11.0 if of is Side.B else 10.0)

    plant(made)
    if side is Side.A:
        with pytest.raises(SideError, match="the good release can't be measured, side A: it died"):
            find_change(options, TIER, CASE)
    else:
        shown: list[str] = []
        options = dataclasses.replace(options, show=shown.append)
        assert find_change(options, TIER, CASE) == ("0.29.0", "0.31.0", "0.32.0")
        assert "0.31.0: unknown, step_p50_ms: side B: it died" in shown
    [folder] = options.folder.glob("0.29.0..0.31.0-*")
    assert any("it died" in remark for remark in load_report(folder / "report.json").remarks)


@pytest.mark.parametrize(
    ("side", "error", "message"),
    [
        (Side.B, UnsupportedError, r"0.32.0: no telling .* than 0.29.0, too old$"),
        (Side.A, SideError, "too old"),
    ],
)
def test_a_release_that_cant_be_had_is_unknown_and_the_good_one_ends_it(
    options: BisectOptions,
    monkeypatch: pytest.MonkeyPatch,
    side: Side,
    error: type[Exception],
    message: str,
) -> None:
    def refused(*_: object) -> Never:
        raise SideError(side, "too old\nfor it")

    monkeypatch.setattr(bisect, "open_gate", refused)
    with pytest.raises(error, match=message):
        find_change(options, TIER, CASE)


def searched(first_bad: str, *unknown: str) -> tuple[tuple[str, ...], list[str]]:
    """What is found where versions from one on are bad and some can't be told; what was asked."""
    tried: list[str] = []

    def compare(version: str) -> tuple[VersionState, str]:
        tried.append(version)
        bad = VERSIONS.index(version) >= VERSIONS.index(first_bad)
        if version in unknown:
            return VersionState.UNKNOWN, ""
        return VersionState.BAD if bad else VersionState.GOOD, ""

    return bisect_versions(VERSIONS, compare), tried


@pytest.mark.parametrize("first_bad", VERSIONS[1:])
def test_each_change_is_found_in_few_comparisons(first_bad: str) -> None:
    change, tried = searched(first_bad)
    at = VERSIONS.index(first_bad)
    assert change == VERSIONS[at - 1 : at + 1]
    assert len(tried) <= 5  # log2 of twelve steps, and the last one


def test_what_cant_be_told_is_left_between() -> None:
    assert searched("0.26.0", "0.26.0")[0] == ("0.25.0", "0.26.0", "0.27.0")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (VersionState.UNKNOWN, "0.32.0: no telling whether it is worse than 0.20.0, why"),
        (VersionState.GOOD, "0.32.0: isn't worse than 0.20.0; there is nothing to find"),
    ],
)
def test_a_last_version_that_isnt_bad_ends_it(state: VersionState, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        bisect_versions(VERSIONS, lambda _: (state, "why"))


def test_releases_are_in_the_order_of_versions_without_previews_however_they_are_spelt() -> None:
    with_preview = ("0.9.0", "0.10.0", "0.11.0rc1", "0.11.0", "0.12.0")
    assert versions_between("0.9.0", "0.11.0", with_preview) == ("0.9.0", "0.10.0", "0.11.0")
    released = ("0.29.0", "0.30.0", "0.31.0")
    assert versions_between("0.29", "0.31", released) == released
    assert versions_between("0.29", "0.31.0", ("0.29", *released)) == released


@pytest.mark.parametrize(
    ("good", "bad", "released", "message"),
    [
        ("0.8.0", "0.11.0", ("0.9.0", "0.11.0"), "'0.8.0': was never released; the last ones are"),
        ("0.11.0", "0.9.0", ("0.9.0", "0.11.0"), "the good one must be the older; swap them"),
        ("0.9.0", "0.11.0", ("foo",), "Invalid version: 'foo'; give versions as"),
    ],
)
def test_versions_that_cant_be_searched_are_said(
    good: str, bad: str, released: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        versions_between(good, bad, released)
