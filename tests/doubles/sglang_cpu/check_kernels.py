"""The stand-in's operations against PyTorch's own, and against plain Python.

Run by the engine's interpreter, which has torch and no pytest:

    PYTHONPATH=tests/doubles/sglang_cpu ENV/bin/python -m unittest check_kernels
"""
# ruff: noqa: S311 - seeded lengths are no cryptography

import itertools
import random
import unittest

import sgl_kernel
import torch
from sgl_kernel.speculative import reconstruct_indices_from_tree_mask
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from trees import Path, greedy, links, mask, tree

_ROUNDS = 20
_HEADS, _KV_HEADS, _HEAD_SIZE = 4, 2, 8
_SCALE = 0.3


class Pool:
    """Requests of random lengths, whose positions point to random slots of one layer's buffers."""

    def __init__(self, lengths: list[int]) -> None:
        positions = max(lengths) + 4
        self.req_to_token = torch.randperm(len(lengths) * positions).view(-1, positions).int()
        self.requests = torch.randperm(len(lengths))
        self.lengths = torch.tensor(lengths)
        self.k, self.v = torch.randn(2, self.req_to_token.numel(), _KV_HEADS, _HEAD_SIZE)

    def slots(self, request: int) -> Tensor:
        return self.req_to_token[self.requests[request], : self.lengths[request]].long()

    def attention(self, request: int, q: Tensor) -> Tensor:
        """PyTorch's, of a whole request of which the last queries are known."""
        slots = self.slots(request)
        return causal(q, self.k[slots], self.v[slots])


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rows of queries that are the last of a sequence; shapes (tokens, heads, head size)."""
    padded = torch.cat((torch.zeros(len(k) - len(q), *q.shape[1:]), q))
    heads_first = (part.transpose(0, 1)[None] for part in (padded, k, v))
    seen = scaled_dot_product_attention(*heads_first, is_causal=True, scale=_SCALE, enable_gqa=True)
    return seen[0].transpose(0, 1)[len(k) - len(q) :]


def extend(pool: Pool, q: Tensor, new: list[int], tree_mask: Tensor | None = None) -> Tensor:
    """The stand-in's, with the new tokens' keys and values missing from the buffers."""
    added = [pool.slots(request)[-count:] for request, count in enumerate(new)]
    slots = torch.cat(added)
    k, v = pool.k[slots], pool.v[slots]
    k_buffer, v_buffer = pool.k.clone(), pool.v.clone()
    k_buffer[slots] = v_buffer[slots] = torch.nan
    o = torch.empty_like(q)
    counts = torch.tensor(new)
    torch.ops.sgl_kernel.extend_attention_cpu(
        *(q, k, v, o, k_buffer, v_buffer, 1.0, 1.0, pool.req_to_token, pool.requests),
        *(pool.lengths, counts, counts.cumsum(0) - counts, max(new), _SCALE, 0.0, False, 0),
        *(None, None, tree_mask, True),
    )
    return o


class Attention(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(1)
        random.seed(1)

    def test_a_prompt_after_a_prefix_is_causal_attention(self) -> None:
        for _ in range(_ROUNDS):
            new = random.choices(range(1, 6), k=3)
            pool = Pool([count + random.randrange(5) for count in new])
            q = torch.randn(sum(new), _HEADS, _HEAD_SIZE)
            wanted = [pool.attention(i, part) for i, part in enumerate(q.split(new))]
            torch.testing.assert_close(extend(pool, q, new), torch.cat(wanted))

    def test_a_tree_is_causal_attention_along_each_branch(self) -> None:
        for _ in range(_ROUNDS):
            paths = tree(topk=2, steps=3, nodes=6)[0]
            pool = Pool([len(paths), len(paths) + 3])
            q = torch.randn(2 * len(paths), _HEADS, _HEAD_SIZE)
            o = extend(pool, q, [len(paths)] * 2, mask(paths).repeat(2, 1).flatten())
            for request, node in itertools.product(range(2), range(len(paths))):
                prefix = len(pool.slots(request)) - len(paths)
                line = torch.nonzero(mask(paths)[node]).flatten() + prefix
                slots = pool.slots(request)[torch.cat((torch.arange(prefix), line))]
                row = slice(request * len(paths) + node, request * len(paths) + node + 1)
                torch.testing.assert_close(o[row], causal(q[row], pool.k[slots], pool.v[slots]))

    def test_decoding_stores_the_new_token_and_sees_everything(self) -> None:
        for _ in range(_ROUNDS):
            pool = Pool(random.choices(range(1, 9), k=3))
            q = torch.randn(3, _HEADS, _HEAD_SIZE)
            wanted = [pool.attention(i, q[i : i + 1]) for i in range(3)]
            loc = torch.stack([pool.slots(i)[-1] for i in range(3)])
            k, v, o = pool.k[loc], pool.v[loc], torch.empty_like(q)
            k_buffer, v_buffer = pool.k.clone(), pool.v.clone()
            k_buffer[loc] = v_buffer[loc] = torch.nan
            torch.ops.sgl_kernel.decode_attention_cpu(
                *(q, k_buffer, v_buffer, 1.0, 1.0, o, k, v, loc, torch.empty(0)),
                *(pool.req_to_token, pool.requests, pool.lengths, _SCALE, 0.0, False, 0),
                *(None, None),
            )
            torch.testing.assert_close(o, torch.cat(wanted))
            assert torch.equal(k_buffer, pool.k)
            assert torch.equal(v_buffer, pool.v)

    def test_a_branch_of_the_draft_has_the_prefix_and_its_own_slots(self) -> None:
        table = torch.tensor([[10, 11, 12, 13, 14, 15], [20, 21, 22, 23, 24, 25]])
        rows = sgl_kernel.build_draft_decode_metadata_cpu(
            table, torch.tensor([1, 0]), torch.tensor([1, 2]), 2, 2, 6
        )
        assert rows.tolist() == [
            [20, 21, 22, 0, 0, 0],
            [20, 23, 24, 0, 0, 0],
            [10, 11, 12, 13, 0, 0],
            [10, 11, 14, 15, 0, 0],
        ]

    def test_what_a_dense_llama_lacks_is_refused_by_name(self) -> None:
        pool, q = Pool([1]), torch.randn(1, _HEADS, _HEAD_SIZE)
        tokens = (q, pool.k[:1], pool.v[:1], q.clone(), pool.k, pool.v)
        with self.assertRaisesRegex(NotImplementedError, r"extend_attention_cpu.* logit_cap;"):  # noqa: PT027
            torch.ops.sgl_kernel.extend_attention_cpu(
                *(*tokens, 1.0, 1.0, pool.req_to_token, pool.requests, pool.lengths),
                *(pool.lengths, torch.tensor([0]), 1, _SCALE, 30.0, False, 0),
                *(None, None, None, True),
            )


class Trees(unittest.TestCase):
    def setUp(self) -> None:
        random.seed(2)

    def _holds(self, drafted: list[list[Path]], lengths: list[int], out: list[Tensor]) -> None:
        nodes = len(drafted[0])
        positions, index, first_child, next_sibling = (part.view(-1, nodes) for part in out)
        assert index.flatten().tolist() == list(range(len(drafted) * nodes))
        for request, (paths, length) in enumerate(zip(drafted, lengths, strict=True)):
            assert positions[request].tolist() == [length + len(path) for path in paths]
            wanted = links(paths)
            assert (first_child[request].tolist(), next_sibling[request].tolist()) == wanted

    def test_candidates_become_a_tree(self) -> None:
        for topk, steps, nodes in [(1, 1, 2), (1, 3, 4), (2, 1, 3), (2, 3, 6), (4, 5, 16)] * 5:
            drafts = [tree(topk=topk, steps=steps, nodes=nodes) for _ in range(3)]
            lengths = random.choices(range(9), k=3)
            masks = torch.ones(3 * nodes * nodes, dtype=torch.bool)
            out = [torch.full((3, nodes), -1) for _ in range(4)]
            groups = torch.tensor([groups if steps > 1 else [] for *_, groups in drafts])
            sgl_kernel.build_tree_kernel_efficient_cpu(
                *(groups, torch.tensor([chosen for _, chosen, _ in drafts])),
                *(torch.tensor(lengths), masks, out[0].view(-1), *out[1:], topk, steps, nodes, 1),
            )
            self._holds([paths for paths, *_ in drafts], lengths, out)
            wanted = torch.stack([mask(paths) for paths, *_ in drafts])
            assert torch.equal(masks, wanted.flatten())

    def test_a_mask_becomes_a_tree(self) -> None:
        for topk, steps, nodes in [(1, 3, 4), (2, 3, 6), (4, 5, 16)] * 5:
            drafted = [tree(topk=topk, steps=steps, nodes=nodes)[0] for _ in range(3)]
            lengths = random.choices(range(9), k=3)
            masks = torch.stack([mask(paths) for paths in drafted]).flatten()
            out = [torch.full((3, nodes), -1) for _ in range(4)]
            reconstruct_indices_from_tree_mask(
                *(masks, torch.tensor(lengths), out[0].view(-1), *out[1:], 3, nodes)
            )
            self._holds(drafted, lengths, out)

    def test_verification_walks_down_while_a_child_agrees(self) -> None:
        lengths_seen = set()
        for deepest in [4, 4, 4, 2] * _ROUNDS:
            drafted = [tree(topk=2, steps=3, nodes=6)[0] for _ in range(3)]
            tokens, wanted = torch.randint(3, (2, 3, 6))
            predicts = torch.full((18,), -1)
            accepted, counts = torch.full((3, deepest), -1), torch.full((3,), -1)
            first_child, next_sibling = zip(*(links(paths) for paths in drafted), strict=True)
            sgl_kernel.verify_tree_greedy_cpu(
                *(predicts, accepted, counts, tokens, torch.arange(18).view(3, 6)),
                *(torch.tensor(first_child), torch.tensor(next_sibling), wanted),
            )
            expected = torch.full((18,), -1)
            for request, paths in enumerate(drafted):
                walk = greedy(paths, tokens[request].tolist(), wanted[request].tolist(), deepest)
                rows = [request * 6 + node for node in walk]
                expected[rows] = wanted[request, walk]
                assert accepted[request].tolist() == rows + [-1] * (deepest - len(rows))
                assert counts[request] == len(walk) - 1
                lengths_seen.add(len(walk))
            assert torch.equal(predicts, expected)
        assert lengths_seen == {1, 2, 3, 4}

    def test_the_bonus_token_is_the_last_accepted_one(self) -> None:
        bonus = torch.empty(3, dtype=torch.int32)
        tokens = torch.tensor([7, 8, 9, 10, 11, 12])
        sgl_kernel.fill_bonus_tokens_cpu(tokens, torch.tensor([1, 2, 1]), bonus, 2)
        assert bonus.tolist() == [7, 10, 11]


class Locations(unittest.TestCase):
    def setUp(self) -> None:
        self.table = torch.arange(24, dtype=torch.int32).view(3, 8)
        self.requests = torch.tensor([2, 0])
        self.starts, self.ends = torch.tensor([1, 4]), torch.tensor([4, 6])

    def test_slots_are_given_to_positions(self) -> None:
        slots = torch.tensor([90, 91, 92, 93, 94])
        given = (self.requests, self.table, self.starts, self.ends, slots, 8)
        sgl_kernel.assign_req_to_token_pool_cpu(*given)
        wanted = torch.arange(24, dtype=torch.int32).view(3, 8)
        wanted[2, 1:4], wanted[0, 4:6] = slots[:3].int(), slots[3:].int()
        assert torch.equal(self.table, wanted)

    def test_slots_of_positions_are_read(self) -> None:
        slots = torch.full((6,), -1)
        given = (self.requests, self.table, self.starts, self.ends, slots, 8)
        sgl_kernel.assign_extend_cache_locs_cpu(*given)
        assert slots.tolist() == [17, 18, 19, 4, 5, -1]

    def test_slots_for_a_draft_follow_the_request(self) -> None:
        slots = torch.full((8,), -1)
        given = (self.requests, self.table, self.starts, slots, 8, 2, 2)
        sgl_kernel.assign_draft_cache_locs_contiguous_cpu(*given)
        assert slots.tolist() == [17, 18, 19, 20, 4, 5, 6, 7]

    def test_slots_of_accepted_tokens_are_packed(self) -> None:
        accepted = torch.tensor([[0, 2, -1], [3, -1, -1]], dtype=torch.int32)
        packed = torch.zeros(6, dtype=torch.int64)
        sgl_kernel.fill_accept_out_cache_loc_cpu(accepted, torch.tensor([5, 6, 7, 8]), packed)
        assert packed.tolist() == [5, 7, 8, 0, 0, 0]

    def test_copied_slots_are_read_before_they_are_written(self) -> None:
        buffers = [torch.randn(6, 2, 3), torch.randn(6, 4)]
        targets, sources = torch.tensor([1, 2, 0]), torch.tensor([0, 1, 5])
        wanted = [buffer.clone() for buffer in buffers]
        for buffer in wanted:
            buffer[targets] = buffer[sources].clone()
        addresses = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
        sizes = torch.tensor([buffer[0].nbytes for buffer in buffers])
        sgl_kernel.copy_all_layer_kv_cache_cpu(addresses, sizes, targets, sources)
        assert all(map(torch.equal, buffers, wanted))


class Package(unittest.TestCase):
    def test_sglang_can_tell_what_is_there(self) -> None:
        assert hasattr(torch.ops.sgl_kernel, "decode_attention_cpu")
        assert hasattr(torch.ops.sgl_kernel, "extend_attention_cpu")
        assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")

    def test_another_sglang_is_refused(self) -> None:
        sgl_kernel.check_version("0.5.23")
        with self.assertRaisesRegex(ImportError, r"SGLang 0\.5\.23, not for 0\.5\.24; install"):  # noqa: PT027
            sgl_kernel.check_version("0.5.24")

    def test_an_absent_operation_raises_with_its_name(self) -> None:
        with self.assertRaisesRegex(NotImplementedError, "rotate_input_ids_cpu"):  # noqa: PT027
            sgl_kernel.rotate_input_ids_cpu(torch.zeros(1))


if __name__ == "__main__":
    unittest.main()
