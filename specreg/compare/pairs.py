"""What a gate compares: cases as both sides run them, and which of them share their servers."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from specreg.core.errors import DatasetError, UnsupportedError
from specreg.matrix.case import Case, ServerSpec, Tier
from specreg.matrix.overrides import Override, overridden
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.metrics import GATE_METRICS, Family, Metric
from specreg.stats.intervals import FEWEST_PROMPTS

ACCEPTANCE, OUTPUT = "acceptance_length_tokens", "throughput_tokens_per_s"
_TRADED = frozenset({ACCEPTANCE, "step_p50_ms"})
"""More drafts accepted may well cost longer steps, where sides draft in different ways."""


class Side(StrEnum):
    """Which side an arm is of; A2 is side A once more, from which only the machine differs."""

    A = "A"
    B = "B"
    A2 = "A2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A case as both sides run it."""

    a: Case
    b: Case

    @property
    def id(self) -> str:
        """The case's; of two that are called differently both."""
        return self.a.id if self.a.id == self.b.id else f"{self.a.id} > {self.b.id}"

    def of(self, side: Side) -> Case:
        """The case as a side runs it."""
        return self.b if side is Side.B else self.a


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is compared of a pair.

    Attributes:
        pair: which.
        metrics: that it has; deciding: the names of those that the answer rests on. The others say
            what output came from.
        other: what A is compared with: B, or A itself, which is the control.
    """

    pair: Pair
    metrics: tuple[Metric, ...]
    deciding: frozenset[str]
    other: Side = Side.B

    @property
    def is_control(self) -> bool:
        """Whether A is compared with itself."""
        return self.other is Side.A2


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Pairs that share their servers.

    Attributes:
        name: of the server on both sides.
        pairs: one or more.
        with_control: whether side A is launched once more.
        together: whether all sides are up at the same time, or one after another.
    """

    name: str
    pairs: tuple[Pair, ...]
    with_control: bool
    together: bool

    @property
    def sides(self) -> tuple[Side, ...]:
        """Those that are launched."""
        return (Side.A, Side.B, Side.A2) if self.with_control else (Side.A, Side.B)

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """What is compared, the control's last."""
        controls = [subject_of(pair, Side.A2) for pair in self.pairs if self.with_control]
        return (*map(subject_of, self.pairs), *controls)

    def slots(self, launch: int) -> tuple[tuple[Side, ...], ...]:
        """Which sides are started for a launch of each, in order; in brackets those up together.

        Every other launch goes the other way round, so that no side has the better half of two. Of
        three each is in the middle in its turn.

        Args:
            launch: from 1.
        """
        block, back = divmod(launch - 1, 2)
        first = block % len(self.sides) if self.with_control else 0
        turned = (*self.sides[first:], *self.sides[:first])
        order = turned[::-1] if back else turned
        return (order,) if self.together else tuple((side,) for side in order)


def subject_of(pair: Pair, other: Side = Side.B) -> Subject:
    """What is compared of a pair.

    Sides that draft alike are held to all that they do. Of others output and prefill decide.
    """
    b = pair.of(other)
    metrics = tuple(one for one in GATE_METRICS.values() if _has(pair.a, b, one))
    names = {one.name for one in metrics}
    if _drafting(pair.a.server) != _drafting(b.server):
        names -= _TRADED
        if not names and pair.a.server.draft_tokens == b.server.draft_tokens:
            names = {one.name for one in metrics} & {ACCEPTANCE}
    return Subject(pair=pair, metrics=metrics, deciding=frozenset(names), other=other)


def _drafting(spec: ServerSpec) -> tuple[object, ...]:
    return spec.method, spec.draft, spec.draft_tokens, spec.tree


def _has(a: Case, b: Case, metric: Metric) -> bool:
    if metric.family is Family.ACCEPTANCE:
        return a.speculates and b.speculates
    return a.speed and b.speed and not (metric.needs_stream and not (a.stream and b.stream))


def pairs_of(
    tier: Tier,
    chosen: Sequence[Case],
    overrides: tuple[Sequence[Override], Sequence[Override]],
    *,
    prompts: int | None,
    show: Callable[[str], None],
) -> tuple[Pair, ...]:
    """The cases of a tier as both sides run them.

    Args:
        tier: of the cases.
        chosen: the cases.
        overrides: of A and of B.
        prompts: how many each case replays, None for its own number.
        show: is told what is left out, and what too few prompts can't decide.

    Raises:
        UnknownNameError: see `overridden`.
        UnsupportedError: nothing would be compared, or a side's overrides change none of its cases.
    """
    pairs = [_pair(tier, case, overrides, prompts) for case in chosen]
    for option, given, after in (
        ("--a", overrides[0], [pair.a for pair in pairs]),
        ("--b", overrides[1], [pair.b for pair in pairs]),
    ):
        if given and all(one.server == b.server for one, b in zip(chosen, after, strict=True)):
            keys = ", ".join(dict.fromkeys(one.key for one in given))
            message = (
                f"{option} {keys}: changes none of {len(chosen)} cases, which are so already or"
                " have no use for it; leave it out, or choose other cases"
            )
            raise UnsupportedError(message)
    found = []
    for pair in pairs:
        deciding = subject_of(pair).deciding
        if not deciding:
            show(f"left out: {pair.id} says nothing that could be compared")
            continue
        found.append(pair)
        if pair.a.prompts < FEWEST_PROMPTS and ACCEPTANCE in deciding:
            show(
                f"{pair.id}: acceptance is decided by {FEWEST_PROMPTS} prompts at least, so with"
                f" {pair.a.prompts} it will stay undecided; give --prompts {FEWEST_PROMPTS} or more"
            )
    if not found:
        message = (
            f"tier '{tier.name}': none of {len(pairs)} cases can be compared: they measure no"
            " speed, and their drafts are others on both sides; choose other cases"
        )
        raise UnsupportedError(message)
    return tuple(found)


def _pair(
    tier: Tier,
    case: Case,
    overrides: tuple[Sequence[Override], Sequence[Override]],
    prompts: int | None,
) -> Pair:
    # The other side is the control, so none runs beside it.
    alone = dataclasses.replace(case, control=None)
    a, b = (
        overridden(alone if prompts is None else alone.replaying(prompts), one, _drafts(tier, case))
        for one in overrides
    )
    return Pair(a=a, b=b)


def _drafts(tier: Tier, case: Case) -> Mapping[str, str]:
    """By method, the drafts that a tier names for the models of a case."""
    return {
        one.server.method: one.server.draft
        for one in tier.cases
        if one.server.models == case.server.models and one.server.draft is not None
    }


def groups_of(pairs: Iterable[Pair], *, with_control: bool, together: bool) -> tuple[Group, ...]:
    """The pairs by what they need to start.

    Args:
        pairs: all.
        with_control: whether side A is launched once more for one group, the cheapest: the one
            without a draft if there is one.
        together: whether all sides are up at the same time.
    """
    sharing: dict[tuple[object, ...], list[Pair]] = {}
    for pair in pairs:
        alone = pair.id if pair.a.needs_fresh_server or pair.b.needs_fresh_server else ""
        sharing.setdefault((pair.a.server, pair.b.server, alone), []).append(pair)
    groups = list(sharing.values())
    plain = (group for group in groups if not group[0].a.speculates)
    control = next(plain, groups[0]) if with_control else None
    found = []
    for group in groups:
        a, b = group[0].a.server.id, group[0].b.server.id
        found.append(
            Group(
                name=a if a == b else f"{a} > {b}",
                pairs=tuple(group),
                with_control=group is control,
                together=together,
            )
        )
    return tuple(found)


def check_prompts(root: Path, pairs: Iterable[Pair]) -> None:
    """Check that each pair has prompts, the same on both sides.

    Raises:
        DatasetError: a dataset holds too few, or other ones for the other side's model.
    """
    load = functools.cache(functools.partial(load_case_prompts, root))
    for pair in pairs:
        if load(pair.a) != load(pair.b):
            message = (
                f"'{pair.id}': the sides would be asked other prompts, those of"
                f" '{pair.a.server.target}' and '{pair.b.server.target}'; choose a dataset of texts"
            )
            raise DatasetError(message)
