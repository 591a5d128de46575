"""Decide which certificates of servers are trusted, and explain why another one isn't."""

import os
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path

from specreg.core.address import Address
from specreg.core.errors import AnswerError
from specreg.core.files import check_kind

CA_FILE_OPTION = "--specreg-url-ca-file"
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""The variables that name further certificates: of OpenSSL, requests and curl.

Each may name several files or folders, separated as in PATH.
"""
_ADVICE_BY_CODE = {
    9: "check the clocks of both machines",
    10: "have it renewed, or check the clock of this machine",
    62: "use a host name that the certificate is for in the URL",
    64: "use a host name that the certificate is for in the URL",
}
"""What to do about an error of OpenSSL, by its code.

The certificate isn't valid yet (9), has expired (10), or is for another host name (62) or address
(64).
"""


def trusted_certificates(
    address: Address, variables: Mapping[str, str] = os.environ
) -> ssl.SSLContext | bool:
    """Return the trusted certificates in the form that httpx takes as `verify`.

    They are those of certifi, of the system, and of the files and folders that variables and the
    address name.

    Args:
        address: the server's address.
        variables: the environment.

    Returns:
        The certificates; False for a server without TLS, because loading them takes a while.

    Raises:
        AnswerError: a file or a folder with certificates can't be read.
    """
    if not address.has_tls:
        return False
    import httpx  # noqa: PLC0415 - takes long, and few commands ask a server

    context = httpx.create_ssl_context(trust_env=False)
    for name in _VARIABLES:
        for path in filter(None, variables.get(name, "").split(os.pathsep)):
            _trust(context, name, Path(path))
    if address.ca_file:
        _trust(context, CA_FILE_OPTION, Path(address.ca_file))

    # This reads the variables of OpenSSL again, so it comes after their check.
    context.load_default_certs()
    return context


def _trust(context: ssl.SSLContext, name: str, path: Path) -> None:
    """Trust the certificates of a file or a folder that a variable or an option names.

    Raises:
        AnswerError: they can't be read.
    """
    try:
        if path.is_dir():
            context.load_verify_locations(capath=path)
        else:
            # Reading a FIFO waits for a writer.
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
            error.verify_code,
            f"name the certificate of its authority with {CA_FILE_OPTION}, or with SSL_CERT_FILE",
        )
        words = error.verify_message.rstrip(".")
        return f"its certificate could not be verified ({words}); {advice}"
    return f"TLS failed ({error.reason or error}); check the scheme and the port of the URL"
