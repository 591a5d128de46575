"""Trees of drafted tokens in plain Python, to hold the stand-in's against.

A node is named by its path: from the root, which child, which child of that one, and so on.
"""
# ruff: noqa: S311 - a seeded tree is no cryptography

import itertools
import random

import torch
from torch import Tensor

Path = tuple[int, ...]


def tree(*, topk: int, steps: int, nodes: int) -> tuple[list[Path], list[int], list[int]]:
    """A tree drafted as SGLang does: `topk` children per node, the `topk` best live on.

    Returns:
        The path of each node, the root's first; and, as SGLang writes them, the candidate of each
        node but the root, and the parent candidate of each group of candidates.
    """
    paths: list[Path] = [(child,) for child in range(topk)]
    scores = [random.random() for _ in paths]
    groups = [-1, *range(topk)]
    alive = list(range(topk))
    for step in range(1, steps):
        first = len(paths)
        for parent, child in itertools.product(alive, range(topk)):
            paths.append((*paths[parent], child))
            scores.append(scores[parent] * random.random())
        alive = sorted(range(first, len(paths)), key=lambda i: -scores[i])[:topk]
        if step < steps - 1:
            groups += alive
    chosen = sorted(sorted(range(len(paths)), key=lambda i: -scores[i])[: nodes - 1])
    return [(), *(paths[candidate] for candidate in chosen)], chosen, groups


def mask(paths: list[Path]) -> Tensor:
    """Who sees whom: a node those whose path its own begins with."""
    return torch.tensor([[one[: len(other)] == other for other in paths] for one in paths])


def children(paths: list[Path], node: int) -> list[int]:
    return [i for i, path in enumerate(paths) if path and path[:-1] == paths[node]]


def links(paths: list[Path]) -> tuple[list[int], list[int]]:
    """First child and next sibling of each node, −1 where there is none."""
    families = [children(paths, node) for node in range(len(paths))]
    following = dict(pair for family in families for pair in itertools.pairwise(family))
    return [min(family, default=-1) for family in families], [
        following.get(node, -1) for node in range(len(paths))
    ]


def greedy(paths: list[Path], tokens: list[int], wanted: list[int], deepest: int) -> list[int]:
    """The nodes of the longest branch that agrees with the target, at most `deepest` of them."""
    walk = [0]
    while len(walk) < deepest:
        agreeing = [i for i in children(paths, walk[-1]) if tokens[i] == wanted[walk[-1]]]
        if not agreeing:
            break
        walk.append(agreeing[0])
    return walk
