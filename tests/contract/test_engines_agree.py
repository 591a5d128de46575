"""The same case on real vLLM and real SGLang: the same tokens, and the same acceptance.

Both without a GPU, SGLang on the kernels of `tests/sglang_cpu`. `nox -s sglang_cpu` runs it.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import pytest

from specreg.acceptance.record import StepCounts
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.servers.server import Server
from tests.contract.engines import case_of, measure, start
from tests.unit import builders

Answers = Mapping[str, str]
Observed = Callable[[str, str], tuple[StepCounts, Answers]]


def answers(server: Server, case: Case) -> Answers:
    """The greedy answers to a case's prompts."""
    body = {"model": server.model, "max_tokens": case.request.output_cap_tokens, "temperature": 0}
    with httpx.Client(base_url=server.address.url, timeout=120, trust_env=False) as client:
        return {
            prompt.id: client.post(
                "/v1/chat/completions",
                json=body | {"messages": [{"role": "user", "content": prompt.turns[0]}]},
            ).json()["choices"][0]["message"]["content"]
            for prompt in load_case_prompts(builders.ROOT, case)[: case.request.prompts]
        }


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """What a real server does, by engine, method and pair: each once."""
    folder = tmp_path_factory.mktemp("logs")

    @functools.cache
    def observe(engine: str, name: str) -> tuple[StepCounts, Answers]:
        """The steps of its prompts, and its answers."""
        case = case_of("sglang_cpu", f"{engine}-{name}-toy-c4")
        with start(case, folder) as server:
            answered = answers(server, case)
            return measure(case, server)[1].total, answered

    return observe


@pytest.mark.parametrize(
    ("name", "drafted"),
    [
        ("draft_model-plain", 3),
        ("eagle-plain", 3),
        ("eagle3-plain", 3),
        ("draft_model-plain-k24", 24),
        ("eagle3-plain-k24", 24),
        ("mtp-mtp", 3),
    ],
)
def test_the_same_case_does_the_same_on_both(name: str, drafted: int, observed: Observed) -> None:
    vllm, vllm_said = observed("vllm", name)
    sglang, sglang_said = observed("sglang", name)

    assert sglang_said == vllm_said
    # Drafts differ now and then: SGLang never shows a draft model a prompt's first token, and hands
    # an MTP layer the target's state after its norm, vLLM before.
    assert sglang.acceptance_length == pytest.approx(vllm.acceptance_length, rel=0.01)
    if not name.startswith(("draft_model", "mtp")):
        assert sglang == vllm
    assert sglang.proposed == drafted * sglang.steps


@pytest.mark.parametrize(("method", "drafted"), [("draft_model", 6), ("eagle", 9), ("eagle3", 6)])
def test_a_tree_says_what_its_chain_says_in_no_more_steps(
    method: str, drafted: int, observed: Observed
) -> None:
    chain, chain_said = observed("sglang", f"{method}-plain")
    tree, tree_said = observed("sglang", f"{method}_tree-plain")

    assert tree_said == chain_said
    assert tree.steps <= chain.steps
    assert (chain.proposed, tree.proposed) == (3 * chain.steps, drafted * tree.steps)
    assert len(tree.position_counts) == len(chain.position_counts) == 3
    for as_deep, in_chain in zip(tree.marginal_acceptance, chain.marginal_acceptance, strict=True):
        assert as_deep >= in_chain


def test_a_head_in_another_number_format_drafts_in_its_targets(observed: Observed) -> None:
    """The head is in FP16 and its target in BF16. FP16 keeps every digit of BF16's weights."""
    half, _ = observed("sglang", "eagle3-fp16")
    plain, _ = observed("sglang", "eagle3-plain")

    # The one case computes in BF16, the other in float32.
    assert half.acceptance_length == pytest.approx(plain.acceptance_length, rel=0.1)
    assert half.proposed == 3 * half.steps


def test_sglang_keeps_to_a_pinned_acceptance(tmp_path: Path) -> None:
    """It draws how many drafts a step accepts, so of 500 steps the length is off by 0.02 or so."""
    case = builders.with_concurrency(1, case_of("sglang_cpu", "sglang-eagle3-plain-toy-c4"))
    spec = dataclasses.replace(case.server, pinned_length_tokens=2.5)
    case = builders.with_request(dataclasses.replace(case, server=spec), ignore_eos=True)
    with start(case, tmp_path) as server:
        length_tokens = measure(case, server)[1].total.acceptance_length
    assert length_tokens == pytest.approx(2.5, abs=0.06)
