"""Whether the machine or the engine became slower, as a gate of both versions tells."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from specreg.core.errors import EnvironmentSetupError
from specreg.core.reasons import Reason
from specreg.core.timeline import Phase
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.runs.goals import EngineChange, EngineCheck
from specreg.runs.ledger import Checked, Recorded
from specreg.runs.verdicts import Asked, LedgerJudge
from specreg.suite.context import RunContext
from specreg.suite.engine_check import possible_checks
from specreg.suite.ledger_key import ledger_key
from specreg.suite.night import night_goal
from specreg.suite.run import Run
from specreg.verdicts.history import RunRecord, record_history, settings_sha256
from specreg.verdicts.verdict import Comparison, Outcome, Verdict
from tests.unit import builders
from tests.unit.builders import runs
from tests.unit.builders.runs import LENGTH, SPEED

LATENCY = "ttft_p50_ms"
TPOT = "tpot_p50_ms"
"""A metric that throughput decides."""
MOVED = Reason(code="MACHINE_MOVED", text="all 8 cases together changed by -25.0% tonight")


def launch(engine_version: str, case: Case = builders.CASE) -> Measurement:
    """A launch of a case with a version of the engine."""
    measured = builders.measurement({LENGTH.name: 2.5, SPEED.name: 75.0}, of=runs.COUNTS, case=case)
    return dataclasses.replace(measured, engine_version=engine_version)


def doubtful(
    metric: str = SPEED.name,
    *,
    outcome: Outcome = Outcome.INVALID,
    reason: Reason | None = MOVED,
    common_frac: float | None = -0.25,
    case: Case = builders.CASE,
) -> Verdict:
    """A verdict on a loss of all cases."""
    return Verdict(
        case_id=case.id,
        metric=metric,
        outcome=outcome,
        comparison=Comparison(tolerance_frac=0.1, change_frac=0.0, common_frac=common_frac),
        reason=reason,
    )


def moved_run(context: RunContext, *verdicts: Verdict, engine_version: str = "0.33.0") -> Run:
    """A run of a case whose baseline is of vLLM 0.32.0, and whose machine may have moved."""
    runs.record(context)
    run = runs.measured_run(context, launch(engine_version))
    return judged(run, *verdicts)


@dataclasses.dataclass(slots=True, kw_only=True)
class ToldJudge(LedgerJudge):
    """A judge that is told its verdicts."""

    told: tuple[Verdict, ...]

    def verdicts(self, *, is_over: bool, case_id: str = "") -> Mapping[Asked, Verdict]:
        del is_over
        return {
            Asked(verdict.case_id, verdict.metric, 1): verdict
            for verdict in self.told
            if case_id in {"", verdict.case_id}
        }


def judged(run: Run, *verdicts: Verdict) -> Run:
    """The run, whose judge comes to these verdicts."""
    fields = [field.name for field in dataclasses.fields(LedgerJudge) if field.init]
    known = {name: getattr(run.judge, name) for name in fields}
    run.judge = ToldJudge(**known, told=verdicts)
    run.night = night_goal(run.context, run.selection, run.judge)
    return run


def two_cases(context: RunContext, second: Case, *verdicts: Verdict) -> Run:
    """A run of two cases, whose baselines are of vLLM 0.32.0 unless there are others."""
    runs.record(context)
    path = context.store.path(second.id)
    if not path.exists():
        recorded = builders.baseline({SPEED.name: 100.0}, settings=context.settings(second))
        builders.record(context.store.folder, recorded, second.id)
    chosen = runs.everything(context)
    launches = [launch("0.33.0"), launch("0.33.0", second)]
    known = [runs.resumed_from(context, chosen, measured).measured for measured in launches]
    run = runs.run(context, chosen, resumed=Recorded(measured={**known[0], **known[1]}))
    return judged(run, *verdicts)


def checks_of(run: Run) -> list[EngineCheck]:
    """The comparisons that can tell the engine from the machine after a run."""
    return possible_checks(run.context, run.judge)


def check_engine(run: Run, gate: "Gate") -> list[str]:
    """Take the last step of a run, a gate of both versions; the lines for the summary."""
    assert run.executor is not None
    run.executor.compare = gate
    run.finish()
    return list(run.lines)


def find_slower(run: Run, check: EngineCheck) -> None:
    """Let the ledger have that the present version is slower."""
    slower = Verdict(
        case_id=check.case.id,
        metric=SPEED.name,
        outcome=Outcome.REGRESSED,
        comparison=Comparison(change_frac=-0.24, tolerance_frac=0.1),
    )
    key = ledger_key(check.case, 1, run.selection, run.context)
    run.ledger.add(Checked.of(key, check.name_of(SPEED.name), slower))


class Gate:
    """Measures nothing, and says what a test says about it."""

    def __init__(
        self,
        *outcomes: tuple[str, Outcome],
        change_frac: float = -0.24,
        error: BaseException | None = None,
    ) -> None:
        self.outcomes = outcomes
        self.change_frac = change_frac
        self.error = error
        self.checks: list[EngineCheck] = []

    def __call__(self, check: EngineCheck) -> Sequence[Verdict]:
        self.checks.append(check)
        if self.error is not None:
            raise self.error
        return [
            Verdict(
                case_id=check.case.id,
                metric=metric,
                outcome=outcome,
                comparison=Comparison(change_frac=self.change_frac, tolerance_frac=0.1),
            )
            for metric, outcome in self.outcomes
        ]


@pytest.mark.parametrize("before", [Outcome.INVALID, Outcome.REGRESSED])
@pytest.mark.parametrize(
    ("measured", "change_frac", "after", "code", "words"),
    [
        pytest.param(
            Outcome.REGRESSED,
            -0.24,
            Outcome.REGRESSED,
            "ENGINE_SLOWER",
            "it is the engine, not the machine: ",
            id="the engine",
        ),
        pytest.param(
            Outcome.REGRESSED,
            -0.11,
            Outcome.REGRESSED,
            "ENGINE_SLOWER",
            "the engine is slower, and so is the machine: ",
            id="both",
        ),
        pytest.param(
            Outcome.PASS,
            -0.01,
            Outcome.INVALID,
            "MACHINE_MOVED",
            "the engine lost no more than 10 %, so it is the machine: ",
            id="the machine",
        ),
        pytest.param(
            Outcome.INCONCLUSIVE,
            -0.09,
            None,
            "MACHINE_MOVED",
            "measuring both versions side by side decided nothing: ",
            id="undecided",
        ),
    ],
)
def test_both_versions_in_the_same_hour_tell_the_engine_from_the_machine(
    tmp_path: Path,
    before: Outcome,
    measured: Outcome,
    change_frac: float,
    after: Outcome | None,
    code: str,
    words: str,
) -> None:
    run = moved_run(runs.context(tmp_path), doubtful(outcome=before))

    (line,) = check_engine(run, Gate((SPEED.name, measured), change_frac=change_frac))

    (verdict,) = run.verdicts
    assert verdict.outcome is (after or before)
    assert verdict.has_code(code)
    measured_words = (
        f"{words}vllm 0.32.0 -> 0.33.0 on {builders.CASE.id} in the same hour: throughput"
        f" {change_frac:+.1%}; tonight all that ran changed by -25.0%"
    )
    assert measured_words in verdict.explanation
    assert line.startswith(f"vllm 0.32.0 -> 0.33.0 on {builders.CASE.id}, side by side: ")


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        pytest.param(Outcome.REGRESSED, Outcome.REGRESSED, id="the engine"),
        pytest.param(Outcome.PASS, Outcome.PASS, id="the machine"),
    ],
)
def test_a_common_loss_that_one_night_does_not_prove_is_doubted_too(
    tmp_path: Path, measured: Outcome, outcome: Outcome
) -> None:
    """The loss of all cases was left out, so that the case itself looked fine."""
    left_out = doubtful(outcome=Outcome.PASS, reason=Reason(text="-25.0% alike, left out"))
    run = moved_run(runs.context(tmp_path), left_out)

    check_engine(run, Gate((SPEED.name, measured)))

    (verdict,) = run.verdicts
    assert verdict.outcome is outcome
    assert "in the same hour: throughput -24.0%" in verdict.explanation


def test_a_time_that_grew_is_shown_as_a_time_that_grew(tmp_path: Path) -> None:
    run = moved_run(runs.context(tmp_path), doubtful(LATENCY))

    check_engine(run, Gate((LATENCY, Outcome.REGRESSED)))

    (verdict,) = run.verdicts
    assert "ttft p50 +24.0%; tonight all that ran changed by +25.0%" in verdict.explanation


def test_a_metric_is_told_by_the_one_that_decides_it_and_others_stay_as_they_are(
    tmp_path: Path,
) -> None:
    lost = Reason(text="lost by itself")
    run = moved_run(
        runs.context(tmp_path),
        doubtful(SPEED.name),
        doubtful(TPOT),
        doubtful(LATENCY),
        doubtful("speedup_ratio", outcome=Outcome.REGRESSED, reason=lost),
    )
    gate = Gate((SPEED.name, Outcome.REGRESSED), (LATENCY, Outcome.PASS))

    check_engine(run, gate)

    (check,) = gate.checks
    assert check.tolerances == {SPEED.name: 0.1, LATENCY: 0.1}
    codes = {verdict.metric: verdict.reason and verdict.reason.code for verdict in run.verdicts}
    assert codes == {
        SPEED.name: "ENGINE_SLOWER",
        TPOT: "ENGINE_SLOWER",
        LATENCY: "MACHINE_MOVED",
        "speedup_ratio": "",
    }


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (EnvironmentSetupError("no network"), "couldn't be measured side by side: "),
        (OSError(28, "No space left on device"), "couldn't be measured side by side: "),
        (ValueError("a fault of ours"), "couldn't be measured side by side: a fault of ours"),
        (KeyboardInterrupt(), "interrupted, so the verdicts are those of the run alone"),
    ],
    ids=["failed", "disk", "fault", "interrupted"],
)
def test_a_comparison_that_ends_early_leaves_the_verdicts_and_says_so(
    tmp_path: Path, error: BaseException, words: str
) -> None:
    run = moved_run(runs.context(tmp_path), doubtful())

    (line,) = check_engine(run, Gate(error=error))

    assert run.verdicts == (doubtful(),)
    assert words in line


def test_what_nobody_doubts_or_nothing_could_tell_is_not_measured(tmp_path: Path) -> None:
    def check(
        folder: str, *verdicts: Verdict, version: str = "0.33.0", **options: object
    ) -> EngineCheck | None:
        context = runs.context(tmp_path / folder, **options)  # type: ignore[arg-type]
        run = moved_run(context, *verdicts, engine_version=version)
        return next(iter(checks_of(run)), None)

    left_out = doubtful(outcome=Outcome.PASS, reason=None)
    lost_alone = doubtful(outcome=Outcome.REGRESSED, reason=None)
    of_tokens = doubtful("acceptance_length_tokens", reason=None, common_frac=None)
    assert check("doubted", doubtful()) is not None
    assert check("left out", left_out) is not None
    assert check("a build for CPUs", doubtful(), version="0.33.0+cpu") is not None
    assert check("nothing lost") is None
    assert check("lost alone", lost_alone) is None
    assert check("acceptance", of_tokens) is None
    assert check("the same version", doubtful(), version="0.32.0+cpu") is None
    assert check("a version of no index", doubtful(), version="0.33.1.dev12+g1a2b3c") is None
    assert check("unknown version", doubtful(), version="") is None
    assert check("own engine", doubtful(), engine_python="/opt/vllm/bin/python") is None
    assert check("shard", doubtful(), shard="1/2") is None
    assert check("no history", doubtful(), history="none") is None


@pytest.mark.parametrize(
    ("outcome", "is_comparable", "before"),
    [
        ("PASS", True, "0.32.1"),
        ("INCONCLUSIVE", True, "0.32.0"),
        ("REGRESSED", True, "0.32.0"),
        ("INVALID", True, "0.32.0"),
        ("PASS", False, "0.32.0"),
    ],
)
def test_the_version_of_the_last_good_night_is_measured(
    tmp_path: Path, *, outcome: str, is_comparable: bool, before: str
) -> None:
    """A gain of that version may be what is lost tonight."""
    context = runs.context(tmp_path)
    checksum = "of other settings"
    if is_comparable:
        checksum = settings_sha256(context.settings(builders.CASE))
    record = RunRecord(
        run="20261122T020000-1",
        case_id=builders.CASE.id,
        settings_sha256=checksum,
        engine_version="0.32.1",
        draft_sha256="",
        values={SPEED.name: 100.0},
        outcomes={SPEED.name: outcome},
    )
    record_history(context.history_path, [record])

    (check,) = checks_of(moved_run(context, doubtful()))

    assert check.change.sides == (f"vllm=={before}", "vllm==0.33.0")


def test_the_case_that_tells_most_is_measured(tmp_path: Path) -> None:
    second = builders.with_concurrency(4)
    verdicts = (doubtful(LATENCY), doubtful(LATENCY, case=second), doubtful(TPOT, case=second))
    run = two_cases(runs.context(tmp_path, cases=(builders.CASE, second)), second, *verdicts)

    check, _ = checks_of(run)

    assert check.case == second
    # The throughput decides about TPOT, so it is what a gate compares.
    assert check.tolerances.keys() == {LATENCY, SPEED.name}


def test_what_would_take_too_long_is_left_to_the_user(tmp_path: Path) -> None:
    run = moved_run(runs.context(tmp_path), doubtful())
    launch_id = runs.LAUNCH.id
    times_ns = iter([0])
    run.judge.timeline.clock = lambda: next(times_ns, 300 * 10**9)
    with run.judge.timeline.during(Phase.STARTING, launch_id):
        """The launch takes five minutes."""

    (line,) = check_engine(run, Gate(error=AssertionError()))

    assert "so it isn't done at the end of a run; type specreg gate" in line
    assert "vllm==0.32.0 vllm==0.33.0" in line
    assert run.verdicts == (doubtful(),)


def test_a_case_that_was_recorded_with_a_third_version_is_not_told(tmp_path: Path) -> None:
    third = builders.with_concurrency(4)
    context = runs.context(tmp_path, cases=(builders.CASE, third))
    recorded = builders.baseline({SPEED.name: 100.0}, settings=context.settings(third))
    provenance = msgspec.structs.replace(recorded.provenance, engine_version="0.31.0")
    of_third_version = msgspec.structs.replace(recorded, provenance=provenance)
    builders.record(context.store.folder, of_third_version, third.id)
    run = two_cases(context, third, doubtful(), doubtful(case=third))

    check_engine(run, Gate((SPEED.name, Outcome.REGRESSED)))

    assert [verdict.outcome for verdict in run.verdicts] == [Outcome.REGRESSED, Outcome.INVALID]


@pytest.mark.parametrize(
    ("before", "code"),
    [
        pytest.param("0.32.0", "ENGINE_SLOWER", id="the same versions"),
        pytest.param("0.31.0", "MACHINE_MOVED", id="another version"),
        pytest.param("", "MACHINE_MOVED", id="no gate"),
    ],
)
def test_the_ledger_has_what_a_gate_of_two_versions_found(
    tmp_path: Path, before: str, code: str
) -> None:
    run = moved_run(runs.context(tmp_path), doubtful())
    if before:
        change = EngineChange(engine="vllm", before=before, tonight="0.33.0")
        check = EngineCheck(case=builders.CASE, change=change, tolerances={SPEED.name: 0.1})
        find_slower(run, check)

    run.end()

    (verdict,) = run.verdicts
    assert verdict.has_code(code)


def test_a_resumed_run_takes_over_what_its_gate_found(tmp_path: Path) -> None:
    """Nothing is measured a second time."""
    run = moved_run(runs.context(tmp_path), doubtful())
    check_engine(run, Gate((SPEED.name, Outcome.REGRESSED)))

    again = moved_run(run.context, doubtful())
    again.ledger.read([run.ledger.path])
    again.ledger.take_over()
    gate = Gate((SPEED.name, Outcome.PASS))
    (line,) = check_engine(again, gate)

    assert gate.checks == []
    assert "side by side: " in line
    assert again.verdicts == run.verdicts


def test_a_gate_of_another_case_than_the_best_one_is_not_repeated(tmp_path: Path) -> None:
    """How long launches took isn't known of those that were taken over, so the order changes."""
    second = builders.with_concurrency(4)
    context = runs.context(tmp_path, cases=(builders.CASE, second))
    run = two_cases(context, second, doubtful(), doubtful(case=second))
    best, other = checks_of(run)
    find_slower(run, other)
    gate = Gate((SPEED.name, Outcome.PASS))

    (line,) = check_engine(run, gate)

    assert gate.checks == []
    assert line.startswith(f"{other}, side by side: ")
    assert best.case.id not in line
    assert all(verdict.has_code("ENGINE_SLOWER") for verdict in run.verdicts)


def test_a_gate_that_was_cut_off_while_it_was_written_down_is_taken_up_again(
    tmp_path: Path,
) -> None:
    run = moved_run(runs.context(tmp_path), doubtful(), doubtful(LATENCY))
    check, *_ = checks_of(run)
    find_slower(run, check)
    gate = Gate((SPEED.name, Outcome.REGRESSED), (LATENCY, Outcome.REGRESSED))

    check_engine(run, gate)

    assert len(gate.checks) == 1
    assert all(verdict.has_code("ENGINE_SLOWER") for verdict in run.verdicts)


def test_a_case_whose_baseline_cannot_be_read_loses_no_verdict(tmp_path: Path) -> None:
    run = moved_run(runs.context(tmp_path), doubtful())
    run.context.store.path(builders.CASE.id).write_text("{")

    assert check_engine(run, Gate(error=AssertionError())) == []

    assert run.verdicts == (doubtful(),)
