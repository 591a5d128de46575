"""A report with plausible contents; a test replaces the fields that it is about."""

import dataclasses

import msgspec

from specreg.core.reasons import Reason
from specreg.load.rounds import Round
from specreg.measurement.figures import figures_of
from specreg.measurement.measure import Measurement, values_of
from specreg.measurement.metrics import Replay
from specreg.report.document import (
    CaseReport,
    ComparedReport,
    Expected,
    Headline,
    RunOrigin,
    RunReport,
    RunVerdict,
    SideReport,
    Tone,
)
from specreg.verdicts.history import RunRecord
from specreg.verdicts.status import count_outcomes, exit_status
from specreg.verdicts.verdict import Cause, Comparison, Outcome, Verdict
from tests.unit import builders

MS = 10**6
CASE = dataclasses.replace(builders.CASE, control=builders.PLAIN_SPEC)
CATEGORIES = ("chat", "math")


def a_round(*tpots_ms: int, categories: tuple[str, ...] = CATEGORIES) -> Round:
    """A request of each category, of five tokens, with such a time per token."""
    traces = []
    for category, tpot_ms in zip(categories, tpots_ms, strict=True):
        of = builders.trace(builders.chunk(MS), builders.chunk(MS + 4 * tpot_ms * MS, 4))
        named = {"category": category, "prompt_id": f"{category}-0"}
        traces.append(msgspec.structs.replace(of, **named))
    return Round(traces=tuple(traces), started_ns=0, ended_ns=10**9)


def measured(
    own_round: Round | None = None, control: Round | None = None, case_number: int = 0
) -> Measurement:
    """Of a case: chat with AL 2.5 and maths with AL 4; 10 ms and 30 ms per token alone."""
    chat = builders.prompt_acceptance(builders.counts(8, 0, 6, 6))
    maths = builders.prompt_acceptance(builders.counts(0, 0, 0, 2), prompt_id="math-0")
    prompts = (chat, dataclasses.replace(maths, category="math"))
    replay = Replay(
        rounds=(own_round or a_round(5, 10),),
        control_rounds=(control or a_round(10, 30),),
        acceptance=builders.acceptance_of(prompts),
    )
    case = builders.with_concurrency(1, CASE) if case_number else CASE
    measurement = builders.measurement(values_of(case, replay), case=case)
    return dataclasses.replace(measurement, replay=replay)


_COMPARISON_FIELDS = frozenset(field.name for field in dataclasses.fields(Comparison))


def verdict(outcome: Outcome, **fields: object) -> Verdict:
    """A verdict on a metric of a case, with other fields of it or of its comparison."""
    return with_fields(Verdict(case_id="case", metric="m", outcome=outcome), **fields)


def with_fields(verdict: Verdict, **fields: object) -> Verdict:
    """The verdict with other fields of its own or of its comparison; a reason may be its text."""
    compared = {name: fields.pop(name) for name in _COMPARISON_FIELDS & fields.keys()}
    comparison = dataclasses.replace(verdict.comparison, **compared)  # type: ignore[arg-type]
    reason = fields.get("reason")
    if isinstance(reason, str):
        fields["reason"] = Reason(text=reason)
    return dataclasses.replace(verdict, comparison=comparison, **fields)  # type: ignore[arg-type]


HELD = Verdict(
    case_id=CASE.id,
    metric="acceptance_length_tokens",
    outcome=Outcome.PASS,
    value=2.64,
    comparison=Comparison(
        expected=2.65,
        change_frac=-0.006,
        low_frac=-0.01,
        high_frac=0.01,
        tolerance_frac=0.05,
        mde_frac=0.02,
    ),
)
LOST = Verdict(
    case_id=CASE.id,
    metric="throughput_tokens_per_s",
    outcome=Outcome.REGRESSED,
    reason=Reason(text="it became slower"),
    cause=Cause(parts=(("acceptance", -0.08), ("the cost of a step", -0.02))),
    value=90.0,
    comparison=Comparison(
        expected=100.0, change_frac=-0.1, low_frac=-0.12, high_frac=-0.08, tolerance_frac=0.05
    ),
)
EXPECTED = Expected(
    environment=builders.ENVIRONMENT.name,
    recorded_on="2026-11-21",
    engine_version="0.31.0",
    reason="first run",
    values={"acceptance_length_tokens": 2.65, "throughput_tokens_per_s": 100.0},
    marginal_frac=(0.64, 0.6, 0.32),
)


def past_run(number: int, **values: float) -> RunRecord:
    return RunRecord(
        run=f"202611{number:02d}T020000-1",
        case_id=CASE.id,
        settings_sha256="ab",
        engine_version="0.32.0",
        draft_sha256="",
        values=values,
        outcomes=dict.fromkeys(values, "PASS"),
    )


FIGURES = figures_of(measured(), 1)
CASE_REPORT = CaseReport(
    case_id=CASE.id,
    engine="vllm",
    method="draft_model",
    models="toy",
    dataset="toy",
    target="some/target",
    draft="some/draft",
    settings=builders.SETTINGS,
    figures=FIGURES,
    expected=EXPECTED,
    history=tuple(
        past_run(day, acceptance_length_tokens=2.6, throughput_tokens_per_s=100.0 + day)
        for day in range(1, 13)
    ),
    reproduce=f"pytest -k {CASE.id}- --specreg-tier=cpu",
)


def run_of(*verdicts: Verdict) -> RunVerdict:
    return RunVerdict(
        run="20261121T020000-1",
        tier="cpu",
        environment=builders.ENVIRONMENT.name,
        complete=True,
        exit_status=exit_status(verdicts),
        outcomes=count_outcomes(verdicts),
        verdicts=verdicts,
    )


REPORT = RunReport(
    run=run_of(HELD, LOST),
    machine=builders.ENVIRONMENT,
    origin=RunOrigin(
        command="pytest tests/perf --specreg-tier=cpu",
        specreg_version="0.1.0",
        commit="0123456789ab",
        python_version="3.11.2",
        driver_version="",
        options=("--specreg-tier=cpu",),
    ),
    cases=(CASE_REPORT,),
    tier_cases=(CASE.id,),
    remarks=("a remark",),
)


def with_verdicts(*verdicts: Verdict) -> RunReport:
    return msgspec.structs.replace(REPORT, run=run_of(*verdicts))


def with_case(**changes: object) -> RunReport:
    return msgspec.structs.replace(REPORT, cases=(msgspec.structs.replace(CASE_REPORT, **changes),))


SIDES = (SideReport(name="A", text="vllm==0.31.0"), SideReport(name="B", text="vllm==0.32.0"))


def gate_of(run: RunVerdict, sides: tuple[SideReport, SideReport] = SIDES) -> ComparedReport:
    """A gate between two sides that came to the verdicts of a run, and says no."""
    return ComparedReport(
        run=run,
        machine=REPORT.machine,
        origin=REPORT.origin,
        cases=REPORT.cases,
        tier_cases=REPORT.tier_cases,
        answers=(Headline(subject="DON'T", tone=Tone.BAD, text="B is worse than A"),),
        sides=sides,
    )


def judged_runs(
    metric: str, *words: str, first_day: int = 1, value: float = 1.0
) -> list[RunRecord]:
    """Runs on one day after the other, with these outcomes of one metric, which fell once."""
    values = [value * 1.002, *[value] * len(words)]
    return [
        msgspec.structs.replace(past_run(day, **{metric: values.pop(0)}), outcomes={metric: word})
        for day, word in enumerate(words, start=first_day)
    ]


EMPTY = msgspec.structs.replace(REPORT, run=run_of(), cases=(), remarks=())


def another(version: str = "0.33.0", environment: str = "", **settings: object) -> RunReport:
    """A later run of the case, a tenth faster than the first one, of this engine."""
    faster = dataclasses.replace(LOST, value=99.0, outcome=Outcome.PASS)
    assert CASE_REPORT.settings is not None
    report = with_case(
        figures=msgspec.structs.replace(FIGURES, engine_version=version),
        settings=dataclasses.replace(CASE_REPORT.settings, **settings),  # type: ignore[arg-type]
    )
    run = msgspec.structs.replace(run_of(HELD, faster), run="20261123T020000-2")
    return msgspec.structs.replace(
        report, run=msgspec.structs.replace(run, environment=environment or run.environment)
    )
