"""Asking the models: what is handed over, and what becomes of a question that has no answer.

Another program stands in the place of the reference engine's interpreter, which needs torch.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from specreg.core.errors import ModelError
from specreg.correctness.oracle_client import predict_drafts
from specreg.engines.pytorch.requests import OracleAnswer, Question, Text
from specreg.engines.registry import engine_named
from tests.unit import builders

PROGRESS = "Loading weights: 100%|##########| 47/47"
Install = Callable[[str], None]
QUESTION = Question(
    method="eagle3",
    target="some/target",
    draft="some/head",
    draft_tokens=3,
    dtype="float32",
    texts=(Text(ids=(1, 2, 3), prompt_tokens=2, output_tokens=1),),
)
ANSWERS = """
import json, os, pathlib, sys
question = json.loads(sys.stdin.readline())  # the input stays open
variables = {name: os.environ.get(name) for name in ("PYTHONPATH", "HF_HUB_OFFLINE")}
asked = {"arguments": sys.argv[1:], "question": question, "variables": variables}
pathlib.Path(os.environ["SPECREG_CACHE"], "asked.json").write_text(json.dumps(asked))
print(json.dumps({"accepted": [[0, 1, 2]], "gaps_nats": [0.5]}))
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a program in the place of the interpreter."""
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    def write(program: str) -> None:
        environment = builders.seem_installed(engine_named("reference").requirement(on_gpu=False))
        Path(environment.python).write_text(f"#!{sys.executable}\n{program}")

    return write


@pytest.mark.parametrize(
    ("draft", "offline"), [("", "1"), ("some/head", None)], ids=["a-folder", "a-head-of-the-hub"]
)
def test_the_models_are_asked_in_their_own_environment(
    install: Install, tmp_path: Path, draft: str, offline: str | None
) -> None:
    """Nothing is fetched where every model is a folder."""
    install(ANSWERS)
    question = msgspec.structs.replace(QUESTION, target=str(tmp_path), draft=draft)

    answer = predict_drafts(question, on_gpu=False, show=pytest.fail)
    assert answer == OracleAnswer(accepted=((0, 1, 2),), gaps_nats=(0.5,))

    asked = msgspec.json.decode((tmp_path / "asked.json").read_bytes())
    assert asked["arguments"] == ["-m", "specreg.engines.pytorch.oracle", "cpu"]
    assert msgspec.convert(asked["question"], Question) == question
    assert asked["variables"] == {"PYTHONPATH": str(builders.ROOT), "HF_HUB_OFFLINE": offline}


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("""print('{"refusal": "head: has other tensors"}')""", "head: has other tensors"),
        ("import no_such_package", "its process ended with status 1; its last words:\nTraceback"),
        (
            "import os; os.kill(os.getpid(), 9)",
            "its process ended with status -9, killed as where memory runs out; its last words:\n",
        ),
    ],
    ids=["refused", "a-traceback", "killed"],
)
def test_what_has_no_answer_is_told(install: Install, program: str, words: str) -> None:
    install(program)

    with pytest.raises(ModelError) as caught:
        predict_drafts(QUESTION, on_gpu=False, show=pytest.fail)

    assert str(caught.value).startswith(f"oracle of method 'eagle3': {words}")
