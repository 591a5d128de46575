"""A gate's folder with something wrong in it is resumed and reported in words, or validly.

The folder of a soak has no case here: nothing reads what a soak has written.
"""

import dataclasses
import functools
import itertools
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from specreg.acceptance.trace import ANSWER_DIGEST_VERSION
from specreg.compare.answers import AnswerComparison, why_not_compared
from specreg.compare.document import record_gate
from specreg.compare.gate import LEDGER, Gate, open_gate
from specreg.compare.options import MAX_LAUNCHES, GateOptions
from specreg.compare.pairs import COMPARED
from specreg.correctness.turns import turns_of
from specreg.matrix.prompts import load_case_prompts
from specreg.matrix.tier import load_tier
from specreg.measurement.ledger import Ledger
from specreg.report.document import load_report
from specreg.report.terminal import render_report
from specreg.verdicts.verdict import Outcome
from tests.fuzz.mutations import json_of, rows_of
from tests.fuzz.trying import Sample, read_all_sound, try_all
from tests.unit import builders
from tests.unit.builders.gates import scripted_sides
from tests.unit.builders.shard_folders import TIER, record_measurement

PAGES = ("report.md", "report.html")
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|^(::|##\\[)", re.MULTILINE
)
"""What a terminal or a CI log would obey."""
Kinds = tuple[tuple[Sample, ...], ...]


def finished_gate(folder: Path) -> Gate:
    """A gate of one case on scripted servers that measured two launches of each side."""
    (folder / "cpu.toml").write_text(TIER)
    options = GateOptions(
        **scripted_sides(folder),
        root=builders.ROOT,
        matrix=folder,
        out=folder / "gate",
        show=lambda _: None,
    )
    gate = open_gate(options, load_tier(folder, "cpu"))
    (pair,) = gate.pairs
    for number, side in itertools.product((1, 2), COMPARED):
        key = gate._key(pair, side, number)  # noqa: SLF001 - as it does itself
        record_measurement(gate.ledger, pair.of(side), number, key)
    gate.ledger.close()
    return gate


def resumed(gate: Gate, folder: Path, name: str, content: bytes) -> tuple[Gate, list[str]]:
    """The gate as it is resumed from a copy of its folder with one other file, and what it says."""
    copy = folder / "gate"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(gate.folder, copy)
    (copy / name).write_bytes(content)
    said: list[str] = []
    answers = AnswerComparison(
        pairs=gate.pairs, root=builders.ROOT, path=copy / "answers.json", show=said.append
    )
    options = dataclasses.replace(gate.options, out=copy, show=said.append)
    ledger = Ledger(copy / LEDGER)
    again = dataclasses.replace(
        gate, options=options, folder=copy, ledger=ledger, answers=answers, launches=[]
    )
    again.take_over()
    return again, said


def check_reported(gate: Gate) -> None:
    """Decide a gate, and write its report, none of which a terminal or a log would obey."""
    report = record_gate(gate, command="specreg gate a b", resume_options="--resume")
    written = load_report(gate.folder / "report.json")
    assert written.run.exit_status == report.run.exit_status
    texts = [(gate.folder / name).read_text() for name in PAGES]
    for text in (*texts, render_report(written, color=False)):
        unsafe = _UNSAFE.search(text)
        assert unsafe is None, f"{unsafe} in {text[:200]!r}"


def read_answers(gate: Gate, folder: Path, content: bytes) -> None:
    """What is taken over fits the pairs, and what isn't is said."""
    again, said = resumed(gate, folder, "answers.json", content)
    (pair,) = again.pairs
    (verdict,) = again.answers.verdicts
    assert (verdict.case_id, verdict.metric) == (pair.id, "lossless_frac")
    assert verdict.outcome in {Outcome.PASS, Outcome.WRONG, Outcome.INVALID}
    assert not why_not_compared(pair.a, pair.b)
    assert verdict.value is None or 0 <= verdict.value <= 1
    assert (verdict.launches, verdict.needed_launches, verdict.softened) == (0, None, False)
    prompts = load_case_prompts(builders.ROOT, pair.a)[: pair.a.prompts]
    turns = sum(turns_of(pair.a, prompt) for prompt in prompts)
    saved_answers = again.answers._saved.answers  # noqa: SLF001 - what a launch compares
    assert {len(answers) for answers in saved_answers.values()} <= {turns}
    assert all(line.endswith("; the answers are generated again") for line in said)
    check_reported(again)


def read_ledger(gate: Gate, folder: Path, content: bytes) -> None:
    """What a ledger says, judged, and written again as a report."""
    again, _ = resumed(gate, folder, LEDGER, content)
    assert all(1 <= launched.number <= MAX_LAUNCHES for launched in again.launches)
    assert {launched.pair_id for launched in again.launches} <= {pair.id for pair in again.pairs}
    check_reported(again)


def answers_files(gate: Gate) -> Iterable[bytes]:
    """Files with the answers of side A, with a verdict, and with both."""
    (pair,) = gate.pairs
    prompts = load_case_prompts(builders.ROOT, pair.a)[: pair.a.prompts]
    turns = sum(turns_of(pair.a, prompt) for prompt in prompts)
    answers = {pair.id: [{"prompt": [1, 2, 3], "output": [4, 5], "text": "so"}] * turns}
    reason = {"text": "1 of 2 answers of B isn't that of A: 'x'", "remedy": "look at it"}
    verdicts = {pair.id: {"outcome": "WRONG", "value": 0.5, "reason": reason}}
    for fields in ({"answers": answers}, {"verdicts": verdicts}):
        yield msgspec.json.encode({**fields, "digest": ANSWER_DIGEST_VERSION})
    both = {"answers": answers, "verdicts": verdicts, "digest": ANSWER_DIGEST_VERSION}
    yield msgspec.json.encode(both)


@pytest.fixture(scope="session")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return finished_gate(tmp_path_factory.mktemp("gate"))


@pytest.fixture(scope="session")
def kinds(gate: Gate) -> Kinds:
    reading = functools.partial(read_answers, gate)
    answers = tuple(
        Sample(content=content, wrong=json_of, read=reading) for content in answers_files(gate)
    )
    ledger = (gate.folder / LEDGER).read_bytes()
    rows = Sample(content=ledger, wrong=rows_of, read=functools.partial(read_ledger, gate))
    return answers, (rows,)


def test_what_is_sound_is_read(kinds: Kinds, tmp_path: Path) -> None:
    """Otherwise no case would get as far as what is wrong in it."""
    read_all_sound(itertools.chain(*kinds), tmp_path)


def test_all_of_a_sound_folder_is_taken_over(gate: Gate, tmp_path: Path) -> None:
    *_, content = answers_files(gate)
    again, said = resumed(gate, tmp_path, "answers.json", content)
    launched = [(launch.number, launch.side) for launch in again.launches]
    assert launched == list(itertools.product((1, 2), COMPARED))
    assert again.answers.verdicts[0].outcome is Outcome.WRONG
    assert said == []


def test_any_gate_folder_ends_in_words_or_in_a_reading(
    numbers: range, kinds: Kinds, tmp_path: Path
) -> None:
    try_all(numbers, kinds, tmp_path)
