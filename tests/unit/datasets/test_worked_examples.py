"""Prompts after worked examples: drawn as lm-eval draws them, and ended where a question begins."""

from pathlib import Path

import pytest

from specreg.core.errors import DatasetError
from specreg.datasets import prepare as preparing
from specreg.datasets.prepare import load_prompts, prepare
from specreg.datasets.prompts import Prompt
from specreg.datasets.table import dataset_named
from specreg.datasets.worked_examples import example_text, with_examples

QUESTIONS = tuple(
    Prompt(id=f"q-{number}", category="math", turns=(f"How many is {number}?",))
    for number in range(8)
)
EXAMPLES = tuple(
    Prompt(id=f"e-{number}", category="math", turns=(example_text(f"What is {number}?", "It."),))
    for number in range(20)
)


def test_each_question_follows_five_examples_and_waits_for_its_answer() -> None:
    prompts = with_examples(QUESTIONS, EXAMPLES)
    assert {prompt.id for prompt in prompts} == {prompt.id for prompt in QUESTIONS}
    for prompt in prompts:
        *examples, question = prompt.turns[0].split("\n\n")
        assert len({*examples}) == 5
        assert {*examples} <= {example.turns[0] for example in EXAMPLES}
        number = prompt.id.removeprefix("q-")
        assert question == f"Question: How many is {number}?\nAnswer:"


def test_the_draws_are_those_of_lm_eval_with_the_seed_of_tensorrt_llm() -> None:
    """As `ContextSampler.get_context` of lm-eval 0.4.9 drew from 20 examples with seed 0."""
    first, second, *_ = with_examples(QUESTIONS, EXAMPLES)
    drawn = [
        [text.split()[3].rstrip("?") for text in prompt.turns[0].split("\n\n")[:-1]]
        for prompt in (first, second)
    ]
    assert drawn == [["12", "13", "1", "8", "15"], ["12", "9", "15", "11", "6"]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the hub's dataset of the set."""
    prompt_set = dataset_named("gsm8k-5shot")

    def fetch(repo: str, file: str) -> tuple[Path, str]:
        assert repo == prompt_set.repo
        return tmp_path / file, "0123abcd"

    monkeypatch.setattr(preparing, "fetch_dataset_file", fetch)
    (tmp_path / "main").mkdir()
    rows = "\n".join(
        f'{{"question": "What is {number}?", "answer": "{number}"}}' for number in range(6)
    )
    (tmp_path / prompt_set.file).write_text(rows)
    (tmp_path / prompt_set.examples_file).write_text(rows)
    return tmp_path


def test_the_set_is_prepared_from_both_of_its_files(hub: Path) -> None:
    prompt_set = dataset_named("gsm8k-5shot")
    record = prepare(prompt_set, data_dir=hub / "data")
    assert (record.prompts, record.dataset) == (6, "gsm8k-5shot")
    prompts = load_prompts(prompt_set, root=hub, data_dir=hub / "data", vocabulary=int)
    for prompt in prompts:
        assert prompt.turns[0].count("Answer: ") == 5
        assert prompt.turns[0].endswith("?\nAnswer:")


def test_an_example_without_an_answer_is_named(hub: Path) -> None:
    examples = hub / dataset_named("gsm8k-5shot").examples_file
    examples.write_text('{"question": "What is 1?"}')
    with pytest.raises(DatasetError, match=r"`answer`.*; an example needs question and answer"):
        prepare(dataset_named("gsm8k-5shot"), data_dir=hub / "data")
