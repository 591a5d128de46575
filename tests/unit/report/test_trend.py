"""The page of many nights: what each case came to, since when it isn't fine, and its figures."""

import datetime as dt
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from specreg.core.errors import ReportError
from specreg.report.trend import MachineHistory, load_histories, render_trend
from specreg.verdicts.history import History, RunRecord
from tests.unit.builders import reports
from tests.unit.builders.histories import LATER, write_nights
from tests.unit.builders.pages import Page

NOW = dt.datetime(2026, 11, 30, 6, 0, tzinfo=dt.UTC)
METRIC = "throughput_tokens_per_s"
HOSTILE = "<script>alert(1)</script>"


def trend(
    *records: RunRecord, problem: str = "", expected: Mapping[str, float] | None = None
) -> str:
    by_case: dict[str, tuple[RunRecord, ...]] = {}
    for record in records:
        by_case[record.case_id] = (*by_case.get(record.case_id, ()), record)
    shown = MachineHistory(
        machine="gpu-h100",
        history=History(by_case, problem),
        expected=dict.fromkeys(by_case, expected or {}),
    )
    return render_trend([shown], NOW)


def cells(text: str) -> list[tuple[str, str]]:
    """The cells of the map: their classes and what a hand over them is told."""
    return [(cell.get("class") or "", cell.get("title") or "") for cell in Page(text).all("td")]


def test_each_night_of_a_case_has_a_cell_and_the_first_bad_one_a_frame() -> None:
    text = trend(*reports.judged_runs(METRIC, "PASS", "REGRESSED", "INVALID", "REGRESSED"))
    assert cells(text) == [
        ("good new", "first run with 0.32.0"),
        ("bad first", "REGRESSED: throughput"),
        ("bad", "INVALID: throughput"),
        ("bad", "REGRESSED: throughput"),
    ]
    assert "1 of 1 cases became worse or wrong; no later run was fine" in Page(text).text
    assert "throughput -0.2%: not fine since 2026-11-02 02:00 UTC" in Page(text).text


def test_a_loss_says_how_much_was_lost_and_which_commits_may_have_brought_it() -> None:
    runs = reports.judged_runs(METRIC, "PASS", "REGRESSED")
    fine = msgspec.structs.replace(runs[0], commit="0123456789ab", values={METRIC: 100.0})
    bad = msgspec.structs.replace(runs[1], commit="fedcba987654", values={METRIC: 80.0})
    text = Page(trend(fine, bad)).text
    assert "throughput -20.0%: not fine since 2026-11-02 02:00 UTC; last" in text
    assert "; git log 0123456789ab..fedcba" in text
    assert f"{bad.case_id}: throughput -20.0%" in text
    same = msgspec.structs.replace(bad, commit=fine.commit)
    assert "both at commit 0123456789ab" in Page(trend(fine, same)).text
    alone = Page(trend(bad, expected={METRIC: 200.0})).text
    assert "throughput -60.0%: not fine since" in alone
    assert "no earlier run was fine; at commit fedcba987654" in alone
    hostile = msgspec.structs.replace(bad, commit="$(reboot)")
    assert "reboot" not in trend(fine, hostile)


def test_a_machine_on_which_nothing_ran_is_told_what_to_type_and_not_that_it_is_fine() -> None:
    page = Page(trend())
    assert "? Nothing was judged yet" in page.text
    assert "pytest tests/perf" in page.text
    assert "✓" not in page.text


def test_a_case_that_recovered_is_fine() -> None:
    text = trend(*reports.judged_runs(METRIC, "PASS", "REGRESSED", "PASS"))
    assert [tone for tone, _ in cells(text)] == ["good new", "bad", "good"]
    assert "none of 1 case is proven worse or wrong" in Page(text).text
    assert "not fine since" not in Page(text).text


def test_nights_that_could_not_tell_are_no_loss() -> None:
    text = trend(*reports.judged_runs(METRIC, "PASS", "INCONCLUSIVE", "INCONCLUSIVE"))
    assert [tone for tone, _ in cells(text)] == ["good new", "doubt", "doubt"]
    assert "none of 1 case is proven worse or wrong" in Page(text).text
    assert "cases fine" not in Page(text).text
    lost = trend(*reports.judged_runs(METRIC, "PASS", "INCONCLUSIVE", "REGRESSED"))
    assert [tone for tone, _ in cells(lost)] == ["good new", "doubt", "bad first"]


def test_a_run_that_recorded_a_baseline_is_shown_as_that() -> None:
    (run,) = reports.judged_runs(METRIC, "MEASURED")
    text = trend(msgspec.structs.replace(run, recorded=True))
    assert cells(text) == [("plain new", "recorded a baseline; first run with 0.32.0")]
    assert "a baseline was recorded" in Page(text).text


def test_a_new_version_of_the_engine_is_marked_where_it_begins() -> None:
    runs = reports.judged_runs(METRIC, "PASS", "PASS", "PASS")
    upgraded = msgspec.structs.replace(runs[2], engine_version="0.33.0")
    text = trend(*runs[:2], upgraded)
    assert [tone for tone, _ in cells(text)] == ["good new", "good", "good new"]
    assert "0.32.0 since 2026-11-01 02:00 UTC, 0.33.0 since 2026-11-03 02:00 UTC" in text


def with_engine(run: RunRecord, engine: str, version: str) -> RunRecord:
    return msgspec.structs.replace(
        run, case_id=f"{engine}-case", engine=engine, engine_version=version
    )


def test_each_engine_has_its_own_versions() -> None:
    first, second, third = reports.judged_runs(METRIC, "PASS", "PASS", "PASS")
    text = trend(
        with_engine(first, "vllm", "0.5.2"),
        with_engine(first, "sglang", "0.5.2"),
        with_engine(second, "vllm", "0.5.2"),
        with_engine(third, "vllm", "0.6.0"),
        with_engine(third, "sglang", "0.5.2"),
    )
    assert (
        "another version of the engine: sglang 0.5.2 since 2026-11-01 02:00 UTC, vllm 0.5.2 since"
        " 2026-11-01 02:00 UTC, vllm 0.6.0 since 2026-11-03 02:00 UTC."
    ) in Page(text).text


def test_an_engine_that_goes_back_begins_its_earlier_version_again() -> None:
    runs = reports.judged_runs(METRIC, "PASS", "PASS", "PASS", "PASS")
    versions = ("0.5.2", "0.6.0", "", "0.5.2")
    text = trend(
        *(with_engine(run, "vllm", version) for run, version in zip(runs, versions, strict=True))
    )
    assert [tone for tone, _ in cells(text)] == ["good new", "good new", "good", "good new"]
    assert "vllm 0.6.0 since 2026-11-02 02:00 UTC, vllm 0.5.2 since 2026-11-04" in text


def test_a_line_of_an_older_specreg_has_the_engine_of_its_case() -> None:
    first, second = reports.judged_runs(METRIC, "PASS", "PASS")
    old = msgspec.structs.replace(with_engine(first, "vllm", "0.5.2"), engine="")
    text = trend(old, with_engine(second, "vllm", "0.5.2"))
    assert "vllm 0.5.2 since 2026-11-01" in text
    assert "since 2026-11-02" not in text


def test_a_case_that_did_not_run_in_a_night_has_an_empty_cell() -> None:
    first, second = reports.judged_runs(METRIC, "PASS", "PASS")
    other_case = msgspec.structs.replace(second, case_id="other")
    assert [tone for tone, _ in cells(trend(first, other_case))] == ["", "good new", "good new", ""]


def test_the_cases_stand_in_the_order_of_their_loads() -> None:
    (run,) = reports.judged_runs(METRIC, "PASS")
    names = ("case-c16", "case-c2", "case-c1")
    page = Page(trend(*(msgspec.structs.replace(run, case_id=name) for name in names)))
    rows = [row["data-case"] for row in page.all("tr") if "data-case" in row]
    assert rows == ["case-c1", "case-c2", "case-c16"]


def test_an_outcome_of_another_specreg_is_shown_and_not_judged() -> None:
    text = trend(*reports.judged_runs(METRIC, "PASS", "SHRUG"))
    assert cells(text)[1] == ("doubt", "SHRUG: throughput")
    assert "an outcome of another version of specreg" in Page(text).text


def test_each_figure_that_was_judged_twice_has_a_line_with_its_baseline() -> None:
    runs = reports.judged_runs(METRIC, "PASS", "PASS", value=100.0)
    text = trend(*runs, expected={METRIC: 100.0})
    assert text.count('<figure class="curves">') == 1
    assert "throughput Dashed: the baseline, 100 tokens/s." in Page(text).text
    assert "throughput Dashed: the first run, 100.2 tokens/s." in Page(trend(*runs)).text


def test_what_could_not_be_read_is_said() -> None:
    text = trend(*reports.judged_runs(METRIC, "PASS"), problem="history 'x': 2 line(s) can't")
    assert "history 'x': 2 line(s) can't" in Page(text).text


def test_a_hostile_name_is_shown_and_not_obeyed() -> None:
    runs = reports.judged_runs(METRIC, "PASS", "REGRESSED")
    text = trend(
        *(
            msgspec.structs.replace(run, case_id=HOSTILE, engine_version=HOSTILE, run=HOSTILE + day)
            for run, day in zip(runs, "ab", strict=True)
        )
    )
    assert len(Page(text).all("script")) == 1
    assert "&lt;script&gt;" in text


def test_seventy_two_cases_of_thirty_nights_fit_into_a_megabyte(tmp_path: Path) -> None:
    write_nights(tmp_path / "gpu-h100.jsonl", cases=72, nights=31, bad_from=20)
    machines = [
        MachineHistory(machine=machine, history=history)
        for machine, history in load_histories([tmp_path], LATER)
    ]
    text = render_trend(machines, NOW)
    assert len(text.encode()) <= 1_000_000
    assert len(cells(text)) == 72 * 30
    assert "1 of 72 cases became worse or wrong" in text
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    links = {str(link["href"]).removeprefix("#") for link in page.all("a")}
    assert links <= set(page.ids)


def test_histories_of_several_machines_are_read_by_file_or_folder(tmp_path: Path) -> None:
    write_nights(tmp_path / "a/gpu-h100.jsonl", cases=1, nights=2)
    write_nights(tmp_path / "b/gpu-h200.jsonl", cases=1, nights=2)
    paths = (tmp_path / "a", tmp_path / "b/gpu-h200.jsonl")
    assert [machine for machine, _ in load_histories(paths, LATER)] == ["gpu-h100", "gpu-h200"]


@pytest.mark.parametrize("name", ["missing", "missing.jsonl", ""])
def test_where_no_history_is_it_says_what_to_do(tmp_path: Path, name: str) -> None:
    with pytest.raises(ReportError, match="run the suite first"):
        list(load_histories([tmp_path / name], LATER))
