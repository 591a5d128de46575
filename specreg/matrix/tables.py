"""The tables of a tier's file: their keys, and which keys exclude each other."""

import contextlib
import math
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from specreg.core.commands import specreg_command
from specreg.core.errors import MatrixError, SpecregError, check_name
from specreg.core.files import MIB, cause_of, read_regular
from specreg.core.names import check_spelling
from specreg.core.readable import is_plain, readable_line
from specreg.core.redaction import hide_secrets_of
from specreg.engines.methods import METHODS, Setting
from specreg.engines.server_spec import (
    USUAL_DRAFT_TOKENS,
    DraftTokens,
    Parallel,
    Positive,
    ServerSpec,
    Width,
)
from specreg.engines.wire_format import Form
from specreg.matrix.case import (
    THINKING_SWITCHES,
    AboveZero,
    Arrivals,
    Case,
    Judging,
    Load,
    NotNegative,
    Rate,
    Request,
)
from specreg.matrix.models import is_hub_id
from specreg.matrix.server_files import ServerFile

_MAX_PART_BYTES = 255
"""The longest name of a file or a folder in Linux."""
_MAX_PATH_CHARACTERS = 1_000
_SHOWN_CHARACTERS = 80
_LAUNCH_SUFFIX = re.compile(r"-launch\d+$")
_ADVICE = f"correct it, or start from a file that {specreg_command('init')} writes"
_PARTS = "server|request|load|judging"
_IN_PART = re.compile(rf" - at `\$\.({_PARTS})`$")
_BEFORE_KEY = re.compile(rf"`\$\.(({_PARTS})\.)?")
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
        widen: the size to which tiny models are enlarged at set-up, so that a step costs as much as
            with a model of that size; without it they stay as they are.
        target_gib: the memory of the target's weights as they are served, in GiB; without it,
            specreg doesn't check whether a GPU holds them.
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


class CasesTable(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of `[[cases]]` that a case has in another form; the others are fields of a case.

    A table has one case for each of `models` × `methods` × `draft_tokens` × the loads. Method
    `none` drafts nothing, so it has only one case for each load.

    Attributes:
        engine: the name of the engine.
        command: the command line that starts the server, `vllm serve …`, `python -m
            sglang.launch_server …`, `trtllm-serve …` or `docker run …`, instead of `engine`,
            `methods`, `models`, `image` and the settings that it says; or the file that does, `{
            file = "compose.yaml", service = "NAME" }` or, for Kubernetes, with `container =
            "NAME"`. It is read and not run; `specreg matrix` shows what was understood.
        methods: the speculative methods; `"none"` makes the speedup of the others measurable.
        models: the name of a model pair, or a list of them, of which a machine runs the first that
            its GPUs hold.
        draft_tokens: how many tokens are drafted per step, as one number or a list.
        acceptance: `"real"` judges the drafter; `"pinned"` fixes the acceptance length, so that
            only the cost of a step differs.
        concurrency: the requests in flight of closed loops, one case for each; the next request
            begins when one has ended.
        requests_per_s: the rates of open loops, one case for each; requests are sent when they are
            due, whatever the server does.
        arrivals: how the requests of a rate come: `"poisson"` (the default), `"constant"` or
            `"gamma"` with `burstiness`.
        ttft_limit_ms: the highest TTFT of a good request, in ms; it adds the metric goodput.
        tpot_limit_ms: the highest TPOT of a good request, in ms; it adds the metric goodput.
        power_s: how long each server is kept under load for its power, in seconds; 30 in tiers for
            GPUs and 0 in others.
    """

    engine: str
    command: str | ServerFile = ""
    methods: _SomeNames
    models: str | _SomeNames
    draft_tokens: DraftTokens | Annotated[list[DraftTokens], msgspec.Meta(min_length=1)] = (
        USUAL_DRAFT_TOKENS
    )
    acceptance: Literal["real", "pinned"] = "real"
    concurrency: tuple[Positive, ...] = ()
    requests_per_s: tuple[Rate, ...] = ()
    arrivals: Arrivals | None = None
    ttft_limit_ms: AboveZero | None = None
    tpot_limit_ms: AboveZero | None = None
    power_s: NotNegative | None = None
    # A case must be hashable, so it has tuples of pairs where a file has these inner tables.
    engine_env: dict[str, str] = {}
    chat_template_args: dict[str, object] = {}
    speculation: dict[str, Setting] = {}
    tolerances: dict[str, AboveZero] = {}


INNER_TABLES = ("engine_env", "chat_template_args", "speculation", "tolerances")
CASE_PARTS: Mapping[str, type[Any]] = MappingProxyType(
    {"server": ServerSpec, "request": Request, "load": Load, "judging": Judging}
)
"""The parts of a case, whose fields are the keys of a table."""
NO_KEYS = frozenset(
    {
        # `methods`, `num_prompts` and the two limits stand for these.
        *("method", "matrix_prompts", "limits"),
        # These come from the model pair.
        *("target", "draft", "target_revision", "draft_revision"),
        *("padding_layers", "widen", "sizes"),
    }
)
"""The fields of a case that aren't keys of a table."""


def case_keys() -> dict[str, Any]:
    """Return all keys of `[[cases]]` with their types."""
    keys: dict[str, Any] = {}
    for part in CASE_PARTS.values():
        keys |= typing.get_type_hints(part, include_extras=True)
    keys = {name: kind for name, kind in keys.items() if name not in NO_KEYS}
    return keys | typing.get_type_hints(CasesTable, include_extras=True)


class TierFile(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file of a tier, whose tables aren't decoded yet; see `Tier`.

    Attributes:
        needs_gpus: how many GPUs a machine must have for the tier to run at all; 0 for none.
        models: model pairs of this tier alone, which replace shared pairs of the same names.
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


def as_toml(value: object) -> str:
    """Return a value in the form in which a tier's file has it."""
    part = msgspec.to_builtins(value)
    if isinstance(part, dict):
        entries = [f"{key} = {as_toml(entry)}" for key, entry in part.items()]
        return f"{{ {', '.join(entries)} }}"
    if isinstance(part, list | tuple):
        return f"[{', '.join(map(as_toml, part))}]"
    return msgspec.json.encode(part).decode()


@contextlib.contextmanager
def located_errors(location: str) -> Iterator[None]:
    """Put a location before the message of a SpecregError that is raised in the context."""
    try:
        yield
    except SpecregError as error:
        error.args = (f"{readable_line(location)}: {error}",)
        raise


def load_file(path: Path, kind: type[_TableT]) -> _TableT:
    """Return the decoded document of a file.

    Raises:
        UnknownNameError: it has a key that doesn't exist.
        MatrixError: it can't be read or decoded.
    """
    with located_errors(f"tier file '{path}'"):
        try:
            document = tomllib.loads(read_regular(path, MIB).decode())
            _learn_secrets(document)
            _check_values(document)
            return convert(document, kind)
        # The parser of TOML raises ValueError, also for a number with too many digits.
        except (OSError, ValueError, RecursionError) as error:
            raise MatrixError(f"can't be read, {cause_of(error)}; {_ADVICE}") from error


def _learn_secrets(value: object) -> None:
    """Hide the secrets in a document, or in a part of it, before any error can quote them."""
    if isinstance(value, dict):
        hide_secrets_of({name: part for name, part in value.items() if isinstance(part, str)})
        for part in value.values():
            _learn_secrets(part)
    elif isinstance(value, list):
        hide_secrets_of({}, [part for part in value if isinstance(part, str)])
        for part in value:
            _learn_secrets(part)


def _check_values(value: object, key: str = "$") -> None:
    """Check that no text has a NUL character, and that each number is finite.

    No path, argument or variable can have a NUL, and JSON has no infinity: a ledger with one could
    not be read again.

    Args:
        value: a document, or a part of it.
        key: the key of the part in the document, for the message.

    Raises:
        MatrixError: a value isn't as it must be.
    """
    if isinstance(value, dict):
        for name, part in value.items():
            if "\0" in name:
                raise MatrixError(f"a key of {key} has a NUL character; give it another name")
            _check_values(part, f"{key}.{name}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            _check_values(part, f"{key}[{number}]")
    elif isinstance(value, str) and "\0" in value:
        raise MatrixError(f"{key} has a NUL character; remove it")
    elif isinstance(value, float) and not math.isfinite(value):
        raise MatrixError(f"{key} is {value}, needed a finite number; {_ADVICE}")


def convert(document: object, kind: type[_TableT]) -> _TableT:
    """Return a document as a value of a type.

    Raises:
        UnknownNameError: it has a key that doesn't exist.
        MatrixError: a value has the wrong type, or is out of range.
    """
    # msgspec ignores keys that a type doesn't have. In a tier's file most of them are misspelt.
    if isinstance(document, dict):
        keys = case_keys() if kind is CasesTable else typing.get_type_hints(kind)
        for name in document:
            check_name("key", name, keys)
    return _decoded(document, kind)


def convert_case(row: Mapping[str, object]) -> Case:
    """Return the case whose fields are the keys of a row.

    Raises:
        MatrixError: a value has the wrong type, or is out of range.
    """
    # Each part takes its own fields of the row.
    return _decoded(dict.fromkeys(CASE_PARTS, row), Case)


def _decoded(document: object, kind: type[_TableT]) -> _TableT:
    """Return a document as a value of a type; errors as in `convert_case`."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        # msgspec writes `$.key` for a key, and `$.server.key` for one of a part of a case.
        # `located_errors` says already what `$` stands for.
        message = _IN_PART.sub("", str(error))
        message = _BEFORE_KEY.sub("`", message)
        raise MatrixError(f"{message}; {_ADVICE}") from error


def model_pairs_of(path: Path, tables: Mapping[str, object]) -> dict[str, ModelsTable]:
    """Return the model pairs of a file, by name.

    Raises:
        UnknownNameError: a pair has a key that doesn't exist, a draft for a method that takes none,
            or the memory or revision of a draft that it doesn't have.
        SpecregError: the name of a pair has other characters than a name may have, or too many.
        MatrixError: the name of a pair ends like the name of a second launch, or its table can't be
            decoded or contradicts itself.
    """
    pairs = {}
    for name, table in tables.items():
        with located_errors(f"tier file '{path}', [models.{name}]"):
            pairs[name] = _pair_of(name, table)
    return pairs


def _pair_of(name: str, table: object) -> ModelsTable:
    """Return one model pair; errors as in `model_pairs_of`."""
    # The names of a pair's servers may end with its name.
    check_ending("model pair", name)
    pair = convert(table, ModelsTable)
    for reference in (pair.target, *pair.drafts.values()):
        _check_reference(reference)
    if pair.widen and pair.padding_layers:
        raise MatrixError("padding_layers with widen, which sets the layers; leave one of them out")
    methods_with_draft = [method for method in METHODS if METHODS[method].needs_draft]
    for method in pair.drafts:
        check_name("method that takes a draft", method, methods_with_draft)
    for method in (*pair.drafts_gib, *pair.drafts_revision):
        check_name("draft", method, pair.drafts)
    _check_revision(pair.target, pair.target_revision)
    for method, revision in pair.drafts_revision.items():
        _check_revision(pair.drafts[method], revision)
    return pair


def _check_revision(reference: str, revision: str) -> None:
    """Check that a model with a revision is on the hub.

    Raises:
        MatrixError: the model is a folder.
    """
    if revision and not is_hub_id(reference):
        raise MatrixError(
            f"revision '{revision}' of '{reference}': a folder has no revision; name a hub id, or"
            " leave the revision out"
        )


def _check_reference(reference: str) -> None:
    """Check that the text that names a model can be a path, and can be shown.

    Raises:
        MatrixError: the text is empty, too long or not plain.
    """
    # A longer path would raise an OSError wherever the folder is looked up.
    parts = reference.split("/")
    longest_bytes = max(len(os.fsencode(part)) for part in parts)
    is_too_long = longest_bytes > _MAX_PART_BYTES or len(reference) > _MAX_PATH_CHARACTERS
    if reference and is_plain(reference) and not is_too_long:
        return
    shown = readable_line(reference, _SHOWN_CHARACTERS)
    raise MatrixError(
        f"model '{shown}': can be neither a hub id nor a folder, got {len(reference)} characters;"
        " give one or the other"
    )


def check_ending(kind: str, name: str) -> None:
    """Check that a name may end the name of a server.

    Raises:
        SpecregError: the name has other characters than a name may have, or too many.
        MatrixError: it ends like the name of a second launch, such as `launch2`.
    """
    check_spelling(kind, name)
    if _LAUNCH_SUFFIX.search(f"-{name}"):
        problem = "it ends like the name of a second launch"
        raise MatrixError(f"{kind} '{name}': {problem}; give it another name")


def check_loads(table: CasesTable) -> None:
    """Check that a table has one kind of load, and arrivals of that kind.

    Raises:
        MatrixError: the table has both kinds or none, or `arrivals` that don't fit the load.
    """
    is_closed = bool(table.concurrency)
    is_open = bool(table.requests_per_s)
    has_closed_arrivals = table.arrivals is Arrivals.CLOSED
    arrivals_fit = table.arrivals is None or has_closed_arrivals == is_closed
    if is_closed == is_open or not arrivals_fit:
        settings = f"concurrency = {as_toml(table.concurrency)},"
        settings += f" requests_per_s = {as_toml(table.requests_per_s)}"
        if table.arrivals is not None:
            settings += f", arrivals = {as_toml(table.arrivals)}"
        raise MatrixError(
            f"{settings}; give either concurrency alone (a closed loop) or requests_per_s with"
            " arrivals constant, poisson (the default) or gamma"
        )


def check_table(table: CasesTable, case: Case) -> None:
    """Check the names of a table's variables, and that none of its keys exclude each other.

    Args:
        case: one of its cases. All have the same values for the keys that aren't multiplied.

    Raises:
        SpecregError: the variant has other characters than a name may have, or too many.
        MatrixError: some keys exclude each other, `engine_env` has a name that no variable can
            have, or the variant ends like the name of a second launch.
    """
    for name in table.engine_env:
        if not name or "=" in name:
            message = f"engine_env: '{name}' isn't the name of a variable"
            raise MatrixError(f"{message}, because it is empty or has a '='; rename it")

    _check_load(table, case)
    _check_parallel(case.server.parallel)
    if case.server.variant:
        check_ending("variant", case.server.variant)
    _check_pinning(table, case.server.pinned_length_tokens)
    if table.speculation and set(table.methods) == {"none"}:
        raise MatrixError(
            f"speculation = {as_toml(table.speculation)} with methods = {as_toml(table.methods)};"
            " name a method that speculates, or leave speculation out"
        )

    _check_sampling(case.request)
    if case.request.thinking is not None:
        _check_thinking(case.request)


def _check_pinning(table: CasesTable, length_tokens: float | None) -> None:
    """Check that a table has a pinned length if, and only if, it pins the acceptance.

    Raises:
        MatrixError: only one of the two keys is there.
    """
    is_pinned = table.acceptance == "pinned"
    has_length = length_tokens is not None
    if is_pinned != has_length:
        setting = " without pinned_length_tokens"
        if has_length:
            setting = f", pinned_length_tokens = {length_tokens}"
        raise MatrixError(
            f"acceptance = {as_toml(table.acceptance)}{setting};"
            ' give acceptance = "pinned" and a length such as 2.5, or neither'
        )


def _check_sampling(request: Request) -> None:
    """Check that requests whose answers are greedy don't limit the tokens to draw from.

    Raises:
        MatrixError: they have `top_p` or `top_k` without a temperature.
    """
    cuts = []
    if request.top_p < 1:
        cuts.append(f"top_p = {request.top_p}")
    if request.top_k is not None:
        cuts.append(f"top_k = {request.top_k}")
    if request.temperature == 0 and cuts:
        raise MatrixError(
            f"{', '.join(cuts)} with temperature = 0, which always takes the likeliest token; give"
            " a temperature, or leave top_p and top_k out"
        )


def _check_load(table: CasesTable, case: Case) -> None:
    """Check that a case has enough prompts and sequences for its load.

    Raises:
        MatrixError: it has too few prompts or sequences, or `burstiness` that doesn't fit the load.
    """
    in_flight = max(table.concurrency, default=0)
    if in_flight > case.server.max_sequences:
        settings = f"concurrency = {in_flight} with max_sequences = {case.server.max_sequences}"
        advice = "raise max_sequences, or lower concurrency"
        raise MatrixError(f"{settings}: the server must accept all requests in flight; {advice}")

    if case.load.burstiness != 1.0 and table.arrivals is not Arrivals.GAMMA:
        raise MatrixError(
            'burstiness works only with gamma arrivals; set arrivals = "gamma" or leave it out'
        )

    # With fewer prompts the load would never be as high as its id says.
    if case.judging.speed and case.load.duration_s is None and case.request.prompts < in_flight:
        raise MatrixError(
            f"prompts = {case.request.prompts} with concurrency = {in_flight}; needed one for each"
            " request in flight; raise prompts, or lower concurrency"
        )


def _check_parallel(parallel: Parallel) -> None:
    """Check that a server on several nodes is one copy with the same number of GPUs on each.

    Raises:
        MatrixError: the server has several copies, or another number of GPUs on one of the nodes.
    """
    if parallel.nodes > 1 and (parallel.data > 1 or parallel.gpus % parallel.nodes):
        raise MatrixError(
            f"parallel.nodes = {parallel.nodes} with data = {parallel.data}, tensor ="
            f" {parallel.tensor} and pipeline = {parallel.pipeline}: a server on several nodes must"
            " be one copy with the same number of GPUs on each; change one of them"
        )


def _check_thinking(request: Request) -> None:
    """Check that a chat template can switch thinking, and that nothing else switches it.

    Raises:
        MatrixError: the requests aren't a chat, or `chat_template_args` has the switch too.
    """
    if request.form is not Form.CHAT:
        message = (
            f"thinking = {as_toml(request.thinking)} with form = {as_toml(request.form)}, which"
        )
        raise MatrixError(f"{message} has no chat template; leave one of them out")
    for name in THINKING_SWITCHES:
        if name in dict(request.chat_template_args):
            message = f"thinking with chat_template_args.{name}, which sets the same"
            raise MatrixError(f"{message}; leave one of them out")
