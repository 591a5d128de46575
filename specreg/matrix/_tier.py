"""Reading a tier: a matrix file in, its cases out."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from specreg.arrivals import Arrivals, Load
from specreg.datasets import dataset_named
from specreg.engines import engine_named
from specreg.errors import MatrixError, UnknownNameError
from specreg.matrix._case import Case, Limits, ServerSpec, Tier
from specreg.matrix._tables import CasesTable, ModelsTable, TierFile
from specreg.methods import METHODS
from specreg.replies import REPLIES


def load_tier(folder: Path, name: str) -> Tier:
    """The tier that `folder`/`name`.toml declares.

    Raises:
        UnknownNameError: no such tier; or a table names an engine, method, dataset or model pair
            that doesn't exist. The message lists what does.
        MatrixError: the file doesn't decode, or asks for what can't be.
    """
    path = folder / f"{name}.toml"
    if not path.is_file():
        raise UnknownNameError("tier", name, (file.stem for file in folder.glob("*.toml")))
    file = _load_file(path)
    cases = tuple(case for table in file.cases for case in _cases_of(table, file.models, str(path)))
    _refuse_twins(cases, path)
    most = max((case.server.parallel.gpus for case in cases), default=1)
    if most > max(file.needs_gpus, 1):
        message = f"matrix file '{path}': a case is spread over {most} GPUs; raise needs_gpus to it"
        raise MatrixError(message)
    return Tier(name=name, needs_gpus=file.needs_gpus, cases=_with_controls(cases))


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
    cases = (
        case
        if prompts == case.prompts
        else dataclasses.replace(case, prompts=prompts, matrix_prompts=case.prompts)
        for case in tier.cases
    )
    return dataclasses.replace(tier, cases=tuple(cases))


def all_case_ids(folder: Path) -> frozenset[str]:
    """The ids of the cases of all tiers.

    Raises:
        SpecregError: see `load_tier`.
    """
    tiers = (load_tier(folder, path.stem) for path in sorted(folder.glob("*.toml")))
    return frozenset(case.id for tier in tiers for case in tier.cases)


def _load_file(path: Path) -> TierFile:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=TierFile)
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        message = f"matrix file '{path}': {error}; CONTRIBUTING.md shows the tables and keys"
        raise MatrixError(message) from error


def _cases_of(table: CasesTable, models: Mapping[str, ModelsTable], where: str) -> Iterator[Case]:
    if table.models not in models:
        raise UnknownNameError("model pair", table.models, models, where)
    dataset_named(table.dataset, where)
    if table.history_reply not in REPLIES:
        raise UnknownNameError("history_reply", table.history_reply, REPLIES, where)
    loads = _loads_of(table, where)
    if table.prompts < table.rounds:
        message = (
            f"{where}: prompts = {table.prompts} in rounds = {table.rounds}; each round needs a"
            " prompt: raise prompts or lower rounds"
        )
        raise MatrixError(message)
    for method, load in itertools.product(table.methods, loads):
        yield Case(
            server=_server_of(table, method, models[table.models], where),
            control=None,
            dataset=table.dataset,
            prompts=table.prompts,
            load=load,
            rounds=table.rounds,
            turns=table.turns,
            history_reply=table.history_reply,
            form=table.form,
            chat_template_args=tuple(sorted(table.chat_template_args.items())),
            output_cap_tokens=table.output_cap_tokens,
            temperature=table.temperature,
            ignore_eos=table.ignore_eos,
            stream=table.stream,
            request_timeout_s=table.request_timeout_s,
            limits=Limits(ttft_ms=table.ttft_limit_ms, tpot_ms=table.tpot_limit_ms),
            warm_up_stable_frac=table.warm_up_stable_frac,
            client_processes=table.client_processes,
            speed=table.speed,
            rounding_nats=table.rounding_nats,
            tolerances=tuple(sorted(table.tolerances.items())),
        )


def _loads_of(table: CasesTable, where: str) -> tuple[Load, ...]:
    """One load for each concurrency, or for each rate.

    Raises:
        MatrixError: both or neither are there, or they contradict other keys.
    """
    closed = bool(table.concurrency)
    fits = table.arrivals is None or (table.arrivals is Arrivals.CLOSED) == closed
    if closed == bool(table.requests_per_s) or not fits:
        message = (
            f"{where}: concurrency = {table.concurrency}, requests_per_s = {table.requests_per_s},"
            f" arrivals = {table.arrivals}; give either concurrency alone (a closed loop) or"
            " requests_per_s with arrivals constant, poisson (the default) or gamma"
        )
        raise MatrixError(message)
    if max(table.concurrency, default=0) > table.max_sequences:
        message = (
            f"{where}: concurrency = {table.concurrency} with max_sequences ="
            f" {table.max_sequences}; the server must take on all that are in flight"
        )
        raise MatrixError(message)
    arrivals = Arrivals.CLOSED if closed else table.arrivals or Arrivals.POISSON
    if table.burstiness != 1.0 and arrivals is not Arrivals.GAMMA:
        message = f'{where}: burstiness is of gamma alone; set arrivals = "gamma" or leave it out'
        raise MatrixError(message)
    load = Load(
        arrivals=arrivals,
        burstiness=table.burstiness,
        ramp_up_s=table.ramp_up_s,
        duration_s=table.duration_s,
    )
    return (
        *(dataclasses.replace(load, concurrency=requests) for requests in table.concurrency),
        *(dataclasses.replace(load, requests_per_s=rate) for rate in table.requests_per_s),
    )


def _server_of(table: CasesTable, method: str, pair: ModelsTable, where: str) -> ServerSpec:
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS, where)
    if METHODS[method].needs_draft and method not in pair.drafts:
        raise UnknownNameError(
            f"draft in [models.{table.models}] for method", method, pair.drafts, where
        )
    METHODS[method].check_engine(engine_named(table.engine, where).spelling)
    draft = pair.drafts[method] if METHODS[method].needs_draft else None
    if method != "none":
        _check_tree(table, method, where)
    spec = ServerSpec(
        engine=table.engine,
        method=method,
        models=table.models,
        target=pair.target,
        draft=draft,
        padding_layers=pair.padding_layers,
        draft_tokens=table.draft_tokens,
        dtype=table.dtype,
        max_model_len_tokens=table.max_model_len_tokens,
        max_sequences=table.max_sequences,
        gpu_memory_frac=table.gpu_memory_frac,
        parallel=table.parallel if draft is not None else table.parallel.without_draft,
        engine_args=tuple(table.engine_args),
        engine_env=tuple(sorted(table.engine_env.items())),
        tree=table.tree,
    )
    return spec if method != "none" else _without_speculation(spec)


def _without_speculation(spec: ServerSpec) -> ServerSpec:
    """The server that differs in speculation alone."""
    return dataclasses.replace(
        spec,
        method="none",
        draft=None,
        draft_tokens=0,
        tree=None,
        parallel=spec.parallel.without_draft,
    )


def _check_tree(table: CasesTable, method: str, where: str) -> None:
    """Silent where a method that drafts trees has one that there can be, and another has none.

    Raises:
        MatrixError: it isn't so.
    """
    tree, depth = table.tree, table.draft_tokens
    if METHODS[method].drafts_trees != (tree is not None):
        trees = ", ".join(name for name, one in METHODS.items() if one.drafts_trees)
        message = (
            f"{where}: method '{method}' with {f'tree = {tree}' if tree else 'no tree'}; needed"
            f" tree = {{ branches = 2, drafted_tokens = 6 }} for {trees}, and none for others:"
            " give them a table each"
        )
        raise MatrixError(message)
    if tree is not None and not depth <= tree.drafted_tokens <= tree.most_tokens(depth):
        message = (
            f"{where}: tree.drafted_tokens = {tree.drafted_tokens} with draft_tokens = {depth} and"
            f" tree.branches = {tree.branches}; needed {depth} to {tree.most_tokens(depth)}: the"
            " deepest branch alone, to all there is to choose from"
        )
        raise MatrixError(message)


def _refuse_twins(cases: tuple[Case, ...], path: Path) -> None:
    for case, other in itertools.combinations(cases, 2):
        if case.id == other.id:
            message = f"matrix file '{path}': two cases are called '{case.id}'; remove one"
            raise MatrixError(message)


def _with_controls(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Each speculating case gets its server without speculation, if the tier has that."""
    plain = {case.server for case in cases if not case.speculates}

    def control(case: Case) -> ServerSpec | None:
        alike = _without_speculation(case.server)
        return alike if case.speculates and alike in plain else None

    return tuple(dataclasses.replace(case, control=control(case)) for case in cases)
