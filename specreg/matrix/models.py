"""Find models by folder or hub id, identify them by checksum, and make larger ones of them."""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import filelock

from specreg.core.errors import ModelError
from specreg.core.files import (
    MIB,
    cache_dir,
    file_sha256,
    passing_folder,
    read_regular,
    repository_path,
)
from specreg.datasets.hub import fetch_model_file, why_unfetchable
from specreg.matrix.case import ServerSpec
from specreg.matrix.weights import (
    CONFIG,
    SHAPES,
    TARGET,
    TOKENIZER_FILES,
    UNFIT,
    Shape,
    write_padded_model,
    write_widened_model,
)

# A case with one of these settings has its engine look for models where specreg doesn't.
_HUB_SETTING = re.compile(r"-*download[-_]dir|HF_|HUGGING_?FACE_|.*_USE_MODELSCOPE")
_OWN_FETCH = re.compile(r"-*(?:download[-_]dir|load[-_]format)|.*_USE_MODELSCOPE")
"""Settings with which an engine fetches something that only the engine knows."""
_WIDENED = re.compile(r".+-wide-\w+-([0-9a-f]{64})")
"""The name of a widened model's folder. It ends with a checksum of what the model is made from."""
_RECIPE = 1
"""The version of the format of widened models. Another number has them all made anew."""


def resolve_model(root: Path, reference: str) -> str:
    """Return a model's folder, or a hub id as it is.

    A relative folder is looked up in the repository. A folder of `fixtures/` that isn't there is
    one of the tiny models that specreg brings.

    Raises:
        ModelError: the folder is missing or incomplete.
    """
    if is_hub_id(reference):
        return reference
    folder = repository_path(root, reference).resolve()
    for pattern in (CONFIG, "*.safetensors"):
        if not any(folder.glob(pattern)):
            message = f"model folder '{folder}': {pattern} is missing; check the path in the matrix"
            raise ModelError(message)
    return str(folder)


def is_hub_id(reference: str) -> bool:
    """Return True if a model is named by the hub's id, not by its folder."""
    return not reference.startswith((".", "/", "fixtures/"))


def fetches_elsewhere(spec: ServerSpec, variables: Mapping[str, str]) -> bool:
    """Return whether the engine of a server fetches its models in a way that only it knows.

    Args:
        spec: The server.
        variables: All environment variables of the server.
    """
    names = [name for name, setting in variables.items() if setting]
    return any(_OWN_FETCH.match(setting) for setting in (*spec.engine_args, *names))


def why_no_models(spec: ServerSpec) -> str:
    """Return why the hub refuses a server's models; empty if it doesn't, or if they are at hand.

    It is also empty if the case has the engine look for models elsewhere, which is left to the
    engine.
    """
    variables = [name for name, _ in spec.engine_env]
    if any(_HUB_SETTING.match(setting) for setting in (*spec.engine_args, *variables)):
        return ""
    for model in (spec.target, spec.draft):
        if model and "/" in model and is_hub_id(model):
            reason = why_unfetchable(model)
            if reason:
                return reason
    return ""


def model_file(reference: str, name: str) -> Path:
    """Return the path of a model's file: in its folder, or in the hub's cache, or fetched.

    Raises:
        ModelError: The folder doesn't have it, or the hub refuses it.
    """
    folder = Path(reference)
    if not folder.is_dir():
        return fetch_model_file(reference, name)
    if not (folder / name).is_file():
        raise ModelError(f"model folder '{folder}': {name} is missing; name a folder that has it")
    return folder / name


def vocabulary_of(reference: str) -> int:
    """Return how many token ids a model has.

    Raises:
        ModelError: Its configuration doesn't have the number.
    """
    path = model_file(reference, CONFIG)
    try:
        config = json.loads(read_regular(path, MIB))
        return int(config.get("text_config", config)["vocab_size"])
    except (*UNFIT, OSError) as error:
        message = f"model '{reference}': no vocab_size in its {CONFIG} ({error}); name a folder"
        raise ModelError(f"{message} that has one") from error


@functools.cache
def model_sha256(reference: str) -> str:
    """Return a checksum of a model folder's weights and configuration; empty for a hub id.

    The files are read once per run, because a model that is served must not change. The checksum of
    a widened model is that of what it is made from. So it is known before the model is made, and no
    17 GB have to be read.
    """
    folder = Path(reference)
    widened = _WIDENED.fullmatch(folder.name)
    if widened and folder.parent == cache_dir() / "models":
        return widened[1]
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    # In one order on every machine.
    for path in (folder / CONFIG, *sorted(folder.glob("*.safetensors"))):
        digest.update(bytes.fromhex(file_sha256(path)))
    return digest.hexdigest()


def served_models(root: Path, spec: ServerSpec) -> tuple[str, str | None]:
    """Return the target and the draft that a server is started with: folders, or hub ids.

    A padded target is written if it isn't in the cache. A widened model needn't be there yet; see
    `widen_models`.

    Raises:
        ModelError: A folder is missing or incomplete, or can't be made larger.
    """
    if spec.widen is not None:
        target_folder, *draft_folders = [str(wide.folder) for wide in _wide_models(root, spec)]
        return target_folder, next(iter(draft_folders), None)
    target = resolve_model(root, spec.target)
    if spec.padding_layers:
        target = _pad(target, spec.padding_layers)
    draft = None
    if spec.draft is not None:
        draft = resolve_model(root, spec.draft)
    return target, draft


def _pad(target: str, layers: int) -> str:
    """Return the folder of a target with identity layers, which is written if it isn't there.

    Raises:
        ModelError: The target is no folder, or can't be padded.
    """
    if is_hub_id(target):
        raise ModelError(f"model '{target}': only a folder can be padded; set padding_layers = 0")
    source = Path(target)
    # The name tells what it is made of, so that a changed source isn't taken for the old one.
    padded = cache_dir() / "models" / f"{source.name}-{layers}-{_content_sha256(source)[:16]}"
    _make_folder(padded, lambda folder: write_padded_model(source, folder, layers))
    return str(padded)


def widen_models(root: Path, spec: ServerSpec, *, show: Callable[[str], None]) -> None:
    """Write a server's widened models that aren't in the cache yet.

    Raises:
        ModelError: A folder is missing or incomplete, or can't be widened.
    """
    for wide in _wide_models(root, spec):

        def write(empty_folder: Path, wide: _WideModel = wide) -> None:
            show(f"widening {wide.source.name} to {spec.widen}, once")
            write_widened_model(wide.source, wide.shape, empty_folder)

        _make_folder(wide.folder, write)


def _content_sha256(folder: Path, *parameters: object) -> str:
    """Return a checksum of a model, its tokenizer, and the parameters of what is made of it."""
    content = hashlib.sha256(model_sha256(str(folder)).encode())
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            content.update((folder / name).read_bytes())
    for parameter in parameters:
        content.update(repr(parameter).encode())
    return content.hexdigest()


def _make_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder of the cache unless it is there, whole or not at all.

    Several processes may do so at the same time: one writes, the others wait for it.

    Args:
        folder: the folder.
        write: writes the content to an empty folder, which is then renamed.

    Raises:
        ModelError: The disk refuses.
    """
    try:
        if folder.is_dir():
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.parent.with_suffix(".lock")):
            # Another process may have written it while this one waited.
            if folder.is_dir():
                return
            with passing_folder(folder) as empty_folder:
                write(empty_folder)
                empty_folder.rename(folder)
    except OSError as error:
        message = f"model folder '{folder}': can't be written, {error.strerror}; make room, or name"
        raise ModelError(f"{message} another cache with SPECREG_CACHE") from error


class _WideModel(NamedTuple):
    """A model that is to be widened.

    Attributes:
        source: the folder of the narrow model.
        shape: the sizes to widen to.
        folder: the folder of the wide model.
    """

    source: Path
    shape: Shape
    folder: Path


def _wide_models(root: Path, spec: ServerSpec) -> Iterator[_WideModel]:
    """Yield a server's target and then its draft, if it has one, where they are to be widened.

    Raises:
        ModelError: One of them can't be widened.
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
        yield _WideModel(source, shape, folder)
