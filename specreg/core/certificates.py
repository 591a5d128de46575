"""Which certificates of a server are trusted, and what is wrong with one that isn't."""

import os
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path

from specreg.core.errors import AnswerError
from specreg.core.files import check_kind

_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""The variables that name further certificates: of OpenSSL, requests and curl.

OpenSSL takes several folders, as PATH does.
"""
_ADVICE_BY_CODE = {
    9: "check the clocks of both machines",
    10: "have it renewed, or check the clock of this machine",
    62: "use a host name that the certificate is for in the URL",
    64: "use a host name that the certificate is for in the URL",
}
"""What to do about an error of OpenSSL: not yet valid, expired, another name, another address."""


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
    for name in _VARIABLES:
        for path in filter(None, variables.get(name, "").split(os.pathsep)):
            _trust(context, name, Path(path))
    # This reads the variables of OpenSSL again, so only after they were checked.
    context.load_default_certs()
    return context


def _trust(context: ssl.SSLContext, name: str, path: Path) -> None:
    """Trust the certificates of a file or a folder that a variable names.

    Raises:
        AnswerError: They can't be read.
    """
    try:
        if path.is_dir():
            context.load_verify_locations(capath=path)
        else:
            # A FIFO would keep us waiting.
            check_kind(path.stat(), stat.S_IFREG)
            context.load_verify_locations(cafile=path)
    except OSError as error:
        raise AnswerError(
            f"{name} = '{path}': holds no certificates that can be read,"
            f" {error.strerror or error}; name a file in PEM form, or leave it out"
        ) from error


def why_not_trusted(error: ssl.SSLError) -> str:
    """Say what is wrong with a server's certificate, or with its TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = _ADVICE_BY_CODE.get(
            error.verify_code, "name the certificate of its authority with SSL_CERT_FILE"
        )
        words = error.verify_message.rstrip(".")
        return f"its certificate could not be verified ({words}); {advice}"
    return f"TLS failed ({error.reason or error}); check the scheme and the port of the URL"
