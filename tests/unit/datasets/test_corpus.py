"""The seeded grammar that the tiny models and the toy prompts come from."""

import hashlib
import json
from typing import TypedDict

import pytest

from fixtures.models.tiny import corpus

# Of the documents that the committed models were trained on, rendered and joined by newlines. If
# it differs, the grammar has changed, and the models must be trained again
# (fixtures/models/README.md).
TRAINING_DOCUMENTS_SHA256 = "7dcd026f72dcf52d0cb69125ad3fcb4fd42f85065e127ba313c47509917372a5"


class ToyRow(TypedDict):
    """A line of the toy prompt set."""

    id: str
    category: str
    turns: list[str]


@pytest.fixture(scope="module")
def trained() -> list[corpus.Document]:
    return corpus.training_documents()


@pytest.fixture(scope="module")
def toy_rows() -> list[ToyRow]:
    lines = corpus.TOY_PATH.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_the_training_documents_are_the_ones_that_the_committed_models_know(
    trained: list[corpus.Document],
) -> None:
    rendered = "\n".join(map(corpus.render_document, trained))
    assert hashlib.sha256(rendered.encode()).hexdigest() == TRAINING_DOCUMENTS_SHA256


def test_a_seed_makes_the_same_documents_at_each_call() -> None:
    assert corpus.make_documents(50, 3) == corpus.make_documents(50, 3)


def test_another_seed_makes_other_documents() -> None:
    assert corpus.make_documents(50, 3) != corpus.make_documents(50, 4)


def test_more_documents_begin_with_the_fewer() -> None:
    assert corpus.make_documents(50, 3)[:20] == corpus.make_documents(20, 3)


def test_documents_take_the_categories_in_turn() -> None:
    categories = [document.category for document in corpus.make_documents(10, 3)]
    assert categories == list(corpus.CATEGORIES) * 2


def test_a_rendered_document_is_a_turn_of_each_side() -> None:
    document = corpus.Document("chat", prompt="Hello.", answer="Hello you.")
    rendered = corpus.render_document(document)
    assert rendered == "<|user|>Hello.<|end|><|assistant|>Hello you.<|end|>"


def test_the_committed_toy_prompts_are_what_the_grammar_makes() -> None:
    assert corpus.TOY_PATH.read_text(encoding="utf-8") == corpus.render_toy_prompts()


def test_the_toy_prompts_are_thirty_two_of_each_category_in_turn(
    toy_rows: list[ToyRow],
) -> None:
    assert [row["category"] for row in toy_rows] == list(corpus.CATEGORIES) * 32
    assert [row["id"] for row in toy_rows] == [
        f"{category}-{number}" for number in range(32) for category in corpus.CATEGORIES
    ]


def test_each_toy_prompt_has_one_turn_and_occurs_once(toy_rows: list[ToyRow]) -> None:
    assert all(len(row["turns"]) == 1 for row in toy_rows)
    assert len({row["turns"][0] for row in toy_rows}) == len(toy_rows)


def test_no_toy_prompt_occurs_in_training(
    toy_rows: list[ToyRow], trained: list[corpus.Document]
) -> None:
    prompts = {turn for row in toy_rows for turn in row["turns"]}
    assert prompts.isdisjoint(document.prompt for document in trained)
