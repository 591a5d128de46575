"""Access the hub through huggingface_hub, with its cache, its token and its progress bars."""

import contextlib
import functools
import importlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specreg.core.commands import install_command
from specreg.core.errors import DatasetError, SpecregError, UnfetchedModelError
from specreg.datasets.hub_fetch import code_of, has_all_weights, message_of

DISK_REMEDY = "make room there or repair its rights, or name another folder with HF_HUB_CACHE"
"""What to do if files can't be written to the hub's cache."""


def fetch_dataset_file(repo: str, file: str) -> tuple[Path, str]:
    """Fetch a file of a dataset, or find it in the cache.

    Returns:
        The path of the file, and its commit.

    Raises:
        DatasetError: huggingface_hub is missing, or the hub can't be reached or refuses the file.
    """
    with _hub(DatasetError, f"hub dataset '{repo}': {file}", "give --from") as hub:
        path = Path(hub.hf_hub_download(repo, file, repo_type="dataset"))
    # The cache keeps a file as snapshots/<commit>/<file>, as huggingface_hub documents.
    commit = path.parts[-len(Path(file).parts) - 1]
    return path, commit


def fetch_model_file(repo: str, file: str) -> Path:
    """Return a file of a model from the cache, however old it is, or fetch it.

    Raises:
        UnfetchedModelError: huggingface_hub is missing, or the hub can't be reached or refuses the
            file.
    """
    with _hub(UnfetchedModelError, f"hub model '{repo}': {file}", "name a folder") as hub:
        cached = hub.try_to_load_from_cache(repo, file)
        if isinstance(cached, str):
            return Path(cached)
        return Path(hub.hf_hub_download(repo, file))


# The answer is cached because the servers of a tier share their models.
@functools.cache
def why_unfetchable(repo: str) -> str:
    """Return why a model can't be fetched from the hub; empty if it can, or is in the cache.

    This takes one request, which downloads nothing. Without huggingface_hub nothing is requested,
    and the text is empty. The hub gives the same answer for an expired token as for a model that
    doesn't exist.
    """
    if not is_installed() or is_cached(repo):
        return ""
    try:
        with (
            _hub(UnfetchedModelError, f"hub model '{repo}'", "name a folder") as hub,
            # A model in another format than transformers' has no config.json. Its engine will
            # find out whether it can be used.
            contextlib.suppress(hub.errors.EntryNotFoundError),
        ):
            hub.get_hf_file_metadata(hub.hf_hub_url(repo, "config.json"))
    except UnfetchedModelError as error:
        return str(error)

    return ""


def why_gated(*, has_token: bool) -> str:
    """Return why the hub refuses a gated repository, and what to do about it.

    Args:
        has_token: True if the hub got a token.
    """
    if has_token:
        return (
            "its terms must be accepted at the hub by the account of the token; accept them on its"
            " page, or set HF_TOKEN to a token of an account that has accepted them"
        )
    return (
        "its terms must be accepted at the hub first, and there is no token; accept them on its"
        " page, then set HF_TOKEN or run hf auth login"
    )


def is_installed() -> bool:
    """Return True if huggingface_hub is installed."""
    return importlib.util.find_spec("huggingface_hub") is not None


def is_cached(repo: str) -> bool:
    """Return True if the cache has all weights of a model's main branch.

    The hub isn't asked, so the branch may have a newer commit there.
    """
    if not is_installed():
        return False
    # Look where huggingface_hub itself looks.
    variables = {"HF_HUB_CACHE": str(_constants().HF_HUB_CACHE)}
    return has_all_weights(snapshot_folder(repo, "", variables))


def hub_cache_dir(variables: Mapping[str, str] = os.environ) -> Path:
    """Return the cache folder of huggingface_hub and the engines, as variables set it."""
    home = variables.get("HF_HOME", "")
    if not home:
        user_cache = variables.get("XDG_CACHE_HOME") or "~/.cache"
        home = os.path.join(user_cache, "huggingface")  # noqa: PTH118 - a text that has a ~
    return Path(variables.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()


def cached_commit(repo: str, revision: str, variables: Mapping[str, str] = os.environ) -> str:
    """Return the commit that the cache has for a revision of a model.

    A branch may have moved on at the hub since the model was fetched.

    Args:
        repo: the model's hub id.
        revision: a branch, a tag or a commit; empty for the main branch.
        variables: the environment variables of the process that has fetched the model.

    Returns:
        The commit; empty if the cache doesn't have it.
    """
    folder = _model_folder(repo, variables)
    if revision and (folder / "snapshots" / revision).is_dir():
        return revision
    try:
        return (folder / "refs" / (revision or "main")).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def snapshot_folder(repo: str, revision: str, variables: Mapping[str, str]) -> Path:
    """Return the folder with the files of a revision of a model in the cache.

    Args:
        repo: the model's hub id.
        revision: a branch, a tag or a commit; empty for the main branch.
        variables: the environment variables of the process that has fetched the model.

    Returns:
        The folder; one without files if the cache doesn't have the revision.
    """
    commit = cached_commit(repo, revision, variables)
    return _model_folder(repo, variables) / "snapshots" / commit


def _model_folder(repo: str, variables: Mapping[str, str]) -> Path:
    """Return the folder of a model in the cache, as huggingface_hub documents it."""
    return hub_cache_dir(variables) / f"models--{repo.replace('/', '--')}"


def is_offline() -> bool:
    """Return True if HF_HUB_OFFLINE forbids requests to the hub."""
    return is_installed() and bool(_constants().HF_HUB_OFFLINE)


def _constants() -> Any:  # noqa: ANN401 - a library that may be missing
    """Return the constants of huggingface_hub, which must be installed."""
    return importlib.import_module("huggingface_hub.constants")


@contextlib.contextmanager
def _hub(kind: type[SpecregError], subject: str, alternative: str) -> Iterator[Any]:
    """Yield `huggingface_hub`, and raise its errors as an error of specreg.

    Args:
        kind: the type of the error to raise.
        subject: what the error is about.
        alternative: what the user can do without the hub.

    Raises:
        SpecregError: an error of that type: huggingface_hub is missing, or raised an error.
    """
    try:
        hub = importlib.import_module("huggingface_hub")
        errors = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        raise kind(
            f"{subject}: fetching needs huggingface_hub, which isn't installed;"
            f" {install_command('datasets')}, or {alternative}"
        ) from error
    try:
        yield hub
    except errors.GatedRepoError as error:
        has_token = hub.get_token() is not None
        raise kind(f"{subject}: {why_gated(has_token=has_token)}") from error
    except (
        errors.HTTPError,
        errors.EntryNotFoundError,
        OSError,
        RuntimeError,
        ValueError,
    ) as error:
        remedy = f"run again where the hub can be reached, or {alternative}"
        if code_of(error) == "disk":
            remedy = DISK_REMEDY
        raise kind(f"{subject}: {message_of(error)}; {remedy}") from error
