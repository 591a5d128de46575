"""Make the cases of a table in a tier's file, one for each method, draft number, pair and load."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from specreg.core.errors import MatrixError, check_name
from specreg.datasets.prompts import REPLIES
from specreg.datasets.table import dataset_named
from specreg.engines.methods import METHODS, SCHEDULED, Tree
from specreg.engines.registry import engine_named
from specreg.engines.serve_command import read_speculation
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Arrivals, Case
from specreg.matrix.tables import (
    INNER_TABLES,
    CasesTable,
    ModelsTable,
    as_toml,
    check_loads,
    check_table,
    convert_case,
)

_POWER_S = 30.0
"""How long a case on a GPU is kept under load for its power, unless its table sets a time."""
_ValueT = TypeVar("_ValueT")


def cases_of(
    keys: Mapping[str, Any], table: CasesTable, pairs: Mapping[str, ModelsTable], *, on_gpu: bool
) -> Iterator[Case]:
    """Yield the cases of a table, without their controls.

    Args:
        keys: the table as the file has it, with the tier's defaults.
        table: those of its keys that a case has in another form.
        pairs: the model pairs by name.
        on_gpu: True if the servers run on GPUs.

    Raises:
        UnknownNameError: an engine, method, dataset, model pair or reply doesn't exist, or a pair
            has no draft for a method.
        UnsupportedError: the engine doesn't have one of the settings.
        MatrixError: a value has the wrong type, or keys of the table exclude each other, or the
            engine can't keep to the acceptance that the table pins.
        DatasetError: `random-N` has more digits than allowed.
        SpecregError: the variant has other characters than a name may have, or too many.
    """
    check_loads(table)
    limits = {"ttft_ms": table.ttft_limit_ms, "tpot_ms": table.tpot_limit_ms}
    shared = {"power_s": _POWER_S if on_gpu else 0.0, **keys, "limits": limits}
    for name in INNER_TABLES:
        shared[name] = sorted(getattr(table, name).items())

    for server in _servers_of(table, pairs):
        for load in _loads_of(table):
            case = convert_case({**shared, **server, **load})
            dataset_named(case.request.dataset)
            check_name("history_reply", case.request.history_reply, REPLIES)
            check_table(table, case)
            case = dataclasses.replace(case, server=_completed(case.server))
            check_pinned(case, on_gpu=on_gpu)
            yield case


def _servers_of(
    table: CasesTable, pairs: Mapping[str, ModelsTable]
) -> Iterator[Mapping[str, object]]:
    """Yield what distinguishes the servers of a table, as fields of a server.

    Raises:
        UnknownNameError: the engine, a method or a model pair doesn't exist, or a pair has no draft
            for a method.
    """
    engine = engine_named(table.engine)
    for models in as_tuple(table.models):
        check_name("model pair", models, pairs)
        for method in dict.fromkeys(table.methods):
            check_name("method", method, METHODS)
            engine.spelling_of(method)
            of_pair = {"models": models, **_models_of(models, pairs[models], method)}
            numbers = dict.fromkeys(as_tuple(table.draft_tokens))
            for draft_tokens in numbers:
                yield {"method": method, "draft_tokens": draft_tokens, **of_pair}
                # Servers without speculation are equal for all numbers of drafts.
                if method == "none":
                    break


def _models_of(name: str, pair: ModelsTable, method: str) -> Mapping[str, object]:
    """Return what a server has of its model pair, as fields of the server.

    Args:
        name: the name of the pair.
        method: the method of the server, which may need a draft.

    Raises:
        UnknownNameError: the pair has no draft for the method.
    """
    draft = None
    draft_revision = ""
    draft_gib: float | None = 0.0
    if METHODS[method].needs_draft:
        check_name(f"draft in [models.{name}] for method", method, pair.drafts)
        draft = pair.drafts[method]
        draft_revision = pair.drafts_revision.get(method, "")
        draft_gib = pair.drafts_gib.get(method)

    sizes = None
    if pair.target_gib is not None:
        sizes = {"target_gib": pair.target_gib, "draft_gib": draft_gib, "token_kib": pair.token_kib}
    own = {"draft": draft, "draft_revision": draft_revision, "sizes": sizes}
    return msgspec.structs.asdict(pair) | own


def _loads_of(table: CasesTable) -> Iterator[Mapping[str, object]]:
    """Yield what distinguishes the loads of a table, as fields of a load."""
    for concurrency in table.concurrency:
        arrivals = table.arrivals or Arrivals.CLOSED
        yield {"arrivals": arrivals, "concurrency": concurrency, "requests_per_s": 0.0}
    for rate in table.requests_per_s:
        arrivals = table.arrivals or Arrivals.POISSON
        yield {"arrivals": arrivals, "concurrency": 0, "requests_per_s": rate}


def as_tuple(value: _ValueT | list[_ValueT]) -> tuple[_ValueT, ...]:
    """Return the values of a key that has a list or a single value."""
    return tuple(value) if isinstance(value, list) else (value,)


def _completed(spec: ServerSpec) -> ServerSpec:
    """Return the server of a table without the settings that its method doesn't use.

    Raises:
        UnsupportedError: the engine doesn't have one of the settings.
        MatrixError: the tree and the method don't fit together, or the settings of the speculation
            make it another method.
    """
    if not METHODS[spec.method].needs_draft:
        spec = dataclasses.replace(spec, parallel=spec.parallel.without_draft)
    if spec.method != "none":
        check_tree(spec.tree, spec.method, spec.draft_tokens)
    engine_named(spec.engine).check(spec)
    if spec.method == "none":
        # The server without speculation is the same for all methods, so it has none of the table's
        # settings of speculation.
        return spec.without_speculation

    if spec.speculation:
        _check_speculation(spec)
    return spec


def _check_speculation(spec: ServerSpec) -> None:
    """Check that the further keys of a speculation don't turn its method into another one.

    Raises:
        MatrixError: the keys do that.
    """
    engine = engine_named(spec.engine)
    settings = engine.canonical_speculation(engine.rendered_speculation(spec, spec.draft))
    resulting_method = read_speculation(settings, engine.methods).method
    if resulting_method != spec.method:
        raise MatrixError(
            f"speculation = {as_toml(dict(spec.speculation))} makes method '{spec.method}' the"
            f" method '{resulting_method}'; name that instead, or leave out the key"
        )


def check_tree(tree: Tree | None, method: str, depth: int) -> None:
    """Check that a method that drafts trees has a valid tree, and that other methods have none.

    Args:
        tree: the tree; None without one.
        method: the name of the method.
        depth: the most drafts that a step can accept, which is the depth of the tree.

    Raises:
        MatrixError: the tree is missing, needless, or has an impossible number of drafted tokens.
    """
    if METHODS[method].drafts_trees != (tree is not None):
        setting = "no tree"
        if tree is not None:
            setting = f"tree = {as_toml(tree)}"
        tree_methods = ", ".join(name for name in METHODS if METHODS[name].drafts_trees)
        raise MatrixError(
            f"method '{method}' with {setting}; needed tree ="
            f" {{ branches = 2, drafted_tokens = 6 }} for {tree_methods}, and no tree for other"
            " methods; give each kind a table of its own"
        )

    if tree is None:
        return

    # With t branches and depth s there are t + (s - 1) · t² continuations to choose from.
    most_tokens = tree.branches + (depth - 1) * tree.branches**2
    if not depth <= tree.drafted_tokens <= most_tokens:
        raise MatrixError(
            f"tree.drafted_tokens = {tree.drafted_tokens} with draft_tokens = {depth} and"
            f" tree.branches = {tree.branches}; needed {depth} (the deepest branch alone) to"
            f" {most_tokens} (all possible drafts)"
        )


def check_pinned(case: Case, *, on_gpu: bool) -> None:
    """Check that the engine can keep to the acceptance that a case pins.

    Args:
        case: the case, which may pin nothing.
        on_gpu: True if the server runs on a GPU.

    Raises:
        MatrixError: the engine can't keep to it, or the length or another setting of the case is
            wrong.
    """
    spec = case.server
    length_tokens = spec.pinned_length_tokens
    if length_tokens is None and spec.method != SCHEDULED:
        return
    methods = engine_named(spec.engine).pinned_methods(on_gpu=on_gpu)
    problem = ""
    if spec.method not in methods:
        hardware = "without a GPU"
        if on_gpu:
            hardware = "on a GPU"
        known_methods = ", ".join(sorted(methods)) or "none"
        problem = f"engine '{spec.engine}' can't pin it {hardware}; it can pin: {known_methods}"
    elif length_tokens is None or not 1 <= length_tokens <= spec.draft_tokens + 1:
        setting = "no pinned_length_tokens"
        if length_tokens is not None:
            setting = f"pinned_length_tokens = {length_tokens}"
        problem = (
            f"{setting} with draft_tokens = {spec.draft_tokens};"
            f" needed 1 to {spec.draft_tokens + 1}"
        )
    elif spec.method == SCHEDULED and (case.request.turns != 1 or case.request.temperature > 0):
        # Its drafts are the control's answers, which it sees once beforehand.
        problem = (
            "it works only with greedy answers to first turns; set turns = 1 and no temperature"
        )

    if problem:
        raise MatrixError(f"acceptance = \"pinned\" of method '{spec.method}': {problem}")
