"""The table of percentiles: each reads as it stands."""

import msgspec

from specreg.measurement.figures import figures_of
from specreg.report.spreads import render_spreads
from tests.unit.report.test_breakdown import measured
from tests.unit.report.test_tables import lines

FIGURES = msgspec.structs.replace(figures_of(measured(), 1), case_id="case")


def test_each_figure_has_its_percentiles_and_those_of_the_target_alone() -> None:
    shown = lines(render_spreads([FIGURES], width=110, color=False))
    assert shown[0] == "how it spreads count mean min p50 p75 p90 p95 p99 max"
    assert shown[1] == "case"
    place = shown.index("time per output token, ms 2 7.5 5 7.5 8.75 9.5 9.75 9.95 10")
    assert shown[place + 1] == "target alone 2 20 10 20 25 28 29 29.8 30"
    assert "length of an answer, tokens 2 5 5 5 5 5 5 5 5" in shown


def test_what_was_not_timed_has_no_rows() -> None:
    bare = msgspec.structs.replace(FIGURES, timing=None, control=None)
    assert render_spreads([bare], width=110, color=False) == ""
    alone = msgspec.structs.replace(FIGURES, control=None)
    assert "target alone" not in render_spreads([alone], width=110, color=False)
