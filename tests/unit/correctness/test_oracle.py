"""The oracle: an answer's steps, walked again along its text; which cases it knows; its models.

Another program stands in the place of the reference engine's interpreter, which needs torch.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.core.errors import ModelError
from specreg.correctness.oracle_client import drafts_of_lookup, has_oracle, predict_drafts, walk
from specreg.engines.methods import METHODS
from specreg.engines.pytorch.question import OracleAnswer, Question, TokenizedText
from specreg.engines.pytorch.speculation import propose, propose_padded
from specreg.engines.registry import ENGINES, engine_named
from tests.unit import builders


def text(prompt_tokens: int, output_tokens: int) -> TokenizedText:
    """A text of so many tokens."""
    return TokenizedText(ids=(), prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def test_a_step_that_drafts_nothing_emits_one_token_and_is_not_counted() -> None:
    """Of the places 5, 6, 7 and 8 only 7 drafts, and there one token, which is wrong."""
    drafts_at = {5: (0, 0), 6: (0, 0), 7: (1, 0), 8: (0, 0)}.__getitem__
    steps = walk(drafts_at, text(4, 5), 3)
    assert steps == StepCounts(steps=1, accepted=0, proposed=1, position_counts=(0, 0, 0))


@pytest.mark.parametrize(
    ("ids", "position", "drafted"),
    [
        pytest.param((1, 2, 3, 4, 5, 1, 2, 3, 4, 9), 7, (3, 2), id="right as far as the text is"),
        pytest.param((1, 2, 3, 4, 5, 1, 2, 3, 4, 9), 2, (0, 0), id="nothing to find"),
        pytest.param((1, 2, 1, 2, 1, 2), 2, (0, 0), id="what comes later is not seen"),
        pytest.param((5, 5, 5, 5, 5, 5), 3, (1, 1), id="fewer where the text before ends"),
    ],
)
def test_lookup_drafts_what_followed_before(
    ids: tuple[int, ...], position: int, drafted: tuple[int, int]
) -> None:
    assert drafts_of_lookup(propose, ids, 3, position) == drafted


def said_by(rule: list[int], text: list[int]) -> int:
    """A toy model's greedy token: its last two decide."""
    last = text[-1]
    before = text[-2] if len(text) > 1 else 0
    return rule[(4 * before + last) % len(rule)]


RULES = st.lists(st.integers(0, 3), min_size=16, max_size=16)


@given(
    target=RULES,
    drafter=RULES,
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    width=st.integers(1, 4),
    cap=st.integers(1, 20),
)
def test_the_walk_finds_the_steps_that_were_taken(
    target: list[int], drafter: list[int], prompt: list[int], width: int, cap: int
) -> None:
    """Speculative decoding forward, with verification against the target, and the walk after it."""
    ids = [*prompt, said_by(target, prompt)]
    steps = NO_STEPS
    while len(ids) < len(prompt) + cap:
        right = right_drafts(drafter, ids, said_on(target, ids, width))
        steps += builders.counts(*(int(right == accepted) for accepted in range(width + 1)))
        ids = said_on(target, ids, right + 1)
    # As the engine is asked for what comes after its answer.
    text_ids = said_on(target, ids[: len(prompt) + cap], width + 1)
    walked = walk(
        lambda position: (
            width,
            right_drafts(drafter, text_ids[:position], text_ids[: position + width]),
        ),
        text(len(prompt), cap),
        width,
    )
    assert walked == steps


def said_on(rule: list[int], text: list[int], tokens: int) -> list[int]:
    """A text, and what a toy model says after it."""
    text = [*text]
    for _ in range(tokens):
        text.append(said_by(rule, text))
    return text


def right_drafts(drafter: list[int], text: list[int], on: list[int]) -> int:
    """How many drafts after a text are how it goes on."""
    drafts = said_on(drafter, text, len(on) - len(text))
    same = [first == right for first, right in zip(drafts, on, strict=True)][len(text) :]
    return [*same, False].index(False)


def test_the_oracle_covers_only_pairs_that_were_compared_with_an_engine() -> None:
    of_vllm = {"draft_model", "eagle", "eagle3", "medusa", "mtp", "dflash", "ngram"}
    of_vllm |= {"pard", "p_eagle", "draft_model_tli"}
    of_sglang = {"draft_model", "eagle", "eagle3", "mtp", "draft_model_tree"}
    known = {"vllm": of_vllm, "triton": of_vllm, "reference": {"draft_model", "ngram"}}
    known["sglang"] = of_sglang | {"eagle_tree", "eagle3_tree"}
    for engine in ENGINES:
        cases = [builders.on_server(engine=engine, method=name) for name in METHODS]
        methods = {case.server.method for case in cases if has_oracle(case)}
        assert methods == known.get(engine, set())


Install = Callable[[str], None]
QUESTION = Question(
    method="eagle3",
    target="some/target",
    draft="some/head",
    draft_tokens=3,
    dtype="float32",
    texts=(TokenizedText(ids=(1, 2, 3), prompt_tokens=2, output_tokens=1),),
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
        python = builders.seem_installed(engine_named("reference").requirement(on_gpu=False))
        python.write_text(f"#!{sys.executable}\n{program}")

    return write


def test_the_walk_knows_both_rules_by_which_vllm_counts_lookup() -> None:
    """The answer 8 1 2 7 to 1 2 7: three steps, of which V1 counts the one that finds 1 2."""
    ids = (1, 2, 7, 8, 1, 2, 7, 3, 3, 3)
    answer = TokenizedText(ids=ids, prompt_tokens=3, output_tokens=4)
    by_v1 = walk(lambda index: drafts_of_lookup(propose, ids, 3, index), answer, 3)
    by_v2 = walk(lambda index: drafts_of_lookup(propose_padded, ids, 3, index), answer, 3)
    assert (by_v1.steps, by_v1.accepted, by_v1.proposed) == (1, 1, 3)
    assert (by_v2.steps, by_v2.accepted, by_v2.proposed) == (3, 1, 9)


@pytest.mark.parametrize(
    ("draft", "offline"), [("", "1"), ("some/head", None)], ids=["a-folder", "a-head-of-the-hub"]
)
def test_the_models_run_in_an_environment_of_their_own(
    install: Install, tmp_path: Path, draft: str, offline: str | None
) -> None:
    """Nothing is fetched where every model is a folder."""
    install(ANSWERS)
    question = msgspec.structs.replace(QUESTION, target=str(tmp_path), draft=draft)
    answer = predict_drafts(question, on_gpu=False, show=pytest.fail)
    assert answer == OracleAnswer(accepted=((0, 1, 2),), gaps_nats=(0.5,))
    question_asked = msgspec.json.decode((tmp_path / "asked.json").read_bytes())
    assert question_asked["arguments"] == ["-m", "specreg.engines.pytorch.oracle", "cpu"]
    assert msgspec.convert(question_asked["question"], Question) == question
    assert question_asked["variables"] == {
        "PYTHONPATH": str(builders.ROOT),
        "HF_HUB_OFFLINE": offline,
    }


ENDED = "its process ended with status"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("""print('{"refusal": "head: has other tensors"}')""", "head: has other tensors"),
        ("import no_such_package", f"{ENDED} 1; the last lines of its log:\nTraceback"),
        ("import os; os.kill(os.getpid(), 9)", f"{ENDED} -9, killed, as happens when memory"),
    ],
    ids=["refused", "a-traceback", "killed"],
)
def test_a_question_without_an_answer_is_an_error_with_its_cause(
    install: Install, program: str, words: str
) -> None:
    install(program)
    with pytest.raises(ModelError) as caught:
        predict_drafts(QUESTION, on_gpu=False, show=pytest.fail)
    assert str(caught.value).startswith(f"oracle of method 'eagle3': {words}")
