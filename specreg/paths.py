"""Where specreg keeps what it makes: environments and models in the user's cache, logs by the run.

`SPECREG_CACHE` names another folder for the cache.
"""

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """The folder of engine environments and padded models; shared by all checkouts of a user."""
    given = os.environ.get("SPECREG_CACHE")
    return Path(given) if given else Path(platformdirs.user_cache_dir("specreg"))
