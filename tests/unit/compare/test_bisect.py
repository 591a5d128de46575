"""A search halves the releases that are left, and looks for what the bad release lost."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Never

import pytest

from specreg.compare.bisect import (
    ComparedVersion,
    VersionState,
    change_of,
    find_change,
    next_version,
    state_of,
    versions_between,
)
from specreg.compare.execute import SideError
from specreg.compare.gate import Gate, open_gate
from specreg.compare.judging import Decision, GateAnswer
from specreg.compare.options import BisectOptions, GateOptions
from specreg.compare.pairs import Side
from specreg.compare.plan import GateStep
from specreg.core.errors import UnsupportedError
from specreg.correctness.checks import LOSSLESS
from specreg.matrix.case import Tier
from specreg.matrix.tier import load_tier
from specreg.report.document import ComparedReport
from specreg.report.files import load_report
from specreg.runs.ledger import ArmLaunch, LedgerEntry
from specreg.verdicts.verdict import Outcome, Verdict
from tests.unit import builders
from tests.unit.builders.gates import failed, launch, scripted, scripted_sides

TIER = load_tier(builders.ROOT / "fixtures/matrix", "cpu")
[CASE] = [case for case in TIER.cases if case.id == "vllm-eagle3-tiny-toy-c1"]
VERSIONS = tuple(f"0.{minor}.0" for minor in range(20, 33))


def decision_of(
    answer: GateAnswer = GateAnswer.UNDECIDED, texts: Outcome = Outcome.PASS, **outcomes: Outcome
) -> Decision:
    """Return a decision with the outcomes of metrics and of the comparison of texts."""
    verdicts = [
        Verdict(case_id=CASE.id, metric=name, outcome=outcome, launches=6)
        for name, outcome in {**outcomes, LOSSLESS: texts}.items()
    ]
    return Decision(answer=answer, verdicts=tuple(verdicts))


STEP = "step_p50_ms"
PREFILL = "ttft_p50_ms"
SPEED = "throughput_tokens_per_s"
PREFILL_LOST = decision_of(
    step_p50_ms=Outcome.PASS,
    ttft_p50_ms=Outcome.REGRESSED,
    throughput_tokens_per_s=Outcome.INCONCLUSIVE,
)
TEXTS_LOST = decision_of(texts=Outcome.WRONG, step_p50_ms=Outcome.PASS)


@pytest.mark.parametrize(
    ("decision", "lost_by_the_last", "state"),
    [
        pytest.param(PREFILL_LOST, {STEP}, VersionState.GOOD, id="holds-what-was-lost"),
        pytest.param(PREFILL_LOST, {PREFILL}, VersionState.BAD, id="lost-it-too"),
        pytest.param(PREFILL_LOST, {SPEED}, VersionState.UNKNOWN, id="undecided"),
        pytest.param(PREFILL_LOST, {STEP, SPEED}, VersionState.UNKNOWN, id="partly-undecided"),
        pytest.param(TEXTS_LOST, {STEP}, VersionState.GOOD, id="wrong-texts-not-searched"),
        pytest.param(TEXTS_LOST, {LOSSLESS}, VersionState.BAD, id="wrong-texts-searched"),
        pytest.param(decision_of(GateAnswer.UPGRADE), None, VersionState.GOOD, id="last-upgrade"),
        pytest.param(decision_of(), None, VersionState.UNKNOWN, id="last-undecided"),
        pytest.param(PREFILL_LOST, None, VersionState.BAD, id="last-lost-anything"),
    ],
)
def test_a_version_is_judged_by_what_the_last_one_lost(
    decision: Decision, lost_by_the_last: set[str] | None, state: VersionState
) -> None:
    lost = None if lost_by_the_last is None else frozenset(lost_by_the_last)

    assert state_of(decision, lost) is state


@pytest.fixture
def options(tmp_path: Path) -> BisectOptions:
    """Options of a search from 0.29.0 to 0.32.0."""
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


LaunchOf = Callable[[str, Side, int], ArmLaunch]
"""Takes a version, a side and the number of a launch, and returns that launch."""


@dataclass(slots=True)
class ScriptedReleases:
    """Releases of the scripted server, whose launches a function makes.

    Attributes:
        folder: where the scripted server's settings are.
        launch_of: makes each launch.
        launched: the versions and numbers of the launches so far.
    """

    folder: Path
    launch_of: LaunchOf
    launched: list[tuple[str, int]] = field(default_factory=list)

    def open_gate(self, options: GateOptions, tier: Tier) -> Gate:
        """Open the gate of a search, on the scripted server in place of the releases."""
        gate = open_gate(dataclasses.replace(options, **scripted_sides(self.folder)), tier)
        return scripted(dataclasses.replace(gate, options=options), self.launch)

    def launch(self, gate: Gate, step: GateStep) -> Iterator[LedgerEntry]:
        """Make the launches of some sides."""
        version = gate.options.b.removeprefix("vllm==")
        self.launched.append((version, step.number))
        for side in step.sides:
            launch_of_side = self.launch_of(version, side, step.number)
            yield dataclasses.replace(launch_of_side, case_id=step.pair.id)


def test_each_loss_is_traced_to_its_own_version(options: BisectOptions, tmp_path: Path) -> None:
    """0.31.0 lost prefill, 0.32.0 the step that is searched for; each gate leaves its report."""

    def launch_of(version: str, side: Side, number: int) -> ArmLaunch:
        is_slow_step = side is Side.B and version == "0.32.0"
        is_slow_prefill = side is Side.B and version == "0.31.0"
        return launch(
            side,
            number,
            step_ms=11.0 if is_slow_step else 10.0,
            tokens_per_s=100 / 1.1 if is_slow_step else 100.0,
            ttft_ms=30.0 if is_slow_prefill else 20.0,
        )

    releases = ScriptedReleases(tmp_path, launch_of)

    change = find_change(options, TIER, CASE, releases.open_gate)

    assert change == ("0.31.0", "0.32.0")
    assert [number for version, number in releases.launched if version == "0.31.0"] == [1, 2, 3, 4]
    [folder] = options.folder.glob("0.29.0..0.32.0-*")
    report = load_report(folder / "report.json")
    assert isinstance(report, ComparedReport)
    (answer,) = report.answers
    assert (answer.subject, report.run.exit_status) == ("DON'T", 1)
    assert (
        f"{CASE.id} is worse because of the cost of a step: throughput_tokens_per_s -9."
        in answer.text
    )


def releases_with_a_death(folder: Path, dead_side: Side) -> ScriptedReleases:
    """Return releases of which 0.31.0 can't be measured on a side, and B's step is slower."""

    def launch_of(version: str, side: Side, number: int) -> ArmLaunch:
        if version == "0.31.0" and side is dead_side:
            return failed(side, number)
        if side is Side.B:
            return launch(side, number, step_ms=11.0, tokens_per_s=100 / 1.1)
        return launch(side, number)

    return ScriptedReleases(folder, launch_of)


def test_a_good_release_that_dies_ends_the_search(options: BisectOptions, tmp_path: Path) -> None:
    releases = releases_with_a_death(tmp_path, Side.A)

    with pytest.raises(SideError, match="the good release can't be measured, side A: it died"):
        find_change(options, TIER, CASE, releases.open_gate)

    assert any("it died" in remark for remark in remarks_of(options, "0.31.0"))


def test_another_release_that_dies_is_unknown(options: BisectOptions, tmp_path: Path) -> None:
    releases = releases_with_a_death(tmp_path, Side.B)
    shown: list[str] = []
    options = dataclasses.replace(options, show=shown.append)

    change = find_change(options, TIER, CASE, releases.open_gate)

    assert change == ("0.29.0", "0.31.0", "0.32.0")
    assert "0.31.0: unknown, throughput_tokens_per_s: side B: it died" in shown
    assert any("it died" in remark for remark in remarks_of(options, "0.31.0"))


def remarks_of(options: BisectOptions, version: str) -> tuple[str, ...]:
    """Return the remarks in the report of a version's gate."""
    [folder] = options.folder.glob(f"0.29.0..{version}-*")
    return load_report(folder / "report.json").remarks


@pytest.mark.parametrize(
    ("side", "error", "message"),
    [
        (Side.B, UnsupportedError, "0.32.0: it isn't known .* than 0.29.0, too old; name"),
        (Side.A, SideError, "too old"),
    ],
)
def test_a_release_that_cannot_be_installed_is_unknown_unless_it_is_good(
    options: BisectOptions, side: Side, error: type[Exception], message: str
) -> None:
    def refuse(*_: object) -> Never:
        raise SideError(side, "too old\nfor it")

    with pytest.raises(error, match=message):
        find_change(options, TIER, CASE, refuse)


def search(first_bad: str, *unknown: str) -> tuple[tuple[str, ...], list[str]]:
    """Bisect versions that are bad from one on, of which some can't be judged.

    Returns:
        The change that is found, and the versions that were compared.
    """
    compared: dict[str, ComparedVersion] = {}
    while version := next_version(VERSIONS, compared):
        is_bad = VERSIONS.index(version) >= VERSIONS.index(first_bad)
        state = VersionState.BAD if is_bad else VersionState.GOOD
        compared[version] = ComparedVersion(
            state=VersionState.UNKNOWN if version in unknown else state
        )
    return change_of(VERSIONS, compared), list(compared)


@pytest.mark.parametrize("first_bad", VERSIONS[1:])
def test_each_change_is_found_in_few_comparisons(first_bad: str) -> None:
    change, compared = search(first_bad)

    index = VERSIONS.index(first_bad)
    assert change == VERSIONS[index - 1 : index + 1]
    # Twelve steps are halved in four comparisons at most. The last version is compared before.
    assert len(compared) <= 5


def test_a_version_that_cannot_be_judged_is_left_in_between() -> None:
    change, _ = search("0.26.0", "0.26.0")

    assert change == ("0.25.0", "0.26.0", "0.27.0")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (VersionState.UNKNOWN, "0.32.0: it isn't known whether it is worse than 0.20.0, w"),
        (VersionState.GOOD, "0.32.0: isn't worse than 0.20.0; name other versions"),
    ],
)
def test_a_last_version_that_isnt_bad_ends_it(state: VersionState, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        next_version(VERSIONS, {VERSIONS[-1]: ComparedVersion(state=state, reason="why")})


def test_releases_are_ordered_by_version_without_previews() -> None:
    with_preview = ("0.9.0", "0.10.0", "0.11.0rc1", "0.11.0", "0.12.0")
    assert versions_between("0.9.0", "0.11.0", with_preview) == ("0.9.0", "0.10.0", "0.11.0")


def test_the_ends_may_be_spelt_otherwise_than_the_releases() -> None:
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
def test_versions_that_cannot_be_searched_are_refused(
    good: str, bad: str, released: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        versions_between(good, bad, released)
