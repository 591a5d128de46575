"""The end of a run: what is said besides the verdicts, and what is kept of it."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from specreg.acceptance.record import Source
from specreg.core.reasons import Reason
from specreg.measurement.metrics import METRICS
from specreg.suite.finish import leave_page, record_baselines, remarks, run_verdict
from specreg.suite.run import Suite
from specreg.verdicts.history import baseline_sha256, record_history, settings_sha256
from specreg.verdicts.verdict import Outcome, Verdict
from tests.unit import builders, reports
from tests.unit.suite.test_run import COUNTS, LENGTH, SPEED, judged, measured, recorded, suite

EVERYTHING = {builders.CASE.id: {m.name for m in METRICS.values() if m.applies_to(builders.CASE)}}


def suite_with_past(folder: Path, better_frac: float) -> Suite:
    """A suite whose last six runs were better than the baseline by so much in throughput."""
    one = suite(folder)
    launch, baseline = recorded(one)
    changed = {
        "settings_sha256": settings_sha256(one.settings(builders.CASE)),
        "changes": {SPEED.name: better_frac},
        "baseline_sha256": baseline_sha256(baseline),
    }
    runs = [msgspec.structs.replace(reports.past_run(number), **changed) for number in range(6)]
    record_history(one.history, runs)
    return measured(one, launch)


@pytest.mark.parametrize(("better_frac", "said"), [(0.03, True), (0.02, False), (-0.03, False)])
def test_a_baseline_that_lies_well_below_the_last_runs_is_named(
    tmp_path: Path, better_frac: float, *, said: bool
) -> None:
    """Half the tolerance is 2.5 %."""
    found = list(remarks(suite_with_past(tmp_path, better_frac)))
    assert bool(found) is said
    if said:
        words = "is 3.0% below the last runs; a loss of 3.0% would pass, so record it anew"
        assert found == [f"{builders.CASE.id}: the baseline of {SPEED.name} {words}"]


def test_the_page_of_a_run_that_goes_on_takes_a_twentieth_of_its_time(tmp_path: Path) -> None:
    one = measured(suite(tmp_path), builders.measurement({LENGTH.name: 2.5}, of=COUNTS))
    page = tmp_path / "report.html"
    leave_page(one)
    assert not page.exists(), "nothing was judged"
    judged(one, LENGTH)
    leave_page(one)
    page.unlink()
    leave_page(one)
    assert not page.exists(), "it would be too soon"
    one.page_due_ns, one.shares_machine = 0, True
    leave_page(one)
    assert not page.exists(), "another process has the rest of the run"


def test_a_torn_history_is_named(tmp_path: Path) -> None:
    one = suite_with_past(tmp_path, 0.0)
    with one.history.open("ab") as file:
        file.write(b'{"run": "2026')
    (said,) = remarks(one)
    assert said.endswith("1 line(s) can't be read; the rest is shown")


def test_an_acceptance_that_chunks_alone_tell_is_called_an_estimate(tmp_path: Path) -> None:
    words = "acceptance is an estimate from the chunks of the answers"
    for source in (Source.VLLM_REQUEST, Source.STREAM_CHUNKS):
        record = builders.acceptance(COUNTS, source, prompts=builders.PROMPTS_MEASURED)
        one = measured(suite(tmp_path), builders.measurement({LENGTH.name: 2.5}, of=record))
        told = [said.startswith(words) for said in remarks(one)]
        assert told == [True] * (source is Source.STREAM_CHUNKS)


def test_a_run_is_complete_when_all_of_the_tier_was_judged_and_nothing_cut_it_short(
    tmp_path: Path,
) -> None:
    one = suite(tmp_path)
    assert not run_verdict(one, 0, cut_short=False).complete
    one.asked = EVERYTHING
    assert run_verdict(one, 0, cut_short=False).complete
    assert not run_verdict(one, 0, cut_short=True).complete
    one.asked = {builders.CASE.id: {LENGTH.name}}
    assert not run_verdict(one, 0, cut_short=False).complete


def test_what_nobody_asks_for_is_named_after_a_run_of_everything(tmp_path: Path) -> None:
    one = suite_with_past(tmp_path, 0.0)
    (tmp_path / "tier.toml").write_text("needs_gpus = 0\nmodels = {}\ncases = []\n")
    assert list(remarks(one)) == []
    one.asked = EVERYTHING
    assert list(remarks(one)) == [], "nothing was judged"
    one.confirmation.verdicts.append(
        Verdict(case_id=builders.CASE.id, metric=LENGTH.name, outcome=Outcome.PASS)
    )
    path = one.store.path(builders.CASE.id)
    expected = f"no case asks for these baselines: git rm {path}"
    assert list(remarks(one)) == [expected]
    (tmp_path / "torn.toml").write_text("[")
    assert list(remarks(one)) == []
    (tmp_path / "torn.toml").unlink()
    one.note_failure(builders.CASE, SPEED.name, Reason(text="its server went away"))
    assert list(remarks(one)) == []


def test_a_case_that_is_wrong_is_not_recorded(tmp_path: Path) -> None:
    launch = builders.measurement({LENGTH.name: 2.5, SPEED.name: 100.0}, of=COUNTS)
    one = measured(suite(tmp_path, update_baselines=True, launches=2), launch, launch)
    wrong = Verdict(case_id=builders.CASE.id, metric="lossless_frac", outcome=Outcome.WRONG)
    one.confirmation.verdicts.append(
        dataclasses.replace(wrong, reason=Reason(text="token 3 differs"))
    )
    (said,), all_written = record_baselines(one, color=False)
    assert said == f"baseline of '{builders.CASE.id}': not written, WRONG: token 3 differs"
    assert not all_written
    assert not one.store.path(builders.CASE.id).exists()
