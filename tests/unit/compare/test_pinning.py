import dataclasses
import errno
import json
import math
import os
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specreg.acceptance.record import AcceptanceRecord, StepCounts
from specreg.compare import answers, pinning
from specreg.compare.pairs import Pair
from specreg.compare.pinning import (
    pinned_case,
    pinned_pairs,
    plain_case,
    record_answers,
    recording_of,
    schedule_of,
    why_not_pinned,
)
from specreg.core.errors import UnknownNameError, UnsupportedError
from specreg.datasets.prompts import Prompt
from specreg.engines.drafter.scheduled import Drafter
from specreg.engines.token_api import Transcript
from tests.unit import builders


@given(st.integers(0, 60), st.integers(3, 5))
def test_a_schedule_accepts_as_many_as_it_is_asked_for(twentieths: int, draft_tokens: int) -> None:
    length = 1 + Fraction(twentieths, 20)
    steps = schedule_of(float(length), draft_tokens)
    assert Fraction(sum(steps), len(steps)) == length - 1
    assert max(steps) - min(steps) <= 1
    assert max(steps) <= draft_tokens


@pytest.mark.parametrize("length", [4.5, math.nan, math.inf, -math.inf])
def test_what_is_no_length_is_said(length: float) -> None:
    with pytest.raises(UnsupportedError, match="an acceptance length is from 1 to 4"):
        schedule_of(length, 3)


def test_each_side_and_each_length_of_answers_has_a_recording_of_its_own(tmp_path: Path) -> None:
    longer = dataclasses.replace(builders.CASE, output_cap_tokens=30)
    paths = []
    for case in (builders.CASE, longer):
        pair = Pair(a=case, b=case)
        [pinned] = pinned_pairs([pair, pair], 2.5, builders.ROOT, tmp_path, print)
        assert pinned.a.server.method == "custom_class"
        assert dict(pinned.a.server.engine_env)["SCHEDULED_ACCEPTED"] == "1,2"
        paths += [recording_of(pinned.a), recording_of(pinned.b)]
    assert None not in paths
    assert len(set(paths)) == 4
    assert recording_of(builders.CASE) is None


def test_a_recording_that_was_cut_off_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "recordings" / "a.json"

    def full(file: int) -> None:
        del file
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(answers, "encode_prompts", lambda *_: ((1, 2),))
    answer = Transcript(prompt=(1, 2), output=(3, 4))
    monkeypatch.setattr(answers, "ask_greedy", lambda *_, **__: (answer,))
    server = SimpleNamespace(endpoint=None)
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            record_answers(builders.CASE, server, (), path)  # type: ignore[arg-type]
    assert not path.exists()
    record_answers(builders.CASE, server, (), path)  # type: ignore[arg-type]
    assert json.loads(path.read_text()) == [[[1, 2], [3, 4]]]


def accepted(steps: int, completion_tokens: int) -> AcceptanceRecord:
    """Ten answers of so many steps and tokens."""
    counts = StepCounts(steps=steps, accepted=0, proposed=None, position_counts=())
    cut = 1 + steps - completion_tokens
    return builders.acceptance_of([builders.prompt_acceptance(counts, cut_tokens=cut)] * 10)


def test_a_drafter_that_wasnt_as_right_as_it_should_be_is_told(tmp_path: Path) -> None:
    pinned = pinned_case(builders.CASE, 2.5, tmp_path / "a.json")
    # 48 tokens at 1, 2, 1, 2, … accepted drafts: 1 of the prefill, and 19 steps.
    assert why_not_pinned(pinned, accepted(19, 48)) == ""
    said = why_not_pinned(pinned, accepted(20, 48))
    assert said.startswith("NOT_PINNED: the answers took 200 steps, by their schedule it would be")
    assert why_not_pinned(pinned, None).startswith("NOT_PINNED")
    assert why_not_pinned(builders.CASE, accepted(20, 48)) == ""


def test_a_case_keeps_its_own_variables_and_its_recording_is_made_without_a_drafter(
    tmp_path: Path,
) -> None:
    pinned = pinned_case(builders.CASE, 2.5, tmp_path / "a.json")
    plain = plain_case(pinned).server
    assert dict(plain.engine_env).keys() == {"PYTHONPATH"}
    assert dataclasses.replace(plain, engine_env=()) == builders.PLAIN_SPEC
    own = (("PYTHONPATH", "/planted"), ("SCHEDULED_ACCEPTED", "1"))
    case = builders.on_server(engine_env=own)
    variables = dict(pinned_case(case, 2.5, tmp_path / "a.json").server.engine_env)
    assert variables["SCHEDULED_ACCEPTED"] == "1"
    assert variables["PYTHONPATH"].endswith(":/planted")


def test_nothing_to_pin_and_an_engine_that_takes_no_drafter_are_said(tmp_path: Path) -> None:
    plain = Pair(a=builders.PLAIN_CASE, b=builders.PLAIN_CASE)
    with pytest.raises(UnsupportedError, match="no case speculates"):
        pinned_pairs([plain], 2.5, builders.ROOT, tmp_path, print)
    with pytest.raises(UnknownNameError, match="--pin"):
        pinned_case(builders.on_server(engine="sglang"), 2.5, tmp_path / "a.json")


def test_what_a_recording_cant_know_isnt_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds greedy answers to first turns; said before a server starts, not by its steps."""
    prompts = [Prompt(id="a", category="c", turns=("Hi",))]
    talks = [*prompts, Prompt(id="b", category="c", turns=("Hi", "And?"))]
    monkeypatch.setattr(
        pinning,
        "load_case_prompts",
        lambda _, case: talks if case.dataset == "talks" else prompts,
    )
    greedy = dataclasses.replace(builders.CASE, temperature=0.0, turns=None)
    drawn = dataclasses.replace(greedy, temperature=0.7)
    talking = dataclasses.replace(greedy, dataset="talks")
    first = dataclasses.replace(talking, turns=1)
    cases = (greedy, drawn, talking, first, builders.PLAIN_CASE)
    pairs = tuple(Pair(a=one, b=one) for one in cases)
    said: list[str] = []
    found = pinned_pairs(pairs, 2.5, builders.ROOT, tmp_path, said.append)
    assert [(one.a.dataset, one.a.turns) for one in found] == [(greedy.dataset, None), ("talks", 1)]
    assert said == [
        f"not pinned: {pairs[number].id}, {why}, and a recording is of first greedy answers"
        for number, why in (
            (1, "its answers are drawn at a temperature"),
            (2, "its conversations go on"),
        )
    ]


def test_the_drafter_is_right_for_as_many_tokens_as_its_schedule_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = list(range(100, 120))
    path = tmp_path / "a.json"
    path.write_text(json.dumps([([1, 2], output)]))
    monkeypatch.setenv("SCHEDULED_RECORDING", str(path))
    monkeypatch.setenv("SCHEDULED_ACCEPTED", "1,2")
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
        model_config=SimpleNamespace(get_vocab_size=lambda: 1000),
    )
    drafter = Drafter(config)
    accepted, done = [], 1
    while done < 12:
        drafts = drafter._drafts([1, 2, *output[:done]])  # noqa: SLF001 - as propose asks it
        right = next((i for i, t in enumerate(drafts) if t != output[done + i]), len(drafts))
        accepted.append(right)
        done += right + 1
    assert accepted == [1, 2, 1, 2, 1]
