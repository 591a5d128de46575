"""Where a server answers, and what each request to it needs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server.

    The token stays in its variable, so that no file and no message to another process has it.

    Attributes:
        url: the URL that the paths of the server's API follow: `http://HOST:PORT`, and a prefix if
            the server is behind one.
        token_env: the variable with the token that each request carries; empty for none.
        ca_file: a file with further certificates to trust; empty for none.
        counters_urls: the pages with the server's counters, one of each replica; empty if they are
            where the engine has them.
    """

    url: str
    token_env: str = ""
    ca_file: str = ""
    counters_urls: tuple[str, ...] = ()

    @property
    def has_tls(self) -> bool:
        """True if any request to the server goes through TLS."""
        return any(url.startswith("https:") for url in (self.url, *self.counters_urls))

    def headers(self, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the headers that each request to the server carries."""
        if not self.token_env:
            return {}
        return {"Authorization": f"Bearer {variables.get(self.token_env, '')}"}
