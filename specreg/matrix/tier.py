"""Load a tier: the cases of a matrix file."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specreg.core.errors import MatrixError, UnknownNameError
from specreg.datasets.prompts import REPLIES
from specreg.datasets.table import dataset_named
from specreg.engines.methods import METHODS
from specreg.engines.registry import engine_named
from specreg.engines.settings import LaunchSettings, taken
from specreg.matrix.case import Case, ServerSpec, Sizes, Tier
from specreg.matrix.file import Place, load_pairs_file, load_tier_file
from specreg.matrix.schema import (
    Arrivals,
    CasesTable,
    Limits,
    Load,
    ModelsTable,
    Pace,
    Workload,
)

PAIRS = Path("models/pairs.toml")
"""The model pairs that all tiers share, from the folder that holds the tiers' own."""
_MOST_BESIDE_FRAC = 0.5
"""Of a GPU's memory, what a server may take beside which another stands."""
_POWER_S = 30.0

Pairs = Mapping[str, tuple[ModelsTable, Place]]


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
    file = load_tier_file(path)
    pairs = {**load_pairs_file(folder.parent / PAIRS), **file.models}
    for pair, place in pairs.values():
        _check_pair(pair, place)
    choices: dict[str, tuple[str, ...]] = {}
    found: list[tuple[Case, Place]] = []
    for table, place in file.cases:
        for models in table.each_models:
            cases_of = tuple(_cases_of(table, models, pairs, place, on_gpu=bool(file.needs_gpus)))
            found.extend((case, place) for case in cases_of)
            if len(table.each_models) > 1:
                choices |= {case.id: table.each_models for case in cases_of}
    _refuse_twins(found)
    cases = _with_controls(case for case, _ in found)
    places = {case.id: place.at() for case, place in found}
    if file.needs_gpus:
        _check_shares(cases, places)
    return Tier(
        name=name,
        needs_gpus=file.needs_gpus,
        cases=cases,
        places=places,
        remarks=file.remarks,
        choices=choices,
    )


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


def _check_pair(pair: ModelsTable, place: Place) -> None:
    """Check that the drafts are of methods that take one, and a size is of a draft.

    Raises:
        UnknownNameError: one isn't.
        MatrixError: the target is to be padded and widened.
    """
    if pair.widen and pair.padding_layers:
        message = (
            f"{place.at('padding_layers')}: padding_layers = {pair.padding_layers} with"
            f' widen = "{pair.widen}", which says how many layers there are; leave one of them out'
        )
        raise MatrixError(message)
    takers = [name for name, method in METHODS.items() if method.needs_draft]
    for name in pair.drafts:
        if name not in takers:
            raise UnknownNameError("method that takes a draft", name, takers, place.at("drafts"))
    for name in pair.drafts_gib:
        if name not in pair.drafts:
            raise UnknownNameError("draft", name, pair.drafts, place.at("drafts_gib"))


def _cases_of(
    table: CasesTable, models: str, pairs: Pairs, place: Place, *, on_gpu: bool
) -> Iterator[Case]:
    if models not in pairs:
        raise UnknownNameError("model pair", models, pairs, place.at("models"))
    dataset_named(table.dataset, place.at("dataset"))
    if table.history_reply not in REPLIES:
        where = place.at("history_reply")
        raise UnknownNameError("history_reply", table.history_reply, REPLIES, where)
    loads = _loads_of(table, place)
    if table.prompts < table.rounds:
        message = (
            f"{place.at('prompts')}: prompts = {table.prompts} in rounds = {table.rounds}; each"
            " round needs a prompt: raise prompts or lower rounds"
        )
        raise MatrixError(message)
    if why := table.parallel.why_not():
        raise MatrixError(f"{place.at('parallel')}: {why}")
    _check_rounds(table, place)
    pair, _ = pairs[models]
    power_s = (_POWER_S if on_gpu else 0.0) if table.power_s is None else table.power_s
    servers = dict.fromkeys(
        _server_of(table, method, draft_tokens, (models, pair), place)
        for method, draft_tokens in itertools.product(table.methods, table.each_draft_tokens)
    )
    for server, load in itertools.product(servers, loads):
        yield Case(
            **_taken(Workload, table),
            server=server,
            control=None,
            load=load,
            limits=Limits(ttft_ms=table.ttft_limit_ms, tpot_ms=table.tpot_limit_ms),
            power_s=power_s,
        )


def _taken(kind: type[object], table: CasesTable) -> dict[str, Any]:
    """The fields of a dataclass as a table has them, its tables as pairs."""
    return {
        name: tuple(sorted(value.items())) if isinstance(value, dict) else value
        for name, value in taken(kind, table).items()
    }


def _check_rounds(table: CasesTable, place: Place) -> None:
    """Check that each round of a closed loop can have as many in flight as it says.

    Raises:
        MatrixError: the last one can't, and would be measured as a load that it isn't.
    """
    size = math.ceil(table.prompts / table.rounds)
    last = table.prompts - size * ((table.prompts - 1) // size)
    most = max(table.concurrency, default=0)
    if table.speed and table.duration_s is None and last < most:
        message = (
            f"{place.at('prompts')}: prompts = {table.prompts} in rounds = {table.rounds}, the last"
            f" of which has {last}, with concurrency = {table.concurrency}; needed {most}, one for"
            " each in flight: raise prompts, or lower rounds or concurrency"
        )
        raise MatrixError(message)


def _loads_of(table: CasesTable, place: Place) -> tuple[Load, ...]:
    """One load for each concurrency, or for each rate.

    Raises:
        MatrixError: both or neither are there, or they contradict other keys.
    """
    closed = bool(table.concurrency)
    fits = table.arrivals is None or (table.arrivals is Arrivals.CLOSED) == closed
    if closed == bool(table.requests_per_s) or not fits:
        message = (
            f"{place.at()}: concurrency = {table.concurrency},"
            f" requests_per_s = {table.requests_per_s}, arrivals = {table.arrivals}; give either"
            " concurrency alone (a closed loop) or requests_per_s with arrivals constant, poisson"
            " (the default) or gamma"
        )
        raise MatrixError(message)
    if max(table.concurrency, default=0) > table.max_sequences:
        message = (
            f"{place.at('concurrency')}: concurrency = {table.concurrency} with max_sequences ="
            f" {table.max_sequences}; the server must take on all that are in flight"
        )
        raise MatrixError(message)
    arrivals = Arrivals.CLOSED if closed else table.arrivals or Arrivals.POISSON
    if table.burstiness != 1.0 and arrivals is not Arrivals.GAMMA:
        where = place.at("burstiness")
        message = f'{where}: burstiness is of gamma alone; set arrivals = "gamma" or leave it out'
        raise MatrixError(message)
    load = Load(**taken(Pace, table), arrivals=arrivals)
    return (
        *(dataclasses.replace(load, concurrency=requests) for requests in table.concurrency),
        *(dataclasses.replace(load, requests_per_s=rate) for rate in table.requests_per_s),
    )


def _server_of(
    table: CasesTable,
    method: str,
    draft_tokens: int,
    named: tuple[str, ModelsTable],
    place: Place,
) -> ServerSpec:
    models, pair = named
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS, place.at("methods"))
    if METHODS[method].needs_draft and method not in pair.drafts:
        raise UnknownNameError(
            f"draft in [models.{models}] for method", method, pair.drafts, place.at("models")
        )
    engine_named(table.engine, place.at("engine")).spelling_of(method, place.at("methods"))
    draft = pair.drafts[method] if METHODS[method].needs_draft else None
    if method != "none":
        _check_tree(table, method, draft_tokens, place)
    spec = ServerSpec(
        **_taken(LaunchSettings, table),
        engine=table.engine,
        method=method,
        models=models,
        target=pair.target,
        draft=draft,
        padding_layers=pair.padding_layers,
        widen=pair.widen,
        draft_tokens=draft_tokens,
        sizes=_sizes_of(pair, method if draft is not None else None),
    )
    if draft is None:
        spec = dataclasses.replace(spec, parallel=spec.parallel.without_draft)
    return spec if method != "none" else _without_speculation(spec)


def _sizes_of(pair: ModelsTable, drafting: str | None) -> Sizes | None:
    """What a pair takes, with the draft of a method; None where it doesn't say so of the target."""
    if pair.target_gib is None:
        return None
    draft_gib = 0.0 if drafting is None else pair.drafts_gib.get(drafting)
    return Sizes(target_gib=pair.target_gib, draft_gib=draft_gib, token_kib=pair.token_kib)


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


def _check_tree(table: CasesTable, method: str, depth: int, place: Place) -> None:
    """Check that a method that drafts trees has one that there can be, and another has none.

    Raises:
        MatrixError: it isn't so.
    """
    tree = table.tree
    if METHODS[method].drafts_trees != (tree is not None):
        trees = ", ".join(name for name, one in METHODS.items() if one.drafts_trees)
        message = (
            f"{place.at('tree')}: method '{method}' with {f'tree = {tree}' if tree else 'no tree'};"
            f" needed tree = {{ branches = 2, drafted_tokens = 6 }} for {trees}, and none for"
            " others: give them a table each"
        )
        raise MatrixError(message)
    if tree is not None and not depth <= tree.drafted_tokens <= tree.most_tokens(depth):
        message = (
            f"{place.at('tree')}: tree.drafted_tokens = {tree.drafted_tokens} with"
            f" draft_tokens = {depth} and tree.branches = {tree.branches}; needed {depth} to"
            f" {tree.most_tokens(depth)}: the deepest branch alone, to all there is to choose from"
        )
        raise MatrixError(message)


def _check_shares(cases: Iterable[Case], places: Mapping[str, str]) -> None:
    """Check that case and control have room beside one another.

    Raises:
        MatrixError: together they ask for more memory than a GPU has.
    """
    for case in cases:
        if case.control is not None and case.server.gpu_memory_frac > _MOST_BESIDE_FRAC:
            message = (
                f"{places[case.id]}: gpu_memory_frac = {case.server.gpu_memory_frac}, needed at"
                f" most {_MOST_BESIDE_FRAC}: case and control stand beside one another; lower it"
            )
            raise MatrixError(message)


def _refuse_twins(found: Iterable[tuple[Case, Place]]) -> None:
    places: dict[str, Place] = {}
    for case, place in found:
        if case.id in places:
            message = (
                f"{place.at()}: two cases are called '{case.id}', the other is of"
                f" {places[case.id].table}; remove one"
            )
            raise MatrixError(message)
        places[case.id] = place


def _with_controls(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Each speculating case gets its server without speculation, if the tier has that."""
    cases = tuple(cases)
    plain = {case.server for case in cases if not case.speculates}

    def control(case: Case) -> ServerSpec | None:
        alike = _without_speculation(case.server)
        return alike if case.speculates and alike in plain else None

    return tuple(dataclasses.replace(case, control=control(case)) for case in cases)
