"""The matrix: `fixtures/matrix/<tier>.toml` in, the cases of that tier out."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from specreg.arrivals import Arrivals, Load
from specreg.datasets import dataset_named
from specreg.engines import ALONE, Parallel, engine_named
from specreg.errors import MatrixError, UnknownNameError
from specreg.lossless import ROUNDING_NATS
from specreg.methods import METHODS, Tree
from specreg.protocols import Form

MOST_DRAFT_TOKENS = 16
"""The most tokens drafted per step that the metrics tell apart by position."""

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_AboveZero = Annotated[float, msgspec.Meta(gt=0)]


class ModelsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[models.NAME]`: a target and its drafts.

    Attributes:
        target: a folder (a path with a slash that begins with `.`, `/` or `fixtures/`) or a hub id.
        drafts: by method, the draft model or head.
        padding_layers: identity layers appended to the target at set-up, 0 or more; a tiny target
            then costs enough per step for speculation to save something.
    """

    target: str
    drafts: dict[str, str] = {}
    padding_layers: Annotated[int, msgspec.Meta(ge=0)] = 0


class CasesTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[cases]]`: one case for each of `methods` × `concurrency` or × `requests_per_s`.

    The fields are those of `Case`, `Load` and `ServerSpec`.
    """

    engine: str
    methods: Annotated[list[str], msgspec.Meta(min_length=1)]
    models: str
    dataset: str
    prompts: _Positive
    output_cap_tokens: _Positive
    draft_tokens: Annotated[int, msgspec.Meta(ge=1, le=MOST_DRAFT_TOKENS)] = 3
    tree: Tree | None = None
    concurrency: list[_Positive] = []
    requests_per_s: list[_AboveZero] = []
    arrivals: Arrivals | None = None
    burstiness: _AboveZero = 1.0
    ramp_up_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    duration_s: _AboveZero | None = None
    rounds: _Positive = 4
    turns: _Positive | None = None
    form: Form = Form.CHAT
    chat_template_args: dict[str, object] = {}
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    ignore_eos: bool = False
    stream: bool = True
    request_timeout_s: _AboveZero = 600.0
    ttft_limit_ms: _AboveZero | None = None
    tpot_limit_ms: _AboveZero | None = None
    warm_up_stable_frac: _AboveZero = 0.03
    client_processes: _Positive = 1
    speed: bool = True
    rounding_nats: Annotated[float, msgspec.Meta(ge=0)] = ROUNDING_NATS
    dtype: str = "auto"
    max_model_len_tokens: _Positive = 1024
    max_sequences: _Positive = 8
    gpu_memory_frac: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.4
    parallel: Parallel = ALONE
    engine_args: list[str] = []
    engine_env: dict[str, str] = {}
    tolerances: dict[str, _AboveZero] = {}


class TierFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole matrix file. `needs_gpus`: how many GPUs the tier needs, 0 for none."""

    needs_gpus: Annotated[int, msgspec.Meta(ge=0)]
    models: dict[str, ModelsTable]
    cases: list[CasesTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """What has to be equal for two cases to share a server.

    Attributes:
        engine, method: their names.
        models: the name of the model pair.
        target, draft: folders or hub ids; `draft` is None where the method needs none.
        padding_layers: identity layers appended to the target.
        draft_tokens: the most drafts that a step can accept, which are all that it drafts where
            there is no tree; 0 without speculation.
        tree: how the drafts branch, None for one continuation.
        dtype: the engine's name of the number format.
        max_model_len_tokens: prompt and output together.
        max_sequences: requests that the server takes on at once.
        gpu_memory_frac: share of a GPU's memory that the server may take, 0..1. Case and control
            run beside one another, so at most half.
        parallel: how the models are spread over GPUs.
        engine_args, engine_env: further arguments and environment variables, as pairs.
    """

    engine: str
    method: str
    models: str
    target: str
    draft: str | None
    padding_layers: int
    draft_tokens: int
    dtype: str
    max_model_len_tokens: int
    max_sequences: int
    gpu_memory_frac: float
    parallel: Parallel = ALONE
    engine_args: tuple[str, ...] = ()
    engine_env: tuple[tuple[str, str], ...] = ()
    tree: Tree | None = None

    @property
    def drafted_tokens(self) -> int:
        """All tokens that a step drafts, D / S."""
        return self.tree.drafted_tokens if self.tree else self.draft_tokens

    @property
    def id(self) -> str:
        """`vllm-eagle3-tiny`: what a server is called in ids, logs and errors."""
        return f"{self.engine}-{self.method}-{self.models}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request must keep to count as good; None for no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement of the matrix.

    Attributes:
        server: what to start.
        control: the `none` server of the same target, measured in alternation for the speedup;
            None where the tier has no such case, and for `none` itself.
        dataset: the name of the prompt set.
        prompts: how many of its prompts are replayed.
        load: how many requests come, and when; its duration is that of a round.
        rounds: how many parts the prompts are dealt into; case and control alternate by round.
        turns: the most turns of a conversation, None for all.
        form: whether prompts go through the model's chat template.
        chat_template_args: arguments of that template, as pairs.
        output_cap_tokens: the most tokens of a reply; temperature: 0 is greedy.
        ignore_eos: whether every reply goes on to the cap.
        stream: whether replies come as they are made, not at once.
        request_timeout_s: how long a request may take; one that takes longer failed.
        limits: what a request must keep to count as good.
        warm_up_stable_frac: how far the step times of the last warm-up batches may lie apart.
        client_processes: how many processes send the requests.
        speed: whether the time that the server takes means anything.
        rounding_nats: two tokens whose log-probabilities lie closer may change places by rounding;
            0 demands that speculation changes none.
        tolerances: by metric, a relative change that overrides the metric's own.
    """

    server: ServerSpec
    control: ServerSpec | None
    dataset: str
    prompts: int
    load: Load
    rounds: int
    output_cap_tokens: int
    temperature: float
    turns: int | None = None
    form: Form = Form.CHAT
    chat_template_args: tuple[tuple[str, object], ...] = ()
    ignore_eos: bool = False
    stream: bool = True
    request_timeout_s: float = 600.0
    limits: Limits = NO_LIMITS
    warm_up_stable_frac: float = 0.03
    client_processes: int = 1
    speed: bool = True
    rounding_nats: float = ROUNDING_NATS
    tolerances: tuple[tuple[str, float], ...] = ()

    @property
    def id(self) -> str:
        """`vllm-eagle3-tiny-toy-c4`: engine, method, model pair, dataset, load."""
        return f"{self.server.id}-{self.dataset}-{self.load.id}"

    @property
    def speculates(self) -> bool:
        """Whether the case has a method other than `none`."""
        return self.server.method != "none"

    @property
    def needs_fresh_server(self) -> bool:
        """Whether what another case asked the server would change what this one measures."""
        spelling = engine_named(self.server.engine).spelling
        return spelling in METHODS[self.server.method].learns_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The cases of one matrix file, and how many GPUs each of them needs."""

    name: str
    needs_gpus: int
    cases: tuple[Case, ...]


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
