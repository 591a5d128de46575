"""Load a tier: the cases of a matrix file."""

import contextlib
import dataclasses
import itertools
import os
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
from specreg.core.names import MAX_CASE_CHARACTERS, check_spelling, is_name
from specreg.core.readable import is_plain, readable_line
from specreg.datasets.prompts import REPLIES
from specreg.datasets.table import dataset_named
from specreg.engines.engine import LaunchSettings, Parallel, Positive, values_of_fields
from specreg.engines.methods import METHODS, SCHEDULED, Setting, Tree
from specreg.engines.registry import engine_named
from specreg.engines.serve_command import read_speculation
from specreg.engines.wire_format import Form
from specreg.matrix.case import (
    THINKING_SWITCHES,
    USUAL_DRAFT_TOKENS,
    AboveZero,
    Arrivals,
    Case,
    DraftTokens,
    Limits,
    Load,
    NotNegative,
    Rate,
    ServerSpec,
    Sizes,
    Tier,
    Width,
    WorkloadSettings,
)
from specreg.matrix.commands import COMMAND, describe, merge_command, understand_command
from specreg.matrix.models import is_hub_id

PAIRS = Path("models/pairs.toml")
"""The file of the model pairs that all tiers share, seen from the parent of the tiers' folder."""
_MAX_SHARED_FRAC = 0.5
"""The share of a GPU's memory that a server may take if its control is on the same GPU."""
_POWER_S = 30.0
_MAX_CASES = 10_000
_MAX_PART_BYTES = 255
"""The longest name of a file or a folder in Linux."""
_MAX_PATH_CHARACTERS = 1_000
_SHOWN_CHARACTERS = 80
_LAUNCH_SUFFIX = re.compile(r"-launch\d+$")
_ADVICE = f"mend it, or begin with a file of {specreg_command('init')}"
_TableT = TypeVar("_TableT")
Revision = Annotated[str, msgspec.Meta(max_length=128, pattern=r"^([\w.][\w./-]*)?$")]
"""A commit, tag or branch of the hub."""
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
        licence: the licences of its models as their publishers name them, and whether one has to be
            accepted on the hub first.
        target_revision: the commit, tag or branch of the target on the hub; without it its main
            branch, as it is when it is fetched.
        drafts_revision: by method, the revision of the draft on the hub.
    """

    target: str
    drafts: dict[str, str] = {}
    padding_layers: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    widen: Width | None = None
    target_gib: AboveZero | None = None
    drafts_gib: dict[str, AboveZero] = {}
    token_kib: NotNegative = 0.0
    licence: str = ""
    target_revision: Revision = ""
    drafts_revision: dict[str, Revision] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CasesTable(LaunchSettings, WorkloadSettings, Load):
    """`[[cases]]`: one case for each of `methods` × `draft_tokens` × the loads.

    A case must be hashable, so it has tuples of pairs where a file has tables.

    Attributes:
        engine: the name of the engine.
        command: the command line that starts the server, `vllm serve …`, `python -m
            sglang.launch_server …` or `trtllm-serve …`, instead of `engine`, `methods`, `models`
            and the settings that it says; `specreg matrix` shows what was understood.
        methods: the speculative methods; `"none"` makes the speedup of the others measurable.
        models: the name of a model pair; of several, a machine runs the first that its GPUs hold.
        draft_tokens: how many tokens are drafted per step, as one number or a list.
        variant: what ends the id of the cases that speculate, where another table of the tier would
            make the same ids.
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
    command: str = ""
    methods: _SomeNames
    models: str | _SomeNames
    draft_tokens: DraftTokens | Annotated[list[DraftTokens], msgspec.Meta(min_length=1)] = (
        USUAL_DRAFT_TOKENS
    )
    variant: str = ""
    acceptance: Literal["real", "pinned"] = "real"
    concurrency: tuple[Positive, ...] = ()  # type: ignore[assignment]
    requests_per_s: tuple[Rate, ...] = ()  # type: ignore[assignment]
    arrivals: Arrivals | None = None  # type: ignore[assignment]
    ttft_limit_ms: AboveZero | None = None
    tpot_limit_ms: AboveZero | None = None
    power_s: NotNegative | None = None
    engine_env: dict[str, str] = field(default_factory=dict)  # type: ignore[assignment]
    chat_template_args: dict[str, object] = field(default_factory=dict)  # type: ignore[assignment]
    speculation: dict[str, Setting] = field(default_factory=dict)  # type: ignore[assignment]
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
    """Return the tier that a file declares.

    Its model pairs are its own and those of `../models/pairs.toml`, seen from the folder. One of
    its own replaces a shared pair of the same name.

    Args:
        folder: The folder of the tiers.
        name: The name of the file, without its suffix.

    Raises:
        UnknownNameError: A tier, key, engine, method, dataset or model pair doesn't exist. The
            message lists those that do.
        MatrixError: The folder doesn't exist, or a file can't be decoded or is contradictory.
        DatasetError: `random-N` has more digits than allowed.
    """
    path = folder / f"{name}.toml"
    # Unlike Path's method this is false for a name that is too long, too.
    if not os.path.isdir(folder):  # noqa: PTH112
        message = f"tiers '{folder}': no such folder; run this in the repository, or name its root"
        raise MatrixError(message)
    if name not in tier_names(folder):
        raise UnknownNameError("tier", name, tier_names(folder))
    file = _load_file(path, TierFile)
    pairs = _pairs_of(path, file.models)
    shared_path = folder.parent / PAIRS
    if shared_path.exists():
        shared_models = _load_file(shared_path, PairsFile).models
        pairs = _pairs_of(shared_path, shared_models) | pairs
    on_gpu = file.needs_gpus > 0
    choices: dict[str, tuple[str, ...]] = {}
    locations: dict[str, str] = {}
    commands: dict[str, tuple[str, ...]] = {}
    pairs_by_server: dict[str, str] = {}
    cases: list[Case] = []
    for number, document in enumerate(file.cases, 1):
        location = f"matrix file '{path}', [[cases]] no. {number}"
        with within(location):
            # What isn't a table is left for `_convert` to refuse.
            if not isinstance(document, dict):
                table = _convert(document, CasesTable)
            elif COMMAND in document:
                keys, commands[location] = _table_of_command(document, file.defaults, pairs)
                table = _convert(keys, CasesTable)
            else:
                table = _convert({**file.defaults, **document}, CasesTable)
                if table.command:
                    raise MatrixError("command in [defaults]; give it to a table of cases")
            for case in _cases_of(table, pairs, on_gpu=on_gpu):
                _check_id(case, pairs_by_server, locations)
                locations[case.id] = location
                pairs_by_server[case.server.id] = case.server.models
                cases.append(case)
                choices[case.id] = _as_tuple(table.models)
    used_pairs = dict.fromkeys(case.server.models for case in cases)
    return Tier(
        name=name,
        needs_gpus=file.needs_gpus,
        cases=tuple(_with_controls(cases, locations, on_gpu=on_gpu)),
        places=locations,
        choices=choices,
        licences={pair: pairs[pair].licence for pair in used_pairs if pairs[pair].licence},
        commands=commands,
    )


def _table_of_command(
    document: Mapping[str, Any], defaults: Mapping[str, Any], pairs: dict[str, ModelsTable]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keys of a table that has a command, and what was understood of the command.

    Its model pair is one that has its models, or a new one, which is added to the pairs.

    Raises:
        MatrixError: The command can't be understood, or contradicts a key or a model pair.
    """
    table = dict(document)
    command = table.pop(COMMAND)
    if not isinstance(command, str):
        raise MatrixError(f"Expected `str`, got `{type(command).__name__}` - at `command`; mend it")
    understood = understand_command(command, table)
    keys = merge_command(understood, table, defaults)
    fitting_pairs = [
        name
        for name, pair in pairs.items()
        if pair.target == understood.target and understood.drafts.items() <= pair.drafts.items()
    ]
    name = table.get("models", understood.pair_name)
    if not isinstance(name, str):
        raise MatrixError(f"models = {name} with a command, which has one pair; name one")
    if "models" not in table and fitting_pairs and name not in fitting_pairs:
        name = fitting_pairs[0]
    if name not in pairs:
        _check_ending("model pair", name)
        pairs[name] = ModelsTable(target=understood.target, drafts=dict(understood.drafts))
    elif name not in fitting_pairs:
        raise MatrixError(
            f"models = '{name}' has other models than the command; give models another name"
        )
    keys["models"] = name
    return keys, describe(understood, name)


def _check_id(case: Case, pairs_by_server: Mapping[str, str], locations: Mapping[str, str]) -> None:
    """Check that the ids of a case and of its server differ from those of the cases before it.

    Args:
        case: The next case of a tier.
        pairs_by_server: The model pairs of the servers before it, by server id.
        locations: The files and numbers of the tables before it, by case id.

    Raises:
        MatrixError: An id is taken or has the wrong spelling, or there are too many cases.
    """
    check_spelling("case", case.id, MAX_CASE_CHARACTERS)
    server = case.server
    if case.id in locations:
        location = locations[case.id]
        raise MatrixError(
            f"two cases are called '{case.id}', the other is of {location}; remove one"
        )
    pair = pairs_by_server.get(server.id, server.models)
    if pair != server.models:
        raise MatrixError(
            f"two servers are called '{server.id}', one of model pair '{server.models}', the other"
            f" of '{pair}'; rename a pair"
        )
    if len(locations) >= _MAX_CASES:
        raise MatrixError(f"there are more than {_MAX_CASES} cases; leave some out")


@contextlib.contextmanager
def within(location: str) -> Iterator[None]:
    """Begin the message of an error that leaves the context with the location of its cause."""
    try:
        yield
    except SpecregError as error:
        error.args = (f"{location}: {error}",)
        raise


def _load_file(path: Path, kind: type[_TableT]) -> _TableT:
    """Return the decoded document of a file.

    Raises:
        UnknownNameError: It has a key that doesn't exist.
        MatrixError: It can't be read or decoded.
    """
    with within(f"matrix file '{path}'"):
        try:
            document = tomllib.loads(read_regular(path, MIB).decode())
            _check_texts(document)
            return _convert(document, kind)
        # TOML raises ValueError, also for a number with too many digits.
        except (OSError, ValueError, RecursionError) as error:
            raise MatrixError(f"can't be read, {error}; {_ADVICE}") from error


def _check_texts(value: object, key: str = "$") -> None:
    """Check that no text has a NUL character, which no path, argument or variable can have.

    Args:
        value: A document, or a part of it.
        key: The key of the part in the document, for the message.

    Raises:
        MatrixError: A text has one.
    """
    if isinstance(value, dict):
        for name, part in value.items():
            if "\0" in name:
                raise MatrixError(f"a key of {key} has a NUL character; give it another name")
            _check_texts(part, f"{key}.{name}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            _check_texts(part, f"{key}[{number}]")
    elif isinstance(value, str) and "\0" in value:
        raise MatrixError(f"{key} has a NUL character; remove it")


def _pairs_of(path: Path, tables: Mapping[str, object]) -> dict[str, ModelsTable]:
    """Return the model pairs of a file, by name.

    Raises:
        UnknownNameError: A pair has a key that doesn't exist, or a draft for a method without one.
        MatrixError: A pair has a wrong name, or can't be decoded.
    """
    pairs = {}
    for name, table in tables.items():
        with within(f"matrix file '{path}', [models.{name}]"):
            pairs[name] = _pair_of(name, table)
    return pairs


def _pair_of(name: str, table: object) -> ModelsTable:
    """Return one model pair; errors as in `_pairs_of`."""
    _check_ending("model pair", name)
    pair = _convert(table, ModelsTable)
    for reference in (pair.target, *pair.drafts.values()):
        _check_reference(reference)
    if pair.widen and pair.padding_layers:
        raise MatrixError("padding_layers with widen, which says how many; leave one of them out")
    methods_with_draft = [method for method in METHODS if METHODS[method].needs_draft]
    for method in pair.drafts:
        check_name("method that takes a draft", method, methods_with_draft)
    for method in (*pair.drafts_gib, *pair.drafts_revision):
        check_name("draft", method, pair.drafts)
    _check_pin(pair.target, pair.target_revision)
    for method, revision in pair.drafts_revision.items():
        _check_pin(pair.drafts[method], revision)
    return pair


def _check_pin(reference: str, revision: str) -> None:
    """Check that a revision is of a model on the hub, else raise a MatrixError."""
    if revision and not is_hub_id(reference):
        raise MatrixError(
            f"revision '{revision}' of '{reference}', which is a folder; needed a hub id, or no"
            " revision"
        )


def _check_ending(kind: str, name: str) -> None:
    """Check that a name may end the name of a server.

    Raises:
        MatrixError: It can't, because of its spelling or because a second launch ends so.
    """
    check_spelling(kind, name)
    if _LAUNCH_SUFFIX.search(f"-{name}"):
        problem = "it ends as a second launch of a server does"
        raise MatrixError(f"{kind} '{name}': {problem}; give it another name")


def _check_reference(reference: str) -> None:
    """Check that a model is named by a text that can be a path, and be shown.

    Raises:
        MatrixError: The text can't.
    """
    longest_bytes = max(len(os.fsencode(part)) for part in reference.split("/"))
    is_too_long = longest_bytes > _MAX_PART_BYTES or len(reference) > _MAX_PATH_CHARACTERS
    if reference and is_plain(reference) and not is_too_long:
        return
    shown = readable_line(reference, _SHOWN_CHARACTERS)
    raise MatrixError(
        f"model '{shown}': neither an id of the hub nor a folder is called so, got"
        f" {len(reference)} characters; give the one or the other"
    )


def _convert(document: object, kind: type[_TableT]) -> _TableT:
    """Return a document as a value of a type.

    Raises:
        UnknownNameError: It has a key that doesn't exist.
        MatrixError: A value has the wrong type, or is out of range.
    """
    if isinstance(document, dict):
        keys = typing.get_type_hints(kind)
        for name in document:
            check_name("key", name, keys)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        message = str(error).replace("`$.", "`")
        raise MatrixError(f"{message}; {_ADVICE}") from error


def tier_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the tiers in a folder, sorted."""
    files = (path for path in folder.glob("*.toml") if path.is_file())
    return tuple(sorted(path.stem for path in files if is_name(path.stem)))


def _cases_of(
    table: CasesTable, pairs: Mapping[str, ModelsTable], *, on_gpu: bool
) -> Iterator[Case]:
    """Yield the cases of a table, without their controls.

    Raises:
        UnknownNameError: An engine, method, dataset, model pair or reply doesn't exist.
        MatrixError: Keys of the table exclude each other.
        DatasetError: `random-N` has more digits than allowed.
    """
    dataset_named(table.dataset)
    check_name("history_reply", table.history_reply, REPLIES)
    for name in table.engine_env:
        if not name or "=" in name:
            message = f"engine_env: '{name}' is no name of a variable, which is neither empty nor"
            raise MatrixError(f"{message} has '='; rename it")
    _check_table(table)
    power_s = table.power_s
    if power_s is None:
        power_s = _POWER_S if on_gpu else 0.0
    loads = _loads_of(table)
    for models in _as_tuple(table.models):
        check_name("model pair", models, pairs)
        speculations = itertools.product(table.methods, _as_tuple(table.draft_tokens))
        # Without speculation the servers are equal for all numbers of drafts.
        servers = dict.fromkeys(
            _server_of(table, method, draft_tokens, models, pairs[models])
            for method, draft_tokens in speculations
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


def _loads_of(table: CasesTable) -> list[Load]:
    """Return the loads of a table: one for each of its concurrencies, or of its rates."""
    settings = values_of_fields(Load, table)
    if table.concurrency:
        settings |= {"arrivals": table.arrivals or Arrivals.CLOSED, "requests_per_s": 0.0}
        return [Load(**settings | {"concurrency": slots}) for slots in table.concurrency]
    settings |= {"arrivals": table.arrivals or Arrivals.POISSON, "concurrency": 0}
    return [Load(**settings | {"requests_per_s": rate}) for rate in table.requests_per_s]


def _as_tuple(value: _TableT | list[_TableT]) -> tuple[_TableT, ...]:
    """Return the values of a key that takes a list or one value."""
    return tuple(value) if isinstance(value, list) else (value,)


def _check_table(table: CasesTable) -> None:
    """Check that no keys of a table exclude each other.

    Raises:
        MatrixError: Some do.
    """
    _check_load(table)
    _check_parallel(table.parallel)
    if table.variant:
        _check_ending("variant", table.variant)
    if (table.acceptance == "pinned") != (table.pinned_length_tokens is not None):
        raise MatrixError(
            f"acceptance = '{table.acceptance}', pinned_length_tokens ="
            f' {table.pinned_length_tokens}; give acceptance = "pinned" and a length such as 2.5,'
            " or neither"
        )
    if table.speculation and set(table.methods) == {"none"}:
        raise MatrixError(
            f"speculation = {table.speculation} with methods = {table.methods}; name a method that"
            " speculates, or leave speculation out"
        )
    if table.temperature == 0 and (table.top_p < 1 or table.top_k is not None):
        raise MatrixError(
            f"top_p = {table.top_p}, top_k = {table.top_k} with temperature = 0, where always the"
            " likeliest token is taken; give a temperature, or leave them out"
        )
    if table.thinking is not None:
        _check_thinking(table)


def _check_load(table: CasesTable) -> None:
    """Check that a table has one kind of load, and prompts and sequences enough for it.

    Raises:
        MatrixError: It hasn't.
    """
    is_closed = bool(table.concurrency)
    is_open = bool(table.requests_per_s)
    has_its_arrivals = table.arrivals is None or (table.arrivals is Arrivals.CLOSED) == is_closed
    if is_closed == is_open or not has_its_arrivals:
        raise MatrixError(
            f"concurrency = {table.concurrency}, requests_per_s = {table.requests_per_s},"
            f" arrivals = {table.arrivals}; give either concurrency alone (a closed loop) or"
            " requests_per_s with arrivals constant, poisson (the default) or gamma"
        )
    in_flight = max(table.concurrency, default=0)
    if in_flight > table.max_sequences:
        settings = f"concurrency = {in_flight} with max_sequences = {table.max_sequences}"
        raise MatrixError(f"{settings}; the server must take on all that are in flight")
    if table.burstiness != 1.0 and table.arrivals is not Arrivals.GAMMA:
        raise MatrixError('burstiness is of gamma alone; set arrivals = "gamma" or leave it out')
    # With fewer prompts the load would never be as high as its id says.
    if table.speed and table.duration_s is None and table.prompts < in_flight:
        raise MatrixError(
            f"prompts = {table.prompts} with concurrency = {in_flight}; needed one for each in"
            " flight: raise prompts, or lower concurrency"
        )


def _check_parallel(parallel: Parallel) -> None:
    """Check that a server over several nodes is one copy with as many GPUs on each.

    Raises:
        MatrixError: It isn't.
    """
    if parallel.nodes > 1 and (parallel.data > 1 or parallel.gpus % parallel.nodes):
        raise MatrixError(
            f"parallel.nodes = {parallel.nodes} with data = {parallel.data}, tensor ="
            f" {parallel.tensor} and pipeline = {parallel.pipeline}: a server over nodes is one"
            " copy with as many GPUs on each; change one of them"
        )


def _check_thinking(table: CasesTable) -> None:
    """Check that a chat template is there to switch the thought, and isn't told otherwise.

    Raises:
        MatrixError: The requests are no chat, or `chat_template_args` has the switch too.
    """
    if table.form is not Form.CHAT:
        message = f'thinking = {table.thinking} with form = "{table.form}", which has no chat'
        raise MatrixError(f"{message} template; leave one of them out")
    for name in THINKING_SWITCHES:
        if name in table.chat_template_args:
            message = f"thinking with chat_template_args.{name}, which says the same"
            raise MatrixError(f"{message}; leave one of them out")


def _taken(kind: type[object], table: CasesTable) -> dict[str, Any]:
    """Return the values that a table has of a dataclass's fields, with its tables as pairs."""
    values: dict[str, Any] = {}
    for name, value in values_of_fields(kind, table).items():
        if isinstance(value, dict):
            values[name] = tuple(sorted(value.items()))
        else:
            values[name] = value
    return values


def _server_of(
    table: CasesTable, method: str, draft_tokens: int, models: str, pair: ModelsTable
) -> ServerSpec:
    """Return a server of a table, with one of its methods, numbers of drafts and model pairs.

    Raises:
        UnknownNameError: The engine or method doesn't exist, or the pair has no draft for it.
        MatrixError: The tree and the method don't fit together.
    """
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
        target_revision=pair.target_revision,
        draft=pair.drafts[method] if takes_draft else None,
        draft_revision=pair.drafts_revision.get(method, "") if takes_draft else "",
        padding_layers=pair.padding_layers,
        widen=pair.widen,
        draft_tokens=draft_tokens,
        sizes=sizes,
        variant=table.variant,
    )
    engine = engine_named(spec.engine)
    engine.check(spec)
    if method == "none":
        return spec.without_speculation
    if spec.speculation:
        _check_speculation(spec)
    return spec


def _check_speculation(spec: ServerSpec) -> None:
    """Check that the further keys of a speculation leave its method what it is.

    Raises:
        MatrixError: With these keys it is spelt as another method.
    """
    engine = engine_named(spec.engine)
    settings = engine.canonical_speculation(spec.rendered_speculation(spec.draft))
    spelt_method = read_speculation(settings, engine.methods).method
    if spelt_method != spec.method:
        raise MatrixError(
            f"speculation = {dict(spec.speculation)} makes method '{spec.method}' the method"
            f" '{spelt_method}'; name that instead, or leave out the key"
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
        setting = f"tree = {tree}" if tree else "no tree"
        tree_methods = ", ".join(name for name in METHODS if METHODS[name].drafts_trees)
        raise MatrixError(
            f"method '{method}' with {setting}; needed tree ="
            f" {{ branches = 2, drafted_tokens = 6 }} for {tree_methods}, and none for others: give"
            " them a table each"
        )
    if tree is None:
        return
    # With t branches and depth s there are t + (s - 1) · t² continuations to choose from.
    most_tokens = tree.branches + (depth - 1) * tree.branches**2
    if not depth <= tree.drafted_tokens <= most_tokens:
        raise MatrixError(
            f"tree.drafted_tokens = {tree.drafted_tokens} with draft_tokens = {depth} and"
            f" tree.branches = {tree.branches}; needed {depth} to {most_tokens}: the deepest branch"
            " alone, to all there is to choose from"
        )


def check_pinned(case: Case, *, on_gpu: bool) -> None:
    """Check that the engine can keep to the acceptance that a case pins.

    Args:
        case: The case, which may pin nothing.
        on_gpu: True if the server runs on a GPU.

    Raises:
        MatrixError: The engine can't, or the length or another setting of the case is wrong.
    """
    spec = case.server
    length_tokens = spec.pinned_length_tokens
    if length_tokens is None and spec.method != SCHEDULED:
        return
    methods = engine_named(spec.engine).pinned_methods(on_gpu=on_gpu)
    problem = ""
    if spec.method not in methods:
        hardware = "on a GPU" if on_gpu else "without a GPU"
        known_methods = ", ".join(sorted(methods)) or "none"
        problem = f"engine '{spec.engine}' can't {hardware}; methods that it can: {known_methods}"
    elif length_tokens is None or not 1 <= length_tokens <= spec.draft_tokens + 1:
        problem = (
            f"pinned_length_tokens = {length_tokens} with draft_tokens = {spec.draft_tokens};"
            f" needed 1 to {spec.draft_tokens + 1}"
        )
    elif spec.method == SCHEDULED and (case.turns != 1 or case.temperature > 0):
        problem = "it knows greedy answers to first turns alone; set turns = 1 and no temperature"
    if problem:
        raise MatrixError(f"acceptance = \"pinned\" of method '{spec.method}': {problem}")


def _with_controls(
    cases: Sequence[Case], locations: Mapping[str, str], *, on_gpu: bool
) -> Iterator[Case]:
    """Yield the cases, each that speculates with a control if the tier has that server.

    Args:
        cases: The cases of a tier.
        locations: The file and number of the table of each, by case id.
        on_gpu: True if the servers run on GPUs, whose memory case and control share.

    Raises:
        MatrixError: A server takes so much of a GPU's memory that its control doesn't fit.
    """
    plain_servers = {case.server for case in cases if not case.speculates}
    for case in cases:
        control = case.server.without_speculation
        if not case.speculates or control not in plain_servers:
            yield case
            continue
        share_frac = case.server.gpu_memory_frac
        if on_gpu and share_frac > _MAX_SHARED_FRAC:
            raise MatrixError(
                f"{locations[case.id]}: gpu_memory_frac = {share_frac}, needed at most"
                f" {_MAX_SHARED_FRAC}: case and control stand beside one another; lower it"
            )
        yield dataclasses.replace(case, control=control)
