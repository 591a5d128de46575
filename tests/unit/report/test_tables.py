"""The tables of what speculation gains: each reads as it stands."""

import msgspec
import pytest

from specreg.acceptance.record import Gauges, Source, View
from specreg.measurement.figures import Figures, figures_of
from specreg.report.tables import (
    render_categories,
    render_gauges,
    render_side_by_side,
    render_speedups,
    render_spreads,
)
from tests.unit.reports import a_round, measured

GAINS = figures_of(measured(), 1)


def called(case_id: str, figures: Figures = GAINS) -> Figures:
    """The figures of another case."""
    return msgspec.structs.replace(figures, case_id=case_id)


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


def test_each_category_of_each_case_has_a_row() -> None:
    slower = figures_of(measured(a_round(10, 20)), 1)
    alone = msgspec.structs.replace(GAINS, speedup=None)
    cases = [called("one"), called("other", slower), called("untimed", alone)]
    assert lines(render_categories(cases, width=110, color=False)) == [
        "by category requests AL A/D ms/token alone with gain",
        *("one", "chat 1 2.50 0.50 10 5 ×2.00", "math 1 4.00 1.00 30 10 ×3.00"),
        *("other", "chat 1 2.50 0.50 10 10 ×1.00", "math 1 4.00 1.00 30 20 ×1.50"),
        *("untimed", "chat 1 2.50 0.50", "math 1 4.00 1.00"),
    ]


def test_nothing_is_shown_of_nothing() -> None:
    assert render_categories([], width=110, color=False) == ""
    assert render_speedups([], width=110, color=False) == ""


@pytest.mark.parametrize("case_id", ["case", "an-id-that-is-longer-than-the-head-of-its-column"])
def test_a_table_keeps_to_its_width(case_id: str) -> None:
    shown = render_speedups([called(case_id)], width=110, color=False)
    assert max(map(len, shown.splitlines())) <= 110


def test_each_figure_has_its_percentiles_and_those_of_the_target_alone() -> None:
    shown = lines(render_spreads([called("case")], width=110, color=False))
    assert shown[0] == "how it spreads count mean min p50 p75 p90 p95 p99 max"
    assert shown[1] == "case"
    place = shown.index("time per output token, ms 2 7.5 5 7.5 8.75 9.5 9.75 9.95 10")
    assert shown[place + 1] == "target alone 2 20 10 20 25 28 29 29.8 30"
    assert "length of an answer, tokens 2 5 5 5 5 5 5 5 5" in shown


def test_what_was_not_timed_has_no_rows() -> None:
    bare = msgspec.structs.replace(called("case"), timing=None, control=None)
    assert render_spreads([bare], width=110, color=False) == ""
    alone = msgspec.structs.replace(called("case"), control=None)
    assert "target alone" not in render_spreads([alone], width=110, color=False)


def test_a_category_that_only_the_case_has_gains_nothing_known() -> None:
    control = a_round(10, categories=("chat",))
    one = called("case", figures_of(measured(control=control), 1))
    assert lines(render_categories([one], width=110, color=False))[-1] == "math 1 4.00 1.00 – 10 ×–"


def test_one_category_and_a_case_without_speculation_have_no_breakdown() -> None:
    single = figures_of(measured(a_round(5, categories=("chat",))), 1)
    plain = msgspec.structs.replace(GAINS, acceptance=None)
    assert render_categories([single, plain], width=110, color=False) == ""


def on(engine: str, length_tokens: float, **acceptance: object) -> Figures:
    """The figures of the same case on an engine."""
    assert GAINS.acceptance
    total = msgspec.structs.replace(
        GAINS.acceptance.total, acceptance_length_tokens=length_tokens, steps=40, requests=2
    )
    found = msgspec.structs.replace(GAINS.acceptance, total=total)
    return msgspec.structs.replace(
        GAINS,
        case_id=f"{engine}-eagle3-toy-c2",
        acceptance=msgspec.structs.replace(found, **acceptance),
    )


def test_a_case_on_two_engines_stands_side_by_side_with_its_sources() -> None:
    vllm, sglang = on("vllm", 2.25), on("sglang", 2.5, source=Source.SGLANG_REQUEST)
    assert lines(render_side_by_side([vllm, sglang], width=120, color=False)) == [
        "on several engines version source view steps AL acceptance rate change",
        "eagle3-toy-c2",
        "vllm 0.32.0 vllm_request verifier 40 2.25 0.5455 –",
        "sglang 0.32.0 sglang_request verifier 40 2.5 0.5455 +20.0%",
    ]
    assert render_side_by_side([vllm], width=120, color=False) == ""


def test_what_does_not_count_the_same_has_no_change() -> None:
    sglang = on("sglang", 2.5, view=View.EMITTED)
    shown = render_side_by_side([on("vllm", 2.25), sglang], width=120, color=False)
    assert lines(shown)[-1].endswith(" 0.5455 –")


def test_what_a_server_says_of_itself_is_said_to_be_its_own() -> None:
    gauges = Gauges(acceptance_length_tokens=1.525, acceptance_rate_frac=0.175)
    assert render_gauges([GAINS]) == ""
    assert render_gauges([msgspec.structs.replace(called("case"), gauges=gauges)]) == (
        "case: the server's own gauges, of its last 40 decode iterations and"
        " never judged: length 1.525, rate 0.175"
    )
