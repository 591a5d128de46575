"""A gate's folder with something wrong in it is resumed and reported in words, or validly."""

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
from specreg.compare.answers import ANSWERS, answer_verdict, why_not_compared
from specreg.compare.document import record_gate
from specreg.compare.gate import Gate, open_gate, take_over_gate
from specreg.compare.options import MAX_GATE_LAUNCHES, GateOptions
from specreg.compare.pairs import COMPARED, Pair, Side
from specreg.correctness.turns import turns_of
from specreg.engines.wire_format import Transcript
from specreg.matrix.prompts import load_case_prompts
from specreg.matrix.tier import load_tier
from specreg.report.files import load_report
from specreg.report.terminal import render_report
from specreg.runs.ledger import LEDGER, Checked, Ledger
from specreg.verdicts.verdict import Outcome
from tests.fuzz.mutations import rows_of
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
    (pair,) = gate.goal.pairs
    for number, side in itertools.product((1, 2), COMPARED):
        key = gate.executor.key_of(pair, side, number)
        record_measurement(gate.ledger, pair.of(side), number, key)
    gate.ledger.close()
    return gate


def resumed(gate: Gate, folder: Path, content: bytes) -> tuple[Gate, list[str]]:
    """The gate as it is resumed from a copy of its folder with a ledger, and what it says."""
    copy = folder / "gate"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(gate.folder, copy)
    (copy / LEDGER).write_bytes(content)
    said: list[str] = []
    ledger = Ledger(copy / LEDGER)
    options = dataclasses.replace(gate.options, out=copy, show=said.append)
    executor = dataclasses.replace(gate.executor, ledger=ledger, options=options)
    take_over_gate(ledger, gate.goal.pairs, executor.key_of, options)
    again = dataclasses.replace(gate, options=options, folder=copy, executor=executor)
    return again, said


def check_reported(gate: Gate) -> None:
    """Decide a gate, and write its report, none of which a terminal or a log would obey."""
    report = record_gate(gate, command="specreg gate a b", resume_options="--resume")
    written = load_report(gate.folder / "report.json")
    assert written.run.exit_status == report.run.exit_status
    texts = [(gate.folder / name).read_text() for name in PAGES]
    for text in (*texts, render_report(written)):
        unsafe = _UNSAFE.search(text)
        assert unsafe is None, f"{unsafe} in {text[:200]!r}"


def read_gate(gate: Gate, folder: Path, content: bytes) -> None:
    """What is taken over of a ledger fits the pairs, and is judged and written as a report."""
    again, said = resumed(gate, folder, content)
    launches = again.ledger.launches
    assert all(1 <= launched.number <= MAX_GATE_LAUNCHES for launched in launches)
    assert {launched.case_id for launched in launches} <= {pair.id for pair in again.goal.pairs}
    (pair,) = again.goal.pairs
    verdict = answer_verdict(pair, again.ledger)
    assert (verdict.case_id, verdict.metric) == (pair.id, "lossless_frac")
    assert verdict.outcome in {Outcome.PASS, Outcome.WRONG, Outcome.INVALID}
    assert not why_not_compared(pair.a, pair.b)
    assert verdict.value is None or 0 <= verdict.value <= 1
    assert (verdict.launches, verdict.needed_launches, verdict.softened) == (0, None, False)
    saved_answers = again.ledger.check(pair.id, ANSWERS)
    assert saved_answers is None or len(saved_answers.answers) == turns_of_all(pair)
    assert all(line.endswith("; the answers are generated again") for line in said)
    check_reported(again)


def turns_of_all(pair: Pair) -> int:
    """How many answers side A gives."""
    prompts = load_case_prompts(builders.ROOT, pair.a)[: pair.a.request.prompts]
    return sum(turns_of(pair.a, prompt) for prompt in prompts)


def lines_of_answers(gate: Gate) -> Iterable[bytes]:
    """Lines with the answers of side A, and with a verdict."""
    (pair,) = gate.goal.pairs
    answer = Transcript(prompt=(1, 2, 3), output=(4, 5), text="so")
    reason = {"text": "1 of 2 answers of B isn't that of A: 'x'", "remedy": "look at it"}
    wrong = {"outcome": "WRONG", "value": 0.5, "reason": reason}
    answers = Checked(
        key=gate.executor.key_of(pair, Side.A, 1),
        check="answers",
        answers=(answer,) * turns_of_all(pair),
        digest=ANSWER_DIGEST_VERSION,
    )
    verdict = Checked(
        key=gate.executor.key_of(pair, Side.B, 1),
        check="lossless_frac",
        verdict=wrong,
        digest=ANSWER_DIGEST_VERSION,
    )
    for line in (answers, verdict):
        yield msgspec.json.encode(line) + b"\n"


@pytest.fixture(scope="session")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return finished_gate(tmp_path_factory.mktemp("gate"))


@pytest.fixture(scope="session")
def kinds(gate: Gate) -> Kinds:
    reading = functools.partial(read_gate, gate)
    ledger = (gate.folder / LEDGER).read_bytes()
    answers = tuple(
        Sample(content=content, wrong=rows_of, read=reading)
        for content in (*lines_of_answers(gate), b"".join(lines_of_answers(gate)))
    )
    return answers, (Sample(content=ledger, wrong=rows_of, read=reading),)


def test_what_is_sound_is_read(kinds: Kinds, tmp_path: Path) -> None:
    """Otherwise no case would get as far as what is wrong in it."""
    read_all_sound(itertools.chain(*kinds), tmp_path)


def test_all_of_a_sound_folder_is_taken_over(gate: Gate, tmp_path: Path) -> None:
    content = (gate.folder / LEDGER).read_bytes() + b"".join(lines_of_answers(gate))
    again, said = resumed(gate, tmp_path, content)
    launched = [(launch.number, launch.arm) for launch in again.ledger.launches]
    assert launched == list(itertools.product((1, 2), COMPARED))
    assert answer_verdict(again.goal.pairs[0], again.ledger).outcome is Outcome.WRONG
    assert said == []


def test_any_gate_folder_ends_in_words_or_in_a_reading(
    numbers: range, kinds: Kinds, tmp_path: Path
) -> None:
    try_all(numbers, kinds, tmp_path)
