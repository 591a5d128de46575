"""The reference engine's decoding against transformers' own, and against itself.

Run by the engine's interpreter, which has torch and no pytest, with the project's root and
`tests/reference/planted` on its PYTHONPATH:

    ENV/bin/python -m unittest tests/reference/check_decoding.py
"""

import copy
import dataclasses
import functools
import itertools
import json
import math
import shutil
import tempfile
import unittest
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import planted
import torch
from numpy.typing import NDArray

from specreg.core.errors import ModelError, ServerRefusedError, UnsupportedError
from specreg.engines.pytorch import speculation
from specreg.engines.pytorch.decoding import Models, Reader, decode
from specreg.engines.pytorch.models import Loaded, device_map, load_model, load_models
from specreg.engines.pytorch.options import Placement, parse_options
from specreg.engines.pytorch.requests import ChatBody, Job, Message, Step
from specreg.engines.pytorch.speculation import Floats

ROOT = Path(__file__).parents[2]
TINY = ROOT / "fixtures/models/tiny"
PROMPTS = [
    json.loads(line)["turns"][0]
    for line in (ROOT / "fixtures/prompts/toy.jsonl").read_text().splitlines()[:40]
]
CAP_TOKENS = 64
METHODS = ("ngram", "draft_model")


def load(*arguments: str, method: str = "none") -> Loaded:
    """The tiny models."""
    draft = ("--draft-model", str(TINY / "draft")) if method == "draft_model" else ()
    plain = ("--model", str(TINY / "target"), "--dtype", "float32", "--devices", "cpu")
    return load_models(parse_options((*plain, "--method", method, *draft, *arguments)))


@functools.cache
def loaded(method: str) -> Loaded:
    """The same, once."""
    return load(method=method)


@functools.cache
def prompt_ids() -> tuple[tuple[int, ...], ...]:
    """The toy prompts as a chat has them."""
    tokenizer = loaded("none").tokenizer
    return tuple(
        tuple(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
            )
        )
        for prompt in PROMPTS
    )


JOBS = tuple(Job(prompt=prompt, output_cap_tokens=CAP_TOKENS) for prompt in prompt_ids())


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: its steps."""

    steps: tuple[Step, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token_id for step in self.steps for token_id in step.token_ids)

    @property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """By step in which something was drafted, accepted and drafted."""
        return tuple((step.accepted, step.drafted) for step in self.steps if step.drafted)


def answers(models: Models, jobs: Sequence[Job], at_once: int = 1) -> list[Answer]:
    """The answers to jobs, some at once."""
    found = []
    for start in range(0, len(jobs), at_once):
        batch = jobs[start : start + at_once]
        steps: list[list[Step]] = [[] for _ in batch]
        for one in decode(models, batch):
            for index, step in one.items():
                steps[index].append(step)
        found += [Answer(tuple(own)) for own in steps]
    return found


@functools.cache
def greedy(method: str, at_once: int) -> list[Answer]:
    """The greedy answers to the toy prompts."""
    return answers(loaded(method).models, JOBS, at_once)


def whole_logits(text: Sequence[int]) -> Floats:
    """The target's logits of a text that is read in one go, of shape [tokens, V]."""
    with torch.inference_mode():
        logits: Floats = loaded("none").models.target(torch.tensor([text])).logits[0].numpy()
        return logits


class Reading(unittest.TestCase):
    def test_rows_that_go_back_differently_read_as_if_each_were_alone(self) -> None:
        random = np.random.default_rng(0)
        for rows in (1, 3):
            reader = Reader(loaded("none").models.target, rows)
            texts: list[list[int]] = [[] for _ in range(rows)]
            for _ in range(12):
                new = [random.integers(1, 700, random.integers(1, 6)).tolist() for _ in texts]
                logits = reader.read(new, [len(one) for one in new])
                for text, one, own in zip(texts, new, logits, strict=True):
                    text.extend(one)
                    expected = whole_logits(text)[-len(one) :]
                    np.testing.assert_allclose(own, expected, atol=2e-4)
                back = [int(random.integers(0, len(text))) for text in texts]
                reader.forget(back)
                for text, count in zip(texts, back, strict=True):
                    del text[len(text) - count :]
                assert reader.lengths == [len(text) for text in texts]

    def test_a_row_that_waits_and_rows_that_leave_change_nothing_for_the_others(self) -> None:
        reader = Reader(loaded("none").models.target, 3)
        reader.read([[5, 6, 7], [8], [9, 10]], [0, 0, 1])
        reader.read([[11], [], [12, 13]], [1, 0, 2])
        reader.keep([0, 2])
        logits = reader.read([[14, 15], [16]], [1, 1])
        for own, text in zip(logits, ([5, 6, 7, 11, 14, 15], [9, 10, 12, 13, 16]), strict=True):
            np.testing.assert_allclose(own, whole_logits(text)[-1:], atol=2e-4)

    def test_a_single_row_leaves_no_gap_in_its_cache(self) -> None:
        reader = Reader(loaded("none").models.target, 1)
        reader.read([[5, 6, 7, 8]], [1])
        reader.forget([3])
        reader.read([[9]], [1])
        assert reader._cache.get_seq_length() == 2  # noqa: SLF001 - what is kept


class Greedy(unittest.TestCase):
    def test_without_drafts_it_is_what_transformers_generates(self) -> None:
        target = loaded("none").models.target
        for answer, prompt in zip(greedy("none", 1)[:10], prompt_ids(), strict=False):
            generated = target.generate(
                torch.tensor([prompt]), max_new_tokens=CAP_TOKENS, do_sample=False
            )
            assert list(answer.ids) == generated[0, len(prompt) :].tolist()
            assert {step.drafted for step in answer.steps} == {0}

    def test_with_drafts_it_is_the_same_text(self) -> None:
        for method in METHODS:
            for alone, speculative in zip(greedy("none", 1), greedy(method, 1), strict=True):
                assert speculative.ids == alone.ids
            accepted = sum(a for answer in greedy(method, 1) for a, _ in answer.counts)
            assert accepted > 100

    def test_in_a_batch_it_is_the_same_text_and_the_same_steps(self) -> None:
        for method in ("none", *METHODS):
            assert greedy(method, 7) == greedy(method, 1)

    def test_its_steps_are_those_of_vllm_within_1_percent(self) -> None:
        """By prompt: the drafts accepted, the steps and the drafts that a baseline holds."""
        for method in METHODS:
            files = sorted((ROOT / "baselines").glob(f"*/vllm-{method}-tiny-toy-c1.json"))
            recorded = json.loads(files[0].read_text())["acceptance"]["prompts"]
            theirs = [sum(prompt[column] for prompt in recorded) for column in (2, 3)]
            counts = [one for answer in greedy(method, 1) for one in answer.counts]
            ours = [sum(accepted for accepted, _ in counts), len(counts)]
            assert len(recorded) == len(JOBS)
            assert abs((1 + ours[0] / ours[1]) / (1 + theirs[0] / theirs[1]) - 1) < 0.01


class Ends(unittest.TestCase):
    def stop_inside(self, method: str) -> tuple[Job, Answer, int]:
        """A job, its answer, and a step that accepted two at least of which the first is new."""
        for job, answer in zip(JOBS, greedy(method, 1), strict=True):
            for index, step in enumerate(answer.steps[:-1]):
                before = {i for earlier in answer.steps[:index] for i in earlier.token_ids}
                if step.accepted >= 2 and step.token_ids[0] not in before:
                    return job, answer, index
        raise AssertionError

    def test_a_text_ends_inside_an_accepted_run_whose_counts_stay_whole(self) -> None:
        for method in METHODS:
            job, answer, index = self.stop_inside(method)
            stop_id = answer.steps[index].token_ids[0]
            models = dataclasses.replace(loaded(method).models, stop_ids=frozenset({stop_id}))
            (ended,) = answers(models, [job])
            last = ended.steps[-1]
            assert (last.token_ids, last.finish_reason) == ((stop_id,), "stop")
            assert last.accepted == answer.steps[index].accepted
            assert ended.counts == Answer(answer.steps[: index + 1]).counts

            (on,) = answers(models, [dataclasses.replace(job, ignore_eos=True)])
            # Past the end of the answer too, if it has one.
            assert on.ids[: len(answer.ids)] == answer.ids
            assert len(on.ids) == CAP_TOKENS

    def test_a_cap_cuts_the_tokens_and_not_the_counts(self) -> None:
        job, answer, index = self.stop_inside("draft_model")
        cap = sum(len(step.token_ids) for step in answer.steps[:index]) + 1
        (cut,) = answers(
            loaded("draft_model").models, [dataclasses.replace(job, output_cap_tokens=cap)]
        )
        assert cut.ids == answer.ids[:cap]
        assert cut.steps[-1].finish_reason == "length"
        assert cut.steps[-1].accepted == answer.steps[index].accepted

    def test_nothing_is_drafted_beyond_the_context(self) -> None:
        for method, job in itertools.product(("none", *METHODS), JOBS[:6]):
            on = dataclasses.replace(job, ignore_eos=True)
            context_tokens = len(job.prompt) + CAP_TOKENS
            models = dataclasses.replace(loaded(method).models, context_tokens=context_tokens)
            (answer,) = answers(models, [on])
            assert len(answer.ids) == CAP_TOKENS
            done = 0
            for step in answer.steps:
                assert step.drafted <= CAP_TOKENS - done
                done += step.accepted + 1

    def test_a_job_that_nobody_wants_any_more_leaves_its_batch(self) -> None:
        places = [
            set(steps)
            for steps in decode(loaded("ngram").models, JOBS[:3], lambda place: place != 1)
        ]
        assert places[0] == {0, 1, 2}
        assert all(1 not in later for later in places[1:])
        assert len(places) > 3


class Sampling(unittest.TestCase):
    def test_a_seed_decides_whoever_else_is_in_the_batch(self) -> None:
        for method in ("none", *METHODS):
            models = loaded(method).models
            jobs = [
                dataclasses.replace(job, temperature=1.0, seed=seed)
                for seed, job in enumerate(JOBS[:6])
            ]
            assert answers(models, jobs, 6) == answers(models, jobs)
            other = [dataclasses.replace(job, seed=100 + index) for index, job in enumerate(jobs)]
            assert answers(models, other, 6) != answers(models, jobs, 6)

    def test_the_text_is_distributed_as_the_target_says_whoever_drafts(self) -> None:
        """The second and third token, given the first ones; the draft draws at the same heat."""
        prompt, temperature, samples = prompt_ids()[2], 1.3, 2_000
        for method in METHODS:
            jobs = [
                Job(prompt=prompt, output_cap_tokens=3, temperature=temperature, seed=seed)
                for seed in range(samples)
            ]
            found = [answer.ids for answer in answers(loaded(method).models, jobs, 500)]
            firsts = [ids[:1] for ids in found]
            likeliest = max(set(firsts), key=firsts.count)
            for prefix in ((), likeliest):
                following = [
                    ids[len(prefix)]
                    for ids in found
                    if ids[: len(prefix)] == prefix and len(ids) > len(prefix)
                ]
                logits = whole_logits([*prompt, *prefix])[-1]
                p = speculation.distributions(logits[None], temperature)[0]
                assert agrees(np.bincount(following, minlength=len(p)), p)
                assert not agrees(np.bincount(following, minlength=len(p)), np.sqrt(p))


def agrees(counts: NDArray[np.generic], weights: Floats) -> bool:
    """Pearson's test at the level 1e-4; tokens that are rarely expected are taken together."""
    expected = weights / weights.sum() * counts.sum()
    often = expected >= 5
    observed = np.append(counts[often], counts[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    freedom = len(wanted) - 1
    # The quantile by Wilson and Hilferty 1931, whose normal quantile is 3.72.
    spread = 2 / (9 * freedom)
    limit = freedom * (1 - spread + 3.72 * math.sqrt(spread)) ** 3
    return bool(((observed - wanted) ** 2 / wanted).sum() < limit)


class LogProbabilities(unittest.TestCase):
    def test_they_are_the_targets_at_each_place(self) -> None:
        for method, temperature in itertools.product(("none", "draft_model"), (0.0, 1.0)):
            job = dataclasses.replace(JOBS[1], top=3, temperature=temperature, seed=3)
            (answer,) = answers(loaded(method).models, [job])
            told = [one for step in answer.steps for one in step.logprobs]
            logits = torch.tensor(whole_logits([*job.prompt, *answer.ids]))
            exact = torch.log_softmax(logits.double(), dim=-1)[len(job.prompt) - 1 :]
            assert len(told) == len(answer.ids)
            for place, (one, token_id) in enumerate(zip(told, answer.ids, strict=True)):
                assert token_id in one
                assert len(one) in {3, 4}
                best = exact[place].topk(3)
                assert [*one][:3] == best.indices.tolist()
                for other, value in one.items():
                    assert abs(value - float(exact[place, other])) < 1e-3

    def test_none_are_told_to_whom_did_not_ask(self) -> None:
        assert greedy("none", 1)[0].steps[0].logprobs == ()


class Faults(unittest.TestCase):
    """The faults that `planted` prepares change the text: there is something to be caught."""

    def test_each_changes_the_text(self) -> None:
        wrappers: dict[Callable[..., Any], tuple[Any, str]] = {
            planted.one_too_many: (speculation, "verify"),
            planted.no_correction: (speculation, "verify"),
            planted.wrong_rollback: (Reader, "forget"),
        }
        sound = {method: [answer.ids for answer in greedy(method, 1)[:10]] for method in METHODS}
        for method, (wrap, (where, name)) in itertools.product(METHODS, wrappers.items()):
            with mock.patch.object(where, name, wrap(getattr(where, name))):
                faulty = answers(loaded(method).models, JOBS[:10], 10)
            assert [answer.ids for answer in faulty] != sound[method], (method, wrap.__name__)


class Split(unittest.TestCase):
    placement = Placement(target=("cpu", "cpu"), first_frac=0.7, draft="cpu")

    def test_a_target_in_parts_says_what_it_says_in_one(self) -> None:
        whole = loaded("none").models
        parts = device_map(whole.target.config, self.placement)
        target = load_model(str(TINY / "target"), "float32", parts)
        models = dataclasses.replace(whole, target=target)
        assert answers(models, JOBS[:4], 4) == greedy("none", 1)[:4]

    def test_the_share_of_the_layers_is_on_the_first_device(self) -> None:
        config = loaded("none").models.target.config
        placement = dataclasses.replace(self.placement, target=("cuda:0", "cuda:1"))
        parts = device_map(config, placement)
        layers = [parts[f"model.layers.{layer}"] for layer in range(4)]
        assert layers == ["cuda:0", "cuda:0", "cuda:0", "cuda:1"]
        # They may share their weights.
        assert parts["model.embed_tokens"] == parts["lm_head"]


class Refusals(unittest.TestCase):
    def copy(self, change: Callable[[Path], None]) -> str:
        """A draft with something changed."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        shutil.copytree(TINY / "draft", folder / "draft")
        change(folder / "draft")
        return str(folder / "draft")

    def refused(self, *arguments: str, draft: str | None = None) -> str:
        """What is said of a draft."""
        method = ("--method", "draft_model", "--draft-model", draft) if draft else ()
        try:
            load(*method, *arguments)
        except (ModelError, UnsupportedError) as error:
            return str(error)
        return "nothing"

    def configured(self, **settings: int) -> str:
        def change(folder: Path) -> None:
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | settings))

        return self.copy(change)

    def test_a_draft_of_another_vocabulary_is_refused(self) -> None:
        said = self.refused(draft=self.configured(vocab_size=512))
        assert "its vocabulary has 512 entries, the target's 768; choose" in said

    def test_a_draft_of_another_tokenizer_is_refused(self) -> None:
        def change(folder: Path) -> None:
            path = folder / "tokenizer.json"
            content = json.loads(path.read_text())
            vocabulary = content["model"]["vocab"]
            one, other = [*vocabulary][300:302]
            vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
            path.write_text(json.dumps(content))

        said = self.refused(draft=self.copy(change))
        assert "its tokenizer isn't the target's, 2 tokens differ, '" in said

    def test_a_draft_that_cannot_read_as_far_is_refused(self) -> None:
        said = self.refused(draft=self.configured(max_position_embeddings=512))
        assert "its context is 512 tokens, 1024 are to be read; lower" in said

    def test_a_target_that_cannot_read_as_far_is_refused(self) -> None:
        assert "target" in (said := self.refused("--context-tokens", "4096"))
        assert "its context is 2048 tokens, 4096 are to be read" in said

    def test_a_draft_that_is_not_there_is_refused(self) -> None:
        assert "model '/nowhere': has no configuration" in self.refused(draft="/nowhere")

    def test_a_device_that_is_not_there_is_refused(self) -> None:
        said = self.refused("--devices", "cuda:7")
        assert "device 'cuda:7': not on this machine; it has" in said

    def test_a_chat_of_which_the_template_makes_no_prompt_is_refused(self) -> None:
        cases: Sequence[tuple[str | None, dict[str, object], str]] = (
            (None, {}, "template makes no prompt of them, ValueError: Cannot use chat template"),
            ("{{ raise_exception('no system') }}", {}, "TemplateError: no system; change them or"),
            ("{{ 1 + 'a' }}", {}, "TypeError: "),
            ("{{ word }}", {"return_dict": True}, "'return_dict' is no word of a template; leave"),
        )
        for template, arguments, words in cases:
            tokenizer = copy.copy(loaded("none").tokenizer)
            tokenizer.chat_template = template
            body = ChatBody(
                messages=[Message(role="user", content="Hello")], chat_template_kwargs=arguments
            )
            try:
                body.job(tokenizer, 1024)
            except ServerRefusedError as error:
                said = str(error)
            else:
                said = "nothing"
            assert words in said, said

    def test_what_a_template_knows_reaches_it(self) -> None:
        tokenizer = copy.copy(loaded("none").tokenizer)
        tokenizer.chat_template = "{{ word }}"
        message = Message(role="user", content="Hello")
        body = ChatBody(messages=[message], chat_template_kwargs={"word": "Goodbye"})
        assert tokenizer.decode(body.job(tokenizer, 1024).prompt) == "Goodbye"


if __name__ == "__main__":
    unittest.main()
