"""The pairs that a gate compares: each is a case as side A and side B run it."""

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
from specreg.engines.methods import METHODS, SCHEDULED
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import DraftTokens, ServerSpec
from specreg.matrix.case import Case, Tier
from specreg.matrix.table_cases import check_pinned, check_tree
from specreg.matrix.tables import located_errors
from specreg.measurement.metrics import ACCEPTANCE_LENGTH, GATE_METRICS, Metric

_NOT_OVERRIDDEN = frozenset(
    {
        # Settings with several values, which KEY=VALUE can't give.
        *("parallel", "speculation", "tree"),
        # What a case is, and what is known of its models.
        *("engine", "models", "variant", "target_revision", "draft_revision", "sizes", "widen"),
    }
)
_SERVER_TYPES = {
    name: kind
    for name, kind in typing.get_type_hints(ServerSpec, include_extras=True).items()
    if name not in _NOT_OVERRIDDEN
}
_TEXT_SETTINGS = ("method", "draft", "target", "engine_args", "engine_env")
_TYPES: Mapping[str, object] = MappingProxyType(
    {
        **_SERVER_TYPES,
        **dict.fromkeys(_TEXT_SETTINGS, str),
        "draft_tokens": DraftTokens,
        "padding_layers": Annotated[int, msgspec.Meta(ge=0)],
    }
)
"""The type of each setting that a side may override."""
_SPECULATION_SETTINGS = frozenset({"method", "draft", "draft_tokens"})
"""The settings that a case without speculation doesn't have."""


class Side(StrEnum):
    """A side of a gate. A1 and A2 are side A launched twice, to be compared with each other."""

    A = "A"
    B = "B"
    A1 = "A1"
    A2 = "A2"

    @property
    def is_b(self) -> bool:
        """Whether this is side B."""
        return self is Side.B


COMPARED = (Side.A, Side.B)
CONTROL = (Side.A1, Side.A2)
"""Two launches of side A. Only the noise of the machine makes them differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A case as both sides run it."""

    a: Case
    b: Case

    @property
    def id(self) -> str:
        """The id of the case, or both ids if the sides run different cases."""
        if self.a.id == self.b.id:
            return self.a.id
        return f"{self.a.id} > {self.b.id}"

    def of(self, side: Side) -> Case:
        """Return the case as a side runs it."""
        return self.b if side.is_b else self.a

    @property
    def only_for(self) -> str:
        """The id of the pair if no other pair may use its servers; empty if pairs share them."""
        return self.id if self.a.only_for or self.b.only_for else ""

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
        """Whether the sides differ in the draft, but not in method, draft tokens and tree."""
        a = self.a.server
        b = self.b.server
        speculation = operator.attrgetter("method", "draft_tokens", "tree")
        return a.draft != b.draft and speculation(a) == speculation(b)

    @property
    def deciding(self) -> frozenset[str]:
        """The names of the metrics that decide the answer. The other metrics explain them.

        Throughput, TTFT and acceptance decide. The time of a step doesn't, because it moves
        together with throughput. If the sides differ in method, draft tokens or tree, acceptance
        doesn't decide either, because accepting more drafts may cost longer steps. But if such
        sides measure no speed, acceptance decides as long as both draft the same number of tokens.
        """
        leading = frozenset(metric.name for metric in self.metrics if not metric.follows)
        drafting = operator.attrgetter("method", "draft", "draft_tokens", "tree")
        draft_equally = drafting(self.a.server) == drafting(self.b.server)
        if draft_equally or self.compares_drafts:
            return leading
        speeds = leading - {ACCEPTANCE_LENGTH}
        has_equal_draft_tokens = self.a.server.draft_tokens == self.b.server.draft_tokens
        if speeds or not has_equal_draft_tokens:
            return speeds
        return leading


Group = tuple[Pair, ...]
"""Pairs that share their servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One setting of a side's servers.

    Attributes:
        key: the name of the setting.
        value: the new value.
        name: the name of the environment variable if the key is `engine_env`; otherwise empty.
    """

    key: str
    value: object
    name: str = ""


def parse_override(text: str) -> Override:
    """Parse an override as it was typed: `KEY=VALUE` or `engine_env.NAME=VALUE`.

    Raises:
        UnsupportedError: it has neither form, or the value doesn't fit the setting.
        UnknownNameError: there is no such setting.
    """
    key, equals, value = text.partition("=")
    key, _, name = key.partition(".")
    check_name("setting", key, _TYPES, f"override '{text}'")
    if not equals or (key == "engine_env") != bool(name):
        raise UnsupportedError(
            f"override '{text}': has another form than is needed; give KEY=VALUE, or"
            " engine_env.NAME=VALUE"
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
    """Return a case of the tier as a side runs it.

    The last override of a key wins. But the arguments of `engine_args` are added to those before
    them, and so are variables with other names.

    Args:
        case: the case of the tier.
        overrides: the overrides of the side.
        drafts: the drafts of the case's model pair, by method.

    Raises:
        UnknownNameError: the engine lacks the method, or the model pair has no draft for it.
        MatrixError: the method drafts trees and the case has none, or its tree is too deep.
    """
    # Override the settings. A case without speculation has no settings of a drafter.
    spec = case.server
    for override in overrides:
        if case.speculates or override.key not in _SPECULATION_SETTINGS:
            value = _value_of(override, spec)
            spec = dataclasses.replace(spec, **{override.key: value})  # type: ignore[arg-type]

    # The revisions belong to the original models.
    if spec.target != case.server.target:
        spec = dataclasses.replace(spec, target_revision="")
    if spec.draft != case.server.draft:
        spec = dataclasses.replace(spec, draft_revision="")

    # Another method may need another draft.
    with located_errors(f"override of '{case.id}'"):
        if spec.method != case.server.method:
            names_draft = any(override.key == "draft" for override in overrides)
            spec = _with_draft(spec, drafts, named=names_draft)
        if spec.method == "none":
            spec = spec.without_speculation
        else:
            check_tree(spec.tree, spec.method, spec.draft_tokens)

    # The sizes are those of the original models, and the sizes of other models are unknown.
    models = operator.attrgetter("target", "draft", "padding_layers", "dtype")
    if models(spec) != models(case.server):
        spec = dataclasses.replace(spec, sizes=None)
    return dataclasses.replace(case, server=spec)


def _value_of(override: Override, spec: ServerSpec) -> object:
    """Return the new value of a setting. Arguments and variables are added to those of the case."""
    if override.key == "engine_args":
        return (*spec.engine_args, *shlex.split(str(override.value)))
    if override.key == "engine_env":
        variables = {**dict(spec.engine_env), override.name: str(override.value)}
        return tuple(sorted(variables.items()))
    return override.value


def _with_draft(spec: ServerSpec, drafts: Mapping[str, str], *, named: bool) -> ServerSpec:
    """Return a server with the draft that its method needs.

    Args:
        spec: the server, with its new method.
        drafts: the drafts of its model pair, by method.
        named: whether an override names the draft, which is then left as it is.
    """
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
    """Return the chosen cases as A and B run them. Cases that can't be compared are left out.

    Args:
        tier: the tier, which has the drafts of each model pair.
        chosen: the cases to compare.
        overrides: the overrides of A and of B.
        prompts: how many prompts to replay; None for the number of each case.
        show: is called with a sentence for each case that is left out.

    Raises:
        UnsupportedError: no case is left, or a side's overrides change none of its cases.
        UnknownNameError: as in `overridden`.
        MatrixError: as in `overridden`.
    """
    # A gate needs no server without speculation as a control, because its sides are compared with
    # each other.
    cases = [dataclasses.replace(case, control=None) for case in chosen]
    if prompts is not None:
        cases = [case.replaying(prompts) for case in cases]
    drafts = _drafts_by_models(tier)
    cases_of_a = _overridden_cases("--set-a", cases, overrides[0], drafts)
    cases_of_b = _overridden_cases("--set-b", cases, overrides[1], drafts)
    pairs = []
    for case_of_a, case_of_b in zip(cases_of_a, cases_of_b, strict=True):
        pair = Pair(a=case_of_a, b=case_of_b)
        if pair.deciding:
            pairs.append(pair)
        else:
            show(f"left out: {pair.id} has no metric that could decide")

    if not pairs:
        message = (
            f"tier '{tier.name}': none of {len(cases)} cases can be compared: they measure no"
            " speed, and the sides draft in different ways; choose other cases"
        )
        raise UnsupportedError(message)

    return tuple(pairs)


def _drafts_by_models(tier: Tier) -> Mapping[str, Mapping[str, str]]:
    """Return the draft of each method, by the model pairs of a tier."""
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
    servers_before = [case.server for case in cases]
    servers = [case.server for case in changed]

    # Two equal sides would be compared for minutes, and the answer would mean nothing.
    if overrides and servers == servers_before:
        keys = ", ".join(dict.fromkeys(override.key for override in overrides))
        message = (
            f"{option} {keys}: changes none of {len(cases)} cases, because they have that setting"
            " already or don't use it; leave it out, or choose other cases"
        )
        raise UnsupportedError(message)

    return changed


def groups_of(pairs: Iterable[Pair]) -> tuple[Group, ...]:
    """Group pairs that can share their servers."""
    pairs_by_servers: dict[tuple[object, ...], list[Pair]] = {}
    for pair in pairs:
        key = (pair.a.server, pair.b.server, pair.only_for)
        pairs_by_servers.setdefault(key, []).append(pair)
    return tuple(tuple(group) for group in pairs_by_servers.values())


def pinned_pairs(pairs: Iterable[Pair], length_tokens: float, *, on_gpu: bool) -> tuple[Pair, ...]:
    """Return pairs with a pinned acceptance length, which compare the cost of a step alone.

    There is one for each pair that speculates on both sides. Pairs that become equal, because
    `pinned_case` gives them the scheduled drafter, count once.

    Args:
        pairs: the pairs that the gate compares.
        length_tokens: the acceptance length to pin.
        on_gpu: whether the servers run on GPUs.

    Raises:
        UnsupportedError: no pair speculates on both sides.
        MatrixError: the acceptance length exceeds the drafted tokens, or the engine can't pin it.
    """
    pinned_by_id: dict[str, Pair] = {}
    with located_errors(f"--pin {length_tokens:g}"):
        for pair in pairs:
            if pair.a.speculates and pair.b.speculates:
                pinned = Pair(
                    a=pinned_case(pair.a, length_tokens, on_gpu=on_gpu),
                    b=pinned_case(pair.b, length_tokens, on_gpu=on_gpu),
                )
                # Pairs that the scheduled drafter makes equal are compared once.
                pinned_by_id.setdefault(pinned.id, pinned)
        if not pinned_by_id:
            raise UnsupportedError("no case speculates; choose one that does")

    return tuple(pinned_by_id.values())


def pinned_case(case: Case, length_tokens: float, *, on_gpu: bool) -> Case:
    """Return a case with a pinned acceptance length.

    If the engine can't pin the case's own method but can pin the scheduled drafter, that drafter
    replaces the method. It drafts from the greedy answers to the first turns, so the case is
    restricted to these.

    Raises:
        MatrixError: the acceptance length exceeds the drafted tokens, or the engine can't pin it.
    """
    spec = dataclasses.replace(case.server, pinned_length_tokens=length_tokens)
    methods = engine_named(spec.engine).pinned_methods(on_gpu=on_gpu)
    if spec.method not in methods and SCHEDULED in methods:
        spec = dataclasses.replace(spec, method=SCHEDULED, draft=None, tree=None)
        request = dataclasses.replace(case.request, turns=1, temperature=0.0)
        case = dataclasses.replace(case, request=request)

    pinned = dataclasses.replace(case, server=spec)
    check_pinned(pinned, on_gpu=on_gpu)
    return pinned
