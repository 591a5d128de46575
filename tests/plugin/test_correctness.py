"""What must hold is checked as a user runs it: one changed token turns it red."""

import re

from specreg.datasets.prepare import load_prompts
from specreg.datasets.table import dataset_named
from specreg.verdicts.verdict import Outcome
from tests.doubles.vllm.script import Fault, Script, chat_prompt, prompt_token_ids, steps_of
from tests.doubles.vllm.steps import likeliest
from tests.plugin.conftest import ROOT, Suite

PROBE = 1
"""Requests by which a server is known to be ready."""
NUMBER = 4
"""Of the prompt whose answer is changed."""


def test_one_changed_token_is_wrong_and_named_however_many_are_equal(suite: Suite) -> None:
    """One of the 20 answers, in the case that asks for one at a time."""
    suite.script = Script(fault=Fault.CHANGED_TOKEN, fault_after_requests=PROBE + NUMBER - 1)
    prompt = load_prompts(dataset_named("toy"), root=ROOT, vocabulary=int)[NUMBER - 1]
    ids = prompt_token_ids(chat_prompt([{"role": "user", "content": prompt.turns[0]}]))
    answer = steps_of(" ".join(map(str, ids)), max_tokens=32).token_ids
    position = len(answer) // 2

    done = suite.run("tests/perf", "-q", "-k", "lossless")

    assert done.returncode == 1, done.stdout
    results = [
        (verdict.case_id, verdict.outcome, verdict.value) for verdict in suite.verdict().verdicts
    ]
    changed, sound = (f"vllm-eagle3-tiny-toy-c{load}" for load in (1, 4))
    assert results == [(changed, Outcome.WRONG, 0.9), (sound, Outcome.PASS, 1.0)]
    assert "WRONG: lossless 90%\n" in done.stdout
    wrong_token = likeliest(answer[position])[-1]
    tokens = f"{wrong_token} with speculation, {answer[position]} without speculation"
    assert f"'{prompt.id}', token {position + 1}: {tokens}, 19.00 nats apart" in done.stdout


def test_text_that_a_parser_loses_is_named_although_all_tokens_are_equal(suite: Suite) -> None:
    suite.script = Script(loses_text=True)

    done = suite.run("tests/perf", "-q", "-k", "c1 and eagle3 and (lossless or throughput)")

    lossless = next(
        verdict for verdict in suite.verdict().verdicts if verdict.metric == "lossless_frac"
    )
    assert (lossless.outcome, lossless.value) == (Outcome.PASS, 1.0)
    words = r"'vllm-eagle3-tiny-toy-c1': (\d+) of \1 answers have the tokens of an answer without"
    assert re.search(words, done.stdout), done.stdout
