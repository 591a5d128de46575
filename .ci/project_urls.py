"""Gives the package the addresses of the repository that it is built in.

The repository doesn't know where it is hosted, so no address stands in `pyproject.toml`. The
release workflow sets `SPECREG_REPOSITORY_URL` from the repository that it runs in; without it the
package has no addresses.
"""

import os
import re
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "SPECREG_REPOSITORY_URL"


class ProjectUrls(MetadataHookInterface):  # type: ignore[misc] # only the build has hatchling
    """hatchling's hook, which completes the metadata of wheel and sdist."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the addresses, if the build says where the repository is.

        Raises:
            ValueError: what it says is no address of a repository.
        """
        repository = os.environ.get(VARIABLE, "").removesuffix("/")
        if not repository:
            return
        if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", repository):
            message = f"{VARIABLE}: {repository!r} is no https address of a repository"
            raise ValueError(f"{message}; set it to one, or leave it out for a package without any")
        metadata["urls"] = {
            "Repository": repository,
            "Documentation": f"{repository}/tree/HEAD/docs",
            "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
