"""Published figures: each with its source, never impossible."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.baselines.schema import PublishedFigure, load_published, published_for
from specreg.core.errors import BaselineError
from specreg.engines.methods import METHODS, Tree
from specreg.matrix.tier import load_tier, tier_names
from specreg.measurement.metrics import METRICS
from tests.unit import builders

PUBLISHED = msgspec.structs.replace(
    builders.published(2.6, 0.05),
    acceptance_rate_frac=0.535,
    position_frac=(0.7296, 0.5208, 0.3545),
)


def changed(**changes: Any) -> PublishedFigure:  # noqa: ANN401 - any field
    return msgspec.structs.replace(PUBLISHED, **changes)


def encoded(**changes: Any) -> bytes:  # noqa: ANN401 - any field
    return msgspec.json.encode(changed(**changes))


def loaded(folder: Path, content: bytes) -> tuple[PublishedFigure, ...]:
    path = folder / "published/one.json"
    path.parent.mkdir()
    path.write_bytes(content)
    return load_published(folder)


SILENT = {"acceptance_length_tokens": None, "acceptance_rate_frac": None, "position_frac": ()}
SPEEDUP = {"speedup_ratio": 1.5, "engine": "vllm", "concurrency": 2}


def test_only_acceptance_and_speedups_have_published_figures() -> None:
    known = {name for name in METRICS if changed(**SPEEDUP).value(name) is not None}
    assert known == {
        "acceptance_length_tokens",
        "acceptance_rate_frac",
        *(f"acceptance_pos{number}_frac" for number in (1, 2, 3)),
        "speedup_ratio",
    }


def test_a_case_finds_the_figure_of_its_models_and_settings() -> None:
    """A speedup hides no acceptance of the same case."""
    speedup, draftless = changed(**SILENT, **SPEEDUP, temperature=None), changed(draft=None)
    assert published_for(builders.CASE, (draftless, speedup, PUBLISHED)) is PUBLISHED
    assert published_for(builders.CASE, [speedup]) is speedup


@pytest.mark.parametrize(
    "difference",
    [
        {"method": "eagle3"},
        {"target": "other/target"},
        {"draft": "other/draft"},
        {"dataset": "mt-bench"},
        {"draft_tokens": 4},
        {"temperature": 1.0},
        {"engine": "sglang"},
        {"concurrency": 16},
    ],
    ids=lambda difference: next(iter(difference)),
)
def test_a_figure_of_another_setting_is_of_no_case(difference: dict[str, Any]) -> None:
    assert published_for(builders.CASE, (changed(**difference),)) is None


def test_a_figure_does_not_say_how_its_drafts_branched() -> None:
    case = builders.on_server(tree=Tree(branches=2, drafted_tokens=6))
    assert published_for(case, [PUBLISHED]) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"acceptance_rate_frac": None, "position_frac": (), "tolerance_frac": None},
        {"acceptance_length_tokens": 2.62},  # which the rounded positions miss by a little
        SILENT | SPEEDUP | {"temperature": None},
    ],
)
def test_what_can_be_is_read(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert loaded(tmp_path, encoded(**changes)) == (changed(**changes),)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (encoded(acceptance_length_tokens=4.1), "= 4.1, needed 1 to 4"),
        # TensorRT-LLM's own reference of Llama 4, at 95 % of which nothing need be accepted.
        (
            encoded(**SILENT | {"acceptance_length_tokens": 1.009717, "tolerance_frac": 0.05}),
            "a drafter of nothing",
        ),
        (
            encoded(**SILENT | {"acceptance_length_tokens": 1.0, "tolerance_frac": None}),
            "a drafter of nothing",
        ),
        (encoded(acceptance_rate_frac=53.5), "`$.acceptance_rate_frac`"),
        (encoded(position_frac=(0.9, 0.7)), "2 positions, needed none or"),
        (encoded(position_frac=(0.7, 0.5, 0.3)), "it is 2.500"),
        (encoded(schema_version=2), "enum value 2 - at `$.schema_version`"),
        (encoded(**SILENT), "no figure at all"),
        (encoded(temperature=None), "acceptance without temperature"),
        (encoded(speedup_ratio=1.5, engine="vllm"), "without engine and concurrency, needed both"),
        (b'{"schema_version": 1, oops', "malformed"),
        (encoded().replace(b'"source"', b'"sauce"'), "`sauce`"),
        (b'{"schema_version": 1, "source": "\xff"}', "utf-8"),
    ],
)
def test_what_cannot_be_or_not_be_read_is_named_with_its_remedy(
    tmp_path: Path, content: bytes, words: str
) -> None:
    with pytest.raises(BaselineError) as error:
        loaded(tmp_path, content)
    assert str(error.value).startswith(f"published figure '{tmp_path / 'published/one.json'}': ")
    assert words in str(error.value)
    assert str(error.value).endswith("; restore it with git, or remove it")


def test_the_committed_figures_are_of_methods_that_exist_and_all_differ() -> None:
    committed = load_published(builders.ROOT / "baselines")
    assert committed
    settings = [
        (figure.method, figure.target, figure.draft, figure.dataset, figure.draft_tokens)
        for figure in committed
    ]
    assert len(set(settings)) == len(settings)
    for figure in committed:
        assert METHODS[figure.method].needs_draft == (figure.draft is not None)
        assert "https://" in figure.source


def test_each_committed_figure_is_what_a_case_of_some_tier_is_held_against() -> None:
    figures, folder = load_published(builders.ROOT / "baselines"), builders.ROOT / "fixtures/matrix"
    cases = [case for name in tier_names(folder) for case in load_tier(folder, name).cases]
    matches = [published_for(case, figures) for case in cases]
    assert [figure.target for figure in figures if figure not in matches] == []
