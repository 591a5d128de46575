"""What a gate compares: cases as both sides run them, and which of them share their servers."""

import dataclasses
import operator
import shlex
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

import msgspec

from specreg.core.errors import UnsupportedError, check_name
from specreg.engines.engine import LaunchSettings
from specreg.engines.methods import METHODS, SCHEDULED
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, DraftTokens, ServerSpec, Tier
from specreg.matrix.tier import check_pinned, check_tree, within
from specreg.measurement.metrics import GATE_METRICS, Metric

_HINTS = typing.get_type_hints(LaunchSettings, include_extras=True)
_TYPES: Mapping[str, object] = MappingProxyType(
    {
        **{name: kind for name, kind in _HINTS.items() if name not in {"parallel", "tree"}},
        **dict.fromkeys(("method", "draft", "target", "engine_args", "engine_env"), str),
        "draft_tokens": DraftTokens,
        "padding_layers": Annotated[int, msgspec.Meta(ge=0)],
    }
)
_OF_SPECULATION = frozenset({"method", "draft", "draft_tokens"})
"""A server without a drafter has none of them."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One setting of a side's servers; `name` is of the variable where it is `engine_env`."""

    key: str
    value: object
    name: str = ""


def parse_override(text: str) -> Override:
    """An override as it was typed: `KEY=VALUE` or `engine_env.NAME=VALUE`.

    Raises:
        UnsupportedError: it is in neither form, or the setting takes no such value.
        UnknownNameError: there is no such setting.
    """
    key, equals, value = text.partition("=")
    key, _, name = key.partition(".")
    check_name("setting", key, _TYPES, f"override '{text}'")
    if not equals or (key == "engine_env") != bool(name):
        raise UnsupportedError(f"override '{text}': give KEY=VALUE, or engine_env.NAME=VALUE")
    try:
        if key == "engine_args":
            shlex.split(value)
        converted = msgspec.convert(value, _TYPES[key], strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        message = f"override '{text}': {error}; give another value, quoted as a shell wants it"
        raise UnsupportedError(message) from error
    return Override(key=key, name=name, value=converted)


def overridden(case: Case, overrides: Sequence[Override], drafts: Mapping[str, str]) -> Case:
    """A case of the matrix as a side runs it; the last override of a key counts.

    `drafts` are by method those of the case's model pair.

    Raises:
        UnknownNameError: the engine doesn't have the method, or the pair no draft for it.
        MatrixError: the method drafts trees and the case has none, or its tree can't be so deep.
    """
    spec = case.server
    for one in overrides:
        if case.speculates or one.key not in _OF_SPECULATION:
            value = one.value
            if one.key == "engine_args":  # after the case's own, as variables are beside them
                value = (*spec.engine_args, *shlex.split(str(value)))
            elif one.key == "engine_env":
                value = tuple(sorted({**dict(spec.engine_env), one.name: str(value)}.items()))
            spec = dataclasses.replace(spec, **{one.key: value})  # type: ignore[arg-type]
    with within(f"override of '{case.id}'"):
        if spec.method != case.server.method:
            named = any(one.key == "draft" for one in overrides)
            spec = _with_draft(spec, drafts, named=named)
        if spec.method == "none":
            spec = spec.without_speculation
        else:
            check_tree(spec.tree, spec.method, spec.draft_tokens)
    of_models = operator.attrgetter("target", "draft", "padding_layers", "dtype")
    if of_models(spec) != of_models(case.server):  # what others take isn't known
        spec = dataclasses.replace(spec, sizes=None)
    return dataclasses.replace(case, server=spec)


def _with_draft(spec: ServerSpec, drafts: Mapping[str, str], *, named: bool) -> ServerSpec:
    method = spec.method
    check_name("method", method, METHODS)
    engine_named(spec.engine).spelling_of(method)
    if not METHODS[method].drafts_trees:
        spec = dataclasses.replace(spec, tree=None)
    if not METHODS[method].needs_draft:
        return dataclasses.replace(spec, draft=None, parallel=spec.parallel.without_draft)
    if named:
        return spec
    check_name(f"draft of '{spec.models}' for method", method, drafts)
    return dataclasses.replace(spec, draft=drafts[method])


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
