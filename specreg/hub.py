"""The hub: the name of a file in, a copy of it in the hub's own cache out.

`huggingface_hub` shows progress, goes on where a download broke off, and keeps what it has.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path

from specreg.errors import DatasetError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A file of the hub: where it lies, and the commit that it is of."""

    path: Path
    commit: str


def fetch_dataset_file(repo: str, file: str, revision: str) -> Fetched:
    """Fetches a file of a dataset, or finds it in the cache.

    Args:
        repo: `openai/gsm8k` for instance.
        file: its path there.
        revision: a branch, a tag or a commit.

    Raises:
        DatasetError: huggingface_hub is missing, the hub can't be reached, or it doesn't give it.
    """
    subject = f"hub dataset '{repo}': {file}"
    try:
        hub = importlib.import_module("huggingface_hub")
        errors = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        message = (
            f"{subject}: fetching takes huggingface_hub, which isn't installed;"
            " pip install 'specreg[datasets]', or give a file with --from"
        )
        raise DatasetError(message) from error
    try:
        path = Path(hub.hf_hub_download(repo, file, repo_type="dataset", revision=revision))
    except errors.GatedRepoError as error:
        message = f"{subject}: its terms must be accepted at the hub first; then run hf auth login"
        raise DatasetError(message) from error
    except (errors.HTTPError, errors.EntryNotFoundError, OSError, ValueError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        message = f"{subject}: {said[0]}; run it again where the hub can be reached, or give --from"
        raise DatasetError(message) from error
    # The cache keeps a file as snapshots/<commit>/<file>, as huggingface_hub documents.
    return Fetched(path=path, commit=path.parts[-len(Path(file).parts) - 1])
