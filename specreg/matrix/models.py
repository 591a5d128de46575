"""Find models by folder or hub id, compute their checksums, and make larger models from them."""

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specreg.core.errors import ModelError
from specreg.core.files import (
    MIB,
    cache_dir,
    cause_of,
    file_sha256,
    read_regular,
    real_path,
    repository_path,
    temporary_folder_beside,
)
from specreg.core.locks import new_lock
from specreg.datasets.hub import fetch_model_file, snapshot_folder, why_unfetchable
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.weights import (
    CONFIG,
    MALFORMED_FILE_ERRORS,
    SHAPES,
    TARGET,
    TOKENIZER_FILES,
    Shape,
    count_in,
    write_padded_model,
    write_widened_model,
)

_HUB_SETTING = re.compile(r"-*download[-_]dir|HF_|HUGGING_?FACE_|.*_USE_MODELSCOPE")
"""Arguments and variables that change where an engine looks for models, so that specreg can't say
that a model is missing."""
_OWN_FETCH = re.compile(r"-*(?:download[-_]dir|load[-_]format)|.*_USE_MODELSCOPE")
"""Arguments and variables by which an engine gets its weights in a way that specreg can't repeat.
specreg then doesn't fetch them first."""
_WIDENED = re.compile(r".+-wide-\w+-([0-9a-f]{64})")
"""The name of a widened model's folder. It ends with a checksum of what the model is made from."""
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""The suffixes of files with weights. An engine may load any of them."""
_RECIPE = 1
"""The version of the recipe of widened models. If it is raised, all of them are made again."""


def resolve_model(root: Path, reference: str) -> str:
    """Return the absolute path of a model's folder, or a hub id as it is.

    Args:
        root: the root of the repository, which relative folders start from. A folder of `fixtures/`
            that the repository lacks is taken from specreg's own `fixtures/`, which has the tiny
            models.
        reference: the folder or the hub id.

    Raises:
        ModelError: the folder is missing or incomplete.
    """
    if is_hub_id(reference):
        return reference
    folder = real_path(repository_path(root, reference))
    missing = ""
    if not (folder / CONFIG).exists():
        missing = CONFIG
    elif not _weight_files(folder):
        missing = f"a file with weights (*{', *'.join(_WEIGHT_SUFFIXES)})"

    if missing:
        message = f"model folder '{folder}': {missing} is missing; check the path in the tier"
        raise ModelError(message)
    return str(folder)


def _weight_files(folder: Path) -> list[Path]:
    """Return the files with weights in a folder, sorted, so that the order is always the same."""
    return sorted(path for path in folder.glob("*") if path.suffix in _WEIGHT_SUFFIXES)


def is_hub_id(reference: str) -> bool:
    """Return whether a reference to a model is a hub id, and not a folder."""
    return not reference.startswith((".", "/", "fixtures/"))


def fetches_elsewhere(spec: ServerSpec, variables: Mapping[str, str]) -> bool:
    """Return whether the engine of a server fetches its models in a way that only it knows.

    Args:
        variables: all environment variables of the server.
    """
    names = [name for name, value in variables.items() if value]
    return any(
        _OWN_FETCH.match(argument_or_name) for argument_or_name in (*spec.engine_args, *names)
    )


def why_no_models(spec: ServerSpec) -> str:
    """Return why a server's models can't be fetched from the hub.

    Returns:
        The reason; empty if they can be fetched, are in the cache, or if the engine is set to look
        for models elsewhere.
    """
    names = [name for name, _ in spec.engine_env]
    if any(
        _HUB_SETTING.match(argument_or_name) for argument_or_name in (*spec.engine_args, *names)
    ):
        return ""

    for model in (spec.target, spec.draft):
        if model and "/" in model and is_hub_id(model):
            reason = why_unfetchable(model)
            if reason:
                return reason

    return ""


def model_file(reference: str, name: str) -> Path:
    """Return the path of a model's file, which is fetched if it isn't in the hub's cache.

    Raises:
        ModelError: the folder doesn't have the file, or the hub refuses it.
    """
    folder = Path(reference)
    if not folder.is_dir():
        return fetch_model_file(reference, name)
    if not (folder / name).is_file():
        raise ModelError(f"model folder '{folder}': {name} is missing; name a folder that has it")
    return folder / name


def config_of(reference: str, revision: str, variables: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a model's configuration if it is on this machine. Nothing is fetched.

    Args:
        reference: the folder or the hub id.
        revision: the revision on the hub; empty for the main branch.
        variables: all environment variables of the server that has the model.

    Returns:
        The content of its `config.json`; empty if that is missing or can't be read.
    """
    folder = Path(reference)
    if not folder.is_dir():
        folder = snapshot_folder(reference, revision, variables)
    try:
        config = json.loads(read_regular(folder / CONFIG, MIB))
    except (OSError, *MALFORMED_FILE_ERRORS):
        return {}

    return config if isinstance(config, dict) else {}


def vocabulary_of(reference: str) -> int:
    """Return how many token ids a model has.

    Raises:
        ModelError: its configuration is missing, or doesn't have the number.
    """
    path = model_file(reference, CONFIG)
    try:
        config = json.loads(read_regular(path, MIB))
        # A model that also takes images has the settings of its language model in `text_config`.
        return count_in(config.get("text_config", config), "vocab_size")
    except (*MALFORMED_FILE_ERRORS, OSError) as error:
        message = f"model '{reference}': no vocab_size in its {CONFIG} ({cause_of(error)})"
        raise ModelError(f"{message}; name a folder that has one") from error


@functools.cache
def model_sha256(reference: str) -> str:
    """Return a checksum of a model folder's weights and configuration; empty for a hub id.

    The files are read once per process, because a model that is served must not change.

    Raises:
        ModelError: a file can't be read.
    """
    folder = Path(reference)

    # The name of a widened model has the checksum of its source and its sizes. It is known before
    # the model is made, and saves reading 17 GB.
    widened = _WIDENED.fullmatch(folder.name)
    if widened and folder.parent == cache_dir() / "models":
        return widened[1]
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in (folder / CONFIG, *_weight_files(folder)):
        with _named_errors(path):
            digest.update(bytes.fromhex(file_sha256(path)))
    return digest.hexdigest()


@contextlib.contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Raise an OSError as a ModelError that names the file of the model."""
    try:
        yield
    except OSError as error:
        problem = f"model file '{path}': {cause_of(error)}"
        cure = "remove it, or fetch the model again"
        if path.is_symlink():
            problem = f"{problem}, behind the link to '{path.readlink()}'"
        raise ModelError(f"{problem}; {cure}") from error


def served_models(root: Path, spec: ServerSpec) -> tuple[str, str | None]:
    """Return the target and the draft that a server is started with, as folders or hub ids.

    A padded target is made if it isn't in the cache. A widened model may not exist yet; it is made
    by `widen_models`.

    Raises:
        ModelError: a folder is missing or incomplete, or can't be made larger; or the padded target
            can't be written.
    """
    if spec.widen is not None:
        target, *drafts = [str(wide.folder) for wide in _wide_models(root, spec)]
        return target, next(iter(drafts), None)
    target = resolve_model(root, spec.target)
    if spec.padding_layers:
        target = _pad(target, spec.padding_layers)
    draft = None
    if spec.draft is not None:
        draft = resolve_model(root, spec.draft)
    return target, draft


def _pad(target: str, layers: int) -> str:
    """Return the folder of a target with identity layers, and make it if need be.

    Args:
        target: the folder of the target.
        layers: the number of identity layers, which make the target slower and change no token.

    Raises:
        ModelError: the target isn't a folder, or can't be padded; or the result can't be written.
    """
    if is_hub_id(target):
        raise ModelError(f"model '{target}': only a folder can be padded; set padding_layers = 0")
    source = Path(target)
    # The name has a checksum of the source, so a changed source gets a new folder.
    padded = cache_dir() / "models" / f"{source.name}-{layers}-{_content_sha256(source)[:16]}"
    _make_folder(padded, lambda folder: write_padded_model(source, folder, layers))
    return str(padded)


def widen_models(root: Path, spec: ServerSpec, *, show: Callable[[str], None]) -> None:
    """Make a server's widened models that aren't in the cache yet.

    Raises:
        ModelError: a folder is missing or incomplete, or can't be widened; or a widened model can't
            be written.
    """

    def write(wide: _WideModel, empty_folder: Path) -> None:
        show(f"widening {wide.source.name} to {spec.widen}, once")
        write_widened_model(wide.source, wide.shape, empty_folder)

    for wide in _wide_models(root, spec):
        _make_folder(wide.folder, functools.partial(write, wide))


def widened_folders(root: Path, spec: ServerSpec) -> Iterator[tuple[Path, bool]]:
    """Yield the folder of each widened model of a server, and whether the model is the target.

    A folder may not exist yet. Yields nothing if the server's models aren't widened.

    Raises:
        ModelError: as in `widen_models`.
    """
    for wide in _wide_models(root, spec):
        yield wide.folder, wide.is_target


def _content_sha256(folder: Path, *parameters: object) -> str:
    """Return a checksum of a model, its tokenizer, and the parameters of a model made from it."""
    content = hashlib.sha256(model_sha256(str(folder)).encode())
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            with _named_errors(folder / name):
                content.update((folder / name).read_bytes())

    for parameter in parameters:
        content.update(repr(parameter).encode())
    return content.hexdigest()


def _make_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Make a folder in the cache if it isn't there. It appears only once it is complete.

    If several processes need it at the same time, one of them makes it and the others wait.

    Args:
        write: writes the content to an empty folder, which is then renamed.

    Raises:
        ModelError: a file can't be written, or as in `write`.
    """
    try:
        if folder.is_dir():
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_lock(folder.parent.with_suffix(".lock")):
            # Another process may have written it while this one waited.
            if folder.is_dir():
                return
            with temporary_folder_beside(folder) as empty_folder:
                write(empty_folder)
                empty_folder.rename(folder)
    except OSError as error:
        message = f"model folder '{folder}': can't be written, {error.strerror}; make room, or name"
        raise ModelError(f"{message} another cache with SPECREG_CACHE") from error


class _WideModel(NamedTuple):
    """A widened model, which may not exist yet.

    Attributes:
        source: the folder of the narrow model.
        shape: the sizes of the wide model.
        folder: the folder of the wide model.
        is_target: True for the target, False for the draft.
    """

    source: Path
    shape: Shape
    folder: Path
    is_target: bool


def _wide_models(root: Path, spec: ServerSpec) -> Iterator[_WideModel]:
    """Yield a server's target and then its draft, if the server's models are widened.

    Raises:
        ModelError: the folder of one of them is missing or incomplete, or can't be widened.
    """
    if spec.widen is None:
        return
    shapes = SHAPES[spec.widen]
    models = {TARGET: spec.target}
    if spec.draft:
        models[spec.method] = spec.draft
    for role, reference in models.items():
        shape = shapes.get(role)
        source = Path(resolve_model(root, reference))
        if shape is None or not source.is_dir():
            drafting = " or ".join(sorted(shapes.keys() - {TARGET}))
            raise ModelError(
                f"model '{reference}' of pair '{spec.models}': only the folder of a target, or of a"
                f" draft for {drafting}, can be widened; leave widen out"
            )
        content_sha256 = _content_sha256(source, shape, _RECIPE)
        folder = cache_dir() / "models" / f"{source.name}-wide-{spec.widen}-{content_sha256}"
        yield _WideModel(source, shape, folder, role == TARGET)
