"""Texts in values are changed; keys, enumerations, numbers and names never are."""

import json
import random
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pytest

from specreg.baselines.record import record_baseline
from specreg.baselines.schema import load_baseline, render_baseline
from specreg.core.errors import ReportError
from specreg.core.values import hide_values, readable_values, with_texts
from specreg.report.files import load_report, record_document
from tests.unit import builders
from tests.unit.builders import reports


class Color(StrEnum):
    RED = "planted-red"


class Pair(NamedTuple):
    text: str
    number: int


class Inner(msgspec.Struct, frozen=True, tag="planted-tag"):
    reason: str
    case_id: str = "planted-case"


@dataclass(frozen=True, slots=True)
class Outer:
    inner: Inner
    color: Color
    kind_of: Literal["planted-literal"]
    pairs: tuple[Pair, ...]
    by_name: dict[str, str]
    anything: Any = None
    run: Inner | None = None
    prompts_sha256: str = ""
    counts: tuple[int, ...] = ()


OUTER = Outer(
    inner=Inner(reason="planted-reason"),
    color=Color.RED,
    kind_of="planted-literal",
    pairs=(Pair("planted-text", 1),),
    by_name={"planted-key": "planted-value", "metric": "planted-metric"},
    anything={"a": ["planted-any", 1.5, None, True], "cases": [{"error": "planted-error"}]},
    run=Inner(reason="planted-too"),
    prompts_sha256="planted-sum",
)


def test_texts_are_changed_and_nothing_else() -> None:
    changed = with_texts(OUTER, lambda text: text.replace("planted", "HIDDEN"))
    assert changed == Outer(
        inner=Inner(reason="HIDDEN-reason"),
        color=Color.RED,
        kind_of="planted-literal",
        pairs=(Pair("HIDDEN-text", 1),),
        by_name={"planted-key": "HIDDEN-value", "metric": "planted-metric"},
        anything={"a": ["HIDDEN-any", 1.5, None, True], "cases": [{"error": "HIDDEN-error"}]},
        run=Inner(reason="HIDDEN-too"),
        prompts_sha256="planted-sum",
    )
    assert isinstance(changed.pairs[0], Pair)
    assert changed.color is Color.RED


def test_a_value_in_which_nothing_changes_is_itself() -> None:
    assert with_texts(OUTER, lambda text: text) is OUTER
    assert hide_values(reports.REPORT) is reports.REPORT


def test_half_a_character_can_be_written() -> None:
    """As a file's name has where it isn't UTF-8."""
    for clean in (hide_values, readable_values):
        assert msgspec.json.encode(clean({"a": "x\udcff"})) == '{"a":"x�"}'.encode()


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_secret_a_file_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Any part of our own files, as a variable may have it."""
    rng = random.Random(seed)  # noqa: S311 - a case, no secret
    baseline = builders.baseline({"tpot_p50_ms": 1.0})
    written = msgspec.json.encode(reports.REPORT).decode(), render_baseline(baseline)
    content = rng.choice(written)
    begin = rng.randrange(len(content) - 20)
    monkeypatch.setenv("X_TOKEN", content[begin : begin + rng.randrange(8, 20)].replace("\0", ""))
    record_document(tmp_path / "report.json", reports.REPORT)
    report = load_report(tmp_path / "report.json")
    assert report.run.outcomes == reports.REPORT.run.outcomes
    for read, shown in zip(report.run.verdicts, reports.REPORT.run.verdicts, strict=True):
        assert (read.case_id, read.metric, read.value) == (shown.case_id, shown.metric, shown.value)
        assert (read.outcome, read.comparison) == (shown.outcome, shown.comparison)
    record_baseline(tmp_path / "baseline.json", baseline)
    read_baseline = load_baseline(tmp_path / "baseline.json")
    assert read_baseline is not None
    assert read_baseline.environment == baseline.environment
    assert read_baseline.case == baseline.case
    assert read_baseline.launches == baseline.launches
    assert read_baseline.acceptance == baseline.acceptance


ODD_NAMES = (
    "\x1b[31m",
    "a\nb",
    "::error::x",
    "##[error]",
    "\u202e",
    "a\0",
    "\ud800",
    "a\tb",
    " ::x",
)


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("run", "run"), "NAME"),
        (("run", "outcomes"), {"NAME": 1}),
        (("run", "verdicts", 0, "case_id"), "NAME"),
        (("run", "verdicts", 0, "reason"), {"code": "NAME", "text": "x"}),
        (("run", "verdicts", 0, "comparison", "against"), "NAME"),
        (("run", "verdicts", 0, "cause"), {"parts": [["NAME", 0.5]]}),
        (("machine", "cpu"), "NAME"),
        (("cases", 0, "engine"), "NAME"),
        (("cases", 0, "target"), "NAME"),
        (("tier_cases", 0), "NAME"),
    ],
    ids=str,
)
def test_a_name_that_is_no_plain_text_is_refused(
    tmp_path: Path, name: str, place: tuple[str | int, ...], value: object
) -> None:
    """Names aren't changed before they are shown, so those of other machines have to be plain."""
    for written, is_odd in ((json.dumps("plain"), False), (json.dumps(name), True)):
        document = json.loads(msgspec.json.encode(reports.REPORT))
        *folders, last = place
        holder = document
        for part in folders:
            holder = holder[part]
        holder[last] = json.loads(json.dumps(value).replace('"NAME"', written))
        (tmp_path / "report.json").write_text(json.dumps(document))
        if is_odd:
            with pytest.raises(ReportError):
                load_report(tmp_path / "report.json")
        else:
            load_report(tmp_path / "report.json")


def test_any_other_text_is_shown_readably_and_not_refused(tmp_path: Path) -> None:
    document = json.loads(msgspec.json.encode(reports.REPORT))
    document["remarks"] = ["::error::x\0"]
    (tmp_path / "report.json").write_text(json.dumps(document))
    assert load_report(tmp_path / "report.json").remarks == (": :error::x\ufffd",)
