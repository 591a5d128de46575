"""The reference engine's decoding against transformers' own, and against itself.

Run by the engine's interpreter, which has torch and no pytest, with the project's root on its
PYTHONPATH:

    ENV/bin/python -m unittest tests/reference/check_decoding.py
"""

import copy
import dataclasses
import functools
import itertools
import json
import unittest
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from specreg.engines.pytorch.decoding import Models, decode, load_models
from specreg.engines.pytorch.models import num_parameters
from specreg.engines.pytorch.options import parse_options
from specreg.engines.pytorch.reader import Reader
from specreg.engines.pytorch.requests import ChatBody, DecodedStep, Job, build_job
from specreg.engines.pytorch.speculation import FloatArray, NGramStore, Sampling

ROOT = Path(__file__).parents[2]
TINY = ROOT / "fixtures/models/tiny"
PROMPTS = [
    json.loads(line)["turns"][0]
    for line in (ROOT / "fixtures/prompts/toy.jsonl").read_text().splitlines()[:40]
]
CAP_TOKENS = 64
METHODS = ("ngram", "draft_model")
LEARNING = "ngram_adaptive"
"""What it drafts depends on all that its server has answered."""


def load(*arguments: str) -> Models:
    """The tiny models."""
    plain = ("--model", str(TINY / "target"), "--dtype", "float32", "--device", "cpu")
    return load_models(parse_options((*plain, *arguments)))


@functools.cache
def loaded(method: str) -> Models:
    """The same by method, once."""
    draft = ("--draft-model", str(TINY / "draft")) if method == "draft_model" else ()
    return load("--method", method, *draft)


def chat(text: str, **arguments: object) -> ChatBody:
    """A greedy chat, with words for its template."""
    return ChatBody(
        messages=[{"role": "user", "content": text}],
        max_tokens=CAP_TOKENS,
        temperature=0,
        chat_template_kwargs=arguments,
    )


JOBS = tuple(build_job(chat(prompt), loaded("none").tokenizer, 1024) for prompt in PROMPTS)
Answer = tuple[DecodedStep, ...]


def ids_of(answer: Answer) -> tuple[int, ...]:
    """The tokens of an answer."""
    return tuple(token_id for step in answer for token_id in step.token_ids)


def counts_of(answers: Sequence[Answer]) -> list[tuple[int, int]]:
    """By step in which something was drafted, accepted and drafted."""
    steps = (step for answer in answers for step in answer)
    return [(step.accepted, step.drafted) for step in steps if step.drafted]


def answers(models: Models, jobs: Sequence[Job], at_once: int = 1) -> list[Answer]:
    """The answers to jobs, some at once."""
    answered: list[list[DecodedStep]] = [[] for _ in jobs]
    for start in range(0, len(jobs), at_once):
        for batch_steps in decode(models, jobs[start : start + at_once]):
            for index, step in batch_steps.items():
                answered[start + index].append(step)
    return [tuple(steps) for steps in answered]


@functools.cache
def greedy(method: str, at_once: int) -> list[Answer]:
    """The greedy answers to the toy prompts."""
    return answers(loaded(method), JOBS, at_once)


def whole_logits(text: Sequence[int]) -> FloatArray:
    """The target's logits of a text that is read in one go, of shape [tokens, V]."""
    with torch.inference_mode():
        logits: FloatArray = loaded("none").target(torch.tensor([text])).logits[0].numpy()
        return logits


class Decoding(unittest.TestCase):
    def test_rows_that_go_back_differently_read_as_if_each_were_alone(self) -> None:
        random = np.random.default_rng(0)
        for rows in (1, 3):
            reader = Reader(loaded("none").target, rows)
            texts: list[list[int]] = [[] for _ in range(rows)]
            for _ in range(12):
                new = [random.integers(1, 700, random.integers(1, 6)).tolist() for _ in texts]
                logits = reader.read(new, [len(ids) for ids in new])
                for text, ids, row_logits in zip(texts, new, logits, strict=True):
                    text.extend(ids)
                    expected = whole_logits(text)[-len(ids) :]
                    np.testing.assert_allclose(row_logits, expected, atol=2e-4)
                back = [int(random.integers(0, len(text))) for text in texts]
                reader.forget(back)
                for text, count in zip(texts, back, strict=True):
                    del text[len(text) - count :]
                assert reader.lengths == [len(text) for text in texts]

    def test_a_row_that_waits_and_rows_that_leave_change_nothing_for_the_others(self) -> None:
        reader = Reader(loaded("none").target, 3)
        reader.read([[5, 6, 7], [8], [9, 10]], [0, 0, 1])
        reader.read([[11], [], [12, 13]], [1, 0, 2])
        reader.keep([0, 2])
        logits = reader.read([[14, 15], [16]], [1, 1])
        for row_logits, text in zip(
            logits, ([5, 6, 7, 11, 14, 15], [9, 10, 12, 13, 16]), strict=True
        ):
            np.testing.assert_allclose(row_logits, whole_logits(text)[-1:], atol=2e-4)

    def test_without_drafts_it_is_what_transformers_generates(self) -> None:
        target = loaded("none").target
        for answer, job in zip(greedy("none", 1)[:10], JOBS, strict=False):
            generated = target.generate(
                torch.tensor([job.prompt]), max_new_tokens=CAP_TOKENS, do_sample=False
            )
            assert list(ids_of(answer)) == generated[0, len(job.prompt) :].tolist()
            assert {step.drafted for step in answer} == {0}

    def test_with_drafts_it_is_the_same_text(self) -> None:
        for method in (*METHODS, LEARNING):
            for alone, speculative in zip(greedy("none", 1), greedy(method, 1), strict=True):
                assert ids_of(speculative) == ids_of(alone)
            accepted = sum(accepted for accepted, _ in counts_of(greedy(method, 1)))
            assert accepted > 100

    def test_in_a_batch_it_is_the_same_text_and_the_same_steps(self) -> None:
        for method in ("none", *METHODS):
            assert greedy(method, 7) == greedy(method, 1)
        several, alone = (list(map(ids_of, greedy(LEARNING, at_once))) for at_once in (7, 1))
        assert several == alone

    def test_its_steps_are_those_of_vllm_within_1_percent(self) -> None:
        """By prompt: the drafts accepted, the steps and the drafts that a baseline holds."""
        for method in METHODS:
            files = sorted((ROOT / "baselines").glob(f"*/vllm-{method}-tiny-toy-c1.json"))
            recorded = json.loads(files[0].read_text())["acceptance"]["prompts"]
            recorded_counts = [sum(prompt[column] for prompt in recorded) for column in (2, 3)]
            counts = counts_of(greedy(method, 1))
            own_counts = [sum(accepted for accepted, _ in counts), len(counts)]
            assert len(recorded) == len(JOBS)
            assert (
                abs(
                    (1 + own_counts[0] / own_counts[1])
                    / (1 + recorded_counts[0] / recorded_counts[1])
                    - 1
                )
                < 0.01
            )

    def test_its_drafts_are_what_most_often_followed_in_all_that_it_read(self) -> None:
        drafted = answers(load("--method", LEARNING), JOBS[:6])
        store = NGramStore()
        # A last step is read beyond the answer's end.
        jobs = [
            dataclasses.replace(job, output_cap_tokens=CAP_TOKENS + 4, ignore_eos=True)
            for job in JOBS[:6]
        ]
        longer = answers(loaded("none"), jobs)
        for answer, job, on in zip(drafted, jobs, longer, strict=True):
            text = [*job.prompt, *ids_of(on)]
            prompt_tokens = len(job.prompt)
            logits = torch.tensor(whole_logits(text))
            for position in range(1, prompt_tokens):
                store.learn(text[:position], text[position : position + 1])
            position = prompt_tokens
            for step in answer:
                drafts = store.propose(text[:position], 3) if position > prompt_tokens else ()
                pairs = zip(drafts, text[position:], strict=False)
                accepted = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)])
                assert (step.drafted, step.accepted) == (len(drafts), accepted)
                for end in range(position, position + accepted + 1):
                    best = (*logits[end - 1].topk(3).indices.tolist()[::-1], text[end])
                    store.learn(text[:end], best)
                position += accepted + 1
        counts = counts_of(drafted)
        assert sum(accepted for accepted, _ in counts) > 50
        assert len(counts) < sum(map(len, drafted)) - len(drafted), "each later step had a draft"

    def test_it_drafts_better_what_it_has_answered_before(self) -> None:
        models = load("--method", LEARNING)
        first, again = (answers(models, JOBS[:6]) for _ in range(2))
        assert sum(map(len, again)) < 0.8 * sum(map(len, first))

    def test_a_step_says_how_long_its_draft_and_the_target_took(self) -> None:
        """By a clock that moves on by one each time it is read, and by itself alone."""
        steps = [step[0] for step in decode(loaded("ngram"), JOBS[:1], itertools.count().__next__)]
        assert [step.target_ns for step in steps] == [1] * len(steps)
        assert [step.draft_ns for step in steps] == [0, *[1] * (len(steps) - 1)]

    def stop_inside(self, method: str) -> tuple[Job, Answer, int]:
        """A job, its answer, and a step that accepted two at least of which the first is new."""
        for job, answer in zip(JOBS, greedy(method, 1), strict=True):
            for index, step in enumerate(answer[:-1]):
                before = {i for earlier in answer[:index] for i in earlier.token_ids}
                if step.accepted >= 2 and step.token_ids[0] not in before:
                    return job, answer, index
        raise AssertionError

    def test_a_text_ends_inside_an_accepted_run_whose_counts_stay_whole(self) -> None:
        for method in METHODS:
            job, answer, index = self.stop_inside(method)
            stop_id = answer[index].token_ids[0]
            models = dataclasses.replace(loaded(method), stop_ids=frozenset({stop_id}))
            (ended,) = answers(models, [job])
            last = ended[-1]
            assert (last.token_ids, last.finish_reason) == ((stop_id,), "stop")
            assert last.accepted == answer[index].accepted
            assert counts_of([ended]) == counts_of([answer[: index + 1]])

            (on,) = answers(models, [dataclasses.replace(job, ignore_eos=True)])
            # Past the end of the answer too, if it has one.
            assert ids_of(on)[: len(ids_of(answer))] == ids_of(answer)
            assert len(ids_of(on)) == CAP_TOKENS

    def test_a_cap_cuts_the_tokens_and_not_the_counts(self) -> None:
        job, answer, index = self.stop_inside("draft_model")
        cap = sum(len(step.token_ids) for step in answer[:index]) + 1
        (cut,) = answers(loaded("draft_model"), [dataclasses.replace(job, output_cap_tokens=cap)])
        assert ids_of(cut) == ids_of(answer)[:cap]
        assert cut[-1].finish_reason == "length"
        assert cut[-1].accepted == answer[index].accepted

    def test_nothing_is_drafted_beyond_the_context(self) -> None:
        for method, job in itertools.product(("none", *METHODS, LEARNING), JOBS[:6]):
            on = dataclasses.replace(job, ignore_eos=True)
            context_tokens = len(job.prompt) + CAP_TOKENS
            models = dataclasses.replace(loaded(method), context_tokens=context_tokens)
            (answer,) = answers(models, [on])
            assert len(ids_of(answer)) == CAP_TOKENS
            done = 0
            for step in answer:
                assert step.drafted <= CAP_TOKENS - done
                done += step.accepted + 1

    def test_a_seed_decides_alone_and_in_a_batch(self) -> None:
        for method in ("none", *METHODS):
            models = loaded(method)
            jobs = [
                dataclasses.replace(job, sampling=Sampling(temperature=1.0), seed=seed)
                for seed, job in enumerate(JOBS[:6])
            ]
            assert answers(models, jobs, 6) == answers(models, jobs)
            reseeded = [
                dataclasses.replace(job, seed=100 + index) for index, job in enumerate(jobs)
            ]
            assert answers(models, reseeded, 6) != answers(models, jobs, 6)

    def test_they_are_the_targets_at_each_place(self) -> None:
        for method, temperature in itertools.product(("none", "draft_model"), (0.0, 1.0)):
            sampling = Sampling(temperature=temperature)
            job = dataclasses.replace(JOBS[1], top_logprobs=3, sampling=sampling, seed=3)
            (answer,) = answers(loaded(method), [job])
            logprobs = [row for step in answer for row in step.logprobs]
            logits = torch.tensor(whole_logits([*job.prompt, *ids_of(answer)]))
            exact = torch.log_softmax(logits.double(), dim=-1)[len(job.prompt) - 1 : -1]
            best = exact.topk(3)
            assert [[*row] for row in logprobs] == best.indices.tolist()
            np.testing.assert_allclose(
                [[*row.values()] for row in logprobs], best.values, atol=1e-3
            )

    def test_models_are_as_large_as_their_weights(self) -> None:
        for name in ("target", "draft"):
            loaded = load("--model", str(TINY / name)).target
            assert num_parameters(str(TINY / name)) == loaded.num_parameters() > 0

    def test_what_a_template_knows_reaches_it(self) -> None:
        tokenizer = copy.copy(loaded("none").tokenizer)
        tokenizer.chat_template = "{{ word }}"
        prompt = build_job(chat("Hello", word="Goodbye"), tokenizer, 1024).prompt
        assert tokenizer.decode(prompt) == "Goodbye"


if __name__ == "__main__":
    unittest.main()
