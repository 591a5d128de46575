"""`verdict.json`, the exit status and the JUnit properties: what programs read."""

from pathlib import Path

import pytest

from specreg.core.errors import ReportError
from specreg.report.json import (
    RunVerdict,
    count_outcomes,
    exit_status,
    load_verdict,
    properties,
    record_verdict,
)
from specreg.verdicts.judge import Outcome, Verdict


def verdict(outcome: Outcome, *, softened: bool = False) -> Verdict:
    """A verdict without figures."""
    return Verdict(case_id="case", metric="m", outcome=outcome, softened=softened)


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ("", 0),
        ("PASS IMPROVED MEASURED NOT_COMPARABLE", 0),
        ("PASS NO_BASELINE", 11),
        ("NO_BASELINE INCONCLUSIVE", 10),
        ("NO_BASELINE INVALID", 10),
        ("INVALID INCONCLUSIVE", 10),
        ("INVALID INCONCLUSIVE NO_BASELINE REGRESSED PASS", 1),
        ("REGRESSED", 1),
    ],
)
def test_the_status_is_that_of_the_worst(outcomes: str, status: int) -> None:
    assert exit_status([verdict(Outcome(name)) for name in outcomes.split()]) == status


def test_what_is_softened_counts_for_nothing() -> None:
    assert exit_status([verdict(Outcome.INCONCLUSIVE, softened=True)]) == 0


def test_outcomes_are_counted() -> None:
    several = [verdict(Outcome.PASS), verdict(Outcome.INVALID), verdict(Outcome.PASS)]
    assert count_outcomes(several) == {"PASS": 2, "INVALID": 1}


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    run = RunVerdict(
        run="20261121T000000-1",
        tier="cpu",
        environment="cpu-x",
        complete=True,
        exit_status=10,
        outcomes={"INVALID": 1},
        verdicts=(verdict(Outcome.INVALID),),
    )
    path = tmp_path / "run" / "verdict.json"
    record_verdict(path, run)
    assert load_verdict(path) == run


@pytest.mark.parametrize("content", [None, b"{", b"[]", b"\xff", b'{"run": "\xff"}'])
def test_what_cannot_be_read_is_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "verdict.json"
    if content is not None:
        path.write_bytes(content)
    assert load_verdict(path) is None


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    run = RunVerdict(
        run="r", tier="t", environment="e", complete=True, exit_status=0, outcomes={}, verdicts=()
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=r"verdicts '.*': not written, .*; make room"):
        record_verdict(tmp_path / "file" / "verdict.json", run)
    assert (tmp_path / "file").read_text() == ""


def test_properties_leave_out_what_is_absent() -> None:
    assert dict(properties(verdict(Outcome.PASS))) == {
        "specreg.case_id": "case",
        "specreg.metric": "m",
        "specreg.outcome": "PASS",
        "specreg.launches": "1",
        "specreg.softened": "False",
        "specreg.two_sided": "False",
    }
