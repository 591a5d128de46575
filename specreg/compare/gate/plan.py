"""The plan: the cases of a tier and two sides in, what is compared and on which launches out."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.compare.gate.going import Group
from specreg.compare.gate.judging import Subject
from specreg.compare.gate.launched import Arm
from specreg.compare.gate.overriding import Override, overridden
from specreg.compare.gate.quantities import ACCEPTANCE, OUTPUT, QUANTITIES, Cause, Quantity
from specreg.core.errors import DatasetError, UnknownNameError, UnsupportedError
from specreg.matrix.case import Case, ServerSpec, Tier
from specreg.matrix.prompts import load_case_prompts
from specreg.stats.intervals import FEWEST_PROMPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A case as both sides run it."""

    a: Case
    b: Case

    @property
    def id(self) -> str:
        """The case's; of two that are called differently both."""
        return self.a.id if self.a.id == self.b.id else f"{self.a.id} > {self.b.id}"

    def of(self, arm: Arm) -> Case:
        """As an arm runs it."""
        return self.b if arm is Arm.B else self.a

    @property
    def speculates_alike(self) -> bool:
        """Whether both draft in the same way, so that acceptance and step mean the same."""

        def drafting(spec: ServerSpec) -> tuple[object, ...]:
            return spec.method, spec.draft, spec.draft_tokens, spec.tree

        return drafting(self.a.server) == drafting(self.b.server)


def pairs_of(
    tier: Tier,
    case_ids: Sequence[str],
    overrides: tuple[Sequence[Override], Sequence[Override]],
    *,
    prompts: int | None,
    show: Callable[[str], None],
    unfit: Callable[[Case], str] = lambda _: "",
) -> tuple[Pair, ...]:
    """What is compared.

    Args:
        tier: of which.
        case_ids: which of its cases, none for all.
        overrides: of A and of B.
        prompts: how many each case replays, None for its own number.
        show: is told what is left out, and what too few prompts can't decide.
        unfit: why a case that nobody named can't be compared, empty where it can.

    Raises:
        UnknownNameError: no such case; see `overridden` too.
        UnsupportedError: nothing would be compared, or a side's overrides change none of its cases.
    """
    known = {case.id: case for case in tier.cases}
    for case_id in case_ids:
        if case_id not in known:
            raise UnknownNameError("case", case_id, known, f"tier '{tier.name}'")
    chosen = [known[case_id] for case_id in dict.fromkeys(case_ids)] or _fit(tier, unfit, show)
    pairs = tuple(_pair(case, overrides, drafts_of(tier, case), prompts) for case in chosen)
    for option, given, cases in (
        ("--a", overrides[0], [pair.a for pair in pairs]),
        ("--b", overrides[1], [pair.b for pair in pairs]),
    ):
        _check_changes(option, given, chosen, cases)
    told = [pair for pair in pairs if _deciding(pair)]
    for pair in pairs:
        if pair not in told:
            show(f"left out: {pair.id} says nothing that could be compared")
        elif pair.a.prompts < FEWEST_PROMPTS and ACCEPTANCE in _deciding(pair):
            show(
                f"{pair.id}: acceptance is decided by {FEWEST_PROMPTS} prompts at least, so with"
                f" {pair.a.prompts} it will stay undecided; give --prompts {FEWEST_PROMPTS} or more"
            )
    if not told:
        message = (
            f"tier '{tier.name}': none of {len(pairs)} cases can be compared: they measure no"
            " speed, and their drafts are others on both sides; choose other cases"
        )
        raise UnsupportedError(message)
    return tuple(told)


def _deciding(pair: Pair) -> frozenset[str]:
    return subject_of(pair, of_server=False).deciding


def _check_changes(
    option: str, given: Sequence[Override], before: Sequence[Case], after: Sequence[Case]
) -> None:
    """Silent where a side's overrides change a case of it, if it has any.

    Raises:
        UnsupportedError: they change none, and a side would be compared with itself unawares.
    """
    if given and all(a.server == b.server for a, b in zip(before, after, strict=True)):
        keys = ", ".join(dict.fromkeys(one.key for one in given))
        message = (
            f"{option} {keys}: changes none of {len(before)} cases, which are so already or have no"
            " use for it; leave it out, or choose other cases"
        )
        raise UnsupportedError(message)


def _fit(tier: Tier, unfit: Callable[[Case], str], show: Callable[[str], None]) -> list[Case]:
    """The cases of a tier that can be compared; of the others is told why not."""
    whys = {case.id: unfit(case) for case in tier.cases}
    for why in filter(None, whys.values()):
        show(f"left out: {why}")
    found = [case for case in tier.cases if not whys[case.id]]
    if not found:
        message = (
            f"tier '{tier.name}': none of its {len(whys)} cases can be compared,"
            f" {whys.popitem()[1]}; choose another --tier, or other sides"
        )
        raise UnsupportedError(message)
    return found


def _pair(
    case: Case,
    overrides: tuple[Sequence[Override], Sequence[Override]],
    drafts: Mapping[str, str],
    prompts: int | None,
) -> Pair:
    # The other side is the control, so none runs beside it.
    alone = dataclasses.replace(case, control=None)
    a, b = (
        overridden(alone if prompts is None else alone.replaying(prompts), one, drafts)
        for one in overrides
    )
    return Pair(a=a, b=b)


def drafts_of(tier: Tier, case: Case) -> dict[str, str]:
    """By method, the drafts that a tier names for the models of a case."""
    return {
        one.server.method: one.server.draft
        for one in tier.cases
        if one.server.models == case.server.models and one.server.draft is not None
    }


def subject_of(pair: Pair, *, of_server: bool, other: Arm = Arm.B) -> Subject:
    """What is compared of a pair.

    Sides that draft alike are held to all that they do. Where they don't, more drafts accepted may
    well cost a longer step: what counts is the output, and the others say what it came from.

    Args:
        pair: which.
        of_server: whether what is its server's is told with it.
        other: B, or A2 for the control.
    """
    b = pair.a if other is Arm.A2 else pair.b
    alike = other is Arm.A2 or pair.speculates_alike
    quantities = tuple(
        one
        for one in QUANTITIES.values()
        if _has(pair.a, b, one) and (of_server or not one.of_server)
    )
    names = {one.name for one in quantities if not one.of_server}
    same_depth = pair.a.server.draft_tokens == b.server.draft_tokens
    if not alike:
        traded = {one.name for one in quantities if one.cause in {Cause.ACCEPTANCE, Cause.STEP}}
        names -= traded
        if OUTPUT not in names and same_depth:
            names |= traded & {ACCEPTANCE}
    return Subject(case_id=pair.id, quantities=quantities, deciding=frozenset(names), other=other)


def _has(a: Case, b: Case, one: Quantity) -> bool:
    if one.of_server:
        return True
    if one.cause is Cause.ACCEPTANCE:
        return a.speculates and b.speculates
    stream = a.stream and b.stream
    return a.speed and b.speed and (stream or one.cause is Cause.OUTPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The pairs that share their launches, and the group as which they go on."""

    pairs: tuple[Pair, ...]
    group: Group


def shared_launches(
    pairs: Iterable[Pair], *, with_control: bool, together: bool
) -> tuple[Shared, ...]:
    """The pairs by what they need to start; the control is the cheapest, the one without a draft.

    Args:
        pairs: all.
        with_control: whether side A is launched once more for one of them.
        together: whether all sides are up at the same time.
    """
    sharing: dict[tuple[object, ...], list[Pair]] = {}
    for pair in pairs:
        alone = pair.id if pair.a.needs_fresh_server or pair.b.needs_fresh_server else ""
        sharing.setdefault((pair.a.server, pair.b.server, alone), []).append(pair)
    groups = [tuple(group) for group in sharing.values()]
    plain = (group for group in groups if not group[0].a.speculates)
    control = next(plain, groups[0]) if with_control else None
    return tuple(
        Shared(
            pairs=group,
            group=_group(group, with_control=group is control, together=together),
        )
        for group in groups
    )


def _group(pairs: tuple[Pair, ...], *, with_control: bool, together: bool) -> Group:
    subjects = [subject_of(pair, of_server=pair is pairs[0]) for pair in pairs]
    if with_control:
        subjects += [subject_of(pair, of_server=False, other=Arm.A2) for pair in pairs]
    a, b = pairs[0].a.server, pairs[0].b.server
    name = a.id if a.id == b.id else f"{a.id} > {b.id}"
    return Group(name=name, subjects=tuple(subjects), together=together)


def check_prompts(root: Path, pairs: Iterable[Pair]) -> None:
    """Silent where each pair has prompts, the same on both sides.

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
