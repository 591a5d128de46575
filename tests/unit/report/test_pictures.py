"""Pictures that need no page."""

import functools
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from pathlib import Path, PurePosixPath

import msgspec
import pytest
import resvg_py
from resvg_py import svg_to_bytes

from specreg.core.errors import ReportError
from specreg.report.document import Report
from specreg.report.exports import write_outputs
from specreg.report.pictures import render_pictures
from specreg.report.sentence import answer_of
from specreg.report.side_by_side import side_by_side
from specreg.telemetry.power_record import PowerRecord
from tests.unit import builders
from tests.unit.builders import reports

SVG = "{http://www.w3.org/2000/svg}"
CARD = "pictures/verdict.svg"
HOSTILE = "../<script>alert(1)</script>"


def texts_of(picture: str) -> str:
    """The words of a picture, which must be well-formed XML."""
    root = ET.fromstring(picture)  # noqa: S314 - our own
    return " ".join(element.text or "" for element in root.iter(f"{SVG}text"))


@pytest.mark.parametrize(
    "report",
    [reports.REPORT, reports.EMPTY, side_by_side(reports.REPORT, reports.another())],
    ids=["lost", "empty", "sides"],
)
def test_each_picture_is_a_whole_file_with_its_styles(report: Report) -> None:
    pictures = render_pictures(report)
    assert CARD in pictures
    for picture in pictures.values():
        assert texts_of(picture)
        # A program that draws SVG doesn't know the variables of the page.
        assert "var(--" not in picture
        assert "<use" not in picture


def test_the_card_has_the_sentence_and_the_evidence_of_the_worst_case() -> None:
    card = texts_of(render_pictures(reports.REPORT)[CARD])
    _, sentence = answer_of(reports.REPORT)
    assert sentence in card
    assert "by the cost of a step" in card
    assert "Accepted drafts by position" in card


def test_the_power_over_time_is_a_file_where_a_case_has_it() -> None:
    arm = builders.power().case
    assert arm is not None
    power = PowerRecord(case=msgspec.structs.replace(arm, over_time_w=(300.0, 350.0)))
    assert reports.CASE_REPORT.figures is not None
    figures = msgspec.structs.replace(reports.CASE_REPORT.figures, power=power)
    drawn = render_pictures(reports.with_case(figures=figures))
    assert f"pictures/power-{reports.CASE_REPORT.case_id}.svg" in drawn
    assert not any("power-" in name for name in render_pictures(reports.REPORT))


def test_a_hostile_name_is_neither_a_path_nor_markup(tmp_path: Path) -> None:
    case = msgspec.structs.replace(reports.CASE_REPORT, case_id=HOSTILE)
    report = msgspec.structs.replace(reports.REPORT, cases=(case,))
    written = write_outputs(("svg",), report, tmp_path, tmp_path)
    assert {path.parent for path in written} == {tmp_path / "pictures"}
    for name, picture in render_pictures(report).items():
        assert ".." not in PurePosixPath(name).parts
        assert "<script>" not in picture


@pytest.mark.skipif(not shutil.which("fc-list"), reason="the machine may have no font")
def test_a_bitmap_is_the_picture_with_its_texts(tmp_path: Path) -> None:
    written = write_outputs(("png",), reports.REPORT, tmp_path, tmp_path)

    card = tmp_path / "pictures/verdict.png"
    assert card in written
    assert card.read_bytes().startswith(b"\x89PNG")
    without_texts = re.sub("<text.*?</text>", "", render_pictures(reports.REPORT)[CARD])
    assert len(card.read_bytes()) > len(svg_to_bytes(svg_string=without_texts, zoom=2))


def test_a_machine_without_fonts_draws_no_bitmap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_fonts = functools.partial(svg_to_bytes, skip_system_fonts=True)
    monkeypatch.setattr(resvg_py, "svg_to_bytes", without_fonts)

    with pytest.raises(ReportError, match="this machine has no font"):
        write_outputs(("png",), reports.REPORT, tmp_path, tmp_path)


def test_without_its_package_a_bitmap_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)

    with pytest.raises(ReportError, match="resvg-py is missing"):
        write_outputs(("png",), reports.REPORT, tmp_path, tmp_path)
