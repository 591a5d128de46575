"""What must hold is checked as a user runs it: one changed token turns it red."""

from specreg.datasets.prepare import load_prompts
from specreg.datasets.table import dataset_named
from specreg.verdicts.judge import Outcome
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
    changed, sound = suite.verdict().verdicts
    assert (changed.case_id, changed.outcome) == ("vllm-eagle3-tiny-toy-c1", Outcome.WRONG)
    assert (sound.case_id, sound.outcome) == ("vllm-eagle3-tiny-toy-c4", Outcome.PASS)
    assert (changed.value, sound.value) == (0.9, 1.0)
    other = likeliest(answer[place])[-1]
    assert "WRONG: lossless 90%\n" in done.stdout
    assert (
        f"prompt '{prompt.id}', token {place + 1}: {other} with speculation, {answer[place]}"
        " without speculation, 19.00 nats apart" in done.stdout
    )
