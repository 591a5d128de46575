"""The hub: the name of a file in, a copy of it in the hub's own cache out.

`huggingface_hub` shows progress, goes on where a connection broke, and keeps what it has.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specreg.core.commands import install_command
from specreg.core.errors import DatasetError, ModelError, SpecregError

_BRANCH = "main"
_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
_ON = {"1", "ON", "YES", "TRUE"}
"""What huggingface_hub takes for yes."""
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A file of the hub: where it lies, and the commit that it is of."""

    path: Path
    commit: str


def fetch_dataset_file(
    repo: str, file: str, revision: str, *, endpoint: str | None = None, cache: Path | None = None
) -> Fetched:
    """Fetches a file of a dataset, or finds it in the cache.

    Args:
        repo: `openai/gsm8k` for instance.
        file: its path there.
        revision: a branch, a tag or a commit.
        endpoint: the hub's address, None for HF_ENDPOINT, or huggingface.co without that.
        cache: its folder of files, None for HF_HUB_CACHE, or ~/.cache/huggingface without that.

    Raises:
        DatasetError: huggingface_hub is missing, the hub can't be reached or doesn't give it, or
            what came isn't what the hub has.
    """
    found = _download(
        DatasetError,
        f"hub dataset '{repo}': {file}",
        "give --from",
        repo_id=repo,
        filename=file,
        repo_type="dataset",
        revision=revision,
        endpoint=endpoint,
        cache_dir=cache,
    )
    # The cache keeps a file as snapshots/<commit>/<file>, as huggingface_hub documents.
    return Fetched(path=found, commit=found.parts[-len(Path(file).parts) - 1])


def fetch_model_file(repo: str, file: str) -> Path:
    """A file of a model: from the cache if it is there, however old, else fetched.

    Args:
        repo: `Qwen/Qwen3-8B` for instance.
        file: its path there.

    Raises:
        ModelError: huggingface_hub is missing, the hub can't be reached or doesn't give it, or what
            came isn't what the hub has.
    """
    asked = {"repo_id": repo, "filename": file}
    with contextlib.suppress(ModelError):
        return _download(ModelError, "", "", **asked, local_files_only=True)
    return _download(ModelError, f"hub model '{repo}': {file}", "name a folder", **asked)


def check_access(repo: str) -> None:
    """Silent where the hub would give a model, or huggingface_hub isn't there to ask it.

    One request of no content. The hub answers an expired token as it does a model that isn't there.

    Raises:
        ModelError: it wouldn't, or can't be reached.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        return
    with (
        _hub(ModelError, f"hub model '{repo}'", "name a folder") as hub,
        # A model in another form than transformers' has none, and its engine knows.
        contextlib.suppress(hub.errors.EntryNotFoundError),
    ):
        hub.get_hf_file_metadata(hub.hf_hub_url(repo, "config.json"))


def cached_model(repo: str, variables: Mapping[str, str]) -> Path | None:
    """The folder of a model's newest commit in the hub's cache, None where it was never fetched.

    Found by the layout that huggingface_hub documents ("Understand caching"), so that neither it
    nor the hub is asked; a fetch that broke off leaves a folder too.

    Args:
        repo: `Qwen/Qwen3-8B` for instance.
        variables: the environment, which may name the cache.
    """
    folder = hub_cache_dir(variables) / f"models--{repo.replace('/', '--')}"
    with contextlib.suppress(OSError):
        snapshot = folder / "snapshots" / (folder / "refs" / _BRANCH).read_text().strip()
        return snapshot if snapshot.is_dir() else None
    return None


def is_offline(variables: Mapping[str, str]) -> bool:
    """Whether the hub isn't to be asked, by HF_HUB_OFFLINE."""
    return variables.get("HF_HUB_OFFLINE", "").upper() in _ON


def hub_cache_dir(variables: Mapping[str, str]) -> Path:
    """Where the hub's library and the engines keep what they fetch."""
    older = variables.get("HUGGINGFACE_HUB_CACHE", "")
    given = variables.get("HF_HUB_CACHE") or older
    return Path(given).expanduser() if given else _home(variables) / "hub"


def has_token(variables: Mapping[str, str]) -> bool:
    """Whether there is a token to show to the hub; what it is stays where it is."""
    path = variables.get("HF_TOKEN_PATH")
    file = Path(path).expanduser() if path else _home(variables) / "token"
    return any(map(variables.get, _TOKENS)) or file.is_file()


def _home(variables: Mapping[str, str]) -> Path:
    caches = variables.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(variables.get("HF_HOME") or f"{caches}/huggingface").expanduser()


def _download(
    kind: type[SpecregError], subject: str, otherwise: str, **asked: str | Path | bool | None
) -> Path:
    """Where the file lies that `hf_hub_download` is asked for, or an error of a kind."""
    with _hub(kind, subject, otherwise) as hub:
        found = Path(hub.hf_hub_download(**asked))
    if wrong := _why_torn(found):
        raise kind(f"{subject}: {wrong}")
    return found


@contextlib.contextmanager
def _hub(kind: type[SpecregError], subject: str, otherwise: str) -> Iterator[Any]:
    """`huggingface_hub`, whose errors become those of a kind."""
    try:
        hub = importlib.import_module("huggingface_hub")
        errors = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        message = (
            f"{subject}: fetching takes huggingface_hub, which isn't installed;"
            f" {install_command('datasets')}, or {otherwise}"
        )
        raise kind(message) from error
    try:
        yield hub
    except errors.GatedRepoError as error:
        message = f"{subject}: its terms must be accepted at the hub first; then run hf auth login"
        raise kind(message) from error
    except (errors.HTTPError, errors.EntryNotFoundError, OSError, ValueError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        again = f"run it again where the hub can be reached, or {otherwise}"
        raise kind(f"{subject}: {said[0]}; {again}") from error


def _why_torn(path: Path) -> str:
    """Why a file of the cache isn't what the hub has; empty where it is, or nobody can tell.

    A snapshot's file is a link to `blobs/<etag>`: the SHA-256 of a large file's content, git's
    SHA-1 of another's. The library itself compares sizes alone (huggingface_hub 1.x).
    """
    blob = path.resolve()
    size = blob.stat().st_size
    with blob.open("rb") as file:
        if _SHA256.fullmatch(blob.name):
            got = hashlib.file_digest(file, "sha256").hexdigest()
        elif _SHA1.fullmatch(blob.name):
            start = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
            got = hashlib.file_digest(file, lambda: start).hexdigest()
        else:
            return ""
    if got == blob.name:
        return ""
    return (
        f"is not what the hub has (checksum {got[:12]}…, needed {blob.name[:12]}…); remove {blob}"
        " and fetch it again"
    )
