"""The end of a run: its remarks, its history, its page, and what is kept of it."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from specreg.acceptance.record import Source
from specreg.baselines.packages import record_packages
from specreg.core.reasons import Reason
from specreg.engines.launch_facts import LaunchFacts
from specreg.measurement.metrics import METRICS
from specreg.report.progress import RunProgress
from specreg.runs.verdicts import Asked
from specreg.servers.installer import packages_sha256
from specreg.suite.document import run_verdict
from specreg.suite.finish import add_to_history, render_end
from specreg.suite.live_page import LivePage
from specreg.suite.new_baselines import record_baselines
from specreg.suite.remarks import remarks_of
from specreg.suite.result import RunResult, empty_result
from specreg.suite.run import Run
from specreg.suite.selection import Selection
from specreg.verdicts.history import baseline_sha256, record_history, settings_sha256
from specreg.verdicts.verdict import Outcome, Verdict
from tests.unit import builders
from tests.unit.builders import reports, runs
from tests.unit.builders.runs import COUNTS, LENGTH, MEASURED, SPEED


def run_with_past(folder: Path, *, update_baselines: bool = False) -> Run:
    """A run that six others came before."""
    context = runs.context(folder, update_baselines=update_baselines)
    launch, baseline = runs.record(context)
    changes = {
        "settings_sha256": settings_sha256(context.settings(builders.CASE)),
        "baseline_sha256": baseline_sha256(baseline),
    }
    past = [msgspec.structs.replace(reports.past_run(day), **changes) for day in range(1, 7)]
    record_history(context.history_path, past)
    return runs.measured_run(context, launch)


@pytest.mark.parametrize("is_recording", [False, True], ids=["judging", "recording"])
def test_a_torn_history_is_named(tmp_path: Path, *, is_recording: bool) -> None:
    run = run_with_past(tmp_path, update_baselines=is_recording)
    with run.context.history_path.open("ab") as file:
        file.write(b'{"run": "2026')

    (remark,) = remarks_of(run.result())

    assert remark.endswith("1 line(s) can't be read; the rest is used")


def test_packages_other_than_those_of_the_baseline_are_named(tmp_path: Path) -> None:
    context = runs.context(tmp_path)
    launch, baseline = runs.record(context)
    packages = ("numpy==2.4.5",)
    provenance = msgspec.structs.replace(
        baseline.provenance, packages_sha256=packages_sha256(packages)
    )
    record_packages(context.store.path(builders.CASE.id).parent, packages)
    builders.record(context.store.folder, msgspec.structs.replace(baseline, provenance=provenance))
    measured = dataclasses.replace(launch, packages=("numpy==2.4.6",))

    remarks = list(remarks_of(runs.measured_run(context, measured).result()))

    words = "vllm 0.32.0 had other packages when its baseline was recorded:"
    assert remarks == [f"{words} numpy 2.4.5 -> 2.4.6"]


def test_a_variable_of_the_shell_that_the_baseline_lacks_is_named(tmp_path: Path) -> None:
    context = runs.context(tmp_path)
    launch, baseline = runs.record(context)
    provenance = msgspec.structs.replace(baseline.provenance, facts=LaunchFacts(variables=()))
    builders.record(context.store.folder, msgspec.structs.replace(baseline, provenance=provenance))
    inherited = LaunchFacts(variables=(("VLLM_USE_FLASHINFER_SAMPLER", "0"),))

    for facts, is_named in ((LaunchFacts(variables=()), False), (inherited, True)):
        measured = dataclasses.replace(launch, facts=facts)
        remarks = list(remarks_of(runs.measured_run(context, measured).result()))
        words = "VLLM_USE_FLASHINFER_SAMPLER unset -> 0 since the baselines of"
        assert [remark.startswith(words) for remark in remarks] == [True] * is_named


def run_on_other_facts(folder: Path, *verdicts: Verdict) -> RunResult:
    """A run by model runner V2 and another driver, with a baseline by V1."""
    context = runs.context(folder)
    launch, baseline = runs.record(context)
    provenance = msgspec.structs.replace(
        baseline.provenance, facts=LaunchFacts(model_runner="v1"), driver_version="570.1"
    )
    builders.record(context.store.folder, msgspec.structs.replace(baseline, provenance=provenance))
    measured = dataclasses.replace(launch, facts=LaunchFacts(model_runner="v2"))
    result = runs.measured_run(context, measured).result()
    return dataclasses.replace(result, driver_version="580.2", verdicts=verdicts)


def test_what_a_server_ran_with_other_than_for_its_baseline_is_named(tmp_path: Path) -> None:
    changes = "model runner v1 -> v2, driver 570.1 -> 580.2"
    words = f"{changes} since the baselines of {builders.CASE.id} were recorded"
    assert list(remarks_of(run_on_other_facts(tmp_path))) == [words]


def test_a_change_is_named_first_where_a_speed_was_lost(tmp_path: Path) -> None:
    slower = Verdict(case_id=builders.CASE.id, metric=SPEED.name, outcome=Outcome.REGRESSED)
    no_speeds = (LENGTH, METRICS["energy_j_per_token"], METRICS["power_w"])
    first_words = "a speed was lost; look first at this: model runner v1 -> v2"

    remark, *_ = remarks_of(run_on_other_facts(tmp_path / "slower", slower))
    assert remark.startswith(first_words)
    for metric in no_speeds:
        worse = dataclasses.replace(slower, metric=metric.name)
        remark, *_ = remarks_of(run_on_other_facts(tmp_path / metric.name, worse))
        assert remark.startswith("model runner v1 -> v2")


@pytest.mark.parametrize(
    ("source", "is_estimate"), [(Source.VLLM_REQUEST, False), (Source.STREAM_CHUNKS, True)]
)
def test_an_acceptance_counted_by_chunks_is_called_an_estimate(
    tmp_path: Path, source: Source, *, is_estimate: bool
) -> None:
    record = builders.acceptance(COUNTS, source, prompts=builders.PROMPTS_MEASURED)
    launch = builders.measurement({LENGTH.name: 2.5}, of=record)

    remarks = list(remarks_of(runs.measured_run(runs.context(tmp_path), launch).result()))

    words = "acceptance is an estimate: each chunk of an answer is taken for a step"
    assert [remark.startswith(words) for remark in remarks] == [True] * is_estimate


def test_baselines_that_no_case_needs_are_named_after_a_green_run(tmp_path: Path) -> None:
    (tmp_path / "tier.toml").write_text("needs_gpus = 0\nmodels = {}\ncases = []\n")
    run = run_with_past(tmp_path)
    assert list(remarks_of(run.result())) == [], "nothing was judged"

    passed = Verdict(case_id=builders.CASE.id, metric=LENGTH.name, outcome=Outcome.PASS)
    runs.note(run, passed)
    path = run.context.store.path(builders.CASE.id)
    named = [f"no case uses 1 of this machine's baselines; remove with: git rm {path}"]
    assert list(remarks_of(run.result())) == named

    acceptance = runs.selection(run.context, {builders.CASE.id: [LENGTH.name]})
    assert list(remarks_of(dataclasses.replace(run.result(), selection=acceptance))) == []

    (tmp_path / "torn.toml").write_text("[")
    assert list(remarks_of(run.result())) == [], "another tier can't be read"

    (tmp_path / "torn.toml").unlink()
    run.noted.note_failure(
        Asked(builders.CASE.id, SPEED.name, 1), Reason(text="its server went away")
    )
    assert list(remarks_of(run.result())) == [], "the run is red"


def test_a_run_is_complete_if_all_of_the_tier_was_judged_to_the_end(tmp_path: Path) -> None:
    context = runs.context(tmp_path)

    def is_complete(selection: Selection, *, cut_short: bool = False) -> bool:
        result = RunResult(context=context, selection=selection, ended_at="")
        return run_verdict(result, 0, cut_short=cut_short).complete

    everything = runs.everything(context)
    assert is_complete(everything)
    assert not is_complete(everything, cut_short=True)
    assert not is_complete(Selection())
    assert not is_complete(runs.selection(context, {builders.CASE.id: [LENGTH.name]}))


def test_a_run_that_judged_is_added_to_the_history(tmp_path: Path) -> None:
    run = runs.measured_run(runs.context(tmp_path), MEASURED)
    runs.judge(run, LENGTH)

    add_to_history(run.result())

    (past_run,) = run.context.load_history().of(builders.CASE.id)
    assert past_run.outcomes[LENGTH.name] == "NO_BASELINE"
    assert past_run.values == {LENGTH.name: 2.5}
    assert past_run.engine_version == "0.32.0"


def test_a_run_that_records_is_not_added_to_the_history(tmp_path: Path) -> None:
    context = runs.context(tmp_path, update_baselines=True, launches=1)
    run = runs.measured_run(context, MEASURED)
    runs.judge(run, LENGTH)

    add_to_history(run.result())

    assert not context.history_path.exists()


def test_the_page_of_a_run_that_goes_on_takes_a_twentieth_of_its_time(tmp_path: Path) -> None:
    run = runs.measured_run(runs.context(tmp_path), MEASURED)
    moments_ns = iter([0, 0, 5, 99, 100, 105])
    live_page = LivePage(progress=RunProgress(), clock=lambda: next(moments_ns))
    path = tmp_path / "report.html"

    live_page.update(run.result)
    assert not path.exists(), "nothing was judged"

    runs.judge(run, LENGTH)
    live_page.update(run.result)
    path.unlink()
    live_page.update(run.result)
    assert not path.exists(), "the page took 5 ns, so it is due again after 100 ns"

    live_page.update(run.result)
    assert path.exists()


def test_a_case_that_is_wrong_is_not_recorded(tmp_path: Path) -> None:
    launch = builders.measurement({LENGTH.name: 2.5, SPEED.name: 100.0}, of=COUNTS)
    context = runs.context(tmp_path, update_baselines=True, launches=2)
    run = runs.measured_run(context, launch, launch)
    wrong = Verdict(case_id=builders.CASE.id, metric="lossless_frac", outcome=Outcome.WRONG)
    runs.note(run, dataclasses.replace(wrong, reason=Reason(text="token 3 differs")))

    lines, all_written = record_baselines(run.result())

    reason = "WRONG: token 3 differs; record it once its answers are right"
    assert lines == [f"baseline of '{builders.CASE.id}': not written, {reason}"]
    assert not all_written
    assert not context.store.path(builders.CASE.id).exists()


def test_a_loss_is_recorded_only_with_a_reason(tmp_path: Path) -> None:
    context = runs.context(tmp_path, update_baselines=True, launches=2)
    runs.record(context)
    slow = builders.measurement({LENGTH.name: 2.5, SPEED.name: 50.0}, of=COUNTS)
    run = runs.measured_run(context, slow, slow)

    lines, all_written = record_baselines(run.result())

    assert lines[0] == (
        f"baseline of '{builders.CASE.id}': not written, throughput_tokens_per_s is proven to be"
        " 50.0% worse; if it is meant to be so from now on, say why with --reason"
    )
    assert not all_written


def test_a_tier_of_which_some_servers_have_a_realistic_speed_says_how_many(tmp_path: Path) -> None:
    context = runs.context(tmp_path)
    untimed = builders.with_judging(builders.CASE, speed=False)
    mixed = dataclasses.replace(context.tier, cases=(builders.CASE, untimed))
    context = dataclasses.replace(context, tier=mixed)
    result = empty_result(context, Selection())

    text = render_end(result, None, (), shows_failures=False)

    assert "the servers of 1 of 2 cases of this tier have no realistic speed" in text


@pytest.mark.parametrize(("prompts", "amount"), [(8, "8 prompts"), (1, "1 prompt")])
def test_a_run_of_another_number_of_prompts_names_that_number(
    tmp_path: Path, prompts: int, amount: str
) -> None:
    case = builders.CASE.replaying(prompts)
    launch = dataclasses.replace(MEASURED, case=case)
    run = runs.measured_run(runs.context(tmp_path, cases=(case,)), launch)

    remarks = [remark for remark in remarks_of(run.result()) if "--num-prompts" in remark]

    (remark,) = remarks
    assert remark.startswith(f"--num-prompts replayed {amount} of each case: ")
