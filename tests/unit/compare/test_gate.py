"""What can't be measured as it is asked for is said before anything is."""

import dataclasses
import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import msgspec
import pytest

from specreg.acceptance.trace import Reply
from specreg.compare.document import record_gate, run_to_end
from specreg.compare.gate import Gate, open_gate
from specreg.compare.judging import GateAnswer
from specreg.compare.options import MOST_WORTH_ASKING, GateOptions
from specreg.compare.pairs import COMPARED, CONTROL, Side
from specreg.compare.plan import GateStep
from specreg.core.errors import SpecregError, UnsupportedError
from specreg.matrix.tier import load_tier
from specreg.report.document import ComparedReport
from specreg.report.terminal import render_report
from specreg.runs.ledger import Failed, FailedLaunch, Key, LedgerEntry, MeasuredLaunch, Segment
from specreg.servers.launch import Launch
from specreg.servers.launcher import ServerLauncher
from tests.doubles.vllm import __version__ as scripted_version
from tests.unit import builders
from tests.unit.builders.gates import accepted, failed, launch, launches, scripted, scripted_sides

MATRIX = builders.ROOT / "fixtures/matrix"
CASE = "vllm-eagle3-tiny-toy-c1"


def opened(options: GateOptions) -> Gate:
    gate = open_gate(options, load_tier(options.matrix, options.tier or "cpu"))
    gate.ledger.close()  # of which a process holds one at a time
    return gate


@pytest.fixture
def options(tmp_path: Path) -> GateOptions:
    """Two versions of vLLM, and a folder that isn't there yet."""
    return GateOptions(
        a="vllm==0.31.0",
        b="vllm==0.32.0",
        case_ids=[CASE],
        root=builders.ROOT,
        matrix=MATRIX,
        out=tmp_path / "gate",
        show=lambda _: None,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"b": "sglang==0.5.23"}, f"'{CASE}' needs engine 'vllm'"),
        ({"case_ids": ["nope"]}, "tier 'cpu': unknown case 'nope'"),
        ({"a": "sglang", "b": "sglang", "case_ids": []}, "none of its .*; choose another --tier"),
        ({"b_overrides": ["k=5"]}, "unknown setting 'k'"),
        ({"b_overrides": ["draft=./nowhere"]}, "model folder '.*nowhere': config.json is missing"),
        ({"tolerances": ["speed=0.1"]}, "--tolerance speed=0.1: unknown metric 'speed'"),
        ({"tolerances": ["step_p50_ms=3%"]}, "'3%' is no fraction between 0 and 1"),
        ({"pin_length_tokens": 9.0}, "--pin 9: .* 9.0 with draft_tokens = 3; needed 1"),
        ({"prompts": 100_000}, "dataset 'toy': has .* prompts, .* needs 100000"),
        ({"b": sys.executable}, f": python '{sys.executable}': has no module 'vllm'; install vllm"),
        ({"resume": True}, "--resume: there is no gate in '.*gate'; name the folder"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused_with_a_reason(
    options: GateOptions, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecregError, match=message):
        opened(dataclasses.replace(options, **changes))  # type: ignore[arg-type]
    assert options.out is not None
    assert not options.out.exists()


def test_two_drafts_are_compared_by_more_prompts_of_the_dataset(
    options: GateOptions, tmp_path: Path
) -> None:
    other_draft = tmp_path / "other"
    shutil.copytree(builders.ROOT / "fixtures/models/tiny/eagle3", other_draft)
    same = dataclasses.replace(options, **scripted_sides(tmp_path))
    overrides = [*same.b_overrides, f"draft={other_draft}"]
    other_options = dataclasses.replace(same, out=tmp_path / "other_gate", b_overrides=overrides)
    (pair,) = opened(other_options).goal.pairs
    assert (pair.a.request.prompts, pair.b.request.prompts) == (160, 160)
    named = dataclasses.replace(other_options, out=tmp_path / "named", prompts=30)
    assert opened(named).goal.pairs[0].a.request.prompts == 30
    assert opened(same).goal.pairs[0].a.request.prompts == 20


def test_cases_of_a_tier_that_do_not_fit_are_left_out_unless_named(
    options: GateOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tier gpu has two engines, and models for which this GPU is too small."""
    for module in ("specreg.compare.gate", "specreg.telemetry.identity"):
        monkeypatch.setattr(f"{module}.find_gpus", lambda: builders.gpus("L4", memory_gib=24))
    shown: list[str] = []
    sides = scripted_sides(tmp_path)
    request = dataclasses.replace(options, **sides, tier="gpu", case_ids=[], show=shown.append)
    servers = [pair.a.server for pair in opened(request).goal.pairs]
    assert {(server.engine, server.models) for server in servers} == {
        ("vllm", "tiny"),
        ("vllm", "wide-1b"),
        ("vllm", "qwen3-8b-awq"),
    }
    assert "left out: 'sglang-none-wide-1b-toy-c16': it is a case of engine 'sglang'" in shown
    too_big = "vllm-none-wide-8b-toy-c16"
    need = "1 GPU(s) of 39 GiB needed, this machine has 24 GiB"
    assert f"left out: '{too_big}': {need}" in shown
    named = dataclasses.replace(request, case_ids=[too_big])
    with pytest.raises(UnsupportedError, match=f"case '{too_big}': 1 .*choose other cases"):
        opened(named)


@pytest.fixture
def here(options: GateOptions, tmp_path: Path) -> GateOptions:
    """Sides that are there, and a tier of one case."""
    (tmp_path / "cpu.toml").write_text(
        'needs_gpus = 0\n[models.tiny]\ntarget = "fixtures/models/tiny/target"\n'
        '[[cases]]\nengine = "vllm"\nmethods = ["none"]\nmodels = "tiny"\ndataset = "toy"\n'
        "concurrency = [1]\nprompts = 5\noutput_cap_tokens = 32\n"
    )
    return dataclasses.replace(options, **scripted_sides(tmp_path), matrix=tmp_path, case_ids=[])


def measured(gate: Gate, side: Side, number: int, version: str = "0.32.0") -> None:
    """Writes what a launch measured of the first pair, as a gate does."""
    pair = gate.goal.pairs[0]
    measurement = launch(side, number, pair=pair, version=version).measurement
    gate.ledger.begin(gate.executor.key_of(pair, side, number))
    gate.ledger.end(measurement)
    gate.ledger.close()


def test_the_servers_of_each_side_come_from_its_own_environment(here: GateOptions) -> None:
    shown: list[str] = []
    gate = opened(dataclasses.replace(here, show=shown.append))
    [pair] = gate.goal.pairs
    for side in Side:
        launch_of_side = Launch(spec=pair.of(side).server, number=1, side=side)
        launcher = gate.executor.servers.handle(launch_of_side).launcher
        assert isinstance(launcher, ServerLauncher)
        launcher.provision.show(side)
    assert shown == ["side A: A", "side B: B", "side A: A1", "side A: A2"]


def test_a_pinned_case_is_compared_beside_the_real_one(here: GateOptions) -> None:
    pinning = dataclasses.replace(here, matrix=MATRIX, case_ids=[CASE], pin_length_tokens=2.5)
    real, pinned = opened(pinning).goal.pairs
    assert (real.id, pinned.id) == (CASE, CASE.replace("eagle3-tiny", "scheduled-tiny-al2.5"))


def test_fewer_launches_than_there_are_make_no_look_cheaper(here: GateOptions) -> None:
    gate = opened(here)
    assert gate.rules.launches == 16
    measured(gate, Side.A, 16)
    shown: list[str] = []
    fewer = opened(dataclasses.replace(here, resume=True, launches=4, show=shown.append))
    assert fewer.rules == gate.rules
    assert shown == [
        "--launches 4: launch 16 was begun before, so all are judged as with --launches 16"
    ]
    resumed = opened(dataclasses.replace(here, resume=True, launches=20))
    assert resumed.rules.launches == 20


def test_a_gate_of_an_earlier_version_is_not_measured_anew_beside_it(here: GateOptions) -> None:
    folder = here.folder_in("gates")
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").touch()
    for options in (here, dataclasses.replace(here, resume=True)):
        with pytest.raises(UnsupportedError, match=r"an earlier version .*; name another --out"):
            opened(options)


def test_what_another_gate_left_is_not_continued(here: GateOptions) -> None:
    measured(opened(here), Side.A, 1)
    with pytest.raises(SpecregError, match="holds a gate already; add --resume"):
        opened(here)
    with pytest.raises(UnsupportedError, match="is of another gate; name the same engines"):
        opened(dataclasses.replace(here, resume=True, prompts=4))
    with pytest.raises(UnsupportedError, match="is of another gate"):
        opened(dataclasses.replace(here, resume=True, least_s=1.0))


SEGMENT = Segment(number=1, at_s=1.0, lasted_s=1.0, requests=4)
OF_A_RUN = Failed(case_id=CASE, launch=1, text="it died")


@pytest.mark.parametrize(
    ("line", "owner"), [(SEGMENT, "a soak"), (OF_A_RUN, "a run")], ids=["soak", "run"]
)
def test_the_folder_of_a_soak_or_of_a_run_is_not_continued_as_a_gate(
    here: GateOptions, line: Segment | Failed, owner: str
) -> None:
    assert here.out is not None
    here.out.mkdir()
    path = here.out / "ledger.jsonl"
    path.write_bytes(msgspec.json.encode(line) + b"\n")
    with pytest.raises(UnsupportedError, match=f"ledger.jsonl': is of {owner}, needed that of"):
        opened(dataclasses.replace(here, resume=True))


def test_a_measurement_that_another_gate_had_only_begun_is_not_continued(here: GateOptions) -> None:
    gate = opened(here)
    key: Key = gate.executor.key_of(gate.goal.pairs[0], Side.A, 1)
    gate.ledger.begin(msgspec.structs.replace(key, engine="another engine"))
    with pytest.raises(UnsupportedError, match="is of another gate"):
        opened(dataclasses.replace(here, resume=True))


def planted_link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize(
    ("name", "plant", "problem"),
    [
        ("logs", planted_link, "'logs' is a symbolic link, needed"),
        ("ledger.lock", planted_link, "'ledger.lock' is a symbolic link"),
        ("report.json", os.mkfifo, "'report.json' is a FIFO"),
    ],
    ids=["logs", "lock", "fifo of the report"],
)
def test_a_resumed_gate_writes_and_reads_nothing_behind_a_link_or_a_fifo(
    here: GateOptions, name: str, plant: Callable[[Path], None], problem: str
) -> None:
    gate = opened(here)
    measured(gate, Side.A, 1)
    path = gate.folder / name
    path.unlink(missing_ok=True)
    plant(path)
    with pytest.raises(UnsupportedError, match=f"--resume: the gate in '.*': {problem}"):
        opened(dataclasses.replace(here, resume=True))
    assert not (gate.folder.parent / "elsewhere").exists()


def test_a_gate_whose_ledger_is_a_link_to_nowhere_is_not_started_anew(here: GateOptions) -> None:
    assert here.out is not None
    here.out.mkdir()
    planted_link(here.out / "ledger.jsonl")
    with pytest.raises(SpecregError, match="holds a gate already"):
        opened(here)
    with pytest.raises(UnsupportedError, match=r"ledger\.jsonl' is a symbolic link"):
        opened(dataclasses.replace(here, resume=True))


@pytest.mark.parametrize("number", [0, 1001, 10_000])
def test_launches_that_no_gate_makes_are_of_another_gate(here: GateOptions, number: int) -> None:
    """A resumed gate would otherwise plan as many launches as the ledger says."""
    measured(opened(here), Side.A, number)
    with pytest.raises(UnsupportedError, match="is of another gate"):
        opened(dataclasses.replace(here, resume=True))


def test_two_gates_at_once_dont_share_a_folder(here: GateOptions) -> None:
    assert here.out is not None
    here.out.mkdir()
    with (
        filelock.FileLock(here.out / "ledger.lock"),
        pytest.raises(SpecregError, match="gate': is still running; wait for its end"),
    ):
        opened(here)


def test_a_gate_goes_on_with_what_is_left(here: GateOptions) -> None:
    """What one side did alone was of another hour, and counts no more, then and later."""
    short = dataclasses.replace(here, least_s=0.1, launches=2, together=False)
    measured(opened(short), Side.A, 1, version="of another hour")
    gate = opened(dataclasses.replace(short, resume=True))
    gate.measure()
    gate.ledger.close()
    assert gate.is_finished
    again = opened(dataclasses.replace(short, resume=True))
    for each_gate in (gate, again):
        launched = [(launch.arm, launch.number) for launch in each_gate.ledger.launches]
        assert launched == [(Side.A, 1), (Side.B, 1), (Side.B, 2), (Side.A, 2)]
        assert each_gate.ledger.measured == each_gate.ledger.launches
        sides = record_gate(each_gate, command="").sides
        assert [side.engine_versions for side in sides] == [(f"vllm {scripted_version}",)] * 2


def test_sides_of_two_hours_are_no_pair_however_often_a_gate_was_cut_off(here: GateOptions) -> None:
    """B fails and A is measured; later B is measured again, and the gate is killed then."""
    in_turn = dataclasses.replace(here, launches=2, together=False)
    gate = opened(in_turn)
    gate.ledger.extend([failed(Side.B, 2, pair=gate.goal.pairs[0])])
    measured(gate, Side.A, 2)
    resumed = dataclasses.replace(in_turn, resume=True)
    measured(opened(resumed), Side.B, 2)

    taken_over = opened(resumed).ledger.launches

    assert [(launch.arm, launch.number) for launch in taken_over] == [(Side.B, 2)]


def test_a_repeated_launch_measures_only_what_is_missing(here: GateOptions) -> None:
    tier = here.matrix / "cpu.toml"
    tier.write_text(tier.read_text().replace("[1]", "[1, 2]"))
    short = dataclasses.replace(here, least_s=0.1, launches=1)
    for side in COMPARED:
        measured(opened(dataclasses.replace(short, resume=side.is_b)), side, 1)
    gate = opened(dataclasses.replace(short, resume=True))
    gate.measure()
    gate.ledger.close()
    places = [(launch.case_id, launch.arm) for launch in gate.ledger.launches]
    assert places == [(pair.id, side) for pair in gate.goal.pairs for side in COMPARED]


def slower(gate: Gate, step: GateStep, moved_frac: float = 0.0) -> Iterator[LedgerEntry]:
    """A launch on which B is slower, and A2 as the machine moved."""
    del gate
    both = CONTROL if Side.A1 in step.sides else COMPARED
    every = launches(-0.1 if both is COMPARED else moved_frac, sides=both, pair=step.pair)
    yield from (side_launch for side_launch in every if side_launch.number == step.number)


def test_each_pair_shows_how_far_it_is_once_both_sides_were_launched(here: GateOptions) -> None:
    tier = here.matrix / "cpu.toml"
    tier.write_text(tier.read_text().replace("[1]", "[1, 2]"))
    shown: list[str] = []
    options = dataclasses.replace(here, launches=1, together=False, show=shown.append)

    def first_of_all(gate: Gate, step: GateStep) -> Iterator[LedgerEntry]:
        del gate
        yield launch(step.sides[0], step.number, pair=step.pair)

    gate = scripted(opened(options), first_of_all)
    gate.measure()

    first, second = (pair.id for pair in gate.goal.pairs)
    assert [line.split(":")[0] for line in shown] == [f"launch 1, {first}", f"launch 1, {second}"]


def test_a_launch_that_fails_takes_its_time_too(here: GateOptions) -> None:
    """Side B takes 10 min to fail, and there are 15 min."""
    moments_s = itertools.count(step=600)

    def failing(gate: Gate, step: GateStep) -> Iterator[LedgerEntry]:
        del gate
        yield failed(Side.B, step.number, pair=step.pair)

    gate = scripted(opened(dataclasses.replace(here, minutes=15.0)), failing)
    gate.executor.clock_s = lambda: float(next(moments_s))
    gate.measure()

    assert [launch.number for launch in gate.ledger.launches] == [1]
    assert not gate.is_finished
    assert gate.rules == dataclasses.replace(gate.goal.rules, launches=1)


@pytest.mark.parametrize("has_time", [True, False], ids=["time", "no time"])
def test_after_a_loss_side_a_is_measured_against_itself_if_time_is_left(
    here: GateOptions, *, has_time: bool
) -> None:
    """A launch of A1 and A2 is enough for the loss to stand; without time there is one launch."""
    options = dataclasses.replace(here, launches=8, minutes=20.0 if has_time else 0.0)
    gate = scripted(opened(options), slower)
    answer = gate.measure().answer
    assert (answer, gate.is_finished) == (
        GateAnswer.DONT if has_time else GateAnswer.UNDECIDED,
        has_time,
    )
    launched = [(launch.number, launch.arm) for launch in gate.ledger.launches]
    every = [
        *((number, side) for number in range(1, 5) for side in COMPARED),
        *((1, side) for side in CONTROL),
    ]
    assert launched == (every if has_time else every[:2])


def accepting_less(gate: Gate, step: GateStep) -> Iterator[LedgerEntry]:
    """A launch on which B accepts fewer drafts."""
    del gate
    for side in step.sides:
        accepted_drafts = accepted(6, 2, 1, 1) if side.is_b else accepted()
        yield launch(side, step.number, pair=step.pair, acceptance=accepted_drafts)


def test_a_gate_whose_time_is_up_ends_with_the_status_of_its_verdicts(here: GateOptions) -> None:
    options = dataclasses.replace(here, matrix=MATRIX, case_ids=[CASE], minutes=0.0)
    gate = scripted(opened(options), accepting_less)
    gate = gate.until(lambda _: False, goes_on_until_done=True)
    reports: list[ComparedReport] = []
    decision = run_to_end(gate, command="", show=reports.append)
    [report] = reports
    assert decision.answer is GateAnswer.DONT
    assert (report.run.exit_status, report.run.complete) == (1, False)


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), 130), (SpecregError("it died"), 10)], ids=repr
)
def test_a_gate_that_is_cut_short_writes_its_report_all_the_same(
    here: GateOptions, error: BaseException, status: int
) -> None:
    def ending(gate: Gate, step: GateStep) -> Iterator[LedgerEntry]:
        del gate, step
        raise error
        yield

    gate = scripted(opened(here), ending)
    reports: list[ComparedReport] = []
    with pytest.raises(type(error)):
        run_to_end(gate, command="", show=reports.append)
    assert [report.run.exit_status for report in reports] == [status]


def test_why_a_control_failed_stays_on_the_page_once_it_was_measured(here: GateOptions) -> None:
    """The machine moved, so the second look launches the control again."""

    def failing_once(gate: Gate, step: GateStep) -> Iterator[LedgerEntry]:
        was_tried = any(launch.arm == Side.A2 for launch in gate.ledger.launches)
        if Side.A2 in step.sides and not was_tried:
            yield failed(Side.A2, step.number, pair=step.pair)
        else:
            yield from slower(gate, step, moved_frac=-0.1)

    options = dataclasses.replace(here, launches=8, minutes=20.0, together=True)
    gate = scripted(opened(options), failing_once)
    gate = gate.until(lambda *_: False, goes_on_until_done=True)
    gate.measure()
    first = [
        launch for launch in gate.ledger.launches if (launch.arm, launch.number) == (Side.A2, 1)
    ]
    assert [type(launch) for launch in first] == [FailedLaunch, MeasuredLaunch]
    remarks = record_gate(gate, command="").remarks
    assert f"side A2, launch 1, {gate.goal.pairs[0].id}: it died" in remarks


def test_the_document_says_on_which_side_answers_never_left_the_thought(here: GateOptions) -> None:
    gate = opened(here)
    (pair, *_) = gate.goal.pairs
    launch_of_b = launch(Side.B, 1, pair=pair)
    of_b = launch_of_b.measurement
    assert of_b.replay is not None
    (part,) = of_b.replay.rounds
    (trace,) = part.traces
    thinking = msgspec.structs.replace(trace, reply=Reply.UNFINISHED_THOUGHT)
    rounds = (dataclasses.replace(part, traces=(thinking,)),)
    replay = dataclasses.replace(of_b.replay, rounds=rounds)
    measurement = dataclasses.replace(of_b, replay=replay)
    gate.ledger.add(launch(Side.A, 1, pair=pair))
    gate.ledger.add(dataclasses.replace(launch_of_b, measurement=measurement))
    thoughts = [remark for remark in record_gate(gate, command="").remarks if "thought" in remark]
    (remark,) = thoughts
    assert remark.startswith(f"'{pair.b.id}', side B: 1 of 1 answers never left the thought")


def test_the_document_names_the_version_of_each_engine_of_a_side(here: GateOptions) -> None:
    gate = opened(here)
    [pair] = gate.goal.pairs
    server = dataclasses.replace(pair.a.server, engine="triton")
    other_pair = dataclasses.replace(
        pair,
        a=dataclasses.replace(pair.a, server=server),
        b=dataclasses.replace(pair.b, server=server),
    )
    goal = dataclasses.replace(gate.goal, groups=((pair,), (other_pair,)))
    gate = dataclasses.replace(gate, goal=goal)
    for side in COMPARED:
        gate.ledger.add(launch(side, 1, pair=pair, version="0.32.0"))
        gate.ledger.add(launch(side, 1, pair=other_pair, version="2.70.0"))
    report = record_gate(gate, command="")
    assert [side.engine_versions for side in report.sides] == [("triton 2.70.0", "vllm 0.32.0")] * 2
    versions = [case.expected.engine_version for case in report.cases if case.expected is not None]
    assert versions == ["0.32.0", "2.70.0"]


def test_a_gate_without_a_launch_needs_as_many_as_a_speed_does(here: GateOptions) -> None:
    hint, *_ = record_gate(opened(here), command="").hints
    assert hint.startswith("about 4 launches of each side would decide: type the same command;")


def test_a_lost_gate_says_how_many_launches_would_judge_its_speeds_too(here: GateOptions) -> None:
    options = dataclasses.replace(here, matrix=MATRIX, case_ids=[CASE], launches=1)
    reports: list[ComparedReport] = []
    gate = scripted(opened(options), accepting_less)
    decision = run_to_end(gate, command="", resume_options="--resume", show=reports.append)
    assert decision.answer is GateAnswer.DONT
    (hint,) = reports[0].hints
    assert "type the same command with --resume --launches 4" in hint


def test_no_hint_asks_for_more_launches_than_anybody_waits_for(here: GateOptions) -> None:
    gate = opened(here)
    [pair] = gate.goal.pairs
    for side_launch in launches(0.0, noise=12, count=4, pair=pair):
        gate.ledger.add(side_launch)
    report = record_gate(gate, command="", resume_options="--resume")
    speed = next(v for v in report.run.verdicts if v.metric == "throughput_tokens_per_s")
    assert (speed.needed_launches or 0) > MOST_WORTH_ASKING
    hint = next(hint for hint in report.hints if hint.startswith("throughput "))
    assert "--launches" not in " ".join(report.hints)
    # The tolerance that is named instead is one that these launches decide.
    low_frac = speed.comparison.low_frac
    assert low_frac is not None
    match = re.search(r"--resume --tolerance throughput_tokens_per_s=(\S+)", hint)
    assert match is not None
    assert -low_frac < float(match[1]) < -low_frac + 0.03


def test_no_hint_names_a_tolerance_of_a_loss_that_nobody_overlooks(here: GateOptions) -> None:
    gate = opened(here)
    [pair] = gate.goal.pairs
    for side_launch in launches(0.0, noise=80, count=4, pair=pair):
        gate.ledger.add(side_launch)
    hints = " ".join(record_gate(gate, command="", resume_options="--resume").hints)
    assert "quieter machine" in hints
    assert "--launches" not in hints
    assert "--tolerance" not in hints


def test_a_side_that_never_ran_is_not_called_measured(here: GateOptions) -> None:
    gate = opened(here)
    [pair] = gate.goal.pairs
    gate.ledger.add(failed(Side.A, 1, pair=pair))
    gate.ledger.add(launch(Side.B, 1, pair=pair))
    [case] = record_gate(gate, command="").cases
    assert case.expected is None


@pytest.mark.parametrize("version", ["0.32.0", "0.31.0"])
def test_the_document_names_packages_that_differ_between_equal_versions(
    here: GateOptions, version: str
) -> None:
    gate = opened(here)
    (pair, *_) = gate.goal.pairs
    packages = {Side.A: ("numpy==2.4.5", "six==1.17.0"), Side.B: ("numpy==2.4.6", "six==1.17.0")}
    for side in COMPARED:
        launched = launch(side, 1, pair=pair, version=version if side.is_b else "0.32.0")
        measured = dataclasses.replace(launched.measurement, packages=packages[side])
        gate.ledger.add(dataclasses.replace(launched, measurement=measured))
    named = [remark for remark in record_gate(gate, command="").remarks if "numpy" in remark]
    engine = pair.b.server.engine
    expected = (
        f"both sides are {engine} 0.32.0, but other packages differ; from A to B: numpy 2.4.5 ->"
        " 2.4.6"
    )
    assert named == ([expected] if version == "0.32.0" else [])


def test_the_document_says_what_was_measured_and_how(here: GateOptions) -> None:
    shown: list[str] = []
    gate = opened(dataclasses.replace(here, tolerances=["step_p50_ms=0.1"], show=shown.append))
    [pair] = gate.goal.pairs
    gate.ledger.add(failed(Side.A2, 1, pair=pair))
    for side in COMPARED:
        gate.ledger.add(launch(side, 1, pair=pair))
    command = "specreg gate vllm vllm"
    resume_options = "--resume --out here"
    report = record_gate(gate, command=command, resume_options=resume_options, status=130)
    (answer,) = report.answers
    run = report.run
    assert (answer.subject, run.exit_status, run.complete) == ("UNDECIDED", 130, False)
    assert f"side A2, launch 1, {pair.id}: it died" in report.remarks
    needed = (
        f"about 4 launches of each side would decide: type the same command with {resume_options};"
    )
    assert report.hints[0].startswith(needed)
    one_launch = dataclasses.replace(gate.options, launches=1)
    bisecting = dataclasses.replace(gate, options=one_launch)
    assert "the same command with --launches 4;" in record_gate(bisecting, command="").hints[0]
    [case] = report.cases
    assert case.expected is not None
    assert case.expected.values["throughput_tokens_per_s"] == pytest.approx(100.0)
    assert case.figures is not None
    for name in ("report.json", "report.html"):
        assert (gate.folder / name).stat().st_size
    page = gate.folder / "report.md"
    assert page.read_text().startswith("## ? Can")
    page.unlink()
    page.mkdir()
    assert record_gate(gate, command="").run.exit_status == 10  # the answer stays
    assert "report.md': not written, Is a directory" in shown[-1]
    text = render_report(report)
    assert text.startswith("? Can't tell yet whether to ")
