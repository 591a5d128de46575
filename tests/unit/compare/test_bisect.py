"""A search halves what is left, for what the bad release lost; it says what it can't tell."""

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import filelock
import pytest

from specreg.compare import bisect
from specreg.compare.arms import SideError
from specreg.compare.bisect import (
    Search,
    Step,
    Tried,
    bisect_versions,
    lost_of,
    open_search,
    render_search,
    step_of,
    versions_between,
    why_of,
)
from specreg.compare.decision import Answer, Decision
from specreg.compare.gate import Gate
from specreg.compare.judging import SideLaunch
from specreg.compare.opening import open_gate
from specreg.compare.pairs import Group, Side
from specreg.compare.request import Request
from specreg.core.errors import ModelError, SpecregError, UnknownNameError, UnsupportedError
from specreg.correctness.checks import LOSSLESS
from specreg.matrix.tier import load_tier
from specreg.report.document import load_report
from specreg.servers.sources import Source, parse_origin
from specreg.verdicts.judge import Outcome, Verdict
from tests.doubles.vllm.script import Script, record_script
from tests.unit import builders
from tests.unit.compare.launches import accepted, failed, launch

TIER = load_tier(builders.ROOT / "fixtures/matrix", "cpu")
CASE = "vllm-eagle3-tiny-toy-c1"
ASKED = ("check", "environment")
"""What a search asks of a source."""


def decision(
    answer: Answer = Answer.UNDECIDED, texts: Outcome = Outcome.PASS, **outcomes: Outcome
) -> Decision:
    """By metric's name its outcome."""
    verdicts = [
        Verdict(case_id=CASE, metric=name, outcome=outcome, launches=6)
        for name, outcome in {**outcomes, LOSSLESS: texts}.items()
    ]
    return Decision(answer=answer, reasons=(), takes=(), verdicts=tuple(verdicts), control=())


def test_what_it_lost_besides_is_another_matter() -> None:
    found = decision(
        step_p50_ms=Outcome.PASS,
        ttft_p50_ms=Outcome.REGRESSED,
        throughput_tokens_per_s=Outcome.INCONCLUSIVE,
    )
    assert step_of(found, frozenset({"step_p50_ms"})) is Step.GOOD
    assert step_of(found, frozenset({"ttft_p50_ms"})) is Step.BAD
    assert step_of(found, frozenset({"throughput_tokens_per_s"})) is Step.UNKNOWN
    assert step_of(found, frozenset({"step_p50_ms", "throughput_tokens_per_s"})) is Step.UNKNOWN


def test_answers_are_looked_at_where_the_last_one_changed_them() -> None:
    changed = decision(texts=Outcome.WRONG, step_p50_ms=Outcome.PASS)
    assert step_of(changed, frozenset({"step_p50_ms"})) is Step.GOOD
    assert step_of(changed, frozenset({LOSSLESS})) is Step.BAD


def test_a_last_version_that_lost_nothing_is_good_only_where_that_is_proven() -> None:
    assert step_of(decision(Answer.UPGRADE), frozenset()) is Step.GOOD
    assert step_of(decision(Answer.UNDECIDED), frozenset()) is Step.UNKNOWN


def test_of_an_unknown_version_it_says_what_a_search_would_take() -> None:
    """A search has no --resume; and what isn't searched for isn't said."""
    found = decision(texts=Outcome.INVALID)
    verdicts = (
        Verdict(
            case_id=CASE,
            metric="step_p50_ms",
            outcome=Outcome.INCONCLUSIVE,
            launches=6,
            low_frac=-0.1,
            needed_launches=32,
            reason="about 32 launches instead of 6",
        ),
        Verdict(case_id=CASE, metric="ttft_p50_ms", outcome=Outcome.INCONCLUSIVE, launches=6),
        *found.verdicts,
    )
    found = dataclasses.replace(found, verdicts=verdicts)
    assert why_of(found, Step.UNKNOWN, frozenset({"step_p50_ms"})) == (
        "step_p50_ms: about 32 launches instead of 6; type the same with --launches 32"
    )
    assert why_of(found, Step.UNKNOWN, frozenset({"ttft_p50_ms"})) == (
        "ttft_p50_ms: there is no telling; type the same with --launches 8"
    )
    assert LOSSLESS in why_of(found, Step.UNKNOWN, frozenset())
    bad = dataclasses.replace(found, reasons=("a", "b"))
    assert why_of(bad, Step.BAD, frozenset({"step_p50_ms"})) == "a; b"
    assert not why_of(bad, Step.GOOD, frozenset({"step_p50_ms"}))


@pytest.fixture
def started(tmp_path: Path) -> Search:
    """A search among three versions."""
    request = Request(
        a="vllm==0.29.0",
        b="vllm==0.32.0",
        tier=TIER,
        case_ids=(CASE,),
        launches=2,
        root=builders.ROOT,
        show=lambda _: None,
    )
    return open_search("vllm==0.29", "vllm==0.32.0", ("0.29.0", "0.31.0"), request, tmp_path)


def test_each_figure_is_traced_to_the_version_that_lost_it(
    started: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.31.0 lost prefill, 0.32.0 the step that is searched for."""
    asked = []

    def decided(_: Search, good: str, version: str, lost: frozenset[str] | None) -> Decision:
        asked.append((good, version, lost))
        last = version == "0.32.0"
        return decision(
            Answer.DONT,
            step_p50_ms=Outcome.REGRESSED if last else Outcome.PASS,
            ttft_p50_ms=Outcome.PASS if last else Outcome.REGRESSED,
        )

    monkeypatch.setattr(Search, "_decision", decided)
    found = started.run().found
    assert found is not None
    assert (found.last_good, found.first_bad) == ("0.31.0", "0.32.0")
    step = frozenset({"step_p50_ms"})
    assert asked == [("0.29.0", "0.32.0", None), ("0.29.0", "0.31.0", step)]
    page = json.loads((started.folder / CASE / "bisect.json").read_text())
    assert (page["exit_status"], page["reason"]) == (0, "")
    assert page["found"] == {"last_good": "0.31.0", "first_bad": "0.32.0", "between": []}
    assert [(one["version"], one["step"]) for one in page["tried"]] == [
        ("0.32.0", "bad"),
        ("0.31.0", "good"),
    ]


def test_a_version_that_cant_be_measured_is_unknown(started: Search) -> None:
    spec = dataclasses.replace(started.case.server, engine="sglang")
    case = dataclasses.replace(started.case, server=spec)
    search = dataclasses.replace(started, good=parse_origin("sglang==0.5.9"), case=case)
    found = search._decision("0.5.9", "0.5.4", None)  # noqa: SLF001 - nothing is installed for it
    assert isinstance(found, str)
    assert "acceptance of SGLang 0.5.4: its answers don't count their steps" in found


def test_a_model_that_isnt_there_is_said_before_anything_is_installed(
    started: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = dataclasses.replace(started.case.server, draft="fixtures/models/gone")
    case = dataclasses.replace(started.case, server=spec)
    tier = dataclasses.replace(started.request.tier, cases=(case,))
    gone = dataclasses.replace(
        started, case=case, request=dataclasses.replace(started.request, tier=tier)
    )
    monkeypatch.setattr(Source, "environment", lambda *_: pytest.fail("it installed"))
    with pytest.raises(ModelError, match="gone"):
        gone._decision("0.29.0", "0.31.0", None)  # noqa: SLF001 - nothing is installed for it


def test_an_unknown_case_is_said_before_anything_is_installed(started: Search) -> None:
    request = dataclasses.replace(started.request, case_ids=("nope",))
    with pytest.raises(UnknownNameError, match="tier 'cpu': unknown case 'nope'"):
        open_search("vllm==0.29.0", "vllm==0.32.0", (), request, started.folder)


def test_a_search_that_finds_nothing_leaves_a_page_that_says_so(
    started: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Search, "_decision", lambda *_: decision(Answer.UPGRADE))
    with pytest.raises(UnsupportedError, match="there is nothing to find"):
        started.run()
    page = json.loads((started.folder / CASE / "bisect.json").read_text())
    assert (page["exit_status"], page["found"]) == (10, None)
    assert "0.32.0: isn't worse than 0.29.0" in page["reason"]
    assert [one["step"] for one in page["tried"]] == ["good"]


def test_a_search_that_is_cut_off_says_so_too(
    started: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object) -> Decision:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "_decision", cut_off)
    with pytest.raises(KeyboardInterrupt):
        started.run()
    page = json.loads((started.folder / CASE / "bisect.json").read_text())
    assert (page["exit_status"], page["reason"], page["tried"]) == (130, "cut short", [])


def test_a_search_where_another_is_at_work_leaves_what_that_one_writes(
    started: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Search, "_decision", lambda *_: pytest.fail("it measured"))
    page = started.folder / CASE / "bisect.json"
    page.parent.mkdir(parents=True)
    with filelock.FileLock(page.with_suffix(".lock")), pytest.raises(SpecregError) as refused:
        started.run()
    assert str(refused.value) == (
        f"'{page.parent}': another bisect is at work there; wait for its end, or name another --out"
    )
    assert not page.exists()


def test_a_change_with_an_unknown_version_in_between_isnt_found(
    started: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decided(_: Search, __: str, version: str, ___: frozenset[str] | None) -> Decision:
        last = version == "0.32.0"
        outcome = Outcome.REGRESSED if last else Outcome.INCONCLUSIVE
        return decision(Answer.DONT if last else Answer.UNDECIDED, step_p50_ms=outcome)

    monkeypatch.setattr(Search, "_decision", decided)
    searched = started.run()
    page = json.loads((started.folder / CASE / "bisect.json").read_text())
    assert (page["exit_status"], page["reason"]) == (10, "there is no telling of 0.31.0")
    assert page["found"]["between"] == ["0.31.0"]
    assert page["tried"][1]["why"].endswith("; type the same with --launches 8")
    said = render_search(searched).splitlines()[-1]
    assert said == "it changed after 0.29.0 and by 0.32.0; unknown: 0.31.0"


@pytest.fixture
def between(started: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """The gate of the good release against one in between, both of them the scripted server."""
    there = f"engine_env.PYTHONPATH={record_script(Script(), tmp_path)['PYTHONPATH']}"
    side = f"vllm@{sys.executable}"
    gate = open_gate(
        dataclasses.replace(
            started.request,
            a=side,
            b=side,
            a_overrides=(there,),
            b_overrides=(there,),
            launches=8,
            with_control=False,
            out=tmp_path / "between",
        )
    )
    source = SimpleNamespace(**dict.fromkeys(ASKED, lambda _: None))
    monkeypatch.setattr(bisect, "source_of", lambda *_, **__: source)
    monkeypatch.setattr(bisect, "served_models", lambda *_: None)
    monkeypatch.setattr(bisect, "open_gate", lambda _: gate)
    monkeypatch.setattr(type(gate.answers), "wants", lambda *_: False)
    return gate


def slower_step(gate: Gate, number: int, side: Side) -> SideLaunch:
    """Of a side B whose steps take a tenth more, and nothing else."""
    return launch(
        side,
        number,
        pair=gate.pairs[0],
        step_ms=11.0 if side is Side.B else 10.0,
        acceptance=accepted(),
    )


def test_a_gate_in_between_goes_on_until_what_is_searched_for_is_decided(
    started: Search, between: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step is lost, which decides the case; its report says so."""
    asked = []

    def launched(gate: Gate, _: Group, number: int, sides: tuple[Side, ...]) -> None:
        asked.append(number)
        gate.launches += [slower_step(gate, number, side) for side in sides]

    monkeypatch.setattr(Gate, "_launch", launched)
    lost = frozenset({"step_p50_ms"})
    found = started._decision("0.29.0", "0.31.0", lost)  # noqa: SLF001 - of two that are there
    assert isinstance(found, Decision)
    assert step_of(found, lost) is Step.BAD
    assert asked == [1, 2, 3, 4]
    assert lost_of(found) >= lost
    report = load_report(between.folder / "report.json")
    (answer,) = report.answers
    assert (answer.subject, report.run.exit_status) == ("DON'T", 1)
    said = f"{CASE} is worse by the cost of a step: step_p50_ms -10."
    assert said in answer.text


def test_a_gate_that_is_cut_off_leaves_its_report(
    started: Search, between: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Gate, "_launch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        started._decision("0.29.0", "0.31.0", None)  # noqa: SLF001 - of two that are there
    report = load_report(between.folder / "report.json")
    assert report.run.exit_status == 130


@pytest.mark.parametrize("side", [Side.A, Side.B])
def test_a_good_release_that_dies_ends_the_search_and_another_is_unknown(
    started: Search, between: Gate, monkeypatch: pytest.MonkeyPatch, side: Side
) -> None:
    def dying(gate: Gate, _: Group, number: int, __: tuple[Side, ...]) -> None:
        gate.launches.append(failed(side, number, pair=gate.pairs[0]))

    monkeypatch.setattr(Gate, "_launch", dying)
    lost = frozenset({"step_p50_ms"})
    if side is Side.A:
        said = "the good release can't be measured, side A: it died; see"
        with pytest.raises(SideError, match=said):
            started._decision("0.29.0", "0.31.0", lost)  # noqa: SLF001 - of two that are there
    else:
        found = started._decision("0.29.0", "0.31.0", lost)  # noqa: SLF001 - the same
        assert isinstance(found, Decision)
        assert step_of(found, lost) is Step.UNKNOWN
    report = load_report(between.folder / "report.json")
    assert any("it died" in one for one in report.remarks)


VERSIONS = tuple(f"0.{minor}.0" for minor in range(20, 33))


class Compare:
    """Versions from one on are bad; some can't be told."""

    def __init__(self, first_bad: str, *unknown: str) -> None:
        self.first_bad = VERSIONS.index(first_bad)
        self.unknown = unknown
        self.asked: list[str] = []

    def __call__(self, version: str) -> Tried:
        self.asked.append(version)
        bad = VERSIONS.index(version) >= self.first_bad
        step = Step.UNKNOWN if version in self.unknown else Step.BAD if bad else Step.GOOD
        return Tried(version=version, step=step)


@pytest.mark.parametrize("first_bad", VERSIONS[1:])
def test_each_change_is_found_in_few_comparisons(first_bad: str) -> None:
    compare = Compare(first_bad)
    found = bisect_versions(VERSIONS, compare)
    assert found.first_bad == first_bad
    assert found.last_good == VERSIONS[VERSIONS.index(first_bad) - 1]
    assert found.between == ()
    assert len(compare.asked) <= 5  # log2 of twelve steps, and the last one


def test_a_last_version_that_cant_be_measured_is_called_so() -> None:
    with pytest.raises(UnsupportedError, match=r"0.32.0: no telling whether it is worse"):
        bisect_versions(VERSIONS, Compare("0.26.0", "0.32.0"))


def test_what_nobody_can_tell_is_left_between() -> None:
    compare = Compare("0.26.0", "0.26.0")
    found = bisect_versions(VERSIONS, compare)
    assert (found.last_good, found.between, found.first_bad) == ("0.25.0", ("0.26.0",), "0.27.0")


def test_a_last_version_that_isnt_worse_ends_it() -> None:
    with pytest.raises(UnsupportedError, match=r"0.32.0: isn't worse than 0.20.0"):
        bisect_versions(VERSIONS, lambda version: Tried(version=version, step=Step.GOOD, why=""))


def test_releases_are_in_the_order_of_versions_without_previews() -> None:
    released = ("0.9.0", "0.10.0", "0.11.0rc1", "0.11.0", "0.12.0")
    assert versions_between("0.9.0", "0.11.0", released) == ("0.9.0", "0.10.0", "0.11.0")


def test_a_version_that_never_was_and_a_swapped_pair_are_said() -> None:
    with pytest.raises(UnsupportedError, match=r"'0.8.0': was never released; the last ones are"):
        versions_between("0.8.0", "0.11.0", ("0.9.0", "0.11.0"))
    with pytest.raises(UnsupportedError, match="the good one must be the older; swap them"):
        versions_between("0.11.0", "0.9.0", ("0.9.0", "0.11.0"))


def test_a_version_may_be_spelt_otherwise_than_the_index_does() -> None:
    released = ("0.29.0", "0.30.0", "0.31.0")
    assert versions_between("0.29", "0.31", released) == released
    assert versions_between("0.29", "0.31.0", ("0.29", *released)) == released
    with pytest.raises(UnsupportedError, match="'foo': is no version; give one as"):
        versions_between("0.29.0", "0.31.0", (*released, "foo"))
