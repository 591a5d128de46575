"""Put worked examples before each question, as lm-eval's few-shot tasks do.

A base model answers a question only if it has seen the form of an answer. How an answer goes on
after the examples, and so the acceptance, differs from that of the same question in a chat.
"""

import random
from collections.abc import Sequence

import msgspec
import numpy as np

from specreg.datasets.prompts import Prompt

_EXAMPLES = 5
_SEED = 0
"""The seed of TensorRT-LLM's accuracy tests, which draw the examples."""
_BETWEEN = "\n\n"


def with_examples(questions: Sequence[Prompt], examples: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Return the questions in their drawn order, each after five drawn examples.

    lm-eval 0.4.9 draws them so for TensorRT-LLM (`LmEvalEvaluator` in
    tensorrt_llm/evaluate/lm_eval.py): it shuffles the questions as `datasets` does, and then draws
    the examples of one question after the other.

    Args:
        questions: prompts of one turn, the text of a question.
        examples: prompts of one turn, the text of an example; five or more.
    """
    order = np.random.default_rng(_SEED).permutation(len(questions))
    drawn = random.Random(_SEED)  # noqa: S311 - the draws must be the same as lm-eval's
    prompts = []
    for index in order:
        question = questions[int(index)]
        shown = drawn.sample(list(examples), _EXAMPLES)
        texts = [example.turns[0] for example in shown]
        text = _BETWEEN.join((*texts, f"Question: {question.turns[0]}\nAnswer:"))
        prompts.append(msgspec.structs.replace(question, turns=(text,)))

    return tuple(prompts)


def example_text(question: str, answer: str) -> str:
    """Return a worked example."""
    return f"Question: {question}\nAnswer: {answer}"
