"""Prompts in one form are the same prompts in another."""

import itertools
import json
from pathlib import Path

import pytest

from specreg.converting import convert
from specreg.datasets import Prompt
from specreg.errors import DatasetError
from specreg.forms import FORMS, form_named
from tests.unit import builders

TOY = builders.ROOT / "fixtures/prompts/toy.jsonl"
TURNS = ("Hello.", "Again.", "And again.")


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A file with one conversation of three turns."""
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"id": "a", "category": "chat", "turns": TURNS}) + "\n")
    return path


@pytest.mark.parametrize(("one", "other"), tuple(itertools.permutations(FORMS, 2)))
def test_the_toy_prompts_go_from_any_form_to_any_other(
    one: str, other: str, tmp_path: Path
) -> None:
    prompts = form_named("specreg").load(TOY).prompts[:10]
    source, target = tmp_path / "one.jsonl", tmp_path / "other.json"
    form_named(one).record(source, prompts)
    convert(source, target, source_form=form_named(one), target_form=form_named(other), turns=None)
    loaded = form_named(other).load(target)
    assert [prompt.turns for prompt in loaded.prompts] == [prompt.turns for prompt in prompts]


@pytest.mark.parametrize(("turns", "kept"), [(None, 3), (2, 2), (1, 1), (9, 3)])
def test_a_conversation_is_cut_to_the_turns_asked_for(
    talk: Path, tmp_path: Path, turns: int | None, kept: int
) -> None:
    target = tmp_path / "aiperf.jsonl"
    convert(
        talk,
        target,
        source_form=form_named("specreg"),
        target_form=form_named("aiperf"),
        turns=turns,
    )
    assert form_named("aiperf").load(target).prompts == (
        Prompt(id="a", category="own", turns=TURNS[:kept]),
    )


def test_turns_that_do_not_fit_are_refused_and_nothing_written(talk: Path, tmp_path: Path) -> None:
    target = tmp_path / "genai.jsonl"
    specreg, genai = form_named("specreg"), form_named("genai-perf")
    with pytest.raises(DatasetError, match="prompt 'a': 3 turns, and 'genai-perf' holds one; keep"):
        convert(talk, target, source_form=specreg, target_form=genai, turns=None)
    assert not target.exists()
    convert(talk, target, source_form=specreg, target_form=genai, turns=1)
    assert json.loads(target.read_text()) == {"text": "Hello."}


def test_token_ids_are_not_cut(tmp_path: Path) -> None:
    source, target = tmp_path / "ids.jsonl", tmp_path / "same.jsonl"
    source.write_text('{"id": "a", "category": "random", "token_ids": [3, 1, 4]}\n')
    specreg = form_named("specreg")
    convert(source, target, source_form=specreg, target_form=specreg, turns=1)
    assert specreg.load(target) == specreg.load(source)
