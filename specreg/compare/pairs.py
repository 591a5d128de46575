"""What a gate compares: cases as both sides run them, and which of them share their servers."""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from specreg.core.errors import UnsupportedError
from specreg.engines.methods import SCHEDULED
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, Tier
from specreg.matrix.overrides import Override, overridden
from specreg.matrix.tier import check_pinned, within
from specreg.measurement.metrics import GATE_METRICS, Metric

ACCEPTANCE, OUTPUT, STEP = "acceptance_length_tokens", "throughput_tokens_per_s", "step_p50_ms"


class Side(StrEnum):
    """The side of an arm; A1 and A2 are side A twice more, compared with one another."""

    A = "A"
    B = "B"
    A1 = "A1"
    A2 = "A2"

    @property
    def is_b(self) -> bool:
        """Whether it is B's."""
        return self is Side.B


COMPARED = (Side.A, Side.B)
CONTROL = (Side.A1, Side.A2)
"""Both are side A: they differ by the machine's noise alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A case as both sides run it."""

    a: Case
    b: Case

    @property
    def id(self) -> str:
        """The case's id; both where the sides' differ."""
        return self.a.id if self.a.id == self.b.id else f"{self.a.id} > {self.b.id}"

    def of(self, side: Side) -> Case:
        """The case as a side runs it."""
        return self.b if side.is_b else self.a

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that both sides have."""
        every = GATE_METRICS.values()
        return tuple(one for one in every if one.applies_to(self.a) and one.applies_to(self.b))

    @property
    def deciding(self) -> frozenset[str]:
        """The metrics that decide the answer; the others explain the output.

        Sides that draft alike are judged by all metrics. For others output and prefill decide:
        accepting more drafts may cost longer steps.
        """
        ours, theirs = self.a.server, self.b.server
        names = {one.name for one in self.metrics}
        drafting = operator.attrgetter("method", "draft", "draft_tokens", "tree")
        if drafting(ours) == drafting(theirs):
            return frozenset(names)
        alone = {ACCEPTANCE} if ours.draft_tokens == theirs.draft_tokens else set()
        return frozenset((names - {ACCEPTANCE, STEP}) or (names & alone))


Group = tuple[Pair, ...]
"""Pairs that share their servers."""


def slots_of(
    launch: int, sides: tuple[Side, Side], *, together: bool
) -> tuple[tuple[Side, ...], ...]:
    """Return the sides to start for a launch (from 1), in order; each tuple runs together.

    Every other launch goes the other way round, so that no side has the better half of two.
    """
    order = sides if launch % 2 else sides[::-1]
    return (order,) if together else tuple((side,) for side in order)


def pairs_of(
    tier: Tier,
    chosen: Sequence[Case],
    overrides: tuple[Sequence[Override], Sequence[Override]],
    *,
    prompts: int | None,
    show: Callable[[str], None],
) -> tuple[Pair, ...]:
    """Chosen cases of a tier as A and B run them; what can't be compared is left out, and shown.

    Raises:
        UnsupportedError: nothing would be compared, or a side's overrides change none of its cases.
    """
    # The other side is the control, so none runs beside it.
    alone = [dataclasses.replace(case, control=None) for case in chosen]
    asked = [case if prompts is None else case.replaying(prompts) for case in alone]
    drafts: dict[str, dict[str, str]] = {case.server.models: {} for case in tier.cases}
    for case in tier.cases:
        if case.server.draft is not None:
            drafts[case.server.models][case.server.method] = case.server.draft
    a, b = (
        [overridden(case, changes, drafts[case.server.models]) for case in asked]
        for changes in overrides
    )
    for option, changes, changed in (("--a", overrides[0], a), ("--b", overrides[1], b)):
        if changes and [case.server for case in changed] == [case.server for case in asked]:
            keys = ", ".join(dict.fromkeys(one.key for one in changes))
            message = (
                f"{option} {keys}: changes none of {len(chosen)} cases, which are so already or"
                " have no use for it; leave it out, or choose other cases"
            )
            raise UnsupportedError(message)
    found = []
    for pair in (Pair(a=one, b=other) for one, other in zip(a, b, strict=True)):
        if pair.deciding:
            found.append(pair)
        else:
            show(f"left out: {pair.id} says nothing that could be compared")
    if not found:
        message = (
            f"tier '{tier.name}': none of {len(a)} cases can be compared: they measure no"
            " speed, and their drafts are others on both sides; choose other cases"
        )
        raise UnsupportedError(message)
    return tuple(found)


def groups_of(pairs: Iterable[Pair]) -> tuple[Group, ...]:
    """The pairs by what they need to start."""
    sharing: dict[tuple[object, ...], list[Pair]] = {}
    for pair in pairs:
        alone = pair.id if pair.a.needs_fresh_server or pair.b.needs_fresh_server else ""
        sharing.setdefault((pair.a.server, pair.b.server, alone), []).append(pair)
    return tuple(map(tuple, sharing.values()))


def pinned_pairs(pairs: Iterable[Pair], length_tokens: float, *, on_gpu: bool) -> tuple[Pair, ...]:
    """A pair of known acceptance for each load and models that are speculated on.

    What differs then is the cost of a step.

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
