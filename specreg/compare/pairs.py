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
from specreg.matrix.table_cases import check_pinned, check_tree
from specreg.matrix.tables import within
from specreg.measurement.metrics import GATE_METRICS, Metric

_LAUNCH_TYPES = typing.get_type_hints(LaunchSettings, include_extras=True)
_NOT_OVERRIDDEN = frozenset({"parallel", "tree"})
_TYPES: Mapping[str, object] = MappingProxyType(
    {
        **{name: kind for name, kind in _LAUNCH_TYPES.items() if name not in _NOT_OVERRIDDEN},
        **dict.fromkeys(("method", "draft", "target", "engine_args", "engine_env"), str),
        "draft_tokens": DraftTokens,
        "padding_layers": Annotated[int, msgspec.Meta(ge=0)],
    }
)
"""By setting that a side may override, the type of its value."""
_SPECULATION_SETTINGS = frozenset({"method", "draft", "draft_tokens"})
"""Settings that a server without a drafter doesn't have."""
ACCEPTANCE = "acceptance_length_tokens"
OUTPUT = "throughput_tokens_per_s"
STEP = "step_p50_ms"


class Side(StrEnum):
    """The side of an arm; A1 and A2 are side A twice more, compared with one another."""

    A = "A"
    B = "B"
    A1 = "A1"
    A2 = "A2"

    @property
    def is_b(self) -> bool:
        """Whether it is side B."""
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
        """The case's id; both ids if the sides' differ."""
        return self.a.id if self.a.id == self.b.id else f"{self.a.id} > {self.b.id}"

    def of(self, side: Side) -> Case:
        """Return the case as a side runs it."""
        return self.b if side.is_b else self.a

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that both sides have."""
        return tuple(
            metric
            for metric in GATE_METRICS.values()
            if metric.applies_to(self.a) and metric.applies_to(self.b)
        )

    @property
    def compares_drafts(self) -> bool:
        """Whether the sides speculate in the same way, each with a draft of its own."""
        a = self.a.server
        b = self.b.server
        speculation = operator.attrgetter("method", "draft_tokens", "tree")
        return a.draft != b.draft and speculation(a) == speculation(b)

    @property
    def deciding(self) -> frozenset[str]:
        """The metrics that decide the answer; the others explain them.

        Output, prefill and acceptance decide; the time of a step follows output, because both are
        one draw. Where the sides draft in different ways, acceptance explains too, because
        accepting more drafts may cost longer steps. If such sides measure no speed, acceptance
        decides as long as both draft as many tokens.
        """
        leading = frozenset(metric.name for metric in self.metrics if not metric.follows)
        drafting = operator.attrgetter("method", "draft", "draft_tokens", "tree")
        drafts_alike = drafting(self.a.server) == drafting(self.b.server)
        if drafts_alike or self.compares_drafts:
            return leading
        speeds = leading - {ACCEPTANCE}
        drafts_as_many = self.a.server.draft_tokens == self.b.server.draft_tokens
        if speeds or not drafts_as_many:
            return speeds
        return leading


Group = tuple[Pair, ...]
"""Pairs that share their servers."""


def slots_of(
    launch: int, sides: tuple[Side, Side], *, together: bool
) -> tuple[tuple[Side, ...], ...]:
    """Return the sides to start for a launch, in order; each tuple runs at the same time.

    Every other launch goes the other way round, so that no side has the better half of two.

    Args:
        launch: the number of the launch, from 1.
        sides: the two that are compared.
        together: whether both run at the same time.
    """
    order = sides if launch % 2 else sides[::-1]
    return (order,) if together else tuple((side,) for side in order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One setting of a side's servers.

    Attributes:
        key: the name of the setting.
        value: what it becomes.
        name: the name of the environment variable if the key is `engine_env`, else empty.
    """

    key: str
    value: object
    name: str = ""


def parse_override(text: str) -> Override:
    """Parse an override as it was typed: `KEY=VALUE` or `engine_env.NAME=VALUE`.

    Raises:
        UnsupportedError: it is in neither form, or the setting takes no such value.
        UnknownNameError: there is no such setting.
    """
    key, equals, value = text.partition("=")
    key, _, name = key.partition(".")
    check_name("setting", key, _TYPES, f"override '{text}'")
    if not equals or (key == "engine_env") != bool(name):
        raise UnsupportedError(
            f"override '{text}': names no value; give KEY=VALUE, or engine_env.NAME=VALUE"
        )
    try:
        if key == "engine_args":
            shlex.split(value)
        converted = msgspec.convert(value, _TYPES[key], strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        message = f"override '{text}': {error}; give another value, quoted as a shell wants it"
        raise UnsupportedError(message) from error
    return Override(key=key, name=name, value=converted)


def overridden(case: Case, overrides: Sequence[Override], drafts: Mapping[str, str]) -> Case:
    """Return a case of the matrix as a side runs it. The last override of a key counts.

    Args:
        case: the case of the matrix.
        overrides: the settings of the side.
        drafts: the drafts of the case's model pair, by method.

    Raises:
        UnknownNameError: the engine doesn't have the method, or the pair no draft for it.
        MatrixError: the method drafts trees and the case has none, or its tree can't be so deep.
    """
    spec = case.server
    for override in overrides:
        if case.speculates or override.key not in _SPECULATION_SETTINGS:
            value = _value_of(override, spec)
            spec = dataclasses.replace(spec, **{override.key: value})  # type: ignore[arg-type]
    # A revision is of the model that the pair names.
    if spec.target != case.server.target:
        spec = dataclasses.replace(spec, target_revision="")
    if spec.draft != case.server.draft:
        spec = dataclasses.replace(spec, draft_revision="")
    with within(f"override of '{case.id}'"):
        if spec.method != case.server.method:
            names_draft = any(override.key == "draft" for override in overrides)
            spec = _with_draft(spec, drafts, named=names_draft)
        if spec.method == "none":
            spec = spec.without_speculation
        else:
            check_tree(spec.tree, spec.method, spec.draft_tokens)
    models = operator.attrgetter("target", "draft", "padding_layers", "dtype")
    if models(spec) != models(case.server):  # how much memory others take isn't known
        spec = dataclasses.replace(spec, sizes=None)
    return dataclasses.replace(case, server=spec)


def _value_of(override: Override, spec: ServerSpec) -> object:
    """Return what a setting becomes; arguments and variables are added to those of the case."""
    if override.key == "engine_args":
        return (*spec.engine_args, *shlex.split(str(override.value)))
    if override.key == "engine_env":
        variables = {**dict(spec.engine_env), override.name: str(override.value)}
        return tuple(sorted(variables.items()))
    return override.value


def _with_draft(spec: ServerSpec, drafts: Mapping[str, str], *, named: bool) -> ServerSpec:
    """Return a server with the draft of its method; one that was `named` stays."""
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
    """Return some cases of a tier as A and B run them. What can't be compared is left out.

    Args:
        tier: the tier, which has the drafts of each model pair.
        chosen: the cases to compare.
        overrides: the settings of A and of B.
        prompts: how many prompts to replay; None for the case's own.
        show: is called with a sentence for each case that is left out.

    Raises:
        UnsupportedError: nothing would be compared, or a side's overrides change none of its cases.
    """
    # The other side takes the place of the control.
    cases = [dataclasses.replace(case, control=None) for case in chosen]
    if prompts is not None:
        cases = [case.replaying(prompts) for case in cases]
    drafts = _drafts_by_models(tier)
    cases_of_a = _overridden_cases("--a", cases, overrides[0], drafts)
    cases_of_b = _overridden_cases("--b", cases, overrides[1], drafts)
    pairs = []
    for case_of_a, case_of_b in zip(cases_of_a, cases_of_b, strict=True):
        pair = Pair(a=case_of_a, b=case_of_b)
        if pair.deciding:
            pairs.append(pair)
        else:
            show(f"left out: {pair.id} says nothing that could be compared")
    if not pairs:
        message = (
            f"tier '{tier.name}': none of {len(cases)} cases can be compared: they measure no"
            " speed, and their drafts are others on both sides; choose other cases"
        )
        raise UnsupportedError(message)
    return tuple(pairs)


def _drafts_by_models(tier: Tier) -> Mapping[str, Mapping[str, str]]:
    """Return by model pair of a tier the draft of each method."""
    drafts: dict[str, dict[str, str]] = {case.server.models: {} for case in tier.cases}
    for case in tier.cases:
        if case.server.draft is not None:
            drafts[case.server.models][case.server.method] = case.server.draft
    return drafts


def _overridden_cases(
    option: str,
    cases: Sequence[Case],
    overrides: Sequence[Override],
    drafts: Mapping[str, Mapping[str, str]],
) -> list[Case]:
    """Return cases as a side runs them.

    Raises:
        UnsupportedError: the side has overrides and they change none of the cases.
    """
    changed = [overridden(case, overrides, drafts[case.server.models]) for case in cases]
    if overrides and [case.server for case in changed] == [case.server for case in cases]:
        keys = ", ".join(dict.fromkeys(override.key for override in overrides))
        message = (
            f"{option} {keys}: changes none of {len(cases)} cases, which are so already or have no"
            " use for it; leave it out, or choose other cases"
        )
        raise UnsupportedError(message)
    return changed


def groups_of(pairs: Iterable[Pair]) -> tuple[Group, ...]:
    """Group pairs that can share their servers."""
    pairs_by_servers: dict[tuple[object, ...], list[Pair]] = {}
    for pair in pairs:
        needs_own_servers = pair.a.needs_fresh_server or pair.b.needs_fresh_server
        own_id = pair.id if needs_own_servers else ""
        key = (pair.a.server, pair.b.server, own_id)
        pairs_by_servers.setdefault(key, []).append(pair)
    return tuple(tuple(group) for group in pairs_by_servers.values())


def pinned_pairs(pairs: Iterable[Pair], length_tokens: float, *, on_gpu: bool) -> tuple[Pair, ...]:
    """Return a pair with a pinned acceptance for each pair of models and load that speculates.

    What then differs between the sides is the cost of a step.

    Raises:
        UnsupportedError: nothing speculates.
        MatrixError: fewer tokens are drafted than are to be accepted, or the engine can't pin it.
    """
    pinned_by_id: dict[str, Pair] = {}
    with within(f"--pin {length_tokens:g}"):
        for pair in pairs:
            if pair.a.speculates and pair.b.speculates:
                pinned = Pair(
                    a=pinned_case(pair.a, length_tokens, on_gpu=on_gpu),
                    b=pinned_case(pair.b, length_tokens, on_gpu=on_gpu),
                )
                pinned_by_id.setdefault(pinned.id, pinned)
        if not pinned_by_id:
            raise UnsupportedError("no case speculates; choose one that does")
    return tuple(pinned_by_id.values())


def pinned_case(case: Case, length_tokens: float, *, on_gpu: bool) -> Case:
    """Return a case whose engine keeps to an acceptance length.

    Where the engine can't pin the case's own method, the scheduled drafter does it. That one knows
    greedy answers to first turns only, so the case is asked for those.
    """
    spec = dataclasses.replace(case.server, pinned_length_tokens=length_tokens)
    methods = engine_named(spec.engine).pinned_methods(on_gpu=on_gpu)
    if spec.method not in methods and SCHEDULED in methods:
        spec = dataclasses.replace(spec, method=SCHEDULED, draft=None, tree=None)
        case = dataclasses.replace(case, turns=1, temperature=0.0)
    pinned = dataclasses.replace(case, server=spec)
    check_pinned(pinned, on_gpu=on_gpu)
    return pinned
