"""The tables of what speculation gains: each reads as it stands."""

import msgspec
import pytest

from specreg.core.readable import readable_line
from specreg.core.reasons import Reason
from specreg.measurement.figures import Figures, figures_of
from specreg.report.screen import LOG, Screen
from specreg.report.tables import NOTHING, Layout, render_figures, render_rows
from tests.unit import builders
from tests.unit.builders.reports import FIGURES, a_round, measured

WORDS = "alone: without speculation; c4: 4 requests in flight"
"""What the tables' short words mean, below them."""


def lines(*figures: Figures) -> list[str]:
    """Each line of what is shown, its words a blank apart."""
    shown = render_figures(figures)
    return [" ".join(line.split()) for line in shown.splitlines()]


def called(case_id: str, figures: Figures = FIGURES) -> Figures:
    return msgspec.structs.replace(figures, case_id=case_id)


def test_the_speedup_stands_beside_what_it_comes_from() -> None:
    head, _, row, *_ = lines(called("case"))
    assert head.startswith("speedup over ms/token")
    assert row == "case 20 7.5 ×2.67 10 10 ×1.00 2.64 0.64 0.64 0.36"


@pytest.mark.parametrize("columns", [80, 110, 200])
def test_no_row_of_a_speedup_wraps(columns: int) -> None:
    cases = [called(f"vllm-eagle3-tiny-toy-c{number}") for number in range(9)]
    shown = render_figures(cases, Screen(columns=columns))
    table, *_ = shown.split("\n\n")
    assert len(table.splitlines()) == 2 + len(cases)
    assert max(map(len, shown.splitlines())) <= columns


def test_many_cases_are_one_line_unless_more_is_asked_for() -> None:
    cases = [called(f"case-{number}") for number in range(36)]
    (line,) = lines(*cases)
    assert "36 cases" in line
    assert len(render_figures(cases, Screen(verbose=True)).splitlines()) > 36


def test_an_invalid_power_has_its_reason_and_no_figures() -> None:
    """The devices were sampled, and one of them was shared, for example."""
    power = builders.power(energy_j=3000, window_s=10.0, tokens=1000)
    alone = builders.power(energy_j=4000, window_s=10.0, tokens=1000)
    both = msgspec.structs.replace(power, control=alone.case, energy_ratio=4 / 3)
    invalid = msgspec.structs.replace(
        both, invalid=Reason(code="POWER_INVALID", text="it was shared")
    )
    assert alone.case is not None
    devices = tuple(
        msgspec.structs.replace(device, idle_w=None, idle_invalid="the counter disagrees")
        for device in alone.case.devices
    )
    arm = msgspec.structs.replace(alone.case, idle_w=None, devices=devices * 2)
    contradictory = msgspec.structs.replace(alone, case=arm)
    shown = [
        lines(msgspec.structs.replace(called("case"), power=record))[-3]
        for record in (both, invalid, contradictory)
    ]
    assert shown == [
        "case 3 4 +25% 300 100 ±0.1%; at its power cap",
        "case – – – – – POWER_INVALID: it was shared",
        "case 4 – – 400 – ±0.1%; at its power cap; no idle power: the counter disagrees",
    ]


def test_what_is_not_known_has_no_table() -> None:
    single = figures_of(measured(a_round(5, categories=("chat",))), 1)
    plain = msgspec.structs.replace(FIGURES, acceptance=None, speedup=None)
    assert lines() == lines(plain) == []
    assert lines(msgspec.structs.replace(single, speedup=None)) == []


@pytest.mark.parametrize("case_id", ["case", "an-id-that-is-longer-than-the-head-of-its-column"])
def test_a_table_keeps_to_its_width(case_id: str) -> None:
    shown = render_figures([called(case_id)])
    assert max(map(len, shown.splitlines())) <= 110


@pytest.mark.parametrize("screen", [LOG, Screen(color=True), Screen(columns=80)], ids=repr)
def test_a_long_word_that_is_folded_is_no_command_of_a_ci(screen: Screen) -> None:
    """A server's text is one word that is broken just before the command."""
    for length in range(80, 120):
        word = readable_line("x" * length + "::stop-commands::planted")
        shown = render_rows(
            ("of", "finding"), [("name", word)], screen, Layout(folded=("finding",))
        )
        assert "planted" in shown.replace("\n", "").replace(" ", "")
        assert not [line for line in shown.splitlines() if line.strip().startswith("::")]


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_a_table_is_as_wide_as_the_screen_and_no_wider(columns: int) -> None:
    rows = [("a-case", "12", "what is said of it " * 20)]
    shown = render_rows(
        ("case", "figure", "remark"), rows, Screen(columns=columns), Layout(folded=("remark",))
    )
    longest = max(map(len, shown.splitlines()))
    assert columns - len("what is said") < longest <= columns


def test_decimal_points_in_a_column_stand_below_each_other() -> None:
    shown = render_rows(("case", "value"), [("a", "241"), ("b", "219.7"), ("c", "0.8818")])
    _, *lines = shown.splitlines()
    units = [line.partition(".")[0].rstrip()[-1:] for line in lines]
    positions = {len(line.partition(".")[0].rstrip()) for line in lines}
    assert (units, len(positions)) == (["1", "9", "0"], 1)


def test_a_dash_stands_where_the_whole_part_of_a_number_ends() -> None:
    shown = render_rows(("case", "value"), [("a", NOTHING), ("b", "×2.47")])
    _, dash, number = shown.splitlines()
    assert dash.index(NOTHING) == number.index(".") - 1


def test_no_cell_is_cut_because_decimals_are_aligned_or_a_heading_is_long() -> None:
    head = ("case", "A", "outcome")
    heading = "vllm-eagle3-a-long-name-of-models-toy-c1"
    rows = [[heading], ["  ttft_p50_ms", "58.39", "INCONCLUSIVE"], ["  al", "1497", "PASS"]]

    table = render_rows(head, rows, Screen(columns=36), Layout(left=("outcome",)))

    assert table.splitlines() == [
        "case                 A  outcome",
        heading,
        "  ttft_p50_ms    58.39  INCONCLUSIVE",
        "  al           1497     PASS",
    ]
