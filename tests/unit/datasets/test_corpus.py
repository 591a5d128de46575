"""The seeded grammar that the tiny models and the toy prompts come from."""

import hashlib
import json

import pytest

from fixtures.models.tiny import corpus

# Of the documents that the committed models were trained on, rendered and joined by newlines. If
# it differs, the grammar has changed, and the models must be trained again
# (fixtures/models/README.md).
TRAINING_DOCUMENTS_SHA256 = "7dcd026f72dcf52d0cb69125ad3fcb4fd42f85065e127ba313c47509917372a5"


@pytest.fixture(scope="module")
def trained() -> list[corpus.Document]:
    return corpus.training_documents()


def test_the_training_documents_are_the_ones_that_the_committed_models_know(
    trained: list[corpus.Document],
) -> None:
    rendered = "\n".join(map(corpus.render_document, trained))
    assert hashlib.sha256(rendered.encode()).hexdigest() == TRAINING_DOCUMENTS_SHA256


def test_the_committed_toy_prompts_are_what_the_grammar_makes() -> None:
    assert corpus.TOY_PATH.read_text(encoding="utf-8") == corpus.render_toy_prompts()


def test_no_toy_prompt_occurs_in_training(trained: list[corpus.Document]) -> None:
    rows = map(json.loads, corpus.TOY_PATH.read_text(encoding="utf-8").splitlines())
    prompts = {turn for row in rows for turn in row["turns"]}
    assert prompts.isdisjoint(document.prompt for document in trained)
