"""Make the cases of a table in a matrix file, one for each method, draft number, pair and load."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from specreg.core.errors import MatrixError, check_name
from specreg.datasets.prompts import REPLIES
from specreg.datasets.table import dataset_named
from specreg.engines.methods import METHODS, SCHEDULED, Tree
from specreg.engines.registry import engine_named
from specreg.engines.serve_command import read_speculation
from specreg.engines.server_spec import ServerSettings, ServerSpec, Sizes
from specreg.matrix.case import Arrivals, Case, Limits, Load, WorkloadSettings, values_of_fields
from specreg.matrix.tables import CasesTable, ModelsTable, as_toml, check_table

_POWER_S = 30.0
"""How long a case on a GPU is kept under load for its power, unless its table sets a time."""
_ValueT = TypeVar("_ValueT")


def cases_of(
    table: CasesTable, pairs: Mapping[str, ModelsTable], *, on_gpu: bool
) -> Iterator[Case]:
    """Yield the cases of a table, without their controls.

    Raises:
        UnknownNameError: An engine, method, dataset, model pair or reply doesn't exist, or a pair
            has no draft for a method.
        UnsupportedError: The engine doesn't have one of the settings.
        MatrixError: Keys of the table exclude each other, or the engine can't keep to the
            acceptance that the table pins.
        DatasetError: `random-N` has more digits than allowed.
        SpecregError: The variant has other characters than a name may have, or too many.
    """
    dataset_named(table.dataset)
    check_name("history_reply", table.history_reply, REPLIES)
    check_table(table)
    power_s = table.power_s
    if power_s is None:
        power_s = _POWER_S if on_gpu else 0.0
    limits = Limits(ttft_ms=table.ttft_limit_ms, tpot_ms=table.tpot_limit_ms)
    settings = _hashable_values(WorkloadSettings, table)
    loads = _loads_of(table)
    for server in _servers_of(table, pairs):
        for load in loads:
            case = Case(
                **settings,
                server=server,
                # The control is added once all tables of the tier have been read.
                control=None,
                load=load,
                limits=limits,
                power_s=power_s,
            )
            check_pinned(case, on_gpu=on_gpu)
            yield case


def _servers_of(table: CasesTable, pairs: Mapping[str, ModelsTable]) -> Iterator[ServerSpec]:
    """Yield each server of a table once.

    Raises:
        UnknownNameError: As in `cases_of`.
        UnsupportedError: As in `cases_of`.
        MatrixError: As in `cases_of`.
    """
    for models in as_tuple(table.models):
        check_name("model pair", models, pairs)
        # Servers without speculation are equal for all numbers of drafts, and are yielded once.
        servers: dict[ServerSpec, None] = {}
        for method in table.methods:
            for draft_tokens in as_tuple(table.draft_tokens):
                server = _server_of(table, method, draft_tokens, models, pairs[models])
                servers[server] = None
        yield from servers


def _loads_of(table: CasesTable) -> list[Load]:
    """Return the loads of a table: one for each of its concurrencies, or of its rates."""
    settings = values_of_fields(Load, table)
    # A table has a list of each of these two, and a load has one number of the list.
    del settings["concurrency"], settings["requests_per_s"]
    if table.concurrency:
        settings["arrivals"] = table.arrivals or Arrivals.CLOSED
        return [Load(**settings, concurrency=slots) for slots in table.concurrency]
    settings["arrivals"] = table.arrivals or Arrivals.POISSON
    return [Load(**settings, requests_per_s=rate) for rate in table.requests_per_s]


def as_tuple(value: _ValueT | list[_ValueT]) -> tuple[_ValueT, ...]:
    """Return the values of a key that has a list or a single value."""
    return tuple(value) if isinstance(value, list) else (value,)


def _hashable_values(kind: type[object], table: CasesTable) -> dict[str, Any]:
    """Return the values of a table for the fields of a dataclass, with inner tables as tuples."""
    values: dict[str, Any] = {}
    for name, value in values_of_fields(kind, table).items():
        values[name] = value
        # Cases and servers are keys of dictionaries, so their values must be hashable.
        if isinstance(value, dict):
            values[name] = tuple(sorted(value.items()))
    return values


def _server_of(
    table: CasesTable, method: str, draft_tokens: int, models: str, pair: ModelsTable
) -> ServerSpec:
    """Return a server of a table, with one of its methods, numbers of drafts and model pairs.

    Raises:
        UnknownNameError: The engine or method doesn't exist, or the pair has no draft for the
            method.
        UnsupportedError: The engine doesn't have one of the settings.
        MatrixError: The tree and the method don't fit together, or the settings of the speculation
            make it another method.
    """
    check_name("method", method, METHODS)
    engine = engine_named(table.engine)
    engine.spelling_of(method)
    draft = None
    draft_revision = ""
    draft_gib: float | None = 0.0
    parallel = table.parallel.without_draft
    if METHODS[method].needs_draft:
        check_name(f"draft in [models.{models}] for method", method, pair.drafts)
        draft = pair.drafts[method]
        draft_revision = pair.drafts_revision.get(method, "")
        draft_gib = pair.drafts_gib.get(method)
        parallel = table.parallel
    if method != "none":
        check_tree(table.tree, method, draft_tokens)
    sizes = None
    if pair.target_gib is not None:
        sizes = Sizes(target_gib=pair.target_gib, draft_gib=draft_gib, token_kib=pair.token_kib)
    settings = _hashable_values(ServerSettings, table)
    settings["parallel"] = parallel
    spec = ServerSpec(
        **settings,
        engine=table.engine,
        method=method,
        models=models,
        target=pair.target,
        target_revision=pair.target_revision,
        draft=draft,
        draft_revision=draft_revision,
        padding_layers=pair.padding_layers,
        widen=pair.widen,
        draft_tokens=draft_tokens,
        sizes=sizes,
        variant=table.variant,
        gpu_memory_frac=table.gpu_memory_frac,
        model_runner=table.model_runner,
    )
    engine.check(spec)
    if method == "none":
        # The server without speculation is the same for all methods, so it has none of the table's
        # settings of speculation.
        return spec.without_speculation
    if spec.speculation:
        _check_speculation(spec)
    return spec


def _check_speculation(spec: ServerSpec) -> None:
    """Check that the further keys of a speculation don't turn its method into another one.

    Raises:
        MatrixError: The keys do that.
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
        tree: The tree; None without one.
        method: The name of the method.
        depth: The most drafts that a step can accept, which is the depth of the tree.

    Raises:
        MatrixError: The tree is missing, needless, or has an impossible number of drafted tokens.
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
        case: The case, which may pin nothing.
        on_gpu: True if the server runs on a GPU.

    Raises:
        MatrixError: The engine can't keep to it, or the length or another setting of the case is
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
    elif spec.method == SCHEDULED and (case.turns != 1 or case.temperature > 0):
        # Its drafts are the control's answers, which it sees once beforehand.
        problem = (
            "it works only with greedy answers to first turns; set turns = 1 and no temperature"
        )
    if problem:
        raise MatrixError(f"acceptance = \"pinned\" of method '{spec.method}': {problem}")
