"""Pairs whose acceptance is pinned: what differs then is the cost of a step."""

import dataclasses
from collections.abc import Iterable

from specreg.compare.pairs import Pair
from specreg.core.errors import UnsupportedError
from specreg.engines.methods import SCHEDULED
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.matrix.tier import check_pinned, within


def pinned_pairs(pairs: Iterable[Pair], length_tokens: float, *, on_gpu: bool) -> tuple[Pair, ...]:
    """A pair of known acceptance for each load and models that are speculated on.

    Raises:
        UnsupportedError: nothing speculates.
        MatrixError: fewer tokens are drafted than are to be accepted, or the engine can't pin it.
    """
    found: dict[str, Pair] = {}
    with within(f"--pin {length_tokens:g}"):
        for pair in pairs:
            if pair.a.speculates and pair.b.speculates:
                a, b = (pinned_case(one, length_tokens, on_gpu=on_gpu) for one in (pair.a, pair.b))
                pinned = Pair(a=a, b=b)
                found.setdefault(pinned.id, pinned)
        if not found:
            raise UnsupportedError("no case speculates; choose one that does")
    return tuple(found.values())


def pinned_case(case: Case, length_tokens: float, *, on_gpu: bool) -> Case:
    """A case whose engine keeps to an acceptance length.

    Where it can't of the case's own method, by the scheduled drafter, which knows greedy answers to
    first turns: that is what is asked then.
    """
    spec = dataclasses.replace(case.server, pinned_length_tokens=length_tokens)
    methods = engine_named(spec.engine).pinned_methods(on_gpu=on_gpu)
    if spec.method not in methods and SCHEDULED in methods:
        spec = dataclasses.replace(spec, method=SCHEDULED, draft=None, tree=None)
        case = dataclasses.replace(case, turns=1, temperature=0.0)
    pinned = dataclasses.replace(case, server=spec)
    check_pinned(pinned, on_gpu=on_gpu)
    return pinned
