"""What must hold is checked as a user runs it: one changed token turns it red."""

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


def test_a_token_that_speculation_changed_is_wrong_and_named_whatever_else_is_equal(
    suite: Suite,
) -> None:
    """One of the 20 answers, in the case that asks for one at a time."""
    suite.script = Script(fault=Fault.CHANGED_TOKEN, fault_after_requests=PROBE + NUMBER - 1)
    prompt = load_prompts(dataset_named("toy"), root=ROOT, vocabulary=int)[NUMBER - 1]
    ids = prompt_token_ids(chat_prompt([{"role": "user", "content": prompt.turns[0]}]))
    answer = steps_of(" ".join(map(str, ids)), max_tokens=32).token_ids
    place = len(answer) // 2

    done = suite.run("tests/perf", "-q", "-k", "lossless")

    assert done.returncode == 1, done.stdout
    found = [(one.case_id, one.outcome, one.value) for one in suite.verdict().verdicts]
    changed, sound = (f"vllm-eagle3-tiny-toy-c{load}" for load in (1, 4))
    assert found == [(changed, Outcome.WRONG, 0.9), (sound, Outcome.PASS, 1.0)]
    assert "WRONG: lossless 90%\n" in done.stdout
    other = likeliest(answer[place])[-1]
    tokens = f"{other} with speculation, {answer[place]} without speculation"
    assert f"'{prompt.id}', token {place + 1}: {tokens}, 19.00 nats apart" in done.stdout
