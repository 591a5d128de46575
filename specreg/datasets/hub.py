"""Access to the hub, with huggingface_hub's own cache, token and progress."""

import contextlib
import functools
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specreg.core.commands import install_command
from specreg.core.errors import DatasetError, ModelError, SpecregError


def fetch_dataset_file(repo: str, file: str) -> tuple[Path, str]:
    """Fetch a file of a dataset, or find it in the cache: where it lies, and its commit.

    Raises:
        DatasetError: huggingface_hub is missing, or the hub can't be reached or doesn't give it.
    """
    with _hub(DatasetError, f"hub dataset '{repo}': {file}", "give --from") as hub:
        found = Path(hub.hf_hub_download(repo, file, repo_type="dataset"))
    # The cache keeps a file as snapshots/<commit>/<file>, as huggingface_hub documents.
    return found, found.parts[-len(Path(file).parts) - 1]


def fetch_model_file(repo: str, file: str) -> Path:
    """A file of a model, from the cache however old, else fetched; raises a ModelError likewise."""
    with _hub(ModelError, f"MODEL_NOT_FETCHED: hub model '{repo}': {file}", "name a folder") as hub:
        cached = hub.try_to_load_from_cache(repo, file)
        return Path(cached if isinstance(cached, str) else hub.hf_hub_download(repo, file))


@functools.cache  # the servers of a tier share their models
def why_unfetchable(repo: str) -> str:
    """Why the hub wouldn't give a model, empty where it would or the model is in the cache.

    One request of no content; none without huggingface_hub to ask. The hub answers an expired token
    as it does a model that isn't there.
    """
    if is_installed() and not is_cached(repo):
        try:
            with (
                _hub(ModelError, f"MODEL_NOT_FETCHED: hub model '{repo}'", "name a folder") as hub,
                # A model in another form than transformers' has none, and its engine knows.
                contextlib.suppress(hub.errors.EntryNotFoundError),
            ):
                hub.get_hf_file_metadata(hub.hf_hub_url(repo, "config.json"))
        except ModelError as error:
            return str(error)
    return ""


def is_installed() -> bool:
    """Whether huggingface_hub is there to look into its cache and to ask the hub."""
    return importlib.util.find_spec("huggingface_hub") is not None


def is_cached(repo: str) -> bool:
    """Whether weights of a model's newest commit are in the hub's cache; the hub isn't asked."""
    if not is_installed():
        return False
    hub = importlib.import_module("huggingface_hub")
    try:
        folder = Path(hub.snapshot_download(repo, local_files_only=True))
    except hub.errors.LocalEntryNotFoundError:
        return False
    return any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "*.bin"))


def hub_cache_dir() -> Path | None:
    """Where huggingface_hub and the engines keep what they fetch; None where it isn't installed."""
    return Path(_constants().HF_HUB_CACHE) if is_installed() else None


def is_offline() -> bool:
    """Whether the hub isn't to be asked, by HF_HUB_OFFLINE."""
    return is_installed() and bool(_constants().HF_HUB_OFFLINE)


def _constants() -> Any:  # noqa: ANN401 - of a library that may be missing
    return importlib.import_module("huggingface_hub.constants")


@contextlib.contextmanager
def _hub(kind: type[SpecregError], subject: str, otherwise: str) -> Iterator[Any]:
    """Yield `huggingface_hub`, and raise its errors as those of a kind."""
    try:
        hub = importlib.import_module("huggingface_hub")
        errors = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        raise kind(
            f"{subject}: fetching takes huggingface_hub, which isn't installed;"
            f" {install_command('datasets')}, or {otherwise}"
        ) from error
    try:
        yield hub
    except errors.GatedRepoError as error:
        message = f"{subject}: its terms must be accepted at the hub first; then run hf auth login"
        raise kind(message) from error
    except (errors.HTTPError, errors.EntryNotFoundError, OSError, ValueError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        again = f"run it again where the hub can be reached, or {otherwise}"
        raise kind(f"{subject}: {said[0]}; {again}") from error
