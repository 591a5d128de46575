"""Whether the machine or the engine became slower, as a gate of both versions tells."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from specreg.core.errors import EnvironmentSetupError
from specreg.core.reasons import Reason
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.suite.case_runner import CaseRunner
from specreg.suite.context import RunContext
from specreg.suite.engine_check import ENGINE_SLOWER, EngineCheck, check_engine, planned_check
from specreg.suite.options import Options
from specreg.suite.result import Run
from specreg.suite.resumed import Resumed
from specreg.verdicts.by_nights import MACHINE_MOVED
from specreg.verdicts.verdict import Comparison, Outcome, Verdict
from tests.unit import builders
from tests.unit.builders import runs
from tests.unit.builders.runs import LENGTH, SPEED

LATENCY = "ttft_p50_ms"
TPOT = "tpot_p50_ms"
"""A metric that throughput decides."""
USUAL = Options()
MOVED = Reason(code=MACHINE_MOVED, text="all 8 cases changed by -25.0% alike tonight")


def launch(engine_version: str, case: Case = builders.CASE) -> Measurement:
    """A launch of a case with a version of the engine."""
    measured = builders.measurement({LENGTH.name: 2.5, SPEED.name: 75.0}, of=runs.COUNTS, case=case)
    return dataclasses.replace(measured, engine_version=engine_version)


def doubtful(
    metric: str = SPEED.name,
    *,
    outcome: Outcome = Outcome.INVALID,
    reason: Reason | None = MOVED,
    case: Case = builders.CASE,
) -> Verdict:
    """A verdict on a loss of all cases."""
    return Verdict(
        case_id=case.id,
        metric=metric,
        outcome=outcome,
        comparison=Comparison(tolerance_frac=0.1, change_frac=-0.25),
        reason=reason,
    )


def moved_run(
    context: RunContext, *verdicts: Verdict, engine_version: str = "0.33.0"
) -> Run[CaseRunner]:
    """A run of a case whose baseline is of vLLM 0.32.0, and whose machine may have moved."""
    runs.record(context)
    run = runs.measured_run(context, launch(engine_version))
    for verdict in verdicts:
        run.judge.confirmation.add(verdict)
    return run


class Gate:
    """Measures nothing, and says what a test says about it."""

    def __init__(self, *outcomes: tuple[str, Outcome], error: BaseException | None = None) -> None:
        self.outcomes = outcomes
        self.error = error
        self.checks: list[EngineCheck] = []

    def __call__(self, check: EngineCheck, _: RunContext) -> Sequence[Verdict]:
        self.checks.append(check)
        if self.error is not None:
            raise self.error
        return [
            Verdict(
                case_id=check.case.id,
                metric=metric,
                outcome=outcome,
                comparison=Comparison(change_frac=-0.24),
            )
            for metric, outcome in self.outcomes
        ]


@pytest.mark.parametrize("before", [Outcome.INVALID, Outcome.REGRESSED])
@pytest.mark.parametrize(
    ("measured", "after", "code", "words"),
    [
        pytest.param(
            Outcome.REGRESSED,
            Outcome.REGRESSED,
            ENGINE_SLOWER,
            "it is the engine, not the machine: vllm 0.32.0 -> 0.33.0 on",
            id="the engine",
        ),
        pytest.param(
            Outcome.PASS,
            Outcome.INVALID,
            MACHINE_MOVED,
            "it is the machine, not the engine: vllm 0.32.0 -> 0.33.0 on",
            id="the machine",
        ),
        pytest.param(
            Outcome.INCONCLUSIVE,
            None,
            MACHINE_MOVED,
            "side by side it couldn't be told yet: vllm 0.32.0 -> 0.33.0 on",
            id="undecided",
        ),
    ],
)
def test_both_versions_in_the_same_hour_tell_the_engine_from_the_machine(
    tmp_path: Path, before: Outcome, measured: Outcome, after: Outcome | None, code: str, words: str
) -> None:
    run = moved_run(runs.context(tmp_path), doubtful(outcome=before))

    (line,) = check_engine(run, Gate((SPEED.name, measured)))

    (verdict,) = run.judge.verdicts
    assert verdict.outcome is (after or before)
    assert verdict.has_code(code)
    assert words in verdict.explanation
    assert "in the same hour: throughput -24.0%" in verdict.explanation
    assert "all 8 cases changed by -25.0% alike tonight" in verdict.explanation
    assert line.startswith(f"vllm 0.32.0 -> 0.33.0 on {builders.CASE.id}, side by side: ")


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

    list(check_engine(run, gate))

    (check,) = gate.checks
    assert check.tolerances == {SPEED.name: 0.1, LATENCY: 0.1}
    codes = {
        verdict.metric: verdict.reason and verdict.reason.code for verdict in run.judge.verdicts
    }
    assert codes == {
        SPEED.name: ENGINE_SLOWER,
        TPOT: ENGINE_SLOWER,
        LATENCY: MACHINE_MOVED,
        "speedup_ratio": "",
    }


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (EnvironmentSetupError("no network"), "couldn't be measured side by side: "),
        (KeyboardInterrupt(), "interrupted, so the verdicts are those of the run alone"),
    ],
    ids=["failed", "interrupted"],
)
def test_a_comparison_that_ends_early_leaves_the_verdicts_and_says_so(
    tmp_path: Path, error: BaseException, words: str
) -> None:
    run = moved_run(runs.context(tmp_path), doubtful())

    (line,) = check_engine(run, Gate(error=error))

    assert run.judge.verdicts == (doubtful(),)
    assert words in line


def test_what_nobody_doubts_or_nothing_could_tell_is_not_measured(tmp_path: Path) -> None:
    def planned(
        folder: str, *verdicts: Verdict, version: str = "0.33.0", options: Options = USUAL
    ) -> EngineCheck | None:
        context = runs.context(
            tmp_path / folder, engine_python=options.engine_python, shard=options.shard
        )
        return planned_check(moved_run(context, *verdicts, engine_version=version).result())

    assert planned("doubted", doubtful()) is not None
    assert planned("a part of the version", doubtful(), version="0.33.0+cpu") is not None
    assert planned("nothing lost") is None
    assert planned("lost alone", doubtful(reason=None, outcome=Outcome.REGRESSED)) is None
    assert planned("the same version", doubtful(), version="0.32.0+cpu") is None
    assert planned("unknown version", doubtful(), version="") is None
    assert (
        planned("own engine", doubtful(), options=Options(engine_python="/opt/vllm/bin/python"))
        is None
    )
    assert planned("shard", doubtful(), options=Options(shard="1/2")) is None


def test_a_case_that_was_recorded_with_a_third_version_is_not_told(tmp_path: Path) -> None:
    third = builders.with_concurrency(4)
    context = runs.context(tmp_path, cases=(builders.CASE, third))
    runs.record(context)
    recorded = builders.baseline({SPEED.name: 100.0}, settings=context.settings(third))
    provenance = msgspec.structs.replace(recorded.provenance, engine_version="0.31.0")
    of_third_version = msgspec.structs.replace(recorded, provenance=provenance)
    builders.record(context.store.folder, of_third_version, third.id)
    chosen = runs.everything(context)
    launches = [launch("0.33.0"), launch("0.33.0", third)]
    known = [runs.resumed_from(context, chosen, measured).measurements for measured in launches]
    run = runs.run(context, chosen, resumed=Resumed(measurements={**known[0], **known[1]}))
    for case in (builders.CASE, third):
        run.cases.measure(case, runs.servers(1, case))
        run.judge.confirmation.add(doubtful(case=case))

    list(check_engine(run, Gate((SPEED.name, Outcome.REGRESSED))))

    assert [verdict.outcome for verdict in run.judge.verdicts] == [
        Outcome.REGRESSED,
        Outcome.INVALID,
    ]
