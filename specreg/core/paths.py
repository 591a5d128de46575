"""Where specreg keeps what it makes: environments and models in the user's cache, logs by the run.

`SPECREG_CACHE` names another folder for the cache, `SPECREG_DATA` one for prompt sets.
"""

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """The folder of environments and of models made larger; shared by all checkouts of a user."""
    given = os.environ.get("SPECREG_CACHE")
    return Path(given) if given else Path(platformdirs.user_cache_dir("specreg"))


def data_dir() -> Path:
    """The folder of the prompt sets that `specreg prepare` wrote; shared as the cache is."""
    given = os.environ.get("SPECREG_DATA")
    return Path(given) if given else cache_dir() / "datasets"
