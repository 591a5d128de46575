"""Which certificates of a server are trusted, and what is wrong with one that isn't."""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from specreg.core.errors import AnswerError

_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
"""The variables that name further certificates: of OpenSSL, and of requests, which many set."""


def trusted_certificates(
    base_url: str, variables: Mapping[str, str] = os.environ
) -> ssl.SSLContext | bool:
    """Return what httpx takes as `verify`: those of certifi, of the system and of the variables.

    Args:
        base_url: The server's URL. Without TLS nothing is loaded, as that takes a while.
        variables: The environment.

    Raises:
        AnswerError: A file that a variable names can't be read.
    """
    if not base_url.startswith("https:"):
        return False
    import httpx  # noqa: PLC0415 - takes long, and few commands ask a server

    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    for name in _VARIABLES:
        path = variables.get(name, "")
        try:
            if path and Path(path).is_dir():
                context.load_verify_locations(capath=path)
            elif path:
                context.load_verify_locations(cafile=path)
        except OSError as error:
            raise AnswerError(
                f"{name} = '{path}': holds no certificates that can be read, {error}; name a file"
                " in PEM form, or leave it out"
            ) from error
    return context


def why_not_trusted(error: ssl.SSLError) -> str:
    """Say what is wrong with a server's certificate, or with its TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate could not be verified ({error.verify_message.rstrip('.')}); name the"
            " certificate of its authority with SSL_CERT_FILE"
        )
    return f"TLS failed ({error.reason or error}); check the scheme and the port of the URL"
