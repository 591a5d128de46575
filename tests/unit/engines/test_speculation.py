"""N-gram lookup by its rule; verification by hand, and by the distributions it must have."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from specreg.engines.pytorch.speculation import (
    LONGEST_RUN_TOKENS,
    SHORTEST_RUN_TOKENS,
    Draft,
    FloatArray,
    NGramStore,
    Sampling,
    Verified,
    distributions,
    propose,
    propose_padded,
    sample,
    verify,
    verify_sampled,
)
from specreg.engines.registry import engine_named

DRAWS = 10_000
ALPHA = 1e-4
"""Seeded, so each test always does the same: an unlucky seed would show at once."""

P = np.array([0.5, 0.3, 0.2, 0.0])
PAIRS = [
    pytest.param(P, np.array([0.2, 0.3, 0.1, 0.4]), 0.6, id="overlapping"),
    pytest.param(P, P, 1.0, id="equal"),
    pytest.param(P, np.array([0.0, 0.0, 0.0, 1.0]), 0.0, id="disjoint"),
    pytest.param(P, np.array([0.0, 1.0, 0.0, 0.0]), 0.3, id="certain"),
    pytest.param(np.array([0.0, 1.0, 0.0, 0.0]), np.full(4, 0.25), 0.25, id="certain target"),
    pytest.param(P, np.array([0.5, 0.3, 0.1, 0.1]), 0.9, id="close"),
]


def agrees(counts: NDArray[np.generic], expected: FloatArray) -> bool:
    """Whether counts may be draws from a distribution; what it excludes must not occur."""
    possible = expected > 0
    if np.any(counts[~possible]):
        return False
    if possible.sum() == 1:
        return True
    wanted = expected[possible] / expected[possible].sum() * counts.sum()
    return bool(stats.chisquare(counts[possible], wanted).pvalue > ALPHA)


def drawn(q: FloatArray, random: np.random.Generator) -> Draft:
    """A draft that is drawn from q, which a certain one, as a lookup's, doesn't name."""
    return Draft(token_ids=(sample(q, random),), distributions=None if q.max() == 1 else q[None])


def emitted(draft: Draft, verified: Verified) -> tuple[int, ...]:
    """The tokens of a step."""
    return (*draft.token_ids[: verified.accepted], verified.next_id)


def test_the_test_tells_distributions_apart() -> None:
    random = np.random.default_rng(0)
    counts = np.bincount([sample(P, random) for _ in range(DRAWS)], minlength=4)
    assert agrees(counts, P)
    assert not agrees(counts, np.array([0.48, 0.32, 0.2, 0.0]))
    assert not agrees(counts, np.array([0.5, 0.5, 0.0, 0.0]))


@pytest.mark.parametrize(("p", "q", "overlap"), PAIRS)
def test_accepted_and_emitted_tokens_have_the_targets_distribution(
    p: FloatArray, q: FloatArray, overlap: float
) -> None:
    """A draft is accepted with the probability Σ min(p, q); what is emitted is the target's."""
    assert np.minimum(p, q).sum() == pytest.approx(overlap)
    random = np.random.default_rng(1)
    target = np.stack([p, p])
    accepted = 0
    counts = np.zeros(4)
    for _ in range(DRAWS):
        draft = drawn(q, random)
        verified = verify_sampled(draft, target, random)
        accepted += verified.accepted
        counts[emitted(draft, verified)[0]] += 1
    assert agrees(np.array([accepted, DRAWS - accepted]), np.array([overlap, 1 - overlap]))
    assert agrees(counts, p)


def test_a_token_and_its_dependent_successor_have_the_targets_distribution() -> None:
    """A Markov chain as target, another as draft; steps of two drafts until two tokens are out."""
    chain = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]])
    draft_chain = np.array([[0.2, 0.4, 0.4], [0.6, 0.2, 0.2], [0.1, 0.8, 0.1]])
    random = np.random.default_rng(3)
    counts = np.zeros((3, 3))
    for _ in range(DRAWS):
        text = [0]
        while len(text) < 3:
            first = sample(draft_chain[text[-1]], random)
            ids = (first, sample(draft_chain[first], random))
            draft = Draft(
                token_ids=ids, distributions=np.stack([draft_chain[text[-1]], draft_chain[first]])
            )
            target = np.stack([chain[text[-1]], *(chain[token_id] for token_id in ids)])
            text.extend(emitted(draft, verify_sampled(draft, target, random)))
        counts[text[1], text[2]] += 1
    expected = chain[0][:, None] * chain
    assert agrees(counts.ravel(), expected.ravel())


class _Lowest(np.random.Generator):
    """Chance at its lowest, which comes once in 2^53 draws."""

    def random(self, *_: object, **__: object) -> float:  # type: ignore[override]
        return 0.0


def test_a_token_of_weight_0_is_not_drawn_by_the_lowest_chance() -> None:
    assert sample(np.array([0.0, 0.0, 1.0]), _Lowest(np.random.PCG64(0))) == 2


def test_greedy_accepts_nothing_behind_a_rejection_and_takes_no_chance() -> None:
    """Every pattern of right and wrong drafts up to four; the target says 0, 1, 2 …"""
    random = np.random.default_rng(5)
    before = random.bit_generator.state
    for draft_tokens in range(5):
        logits = np.eye(8)[: draft_tokens + 1]
        for right in itertools.product((True, False), repeat=draft_tokens):
            expected = (*right, False).index(False)
            ids = tuple(position if ok else 7 for position, ok in enumerate(right))
            verified = verify(Draft(token_ids=ids), logits, Sampling(), random)
            assert verified == Verified(accepted=expected, next_id=expected)
    assert random.bit_generator.state == before


@pytest.mark.parametrize(
    ("top_p", "top_k", "drawn"),
    [
        (1.0, None, [0.1, 0.4, 0.2, 0.3]),
        (1.0, 2, [0.0, 4 / 7, 0.0, 3 / 7]),
        (1.0, 1, [0.0, 1.0, 0.0, 0.0]),
        (0.4, None, [0.0, 1.0, 0.0, 0.0]),  # the likeliest alone has as much
        (0.41, None, [0.0, 4 / 7, 0.0, 3 / 7]),
        (0.001, None, [0.0, 1.0, 0.0, 0.0]),
        (0.6, 3, [0.0, 4 / 7, 0.0, 3 / 7]),  # of the three that are left, not of all
    ],
)
def test_unlikely_tokens_are_cut_off_first_by_number_and_then_by_probability(
    top_p: float, top_k: int | None, drawn: list[float]
) -> None:
    logits = np.log(np.array([[0.1, 0.4, 0.2, 0.3]] * 2))
    sampling = Sampling(temperature=1.0, top_p=top_p, top_k=top_k)
    for row in sampling.distributions(logits):
        assert row == pytest.approx(drawn)


def test_a_temperature_divides_the_logits() -> None:
    logits = np.array([[0.0, np.log(3.0)]], dtype=np.float32)
    assert distributions(logits, 1.0)[0] == pytest.approx([0.25, 0.75])
    assert distributions(logits, 0.5)[0] == pytest.approx([0.1, 0.9])


def slow_propose(context: list[int], draft_tokens: int) -> tuple[int, ...]:
    """The rule as one says it: the longest run first, then the first place."""
    for tokens in range(LONGEST_RUN_TOKENS, SHORTEST_RUN_TOKENS - 1, -1):
        for end in range(tokens, len(context)):
            if context[end - tokens : end] == context[len(context) - tokens :]:
                return tuple(context[end : end + draft_tokens])
    return ()


def test_lookup_has_the_lengths_that_vllm_is_started_with() -> None:
    settings = engine_named("vllm").methods["ngram"].settings
    assert settings["prompt_lookup_max"] == LONGEST_RUN_TOKENS
    assert settings["prompt_lookup_min"] == SHORTEST_RUN_TOKENS


@given(context=st.lists(st.integers(0, 3), max_size=40), draft_tokens=st.integers(1, 5))
@example(context=[2, 3, 7, 1, 2, 3, 8, 1, 2, 3], draft_tokens=3)  # the longest run first
@example(context=[5, 5, 5], draft_tokens=3)  # a place that overlaps the end
@example(context=[0xD800, 0x10FFFF, 3, 0xD800, 0x10FFFF], draft_tokens=3)  # odd ids
def test_lookup_equals_a_slow_and_plain_implementation(
    context: list[int], draft_tokens: int
) -> None:
    assert propose(context, draft_tokens) == slow_propose(context, draft_tokens)


def learnt(*texts: Sequence[int]) -> NGramStore:
    """A store that has read texts."""
    store = NGramStore()
    for text in texts:
        for position in range(1, len(text)):
            store.learn(text[:position], [text[position]])
    return store


@pytest.mark.parametrize(
    ("texts", "context", "drafted"),
    [
        pytest.param([[1, 2, 3, 4]], [9, 2], (3, 4), id="one token is enough, and the text's end"),
        pytest.param([[1, 2, 3, 1, 2, 4, 1, 2, 3]], [1, 2], (3, 1, 2), id="what came most often"),
        pytest.param([[1, 2, 3, 1, 2, 4, 7]], [1, 2], (4, 7), id="of equals the last"),
        pytest.param([[5, 1, 2, 3], [6, 2, 4], [6, 2, 4]], [1, 2], (3,), id="longest first"),
        pytest.param([[1, 2, 1]], [1], (2, 1, 2), id="its own drafts are looked up in turn"),
        pytest.param([[1, 2]], [3], (), id="nothing known"),
        pytest.param([], [], (), id="no text"),
    ],
)
def test_an_adaptive_store_drafts_what_most_often_followed_the_longest_run(
    texts: list[list[int]], context: list[int], drafted: tuple[int, ...]
) -> None:
    assert learnt(*texts).propose(context, 3) == drafted


def test_a_store_learns_candidates_that_no_text_has() -> None:
    store = learnt([1, 2, 3])
    store.learn([8], [6, 5])
    store.learn([1, 2], [4])
    store.learn([2], [4])
    assert store.propose([8], 1) == (5,)  # as often as 6, and learnt after it
    assert store.propose([1, 2], 1) == (4,)


def test_a_store_forgets_what_it_read_least_lately() -> None:
    store = NGramStore(max_runs=2)
    for context in ([1], [2], [1], [3]):
        store.learn(context, [7])
    assert [store.propose([token_id], 1) for token_id in (1, 2, 3)] == [(7,), (), (7,)]


@pytest.mark.parametrize(
    ("context", "drafts"),
    [
        # Of two occurrences of 1 2 the last one counts, where `propose` takes the first.
        ([1, 2, 7, 1, 2, 8, 9, 1, 2], (8, 9, 1)),
        # The longest run counts, wherever it is.
        ([1, 2, 3, 7, 7, 2, 3, 8, 8, 1, 2, 3], (7, 7, 2)),
        # What the text doesn't go on with is the last token, and so is all where nothing is found.
        ([4, 5, 6, 4, 5], (6, 4, 5)),
        ([5, 5, 5], (5, 5, 5)),
        ([1, 2, 3], (3, 3, 3)),
        ([1], (1, 1, 1)),
    ],
)
def test_padded_lookup_drafts_as_vllms_kernel_does(
    context: list[int], drafts: tuple[int, ...]
) -> None:
    """By the rules of `_ngram_scan_kernel` and `_ngram_finalize_kernel` of vLLM 0.32.0."""
    assert propose_padded(context, 3) == drafts
