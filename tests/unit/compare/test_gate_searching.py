"""A search is for what the bad release lost; only what the other release can't do is unknown."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filelock
import msgspec
import pytest

from specreg.compare.gate import searching
from specreg.compare.gate.answer import Answer, Decision
from specreg.compare.gate.beside import SideError
from specreg.compare.gate.between import TEXTS, lost_of, step_of, why_of
from specreg.compare.gate.bisecting import Step
from specreg.compare.gate.going import Slot
from specreg.compare.gate.hearing import Hearing
from specreg.compare.gate.journal import Rehearsed
from specreg.compare.gate.judging import Judged
from specreg.compare.gate.launched import Arm, Launched
from specreg.compare.gate.opening import Opened, open_gate
from specreg.compare.gate.quantities import QUANTITIES
from specreg.compare.gate.report import load_report
from specreg.compare.gate.request import Request
from specreg.compare.gate.run import Gate
from specreg.compare.gate.searching import Search, render_searched, search
from specreg.compare.gate.side import parse_side
from specreg.compare.gate.source import Source
from specreg.compare.gate.texts import TextsJudged, untold
from specreg.core.errors import ModelError, SpecregError, UnknownNameError, UnsupportedError
from specreg.matrix.tier import load_tier
from specreg.verdicts.judge import Outcome
from tests.doubles.vllm.script import Script, record_script
from tests.unit import builders

TIER = load_tier(builders.ROOT / "fixtures/matrix", "cpu")
CASE = "vllm-eagle3-tiny-toy-c1"
ASKED = ("check", "check_released", "environment")
"""What a search asks of a source."""


def decision(
    answer: Answer = Answer.UNDECIDED, texts: Outcome = Outcome.PASS, **outcomes: Outcome
) -> Decision:
    """By quantity's name its outcome."""
    judged = tuple(
        Judged(
            case_id=CASE,
            quantity=name,
            cause=QUANTITIES[name].cause,
            outcome=outcome,
            tolerance_frac=0.03,
        )
        for name, outcome in outcomes.items()
    )
    said = TextsJudged(case_id=CASE, outcome=texts, reason="", asked=1)
    return Decision(answer=answer, reasons=(), takes=(), judged=judged, texts=(said,))


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


def test_texts_are_looked_at_where_the_last_one_changed_them() -> None:
    changed = decision(texts=Outcome.WRONG, step_p50_ms=Outcome.PASS)
    assert step_of(changed, frozenset({"step_p50_ms"})) is Step.GOOD
    assert step_of(changed, frozenset({TEXTS})) is Step.BAD


def test_a_last_version_that_lost_nothing_is_good_only_where_that_is_proven() -> None:
    assert step_of(decision(Answer.UPGRADE), frozenset()) is Step.GOOD
    assert step_of(decision(Answer.UNDECIDED), frozenset()) is Step.UNKNOWN


def judged(quantity: str, **told: Any) -> Judged:  # noqa: ANN401 - of any field
    """One that is open after six launches."""
    return Judged(
        case_id=CASE,
        quantity=quantity,
        cause=QUANTITIES[quantity].cause,
        tolerance_frac=0.03,
        launches=6,
        **{"outcome": Outcome.INCONCLUSIVE, **told},
    )


def test_of_an_unknown_version_it_says_what_a_search_would_take() -> None:
    """A search has no --resume; and what isn't searched for, nobody needs."""
    found = msgspec.structs.replace(
        decision(Answer.UNDECIDED, texts=Outcome.INVALID),
        reasons=("30 % of 40 answers are equal",),
        takes=("type the same with --resume --launches 90",),
        judged=(
            judged("step_p50_ms", needed_launches=32, low_frac=-0.1),
            judged("ttft_p50_ms", needed_launches=90, low_frac=-0.1),
            judged("acceptance_length_tokens", needed_prompts=400),
            judged("throughput_tokens_per_s", outcome=Outcome.PASS),
        ),
    )
    step = frozenset({"step_p50_ms", "throughput_tokens_per_s"})
    assert why_of(found, Step.UNKNOWN, step) == (
        "about 32 launches instead of 6 (step_p50_ms); type the same with --launches 32"
    )
    assert why_of(found, Step.UNKNOWN, frozenset({"acceptance_length_tokens"})) == (
        "about 400 prompts (acceptance_length_tokens); type the same with --prompts 400"
    )
    few = msgspec.structs.replace(found, judged=(judged("step_p50_ms", reason="too few launches"),))
    assert why_of(few, Step.UNKNOWN, step) == (
        "too few launches (step_p50_ms); type the same with --launches 8"
    )
    texts = msgspec.structs.replace(found.texts[0], reason="nobody heard them")
    unheard = msgspec.structs.replace(found, texts=(texts,))
    assert why_of(unheard, Step.UNKNOWN, frozenset({TEXTS})) == "nobody heard them"
    for one in ("--launches 90 --prompts 400", "nobody heard them", "about 90 launches"):
        assert one in why_of(unheard, Step.UNKNOWN, frozenset())


def test_of_a_bad_version_it_says_what_was_lost_and_of_a_good_one_nothing() -> None:
    found = msgspec.structs.replace(decision(Answer.DONT), reasons=("a", "b"), takes=("c",))
    assert why_of(found, Step.BAD, frozenset({"step_p50_ms"})) == "a; b"
    assert not why_of(found, Step.GOOD, frozenset({"step_p50_ms"}))


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
    return search("vllm==0.29", "vllm==0.32.0", ("0.29.0", "0.31.0"), request, tmp_path)


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


def test_what_nobody_could_mend_by_another_version_ends_the_search(
    started: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = dataclasses.replace(started, request=dataclasses.replace(started.request, launches=3))
    source = SimpleNamespace(**dict.fromkeys(ASKED, lambda _: None))
    monkeypatch.setattr(searching, "source_of", lambda *_, **__: source)
    with pytest.raises(UnsupportedError, match="--launches 3: a block of ABBA"):
        odd._decision("0.29.0", "0.31.0", None)  # noqa: SLF001 - nothing is installed for it


def test_a_version_that_cant_be_measured_is_unknown(started: Search) -> None:
    spec = dataclasses.replace(started.case.server, engine="sglang")
    case = dataclasses.replace(started.case, server=spec)
    search = dataclasses.replace(started, good=parse_side("sglang==0.5.9"), case=case)
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
    monkeypatch.setattr(Source, "check_released", lambda *_: None)
    monkeypatch.setattr(Source, "environment", lambda *_: pytest.fail("it installed"))
    with pytest.raises(ModelError, match="gone"):
        gone._decision("0.29.0", "0.31.0", None)  # noqa: SLF001 - nothing is installed for it


@pytest.mark.parametrize("changes", [{"prompts": 5}, {"least_s": 30.0}], ids=str)
def test_searches_with_other_options_lie_apart(started: Search, changes: dict[str, object]) -> None:
    other = dataclasses.replace(started.request, **changes)  # type: ignore[arg-type]
    assert (
        started._fingerprint  # noqa: SLF001 - of the folder's name
        != dataclasses.replace(started, request=other)._fingerprint  # noqa: SLF001
    )


def test_an_unknown_case_is_said_before_anything_is_installed(started: Search) -> None:
    request = dataclasses.replace(started.request, case_ids=("nope",))
    with pytest.raises(UnknownNameError, match="tier 'cpu': unknown case 'nope'"):
        search("vllm==0.29.0", "vllm==0.32.0", (), request, started.folder)


@pytest.mark.parametrize("changes", [{"launches": 32}, {"tolerances": ("step_p50_ms=0.1",)}])
def test_more_launches_and_other_tolerances_go_on_with_what_was_measured(
    started: Search, changes: dict[str, object]
) -> None:
    asked = dataclasses.replace(started.request, **changes)  # type: ignore[arg-type]
    other = dataclasses.replace(started, request=asked)
    assert started._fingerprint == other._fingerprint  # noqa: SLF001 - of the folder's name


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
        f"'{page.parent}': another search is at work there; wait for its end, or name another --out"
    )
    assert not page.exists()


def test_a_change_between_which_somebody_is_unknown_isnt_found(
    started: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decided(_: Search, __: str, version: str, ___: frozenset[str] | None) -> Decision:
        last = version == "0.32.0"
        outcome = Outcome.REGRESSED if last else Outcome.INCONCLUSIVE
        return decision(Answer.DONT if last else Answer.UNDECIDED, step_p50_ms=outcome)

    monkeypatch.setattr(Search, "_decision", decided)
    searched = started.run()
    page = json.loads((started.folder / CASE / "bisect.json").read_text())
    assert (page["exit_status"], page["reason"]) == (10, "nobody can tell of 0.31.0")
    assert page["found"]["between"] == ["0.31.0"]
    assert page["tried"][1]["why"].endswith("; type the same with --launches 4")
    said = render_searched(searched).splitlines()[-1]
    assert said == "it changed after 0.29.0 and by 0.32.0; unknown: 0.31.0"


@pytest.fixture
def between(started: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """The gate of the good release against one in between, both of them the scripted server."""
    there = f"engine_env.PYTHONPATH={record_script(Script(), tmp_path)['PYTHONPATH']}"
    side = f"vllm@{sys.executable}"
    opened = open_gate(
        dataclasses.replace(
            started.request,
            a=side,
            b=side,
            a_overrides=(there,),
            b_overrides=(there,),
            launches=4,
            with_control=False,
            out=tmp_path / "between",
        )
    )
    opened.gate.rehearsed = True
    source = SimpleNamespace(**dict.fromkeys(ASKED, lambda _: None))
    monkeypatch.setattr(searching, "source_of", lambda *_, **__: source)
    monkeypatch.setattr(searching, "open_gate", lambda _: opened)
    return opened


def slower_step(number: int, arm: Arm) -> Launched:
    """Of a side B whose steps take a tenth more, and nothing else."""
    values = {"throughput_tokens_per_s": 100.0, "ttft_p50_ms": 10.0}
    return Launched(
        case_id=CASE,
        arm=arm,
        block=1 + (number - 1) // 2,
        number=number,
        values={**values, "step_p50_ms": 11.0 if arm is Arm.B else 10.0},
        acceptance=builders.acceptance(builders.counts(0, 0, 10), prompts=6),
    )


def test_a_gate_in_between_goes_on_for_some_figures_and_reports_all(
    started: Search, between: Opened
) -> None:
    """Its answers are the same, which is what is searched for; a step takes longer."""
    same = TextsJudged(case_id=CASE, outcome=Outcome.PASS, reason="", asked=5)
    lines = [slower_step(number, arm) for number in range(1, 5) for arm in (Arm.A, Arm.B)]
    between.gate.take_over([*lines, same, Rehearsed()])
    found = started._decision("0.29.0", "0.31.0", frozenset({TEXTS}))  # noqa: SLF001 - of two that are there
    assert isinstance(found, Decision)
    assert step_of(found, frozenset({TEXTS})) is Step.GOOD
    report = load_report(between.gate.place.folder / "gate.json")
    assert (report.answer, report.exit_status) == (Answer.DONT, 1)
    assert report.decision.reasons == (
        f"{CASE} is worse by the cost of a step: step_p50_ms -10.0%",
    )


def test_a_gate_that_is_cut_off_leaves_its_report(
    started: Search, between: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(between.gate), "launch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        started._decision("0.29.0", "0.31.0", None)  # noqa: SLF001 - of two that are there
    report = load_report(between.gate.place.folder / "gate.json")
    assert (report.answer, report.exit_status) == (Answer.UNDECIDED, 130)


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> list[Slot]:
    """What a gate would launch; nothing comes of it, and nobody asks for answers."""
    asked: list[Slot] = []

    def launch(_: Gate, slot: Slot) -> list[Launched]:
        asked.append(slot)
        return []

    monkeypatch.setattr(Gate, "launch", launch)
    monkeypatch.setattr(Hearing, "wants", lambda *_: False)
    return asked


def test_a_gate_in_between_ends_when_what_is_searched_for_is_decided(
    started: Search, between: Opened, slots: list[Slot]
) -> None:
    """Its output is lost; its prefill, which the bad one lost as well, may stay undecided."""
    lines = [
        msgspec.structs.replace(
            slower_step(number, arm),
            values={
                "throughput_tokens_per_s": 80.0 if arm is Arm.B else 100.0,
                "ttft_p50_ms": 10.0 * (1 + number % 3) if arm is Arm.B else 20.0,
            },
        )
        for number in range(1, 5)
        for arm in (Arm.A, Arm.B)
    ]
    between.gate.take_over([*lines, Rehearsed()])
    between.gate.rules = dataclasses.replace(between.gate.rules, blocks=8)
    lost = frozenset({"throughput_tokens_per_s", "ttft_p50_ms"})
    found = started._decision("0.29.0", "0.31.0", lost)  # noqa: SLF001 - of two that are there
    assert isinstance(found, Decision)
    outcomes = {one.quantity: one.outcome for one in found.judged}
    assert outcomes["throughput_tokens_per_s"] is Outcome.REGRESSED
    assert outcomes["ttft_p50_ms"] is Outcome.INCONCLUSIVE
    assert step_of(found, lost) is Step.BAD
    assert slots == []


def test_the_first_gate_of_a_search_decides_all_figures(
    started: Search, between: Opened, slots: list[Slot]
) -> None:
    """The case is lost by a step; what it lost besides is searched for as well."""
    steps = [slower_step(number, arm) for number in range(1, 5) for arm in (Arm.A, Arm.B)]
    prefills = (10.0, 20.0, 10.0, 10.0, 10.0, 20.0, 10.0, 10.0)
    lines = [
        msgspec.structs.replace(one, values={**one.values, "ttft_p50_ms": prefill})
        for one, prefill in zip(steps, prefills, strict=True)
    ]
    between.gate.take_over([*lines, Rehearsed()])
    between.gate.rules = dataclasses.replace(between.gate.rules, blocks=3)
    found = started._decision("0.29.0", "0.32.0", None)  # noqa: SLF001 - of two that are there
    assert isinstance(found, Decision)
    assert lost_of(found) >= {"step_p50_ms"}
    assert {slot.block for slot in slots} == {3}


def dying(arm: Arm) -> Callable[[Gate, Slot], list[Launched]]:
    """A gate's launches, of which one side always comes to nothing."""

    def launch(gate: Gate, slot: Slot) -> list[Launched]:
        died = Launched(
            case_id=CASE, arm=arm, block=slot.block, number=slot.number, invalid="it died"
        )
        gate.launches = (*gate.launches, died)
        return [died]

    return launch


def test_a_good_release_that_dies_ends_the_search(
    started: Search, between: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would die beside each of the others, too; one that dies itself is unknown."""
    step = frozenset({"step_p50_ms"})
    monkeypatch.setattr(Gate, "launch", dying(Arm.A))
    with pytest.raises(SideError, match="the good release can't be measured, side A: it died; see"):
        started._decision("0.29.0", "0.31.0", step)  # noqa: SLF001 - of two that are there
    assert load_report(between.gate.place.folder / "gate.json").failed
    between.gate.launches = ()
    monkeypatch.setattr(Gate, "launch", dying(Arm.B))
    found = started._decision("0.29.0", "0.31.0", step)  # noqa: SLF001 - the same
    assert isinstance(found, Decision)
    assert step_of(found, step) is Step.UNKNOWN


def test_a_good_release_whose_answers_nobody_hears_ends_a_search_for_answers(
    started: Search, between: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(gate: Gate, slot: Slot) -> list[Launched]:
        gate.hearing.begin(gate.shared[0].pairs, slot.block)
        gate.hearing.unheard[CASE] = untold(CASE, "side A: it tells no ids")
        return [slower_step(slot.number, arm) for arm in slot.arms]

    monkeypatch.setattr(Gate, "launch", launch)
    with pytest.raises(SideError, match="can't be measured, side A: it tells no ids; see"):
        started._decision("0.29.0", "0.31.0", frozenset({TEXTS}))  # noqa: SLF001 - of two that are there
    assert between.gate.hearing.asked_in == {CASE: {1, 2}}
