"""Fetch models from the hub with the Python of an engine's environment.

`python -m specreg.datasets.hub_fetch` imports only huggingface_hub and the standard library,
because the environment lacks what specreg depends on. It exchanges lines of JSON with
`specreg.servers.model_fetch`:

- its input names the models, each with a revision that may be empty;
- it answers with a plan, which says how many bytes are missing;
- if something is missing, a second line of input lets it fetch that, and it answers with an empty
  object once everything is there;
- it answers with a failure, and ends, if a model can't be looked up or fetched.

huggingface_hub writes its progress bars to the standard error. It keeps each file that is complete,
so an interrupted fetch goes on with the files that aren't.
"""

import importlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

_INDEX = "model.safetensors.index.json"
_FORMATS = (".safetensors", ".bin", ".pt")
"""The formats of weights, in the order in which vLLM and SGLang look for them."""
_SMALL_FILES = (".json", ".txt", ".model", ".jinja", ".py", ".tiktoken")
"""The files beside the weights: configurations, tokenizers, templates and code."""
_HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "requests", "urllib3")
"""The libraries whose errors huggingface_hub lets through if a connection fails."""


def wanted_files(names: Sequence[str]) -> list[str]:
    """Return the files of a model that an engine loads.

    A repository may have its weights several times: in older formats, in folders, or as Mistral's
    `consolidated.safetensors` beside the files of the index. An engine loads them once.

    Args:
        names: the names of all files of the repository.
    """
    weights: list[str] = []
    for suffix in _FORMATS:
        weights = [name for name in names if name.endswith(suffix) and "/" not in name]
        if weights:
            break

    if _INDEX in names:
        weights = [name for name in weights if not name.startswith("consolidated")]
    small_files = [name for name in names if name.endswith(_SMALL_FILES)]

    # The index comes before the weights, because after an interrupted fetch it shows which of them
    # are missing.
    return [*sorted(small_files), *sorted(weights)]


def look_up(hub: Any, model: str, revision: str | None) -> tuple[list[str], int, int]:  # noqa: ANN401
    """Return which wanted files of a model the cache lacks, and how many bytes they have.

    If the hub can't be reached, weights in the cache are taken for the whole model. No file is
    missing then, and both sizes are 0, because they aren't known.

    Args:
        hub: the module huggingface_hub.
        model: the model's hub id.
        revision: a branch, a tag or a commit; None for the main branch.

    Returns:
        The files that are missing, the bytes of the whole model, and the bytes that are missing.

    Raises:
        Exception: any error of huggingface_hub.
    """
    try:
        info = hub.HfApi().model_info(model, revision=revision, files_metadata=True)
    except Exception as error:
        if code_of(error) == "unreachable" and has_weights(hub, model, revision):
            return [], 0, 0
        raise

    sizes_bytes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings}
    names = wanted_files(list(sizes_bytes))

    # Look for the files of this commit, because the cache may have those of an older one.
    missing_names: list[str] = []
    for name in names:
        cached = hub.try_to_load_from_cache(model, name, revision=info.sha)
        if not isinstance(cached, str):
            missing_names.append(name)

    total_bytes = sum(sizes_bytes[name] for name in names)
    missing_bytes = sum(sizes_bytes[name] for name in missing_names)
    return missing_names, total_bytes, missing_bytes


def has_weights(hub: Any, model: str, revision: str | None) -> bool:  # noqa: ANN401
    """Return whether the cache has all weights of a model; the hub isn't asked."""
    config = hub.try_to_load_from_cache(model, "config.json", revision=revision)
    return isinstance(config, str) and has_all_weights(Path(config).parent)


def has_all_weights(folder: Path) -> bool:
    """Return whether a folder has weights, and every file that its index names."""
    try:
        weight_map = json.loads((folder / _INDEX).read_text())["weight_map"]
        file_names = set(weight_map.values())
        return all((folder / name).is_file() for name in file_names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Without an index the weights are a single file, or those of an older format.
        return any(path.suffix in _FORMATS for path in folder.glob("*"))


def code_of(error: Exception) -> str:
    """Return the kind of an error: `gated`, `not_found`, `unreachable`, `disk` or `other`."""
    errors = importlib.import_module("huggingface_hub.errors")

    # HfHubHTTPError comes last, because some of the errors before it are HTTP errors too.
    kinds = (
        ("gated", "GatedRepoError"),
        ("not_found", "RepositoryNotFoundError"),
        ("not_found", "RevisionNotFoundError"),
        ("not_found", "HFValidationError"),
        ("unreachable", "OfflineModeIsEnabled"),
        ("unreachable", "HfHubHTTPError"),
    )
    for code, class_name in kinds:
        kind = getattr(errors, class_name, None)
        if kind is not None and isinstance(error, kind):
            return code

    library = type(error).__module__.partition(".")[0]
    if library in _HTTP_LIBRARIES or isinstance(error, ConnectionError | TimeoutError):
        return "unreachable"
    if _error_of_disk(error) is not None:
        return "disk"
    return "other"


def _error_of_disk(error: Exception) -> OSError | None:
    """Return the system's error about a file; None if the error is of another kind."""
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        # huggingface_hub resolves its paths, and for a loop of links `Path.resolve` raises this.
        return error.__context__
    if isinstance(error, OSError) and error.errno:
        return error
    return None


def message_of(error: Exception) -> str:
    """Return the message of an error as a line. An error of the disk ends with the file's name."""
    of_disk = _error_of_disk(error)
    if of_disk is not None and code_of(error) == "disk":
        words = of_disk.strerror or "the disk refuses"
        return f"{words}: '{of_disk.filename}'" if of_disk.filename else words
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _write(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _fail(hub: Any, model: str, error: Exception) -> NoReturn:  # noqa: ANN401
    """Answer that a model can't be fetched, and end the process."""
    failure = {
        "model": model,
        "code": code_of(error),
        "words": message_of(error),
        "has_token": hub.get_token() is not None,
    }
    _write({"failure": failure})
    sys.exit()


def main() -> None:
    """Fetch the models that the first line of the input names."""
    # An exception lets huggingface_hub remove the file that it is writing.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    hub = importlib.import_module("huggingface_hub")
    constants = importlib.import_module("huggingface_hub.constants")
    to_fetch: list[tuple[str, str | None, list[str]]] = []
    total_bytes = 0
    missing_bytes = 0
    for model, revision in json.loads(sys.stdin.readline()):
        try:
            names, model_bytes, missing_model_bytes = look_up(hub, model, revision or None)
        except Exception as error:  # noqa: BLE001 - the reader decides what it means
            _fail(hub, model, error)
        total_bytes += model_bytes
        missing_bytes += missing_model_bytes
        if names:
            to_fetch.append((model, revision or None, names))

    plan = {
        "folder": os.path.expanduser(constants.HF_HUB_CACHE),  # noqa: PTH111 - a text with a ~
        "total_bytes": total_bytes,
        "missing_bytes": missing_bytes,
        "is_complete": not to_fetch,
    }
    _write({"plan": plan})
    if not to_fetch or not sys.stdin.readline():
        return
    for model, revision, names in to_fetch:
        try:
            # One after the other, because threads would go on after an interrupt and leave parts of
            # files behind. The hub sends the pieces of a single file in parallel.
            for name in names:
                hub.hf_hub_download(model, name, revision=revision)
        except Exception as error:  # noqa: BLE001 - the reader decides what it means
            _fail(hub, model, error)

    _write({})


if __name__ == "__main__":
    main()
