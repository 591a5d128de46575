"""Load a tier: the cases of a matrix file."""

import dataclasses
import itertools
import math
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from specreg.core.errors import MatrixError, UnknownNameError
from specreg.datasets.prompts import REPLIES
from specreg.datasets.table import dataset_named
from specreg.engines.methods import METHODS
from specreg.engines.registry import engine_named
from specreg.engines.settings import LaunchSettings, taken
from specreg.matrix.case import Case, ServerSpec, Sizes, Tier
from specreg.matrix.schema import (
    Arrivals,
    CasesTable,
    Limits,
    Load,
    ModelsTable,
    Pace,
    PairsFile,
    TierFile,
    Workload,
)

PAIRS = Path("models/pairs.toml")
"""The model pairs that all tiers share, from the folder that holds the tiers' own."""
_MOST_BESIDE_FRAC = 0.5
"""Of a GPU's memory, what a server may take beside which another stands."""
_POWER_S = 30.0
_ADVICE = "docs/matrix.md shows the tables and keys"
_TableT = TypeVar("_TableT")
_FileT = TypeVar("_FileT", TierFile, PairsFile)

Pairs = Mapping[str, tuple[ModelsTable, str]]
"""Model pairs by name, each with where its table stands."""


def load_tier(folder: Path, name: str) -> Tier:
    """The tier that `folder`/`name`.toml declares.

    Its model pairs are those of `folder`/../models/pairs.toml and its own; one of its own stands in
    the place of a shared one of the same name.

    Raises:
        UnknownNameError: no such tier; or a table has a key, or names an engine, method, dataset or
            model pair that doesn't exist. The message lists what does.
        MatrixError: a file doesn't decode, or asks for what can't be.
    """
    path = folder / f"{name}.toml"
    if not path.is_file():
        raise UnknownNameError("tier", name, tier_names(folder))
    head, own_pairs, tables = _load_file(path, TierFile)
    shared = folder.parent / PAIRS
    pairs = {**(_load_file(shared, PairsFile)[1] if shared.exists() else {}), **own_pairs}
    for pair, place in pairs.values():
        _check_pair(pair, place)
    on_gpu = head.needs_gpus > 0
    choices: dict[str, tuple[str, ...]] = {}
    places: dict[str, str] = {}
    found: list[Case] = []
    for table, place in tables:
        for models in table.each_models:
            for case in _cases_of(table, models, pairs, place, on_gpu=on_gpu):
                if case.id in places:
                    message = f"{place}: two cases are called '{case.id}'"
                    raise MatrixError(f"{message}, the other is of {places[case.id]}; remove one")
                places[case.id] = place
                found.append(case)
                if len(table.each_models) > 1:
                    choices[case.id] = table.each_models
    cases = _with_controls(found)
    for case in cases if on_gpu else ():
        if case.control is not None and case.server.gpu_memory_frac > _MOST_BESIDE_FRAC:
            message = (
                f"{places[case.id]}: gpu_memory_frac = {case.server.gpu_memory_frac}, needed at"
                f" most {_MOST_BESIDE_FRAC}: case and control stand beside one another; lower it"
            )
            raise MatrixError(message)
    return Tier(name=name, needs_gpus=head.needs_gpus, cases=cases, places=places, choices=choices)


def _load_file(
    path: Path, kind: type[_FileT]
) -> tuple[_FileT, Pairs, Sequence[tuple[CasesTable, str]]]:
    """What a file says, its pairs and its tables of cases; each table with where it stands."""
    file = f"matrix file '{path}'"
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # TOML's own errors, and Python's of a number
        raise MatrixError(f"{file}: no TOML, {error}; {_ADVICE}") from error
    except OSError as error:
        raise MatrixError(f"{file}: {error.strerror}; mend its rights") from error
    pairs, cases = {}, []
    # Table by table, so that an error can say of which. What is no table is left to the whole.
    if isinstance(raw.get("models"), dict):
        for name, table in raw["models"].items():
            place = f"{file}, [models.{name}]"
            pairs[name] = (_convert(table, ModelsTable, place), place)
        raw["models"] = {}
    if isinstance(raw.get("cases"), list):
        for number, table in enumerate(raw["cases"], 1):
            place = f"{file}, [[cases]] no. {number}"
            cases.append((_convert(table, CasesTable, place), place))
        raw["cases"] = []
    return _convert(raw, kind, file), pairs, cases


def _convert(raw: object, kind: type[_TableT], place: str) -> _TableT:
    known = typing.get_type_hints(kind)
    for name in raw if isinstance(raw, dict) else ():  # msgspec refuses none of a dataclass
        if name not in known:
            raise UnknownNameError("key", name, known, place)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        said = str(error).replace("`$.", "`")
        raise MatrixError(f"{place}: {said}; {_ADVICE}") from error


def tier_names(folder: Path) -> tuple[str, ...]:
    """The tiers that a folder holds, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def with_prompts(tier: Tier, prompts: int) -> Tier:
    """A tier whose cases replay so many prompts each.

    Raises:
        MatrixError: that leaves a round of a case without a prompt.
    """
    for case in tier.cases:
        if prompts < case.rounds:
            message = (
                f"--num-prompts {prompts}: '{case.id}' needs {case.rounds} or more, one for each of"
                " its rounds; give more prompts, or lower rounds in the matrix"
            )
            raise MatrixError(message)
    return dataclasses.replace(tier, cases=tuple(case.replaying(prompts) for case in tier.cases))


def all_case_ids(folder: Path) -> frozenset[str]:
    """The ids of the cases of all tiers.

    Raises:
        SpecregError: see `load_tier`.
    """
    tiers = (load_tier(folder, name) for name in tier_names(folder))
    return frozenset(case.id for tier in tiers for case in tier.cases)


def _check_pair(pair: ModelsTable, place: str) -> None:
    """Check that the drafts are of methods that take one, and a size is of a draft."""
    if pair.widen and pair.padding_layers:
        message = (
            f"{place}: padding_layers = {pair.padding_layers} with"
            f' widen = "{pair.widen}", which says how many layers there are; leave one of them out'
        )
        raise MatrixError(message)
    takers = [name for name, method in METHODS.items() if method.needs_draft]
    for name in pair.drafts:
        if name not in takers:
            raise UnknownNameError("method that takes a draft", name, takers, place)
    for name in pair.drafts_gib:
        if name not in pair.drafts:
            raise UnknownNameError("draft", name, pair.drafts, place)


def _cases_of(
    table: CasesTable, models: str, pairs: Pairs, place: str, *, on_gpu: bool
) -> Iterator[Case]:
    if models not in pairs:
        raise UnknownNameError("model pair", models, pairs, place)
    dataset_named(table.dataset, place)
    if table.history_reply not in REPLIES:
        raise UnknownNameError("history_reply", table.history_reply, REPLIES, place)
    for wrong in _contradictions(table):
        raise MatrixError(f"{place}: {wrong}")
    power_s = (_POWER_S if on_gpu else 0.0) if table.power_s is None else table.power_s
    servers = dict.fromkeys(
        _server_of(table, method, draft_tokens, models, pairs[models][0], place)
        for method, draft_tokens in itertools.product(table.methods, table.each_draft_tokens)
    )
    for server, load in itertools.product(servers, _loads_of(table)):
        yield Case(
            **_taken(Workload, table),
            server=server,
            control=None,
            load=load,
            limits=Limits(ttft_ms=table.ttft_limit_ms, tpot_ms=table.tpot_limit_ms),
            power_s=power_s,
        )


def _contradictions(table: CasesTable) -> Iterator[str]:
    """What keys of a table can't be at once, and what to do."""
    closed = bool(table.concurrency)
    fits = table.arrivals is None or (table.arrivals is Arrivals.CLOSED) == closed
    if closed == bool(table.requests_per_s) or not fits:
        yield (
            f"concurrency = {table.concurrency}, requests_per_s = {table.requests_per_s},"
            f" arrivals = {table.arrivals}; give either concurrency alone (a closed loop) or"
            " requests_per_s with arrivals constant, poisson (the default) or gamma"
        )
    most = max(table.concurrency, default=0)
    if most > table.max_sequences:
        yield (
            f"concurrency = {table.concurrency} with max_sequences = {table.max_sequences}; the"
            " server must take on all that are in flight"
        )
    if table.burstiness != 1.0 and table.arrivals is not Arrivals.GAMMA:
        yield 'burstiness is of gamma alone; set arrivals = "gamma" or leave it out'
    dealt = f"prompts = {table.prompts} in rounds = {table.rounds}"
    if table.prompts < table.rounds:
        yield f"{dealt}; each round needs a prompt: raise prompts or lower rounds"
    size = math.ceil(table.prompts / table.rounds)
    last = table.prompts - size * ((table.prompts - 1) // size)
    # The last round would be measured as a load that it isn't.
    if table.speed and table.duration_s is None and last < most:
        yield (
            f"{dealt}, the last of which has {last}, with concurrency = {table.concurrency};"
            f" needed {most}, one for each in flight: raise prompts, or lower rounds or concurrency"
        )
    if why := table.parallel.why_not():
        yield why


def _taken(kind: type[object], table: CasesTable) -> dict[str, Any]:
    """The fields of a dataclass as a table has them, its tables as pairs."""
    return {
        name: tuple(sorted(value.items())) if isinstance(value, dict) else value
        for name, value in taken(kind, table).items()
    }


def _loads_of(table: CasesTable) -> tuple[Load, ...]:
    """One load for each concurrency, or for each rate."""
    arrivals = Arrivals.CLOSED if table.concurrency else table.arrivals or Arrivals.POISSON
    load = Load(**taken(Pace, table), arrivals=arrivals)
    return (
        *(dataclasses.replace(load, concurrency=requests) for requests in table.concurrency),
        *(dataclasses.replace(load, requests_per_s=rate) for rate in table.requests_per_s),
    )


def _server_of(
    table: CasesTable, method: str, draft_tokens: int, models: str, pair: ModelsTable, place: str
) -> ServerSpec:
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS, place)
    takes_draft = METHODS[method].needs_draft
    if takes_draft and method not in pair.drafts:
        noun = f"draft in [models.{models}] for method"
        raise UnknownNameError(noun, method, pair.drafts, place)
    engine_named(table.engine, place).spelling_of(method, place)
    if method != "none":
        _check_tree(table, method, draft_tokens, place)
    sizes = None
    if pair.target_gib is not None:
        draft_gib = pair.drafts_gib.get(method) if takes_draft else 0.0
        sizes = Sizes(target_gib=pair.target_gib, draft_gib=draft_gib, token_kib=pair.token_kib)
    spec = ServerSpec(
        **_taken(LaunchSettings, table),
        engine=table.engine,
        method=method,
        models=models,
        target=pair.target,
        draft=pair.drafts[method] if takes_draft else None,
        padding_layers=pair.padding_layers,
        widen=pair.widen,
        draft_tokens=draft_tokens,
        sizes=sizes,
    )
    if method == "none":
        return _without_speculation(spec)
    if takes_draft:
        return spec
    return dataclasses.replace(spec, parallel=spec.parallel.without_draft)


def _without_speculation(spec: ServerSpec) -> ServerSpec:
    """The server that differs in speculation alone."""
    return dataclasses.replace(
        spec,
        method="none",
        draft=None,
        draft_tokens=0,
        tree=None,
        parallel=spec.parallel.without_draft,
        sizes=spec.sizes and dataclasses.replace(spec.sizes, draft_gib=0.0),
    )


def _check_tree(table: CasesTable, method: str, depth: int, place: str) -> None:
    """Check that a method that drafts trees has one that there can be, and another has none."""
    tree = table.tree
    if METHODS[method].drafts_trees != (tree is not None):
        trees = ", ".join(name for name, one in METHODS.items() if one.drafts_trees)
        message = (
            f"{place}: method '{method}' with {f'tree = {tree}' if tree else 'no tree'};"
            f" needed tree = {{ branches = 2, drafted_tokens = 6 }} for {trees}, and none for"
            " others: give them a table each"
        )
        raise MatrixError(message)
    if tree is not None and not depth <= tree.drafted_tokens <= tree.most_tokens(depth):
        message = (
            f"{place}: tree.drafted_tokens = {tree.drafted_tokens} with"
            f" draft_tokens = {depth} and tree.branches = {tree.branches}; needed {depth} to"
            f" {tree.most_tokens(depth)}: the deepest branch alone, to all there is to choose from"
        )
        raise MatrixError(message)


def _with_controls(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Each speculating case gets its server without speculation, if the tier has that."""
    cases = tuple(cases)
    plain = {case.server for case in cases if not case.speculates}

    def control(case: Case) -> ServerSpec | None:
        alike = _without_speculation(case.server)
        return alike if case.speculates and alike in plain else None

    return tuple(dataclasses.replace(case, control=control(case)) for case in cases)
