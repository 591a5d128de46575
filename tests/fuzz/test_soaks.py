"""A soak's folder with something wrong in it is resumed and judged in words, or validly."""

import math
from pathlib import Path

import msgspec
import pytest

from specreg.compare.soak import take_over_soak
from specreg.compare.steadiness import SoakGoal, news_of, next_segment, verdicts_of
from specreg.runs.ledger import LEDGER, Key, Ledger, Segment
from specreg.verdicts.verdict import Outcome
from tests.fuzz.mutations import rows_of
from tests.fuzz.trying import Sample, read_all_sound, try_all
from tests.unit import builders

GOAL = SoakGoal(case=builders.CASE, on_gpu=True, minutes=4)
KEY = Key(
    case=builders.CASE.key,
    case_id=builders.CASE.id,
    launch=0,
    purpose="soak of 4 min, 4 prompts",
    environment="here",
    engine="vllm==0.32.0",
    files_sha256="0" * 64,
)
SEGMENTS = [
    Segment(
        number=number,
        launch=1 if number <= 12 else 2,
        at_s=10.0 * (number - (0 if number <= 12 else 12)) - 5,
        lasted_s=10.0,
        requests=4,
        acceptance_length_tokens=2.5 + number % 3 / 10,
        step_ms=5.0 + number % 2,
        memory_bytes=2.0**30 + number,
        gpu_memory_bytes=2.0**34,
    )
    for number in range(1, 25)
]


def taken_over(folder: Path, content: bytes) -> Ledger:
    """The ledger of a soak as it is resumed."""
    path = folder / LEDGER
    path.write_bytes(content)
    ledger = Ledger(path)
    take_over_soak(ledger, KEY)
    return ledger


def read_soak(folder: Path, content: bytes) -> None:
    ledger = taken_over(folder, content)
    assert next_segment(ledger, GOAL) in {None, len(ledger.segments) + 1}
    list(news_of(ledger.segments, GOAL, is_over=True))
    verdicts = verdicts_of(ledger.segments, GOAL)
    assert [verdict.metric for verdict in verdicts] == [figure.name for figure in GOAL.figures]
    for verdict in verdicts:
        comparison = verdict.comparison
        values = (verdict.value, comparison.change_frac, comparison.low_frac, comparison.high_frac)
        assert all(value is None or math.isfinite(value) for value in values)


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    ledger = Ledger(tmp_path_factory.mktemp("soak") / LEDGER)
    for launch in (1, 2):
        ledger.begin(msgspec.structs.replace(KEY, launch=launch))
        ledger.extend(segment for segment in SEGMENTS if segment.launch == launch)
    return Sample(content=ledger.path.read_bytes(), wrong=rows_of, read=read_soak)


def test_what_is_sound_is_read(sample: Sample, tmp_path: Path) -> None:
    read_all_sound([sample], tmp_path)


def test_all_of_a_sound_folder_is_taken_over(sample: Sample, tmp_path: Path) -> None:
    ledger = taken_over(tmp_path, sample.content)
    assert list(ledger.segments) == SEGMENTS
    outcomes = {verdict.outcome for verdict in verdicts_of(ledger.segments, GOAL)}
    assert outcomes <= {Outcome.PASS, Outcome.INCONCLUSIVE}


def test_any_soak_folder_ends_in_words_or_in_a_reading(
    numbers: range, sample: Sample, tmp_path: Path
) -> None:
    try_all(numbers, [[sample]], tmp_path)
