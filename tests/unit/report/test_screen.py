"""How wide a screen is, and whether it has colours."""

import pytest

from specreg.report.screen import LOG, bounded, screen_here


@pytest.mark.parametrize(("columns", "used"), [(40, 80), (80, 80), (120, 120), (300, 200)])
def test_tables_are_80_to_200_columns_wide(columns: int, used: int) -> None:
    assert bounded(columns) == used


def test_without_a_terminal_the_width_is_that_of_a_log(capfd: pytest.CaptureFixture[str]) -> None:
    assert capfd.readouterr().out == ""
    assert screen_here({}) == LOG
    assert LOG.columns == 110
    assert not LOG.color
