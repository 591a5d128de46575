"""Figures side by side: picked from those of each measurement, and none made anew."""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from specreg.core.errors import SpecregError
from specreg.load.rounds import Round
from specreg.measurement.figures import Figures, figures_of, record_figures
from specreg.measurement.measure import Measurement, values_of
from specreg.measurement.metrics import Family, Replay
from specreg.measurement.validity import all_invalid
from specreg.report.breakdown import (
    CategoryFigures,
    categories_of,
    last_launches,
    load_figures,
    slowed_of,
)
from specreg.stats.percentiles import summarize
from tests.unit import builders

MS = 10**6
CASE = dataclasses.replace(builders.CASE, control=builders.PLAIN_SPEC)
CATEGORIES = ("chat", "math")


def a_round(*tpots_ms: int, categories: tuple[str, ...] = CATEGORIES) -> Round:
    """A request of each category, of five tokens, with such a time per token."""
    traces = tuple(
        msgspec.structs.replace(
            builders.trace(builders.chunk(MS), builders.chunk(MS + 4 * tpot_ms * MS, 4)),
            category=category,
        )
        for category, tpot_ms in zip(categories, tpots_ms, strict=True)
    )
    return Round(traces=traces, started_ns=0, ended_ns=10**9)


def measured(
    ours: Round | None = None, control: Round | None = None, case_number: int = 0
) -> Measurement:
    """Of a case: chat with AL 2.5 and maths with AL 4; 10 ms and 30 ms per token alone."""
    prompts = (
        builders.prompt_acceptance(builders.counts(8, 0, 6, 6)),
        dataclasses.replace(
            builders.prompt_acceptance(builders.counts(0, 0, 0, 2)), category="math"
        ),
    )
    replay = Replay(
        rounds=(ours or a_round(5, 10),),
        control_rounds=(control or a_round(10, 30),),
        acceptance=builders.acceptance_of(prompts),
    )
    case = dataclasses.replace(CASE, load=dataclasses.replace(CASE.load, concurrency=1))
    case = case if case_number else CASE
    return dataclasses.replace(
        builders.measurement(values_of(case, replay), case=case), replay=replay
    )


def test_a_category_has_its_acceptance_its_pace_and_what_it_gains() -> None:
    assert categories_of(figures_of(measured(), 1)) == {
        "chat": CategoryFigures(
            requests=1,
            acceptance_length_tokens=2.5,
            acceptance_rate_frac=0.5,
            tpot_p50_ms=5.0,
            control_tpot_p50_ms=10.0,
            tpot_ratio=2.0,
        ),
        "math": CategoryFigures(
            requests=1,
            acceptance_length_tokens=4.0,
            acceptance_rate_frac=1.0,
            tpot_p50_ms=10.0,
            control_tpot_p50_ms=30.0,
            tpot_ratio=3.0,
        ),
    }


def test_a_category_that_only_the_case_has_gains_nothing_known() -> None:
    control = a_round(10, categories=("chat",))
    maths = categories_of(figures_of(measured(control=control), 1))["math"]
    assert (maths.tpot_p50_ms, maths.control_tpot_p50_ms, maths.tpot_ratio) == (10.0, None, None)


def test_one_category_is_no_breakdown() -> None:
    ours = a_round(5, categories=("chat",))
    assert categories_of(figures_of(measured(ours), 1)) == {}


def test_a_case_without_speculation_has_no_breakdown() -> None:
    one = measured()
    assert one.replay is not None
    plain = dataclasses.replace(one, replay=dataclasses.replace(one.replay, acceptance=None))
    assert categories_of(figures_of(plain, 1)) == {}


def test_the_last_valid_launch_of_each_case_is_shown() -> None:
    broken = dataclasses.replace(measured(), replay=None, invalid=all_invalid("X: y"))
    first, second, other = (
        figures_of(measured(), 1),
        figures_of(measured(), 2),
        figures_of(measured(case_number=1), 1),
    )
    every = [second, first, other, figures_of(broken, 3)]
    assert last_launches(every) == (second, other)


def test_a_launch_whose_speed_means_nothing_is_shown_where_there_is_no_other() -> None:
    slow = dataclasses.replace(measured(), invalid={Family.LATENCY: "THROTTLED: 92 °C"})
    first, second = figures_of(measured(), 1), figures_of(slow, 2)
    assert last_launches([first, second]) == (first,)
    assert last_launches([second]) == (second,)


def raced(ours: Sequence[float], alone: Sequence[float], launch: int = 1) -> Figures:
    """Figures with such tokens per second of each round, with speculation and without."""
    found = figures_of(measured(), launch)
    assert found.timing is not None
    assert found.control is not None
    assert found.speedup is not None
    ratio = statistics.median(a / b for a, b in zip(ours, alone, strict=True))
    replace = msgspec.structs.replace
    return replace(
        found,
        timing=replace(found.timing, throughput_tokens_per_s=summarize(ours)),
        control=replace(found.control, throughput_tokens_per_s=summarize(alone)),
        speedup=replace(found.speedup, throughput_ratio=ratio),
    )


def test_a_case_is_slowed_down_where_each_round_of_each_launch_says_so() -> None:
    halved = raced((50.0, 52.0), (100.0, 104.0))
    assert slowed_of([halved]) == {CASE.id: pytest.approx(0.5)}
    assert slowed_of([halved, raced((49.0, 51.0), (98.0, 102.0), 2)]) == {
        CASE.id: pytest.approx(0.5)
    }
    faster = raced((100.0, 104.0), (50.0, 52.0), 2)
    assert slowed_of([halved, faster]) == {}
    assert slowed_of([raced((50.0, 99.0), (98.0, 100.0))]) == {}
    assert slowed_of([raced((50.0,), (100.0,))]) == {}
    assert slowed_of([msgspec.structs.replace(halved, speedup=None)]) == {}  # INVALID


def test_what_a_run_left_is_read_again(tmp_path: Path) -> None:
    figures = figures_of(measured(), 1)
    record_figures(tmp_path / "figures" / "case.json", figures)
    assert load_figures(tmp_path) == (figures,)


def test_a_run_that_left_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecregError, match=r"run '.*': it left no figures; name a run"):
        load_figures(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"{}", b'{"case_id": "\xff"}'], ids=repr)
def test_figures_of_another_form_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "figures" / "case.json"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(SpecregError) as error:
        load_figures(tmp_path)
    assert str(error.value).startswith(f"figures '{path}': ")
    assert str(error.value).endswith("; run the case again with this specreg")


def test_figures_are_picked_and_never_made_anew() -> None:
    """So that a table and a file can't differ."""
    figures = figures_of(measured(), 1)
    assert isinstance(figures, Figures)
    assert figures.speedup is not None
    ratios = {name: one.tpot_ratio for name, one in categories_of(figures).items()}
    assert ratios == figures.speedup.tpot_ratio_by_category
