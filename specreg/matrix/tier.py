"""Load a tier: the cases of a matrix file."""

import contextlib
import dataclasses
import itertools
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from specreg.core.commands import specreg_command
from specreg.core.errors import MatrixError, SpecregError, UnknownNameError, check_name
from specreg.core.files import MIB, read_regular
from specreg.core.names import MOST_CASE_CHARACTERS, check_spelling, is_name
from specreg.datasets.prompts import REPLIES
from specreg.datasets.table import dataset_named
from specreg.engines.engine import LaunchSettings, Positive, taken
from specreg.engines.methods import METHODS, SCHEDULED, Tree
from specreg.engines.registry import engine_named
from specreg.matrix.case import (
    USUAL_DRAFT_TOKENS,
    AboveZero,
    Arrivals,
    Case,
    DraftTokens,
    Limits,
    Load,
    NotNegative,
    ServerSpec,
    Sizes,
    Tier,
    Width,
    WorkloadSettings,
)

PAIRS = Path("models/pairs.toml")
"""The model pairs that all tiers share, from the folder that holds the tiers' own."""
_MOST_BESIDE_FRAC = 0.5
"""The share of a GPU's memory that a server may take beside another."""
_POWER_S = 30.0
_MOST_CASES = 10_000
_LIKE_LAUNCH = re.compile(r"-launch\d+$")
_ADVICE = f"mend it, or begin with a file of {specreg_command('init')}"
_TableT = TypeVar("_TableT")
_SomeNames = Annotated[list[str], msgspec.Meta(min_length=1)]


class ModelsTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[models.NAME]`: a target and its drafts.

    Attributes:
        target: the target: a hub id, or a folder (a path that begins with `.`, `/` or
            `fixtures/`).
        drafts: by method, the draft model or head.
        padding_layers: how many identity layers are appended to the target at set-up, so that a
            step of a tiny target costs enough for speculation to save something.
        widen: the size that tiny models are made to cost at set-up; without it they stay as they
            are.
        target_gib: the memory of the target's weights as they are served, in GiB; without it
            nobody checks whether a GPU holds them.
        drafts_gib: by method, the memory of the draft's weights, in GiB.
        token_kib: the memory of a token in the target's KV cache, in KiB.
    """

    target: str
    drafts: dict[str, str] = {}
    padding_layers: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    widen: Width | None = None
    target_gib: AboveZero | None = None
    drafts_gib: dict[str, AboveZero] = {}
    token_kib: NotNegative = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CasesTable(LaunchSettings, WorkloadSettings, Load):
    """`[[cases]]`: one case for each of `methods` × `draft_tokens` × the loads.

    A case must be hashable, so that it has pairs where a file has tables.

    Attributes:
        engine: the name of the engine.
        methods: the speculative methods; `"none"` makes the speedup of the others measurable.
        models: the name of a model pair; of several, a machine runs the first that its GPUs hold.
        draft_tokens: how many tokens are drafted per step, as one number or a list.
        acceptance: `"real"` judges the drafter; `"pinned"` fixes the acceptance length, so that
            only the cost of a step differs.
        concurrency: the requests in flight of closed loops, one case for each; the next request
            begins when one has ended.
        requests_per_s: the rates of open loops, one case for each; requests are sent when they are
            due, whatever the server does.
        arrivals: how the requests of a rate come: `"poisson"` (the default), `"constant"` or
            `"gamma"` with `burstiness`.
        ttft_limit_ms: the most TTFT of a good request, in ms; it adds the metric goodput.
        tpot_limit_ms: the most TPOT of a good request, in ms; it adds the metric goodput.
        power_s: how long each server is kept under load for its power, in seconds; 30 in tiers for
            GPUs and 0 in others.
    """

    engine: str
    methods: _SomeNames
    models: str | _SomeNames
    draft_tokens: DraftTokens | Annotated[list[DraftTokens], msgspec.Meta(min_length=1)] = (
        USUAL_DRAFT_TOKENS
    )
    acceptance: Literal["real", "pinned"] = "real"
    concurrency: tuple[Positive, ...] = ()  # type: ignore[assignment]
    requests_per_s: tuple[AboveZero, ...] = ()  # type: ignore[assignment]
    arrivals: Arrivals | None = None  # type: ignore[assignment]
    ttft_limit_ms: AboveZero | None = None
    tpot_limit_ms: AboveZero | None = None
    power_s: NotNegative | None = None
    engine_env: dict[str, str] = field(default_factory=dict)  # type: ignore[assignment]
    chat_template_args: dict[str, object] = field(default_factory=dict)  # type: ignore[assignment]
    tolerances: dict[str, AboveZero] = field(default_factory=dict)  # type: ignore[assignment]


class TierFile(msgspec.Struct, frozen=True, kw_only=True):
    """A whole matrix file, its tables not yet decoded; see `Tier`.

    Attributes:
        needs_gpus: how many GPUs a machine must have for the tier to run at all; 0 for none.
        models: model pairs of this tier alone; one of them replaces a shared pair of its name.
        defaults: keys for all tables of cases that don't have them.
        cases: the tables of cases.
    """

    needs_gpus: Annotated[int, msgspec.Meta(ge=0, le=2**16)]
    models: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    cases: list[Any]


class PairsFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file of the pairs that all tiers share."""

    models: dict[str, Any]


def load_tier(folder: Path, name: str) -> Tier:
    """The tier that `folder`/`name`.toml declares.

    Its model pairs are those of `folder`/../models/pairs.toml and its own; one of its own stands in
    the place of a shared one of the same name.

    Raises:
        UnknownNameError: a tier, key, engine, method, dataset or model pair doesn't exist; it lists
            what does.
        MatrixError: there is no folder, or a file doesn't decode or asks for what can't be.
        DatasetError: `random-N` has more digits than it may.
    """
    path = folder / f"{name}.toml"
    if not folder.is_dir():
        message = f"tiers '{folder}': no such folder; run this in the repository, or name its root"
        raise MatrixError(message)
    if name not in tier_names(folder):
        raise UnknownNameError("tier", name, tier_names(folder))
    head = _load_file(path, TierFile)
    pairs, shared = _pairs_of(path, head.models), folder.parent / PAIRS
    if shared.exists():
        pairs = {**_pairs_of(shared, _load_file(shared, PairsFile).models), **pairs}
    on_gpu = head.needs_gpus > 0
    choices: dict[str, tuple[str, ...]] = {}
    places: dict[str, str] = {}
    pairs_by_server: dict[str, str] = {}
    found: list[Case] = []
    for number, one in enumerate(head.cases, 1):
        place = f"matrix file '{path}', [[cases]] no. {number}"
        with within(place):
            own = {**head.defaults, **one} if isinstance(one, dict) else one
            table = _convert(own, CasesTable)
            for case in _cases_of(table, pairs, on_gpu=on_gpu):
                _check_id(case, pairs_by_server, places)
                places[case.id] = place
                pairs_by_server[case.server.id] = case.server.models
                found.append(case)
                choices[case.id] = _each(table.models)
    cases = tuple(_with_controls(found, places, on_gpu=on_gpu))
    return Tier(name=name, needs_gpus=head.needs_gpus, cases=cases, places=places, choices=choices)


def _check_id(case: Case, pairs_by_server: Mapping[str, str], places: Mapping[str, str]) -> None:
    """Check that a case, and its server, can be told from those before it by their ids.

    Args:
        case: the next one of a tier.
        pairs_by_server: by the id of a server before it, the model pair of that.
        places: by the id of a case before it, where its table stands.

    Raises:
        MatrixError: an id is taken, or can't be one.
    """
    check_spelling("case", case.id, MOST_CASE_CHARACTERS)
    if case.id in places:
        also = f"the other is of {places[case.id]}; remove one"
        raise MatrixError(f"two cases are called '{case.id}', {also}")
    other = pairs_by_server.get(case.server.id, case.server.models)
    if other != case.server.models:
        both = f"one of model pair '{case.server.models}', the other of '{other}'"
        raise MatrixError(f"two servers are called '{case.server.id}', {both}; rename a pair")
    if len(places) >= _MOST_CASES:
        raise MatrixError(f"there are more than {_MOST_CASES} cases; leave some out")


@contextlib.contextmanager
def within(place: str) -> Iterator[None]:
    """Begin an error's message with where it is."""
    try:
        yield
    except SpecregError as error:
        error.args = (f"{place}: {error}",)
        raise


def _load_file(path: Path, kind: type[_TableT]) -> _TableT:
    with within(f"matrix file '{path}'"):
        try:
            document = tomllib.loads(read_regular(path, MIB).decode())
            _check_texts(document)
            return _convert(document, kind)
        except (OSError, ValueError, RecursionError) as error:  # of TOML, and of a long number
            raise MatrixError(f"can't be read, {error}; {_ADVICE}") from error


def _check_texts(value: object, place: str = "$") -> None:
    """Check that no text has a NUL character: no path, argument or variable can have one."""
    if isinstance(value, dict):
        for name, own in value.items():
            if "\0" in name:
                raise MatrixError(f"a key of {place} has a NUL character; give it another name")
            _check_texts(own, f"{place}.{name}")
    elif isinstance(value, list):
        for number, own in enumerate(value):
            _check_texts(own, f"{place}[{number}]")
    elif isinstance(value, str) and "\0" in value:
        raise MatrixError(f"{place} has a NUL character; remove it")


def _pairs_of(path: Path, tables: Mapping[str, object]) -> dict[str, ModelsTable]:
    """The model pairs of a file, by name."""
    takers = [name for name, method in METHODS.items() if method.needs_draft]
    pairs = {}
    for name, table in tables.items():
        with within(f"matrix file '{path}', [models.{name}]"):
            check_spelling("model pair", name)
            if _LIKE_LAUNCH.search(name):
                why = "it ends as a second launch of a server does"
                raise MatrixError(f"model pair '{name}': {why}; give it another name")
            pairs[name] = pair = _convert(table, ModelsTable)
            if pair.widen and pair.padding_layers:
                message = "padding_layers with widen, which says how many; leave one of them out"
                raise MatrixError(message)
            for method in pair.drafts:
                check_name("method that takes a draft", method, takers)
            for method in pair.drafts_gib:
                check_name("draft", method, pair.drafts)
    return pairs


def _convert(raw: object, kind: type[_TableT]) -> _TableT:
    known = typing.get_type_hints(kind)
    for name in raw if isinstance(raw, dict) else ():
        check_name("key", name, known)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise MatrixError(f"{str(error).replace('`$.', '`')}; {_ADVICE}") from error


def tier_names(folder: Path) -> tuple[str, ...]:
    """The tiers that a folder holds, sorted."""
    files = (path for path in folder.glob("*.toml") if path.is_file())
    return tuple(sorted(path.stem for path in files if is_name(path.stem)))


def _cases_of(
    table: CasesTable, pairs: Mapping[str, ModelsTable], *, on_gpu: bool
) -> Iterator[Case]:
    dataset_named(table.dataset)
    check_name("history_reply", table.history_reply, REPLIES)
    for name in table.engine_env:
        if not name or "=" in name:
            message = f"engine_env: '{name}' is no name of a variable, which is neither empty nor"
            raise MatrixError(f"{message} has '='; rename it")
    _check_table(table)
    power_s = (_POWER_S if on_gpu else 0.0) if table.power_s is None else table.power_s
    axis = "concurrency" if table.concurrency else "requests_per_s"
    usual = Arrivals.CLOSED if table.concurrency else Arrivals.POISSON
    own = {"arrivals": table.arrivals or usual, "concurrency": 0, "requests_per_s": 0.0}
    loads = [Load(**taken(Load, table) | own | {axis: one}) for one in getattr(table, axis)]
    for models in _each(table.models):
        check_name("model pair", models, pairs)
        servers = dict.fromkeys(
            _server_of(table, method, draft_tokens, models, pairs[models])
            for method, draft_tokens in itertools.product(table.methods, _each(table.draft_tokens))
        )
        for server, load in itertools.product(servers, loads):
            case = Case(
                **_taken(WorkloadSettings, table),
                server=server,
                control=None,
                load=load,
                limits=Limits(ttft_ms=table.ttft_limit_ms, tpot_ms=table.tpot_limit_ms),
                power_s=power_s,
            )
            check_pinned(case, on_gpu=on_gpu)
            yield case


def _each(written: _TableT | list[_TableT]) -> tuple[_TableT, ...]:
    """Return a table's list, where it may also name one alone."""
    return tuple(written) if isinstance(written, list) else (written,)


def _check_table(table: CasesTable) -> None:
    """Raise a MatrixError where keys of a table exclude each other."""
    closed = bool(table.concurrency)
    fits = table.arrivals is None or (table.arrivals is Arrivals.CLOSED) == closed
    if closed == bool(table.requests_per_s) or not fits:
        raise MatrixError(
            f"concurrency = {table.concurrency}, requests_per_s = {table.requests_per_s},"
            f" arrivals = {table.arrivals}; give either concurrency alone (a closed loop) or"
            " requests_per_s with arrivals constant, poisson (the default) or gamma"
        )
    most = max(table.concurrency, default=0)
    if most > table.max_sequences:
        took = f"concurrency = {most} with max_sequences = {table.max_sequences}"
        raise MatrixError(f"{took}; the server must take on all that are in flight")
    if table.burstiness != 1.0 and table.arrivals is not Arrivals.GAMMA:
        raise MatrixError('burstiness is of gamma alone; set arrivals = "gamma" or leave it out')
    # It would be measured as a load that it isn't.
    if table.speed and table.duration_s is None and table.prompts < most:
        raise MatrixError(
            f"prompts = {table.prompts} with concurrency = {most}; needed one for each in flight:"
            " raise prompts, or lower concurrency"
        )
    if (table.acceptance == "pinned") != (table.pinned_length_tokens is not None):
        raise MatrixError(
            f"acceptance = '{table.acceptance}', pinned_length_tokens ="
            f' {table.pinned_length_tokens}; give acceptance = "pinned" and a length such as 2.5,'
            " or neither"
        )
    one = table.parallel
    if one.nodes > 1 and (one.data > 1 or one.gpus % one.nodes):
        raise MatrixError(
            f"parallel.nodes = {one.nodes} with data = {one.data}, tensor = {one.tensor} and"
            f" pipeline = {one.pipeline}: a server over nodes is one copy with as many GPUs on"
            " each; change one of them"
        )


def _taken(kind: type[object], table: CasesTable) -> dict[str, Any]:
    """The fields of a dataclass as a table has them, its tables as pairs."""
    return {
        name: tuple(sorted(value.items())) if isinstance(value, dict) else value
        for name, value in taken(kind, table).items()
    }


def _server_of(
    table: CasesTable, method: str, draft_tokens: int, models: str, pair: ModelsTable
) -> ServerSpec:
    check_name("method", method, METHODS)
    takes_draft = METHODS[method].needs_draft
    if takes_draft:
        check_name(f"draft in [models.{models}] for method", method, pair.drafts)
    engine_named(table.engine).spelling_of(method)
    if method != "none":
        check_tree(table.tree, method, draft_tokens)
    sizes = None
    if pair.target_gib is not None:
        draft_gib = pair.drafts_gib.get(method) if takes_draft else 0.0
        sizes = Sizes(target_gib=pair.target_gib, draft_gib=draft_gib, token_kib=pair.token_kib)
    parallel = table.parallel if takes_draft else table.parallel.without_draft
    spec = ServerSpec(
        **_taken(LaunchSettings, table) | {"parallel": parallel},
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
    return spec.without_speculation if method == "none" else spec


def check_tree(tree: Tree | None, method: str, depth: int) -> None:
    """Raise a MatrixError unless a method that drafts trees has a valid one, and others none."""
    if METHODS[method].drafts_trees != (tree is not None):
        trees = ", ".join(name for name, one in METHODS.items() if one.drafts_trees)
        raise MatrixError(
            f"method '{method}' with {f'tree = {tree}' if tree else 'no tree'}; needed tree ="
            f" {{ branches = 2, drafted_tokens = 6 }} for {trees}, and none for others: give them a"
            " table each"
        )
    # At a depth s there are t + (s - 1) · t² continuations to choose from.
    most = tree.branches + (depth - 1) * tree.branches**2 if tree else 0
    if tree is not None and not depth <= tree.drafted_tokens <= most:
        raise MatrixError(
            f"tree.drafted_tokens = {tree.drafted_tokens} with draft_tokens = {depth} and"
            f" tree.branches = {tree.branches}; needed {depth} to {most}: the deepest branch alone,"
            " to all there is to choose from"
        )


def check_pinned(case: Case, *, on_gpu: bool) -> None:
    """Raise a MatrixError unless the engine can keep to the acceptance that a case pins, if any."""
    spec, length_tokens = case.server, case.server.pinned_length_tokens
    if length_tokens is None and spec.method != SCHEDULED:
        return
    methods = engine_named(spec.engine).pinned_methods(on_gpu=on_gpu)
    message = ""
    if spec.method not in methods:
        where = "on a GPU" if on_gpu else "without a GPU"
        known = ", ".join(sorted(methods)) or "none"
        message = f"engine '{spec.engine}' can't {where}; methods that it can: {known}"
    elif length_tokens is None or not 1 <= length_tokens <= spec.draft_tokens + 1:
        message = (
            f"pinned_length_tokens = {length_tokens} with draft_tokens = {spec.draft_tokens};"
            f" needed 1 to {spec.draft_tokens + 1}"
        )
    elif spec.method == SCHEDULED and (case.turns != 1 or case.temperature > 0):
        message = "it knows greedy answers to first turns alone; set turns = 1 and no temperature"
    if message:
        raise MatrixError(f"acceptance = \"pinned\" of method '{spec.method}': {message}")


def _with_controls(
    cases: Sequence[Case], places: Mapping[str, str], *, on_gpu: bool
) -> Iterator[Case]:
    """Each case, speculating ones with the server without speculation, if the tier has that."""
    plain = {case.server for case in cases if not case.speculates}
    for case in cases:
        alike, share_frac = case.server.without_speculation, case.server.gpu_memory_frac
        if not case.speculates or alike not in plain:
            yield case
            continue
        if on_gpu and share_frac > _MOST_BESIDE_FRAC:
            raise MatrixError(
                f"{places[case.id]}: gpu_memory_frac = {share_frac}, needed at most"
                f" {_MOST_BESIDE_FRAC}: case and control stand beside one another; lower it"
            )
        yield dataclasses.replace(case, control=alike)
