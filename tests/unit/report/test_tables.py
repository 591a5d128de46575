"""The tables of what speculation gains: each reads as it stands."""

import itertools

import msgspec
import pytest

from specreg.measurement.figures import Figures, figures_of
from specreg.report.tables import render_categories, render_speedups
from tests.unit.report.test_breakdown import a_round, measured

GAINS = figures_of(measured(), 1)


def called(case_id: str, figures: Figures = GAINS) -> Figures:
    """The figures of another case."""
    return msgspec.structs.replace(figures, case_id=case_id)


def with_categories(case_id: str, *names: str) -> Figures:
    """A case whose categories are called so, each with the figures of the chat."""
    assert GAINS.timing
    assert GAINS.speedup
    assert GAINS.acceptance
    pace, part = GAINS.timing.by_category["chat"], GAINS.acceptance.by_category["chat"]
    return msgspec.structs.replace(
        GAINS,
        case_id=case_id,
        timing=msgspec.structs.replace(GAINS.timing, by_category=dict.fromkeys(names, pace)),
        acceptance=msgspec.structs.replace(
            GAINS.acceptance, by_category=dict.fromkeys(names, part)
        ),
        speedup=msgspec.structs.replace(
            GAINS.speedup, tpot_ratio_by_category=dict.fromkeys(names, 2.0)
        ),
    )


def lines(text: str) -> list[str]:
    """Each line, its words a blank apart."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_speedup_stands_beside_what_it_comes_from() -> None:
    shown = render_speedups([called("case")], width=110, color=False)
    assert lines(shown) == [
        "speedup over ms/token tokens/s accepted by",
        "the target alone alone with gain alone with gain AL A/D position",
        "case 20 7.5 ×2.67 10 10 ×1.00 2.64 0.55 0.64 0.64 0.36",
    ]


def test_what_has_no_speedup_has_no_row() -> None:
    alone = msgspec.structs.replace(GAINS, speedup=None)
    assert render_speedups([alone], width=110, color=False) == ""
    assert len(lines(render_speedups([alone, GAINS], width=110, color=False))) == 3


def test_one_case_has_a_row_for_each_category() -> None:
    shown = render_categories([called("case")], width=110, color=False)
    assert lines(shown) == [
        "case requests AL A/D ms/token alone with gain",
        "chat 1 2.50 0.50 10 5 ×2.00",
        "math 1 4.00 1.00 30 10 ×3.00",
    ]


def test_without_the_target_alone_there_is_no_time() -> None:
    alone = msgspec.structs.replace(GAINS, case_id="case", speedup=None)
    shown = render_categories([alone], width=110, color=False)
    assert lines(shown) == [
        "case requests AL A/D",
        "chat 1 2.50 0.50",
        "math 1 4.00 1.00",
    ]
    several = render_categories([alone, called("other", alone)], width=110, color=False)
    assert lines(several)[1] == "case 2.50 4.00 2.64"


def test_several_cases_have_a_row_each() -> None:
    slower = figures_of(measured(a_round(10, 20)), 1)
    shown = render_categories([called("one"), called("other", slower)], width=110, color=False)
    assert lines(shown) == [
        "AL and gain chat math all",
        "one 2.50 ×2.00 4.00 ×3.00 2.64 ×2.67",
        "other 2.50 ×1.00 4.00 ×1.50 2.64 ×1.33",
    ]


def test_a_category_that_a_case_lacks_is_left_empty() -> None:
    cases = [with_categories("one", "a", "b"), with_categories("other", "b", "c")]
    head, one, other = render_categories(cases, width=110, color=False).splitlines()
    assert head.split()[3:] == ["a", "b", "c", "all"]
    assert one.count("×") == other.count("×") == 3
    assert other.index("2.50") > head.index("a", len("AL and gain"))


@pytest.mark.parametrize("width", [80, 110])
def test_categories_that_do_not_fit_stand_below(width: int) -> None:
    names = [f"category-{number}" for number in range(11)]
    cases = [with_categories(case_id, *names) for case_id in ("one", "another-case-of-the-tier")]
    shown = render_categories(cases, width=width, color=False)
    assert max(map(len, shown.splitlines())) <= width
    heads = [line.split()[3:] for line in shown.splitlines() if line.startswith("AL and gain")]
    assert len(heads) == (3 if width == 80 else 2)
    assert list(itertools.chain(*heads)) == [*names, "all"]
    assert shown.count("one ") == len(heads)
    assert "…" not in shown


def test_nothing_is_shown_of_nothing() -> None:
    assert render_categories([], width=110, color=False) == ""
    assert render_speedups([], width=110, color=False) == ""


@pytest.mark.parametrize("case_id", ["case", "an-id-that-is-longer-than-the-head-of-its-column"])
def test_a_table_keeps_to_its_width(case_id: str) -> None:
    shown = render_speedups([called(case_id)], width=110, color=False)
    assert max(map(len, shown.splitlines())) <= 110
