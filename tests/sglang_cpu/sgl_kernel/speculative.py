"""Trees of drafted tokens: how they are laid out for verification, and the greedy verification.

A request's tree has a fixed number of nodes: node 0 is the last token that is settled, the others
are drafted, and no node stands before its parent. A tree is kept as two links per node, to its
first child and to its next sibling, −1 where there is none. `retrieve_index` (requests, nodes) is
the row of a node among all nodes of the batch. Outputs are written in place.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_QLEN_ONLY = 1  # TreeMaskMode: the mask covers the drafted nodes, not the prefix


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,  # noqa: ARG001 - the parents say how deep the tree is
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Lays out the tree of the candidates that the draft model thought the most probable.

    Candidates come in groups of `topk`, the children of one node each: group 0 are the root's,
    group g those of candidate `parent_list[g]`.

    Args:
        parent_list: (requests, groups), empty where only one step was drafted.
        selected_index: (requests, nodes − 1), the candidate that is node 1, 2, …, ascending.
        verified_seq_len: position of the root, tokens.
        tree_mask: flat (requests, nodes, nodes), true where the row's node sees the column's.
        positions: flat (requests, nodes), in tokens.

    Raises:
        NotImplementedError: the mask is to cover the prefix too, as GPU kernels want it.
    """
    if int(tree_mask_mode) != _QLEN_ONLY:
        message = f"build_tree_kernel_efficient_cpu: mask mode {int(tree_mask_mode)}, not 1"
        raise NotImplementedError(message + "; SGLang asks for 1 on a CPU")
    nodes = draft_token_num
    masks = tree_mask.view(-1, nodes, nodes)
    places = positions.view(-1, nodes)
    roots = verified_seq_len.tolist()
    batch = zip(parent_list.tolist(), selected_index.tolist(), roots, strict=True)
    for request, (parents_of_groups, chosen, root) in enumerate(batch):
        # Each line is a node with its ancestors.
        parents = [-1]
        lines = [[0]]
        for node, candidate in enumerate(chosen, start=1):
            group = candidate // topk
            parents.append(_node(parents_of_groups[group], chosen) if group else 0)
            lines.append([node, *(lines[parents[-1]] if parents[-1] >= 0 else ())])
        masks[request] = False
        for node, line in enumerate(lines):
            masks[request, node, line] = True
        places[request] = torch.tensor([root + len(line) - 1 for line in lines])
        _link(parents, request, retrive_index, retrive_next_token, retrive_next_sibling)


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Lays out trees of which the mask is known, as the n-gram drafter gives them.

    A node's parent is the last node before it that it sees; its depth is how many those are.

    Args:
        tree_mask: flat (requests, nodes, nodes), true where the row's node sees the column's.
        verified_seq_len: position of the root, tokens.
        positions: flat (requests, nodes), in tokens.
    """
    nodes = draft_token_num
    seen = (
        tree_mask.view(batch_size, nodes, nodes).bool() & torch.ones(nodes, nodes).tril(-1).bool()
    )
    depths = seen.sum(dim=-1)
    positions.view(batch_size, nodes)[:] = depths + verified_seq_len.view(-1, 1)
    for request in range(batch_size):
        parents = [
            max((j for j, sees in enumerate(row) if sees), default=-1)
            for row in seen[request].tolist()
        ]
        _link(parents, request, retrive_index, retrive_next_token, retrive_next_sibling)


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walks down each tree as long as a child holds the token that the target wants there.

    Args:
        predicts: (rows), gets the target's token after each node of the walk.
        accept_index: (requests, depth + 1), gets the rows of the walk's nodes, the root first.
        accept_token_num: (requests), gets the number of accepted drafted tokens.
        candidates: (requests, nodes), the tree's tokens.
        target_predict: (requests, nodes), the target's most probable next token after each node.
    """
    wanted = target_predict.flatten().tolist()
    trees = (candidates, retrive_index, retrive_next_token, retrive_next_sibling)
    batch = zip(*(part.tolist() for part in trees), strict=True)
    for request, (tokens, rows, first_child, next_sibling) in enumerate(batch):
        walk = [0]
        while len(walk) < accept_index.shape[1]:
            child = first_child[walk[-1]]
            while child >= 0 and tokens[child] != wanted[rows[walk[-1]]]:
                child = next_sibling[child]
            if child < 0:
                break
            walk.append(child)
        for step, node in enumerate(walk):
            accept_index[request, step] = rows[node]
            predicts[rows[node]] = wanted[rows[node]]
        accept_token_num[request] = len(walk) - 1


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """Reads the last accepted token of each request.

    Args:
        accept_tokens: flat (requests, accept_stride).
        accept_lens: accepted tokens per request, with the bonus token: 1 or more.
    """
    table = accept_tokens.view(-1, accept_stride)
    last = table.gather(1, accept_lens.long().view(-1, 1) - 1)
    bonus_tokens.copy_(last.view_as(bonus_tokens))


def _node(candidate: int, chosen: Sequence[int]) -> int:
    """The node of a candidate; −1 for one that ties pushed out, and with it all its children."""
    return chosen.index(candidate) + 1 if candidate in chosen else -1


def _link(
    parents: Sequence[int], request: int, index: Tensor, first_child: Tensor, next_sibling: Tensor
) -> None:
    """Writes one request's links; siblings stand in ascending order."""
    nodes = len(parents)
    children: list[int] = [-1] * nodes
    siblings: list[int] = [-1] * nodes
    for node in reversed(range(nodes)):
        parent = parents[node]
        if parent >= 0:
            siblings[node], children[parent] = children[parent], node
    index[request] = torch.arange(request * nodes, (request + 1) * nodes)
    first_child[request] = torch.tensor(children)
    next_sibling[request] = torch.tensor(siblings)
