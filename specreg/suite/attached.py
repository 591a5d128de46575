"""Read the addresses of the running servers that the options of a run name, and check them."""

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import httpx

from specreg.baselines.schema import baseline_files, read_baselines
from specreg.core.address import Address
from specreg.core.certificates import trusted_certificates
from specreg.core.errors import AnswerError, AttachError, check_name
from specreg.core.redaction import hide_secrets_of
from specreg.suite.options import Options, flag_named
from specreg.telemetry.identity import UNKNOWN_ENVIRONMENT, Environment

_ATTACH = flag_named("attach")
_CONTROL = flag_named("control_url")
_METRICS = flag_named("metrics_url")
_TOKEN_ENV = flag_named("url_token_env")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_.-]+")
_NUMBERS = re.compile(r"[\d.]+")
_ODD_IN_PATHS = re.compile(r"[\s\"'<>\\^`{}|*;]|\.\.|//")
"""What no path of a server's API has."""
_API = "/v1"
"""The end of the URLs that clients of OpenAI's API take. All engines have further paths beside it,
so it isn't a part of a server's address."""
_TOKEN = re.compile(r"[\x21-\x7e]+")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_OWN_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
"""The names of this machine for itself."""


def addresses_of(
    options: Options, variables: Mapping[str, str] = os.environ
) -> tuple[Address | None, Address | None]:
    """Return the addresses of the attached server and of its control; None for one that isn't.

    From now on, the token is hidden in everything that is written.

    Raises:
        AttachError: an address is malformed, its certificates or its token can't be read, or an
            option needs another one.
    """
    if options.attach is None:
        _check_not_attached(options)
        return None, None
    if options.url_token_env:
        _check_token(variables.get(options.url_token_env, ""))
        hide_secrets_of({"TOKEN": variables[options.url_token_env]})
    attached = Address(
        url=_checked_server(_ATTACH, options.attach),
        token_env=options.url_token_env or "",
        ca_file=str(Path(options.url_ca_file).absolute()) if options.url_ca_file else "",
        counters_urls=_checked_pages(options.metrics_url),
    )
    try:
        trusted_certificates(attached)
    except AnswerError as error:
        raise AttachError(str(error)) from error

    if options.control_url is None:
        return attached, None
    control = Address(
        url=_checked_server(_CONTROL, options.control_url),
        token_env=attached.token_env,
        ca_file=attached.ca_file,
    )
    if _server_at(control.url) == _server_at(attached.url):
        raise AttachError(
            f"{_CONTROL}: is the server of {_ATTACH} too, '{control.url}'; give the URL of one"
            " without speculation"
        )

    return attached, control


def environment_at(name: str | None, baselines: Path) -> Environment:
    """Return the environment of attached servers, as the baselines of that name have it.

    Args:
        name: the name that the user has given; None if the machine isn't known.
        baselines: the folder of the baselines.

    Raises:
        UnknownNameError: there are no baselines of that environment.
        AttachError: None of them can be read.
    """
    if name is None:
        return UNKNOWN_ENVIRONMENT
    paths = list(baseline_files(baselines))
    names = dict.fromkeys(path.parent.name for path in paths)
    check_name("environment", name, names, flag_named("url_environment"))
    recorded, errors = read_baselines(path for path in paths if path.parent.name == name)
    if not recorded:
        raise AttachError(f"{flag_named('url_environment')} '{name}': {errors[0]}")
    return next(iter(recorded.values())).environment


def _check_not_attached(options: Options) -> None:
    """Check that no option is about an attached server, because there is none.

    Raises:
        AttachError: one is.
    """
    for name in ("control_url", "metrics_url", "url_token_env", "url_ca_file", "url_environment"):
        if getattr(options, name) is not None:
            raise AttachError(f"{flag_named(name)}: needs {_ATTACH} too; give both, or neither")


def _check_token(token: str) -> None:
    """Check that a token can be sent. Neither it nor its variable's name is quoted.

    Somebody may give the token itself in place of the name.

    Raises:
        AttachError: the variable isn't set, or its value can't be in a header of HTTP.
    """
    if not token:
        raise AttachError(
            f"{_TOKEN_ENV}: got the name of a variable that isn't set; export the token in it, and"
            " give its name here"
        )
    if not _TOKEN.fullmatch(token):
        raise AttachError(
            f"{_TOKEN_ENV}: the variable's value has a space, a line break or another character"
            " that no token has; set it without"
        )


def _checked_server(flag: str, text: str) -> str:
    """Return the URL of a server, without the end that belongs to the API of OpenAI.

    Raises:
        AttachError: it isn't the URL of a server, or has a user, a password or a query.
    """
    url = text.strip(" ")
    problem = _url_problem(url)
    if problem:
        raise AttachError(f"{flag}: {problem}; give http://HOST:PORT, or with a path before {_API}")
    return _written_alike(url).rstrip("/").removesuffix(_API).rstrip("/")


def _checked_pages(text: str | None) -> tuple[str, ...]:
    """Return the URLs of the pages of counters; errors as in `_checked_server`."""
    texts = () if text is None else text.split(",")
    urls: list[str] = []
    for url in (text.strip(" ") for text in texts):
        problem = _url_problem(url)
        if not problem and not urlsplit(url).path.strip("/"):
            problem = f"got '{url}', needed the whole URL of the page"
        if not problem and _written_alike(url) in urls:
            problem = f"names '{url}' twice"
        if problem:
            raise AttachError(
                f"{_METRICS}: {problem}; give http://HOST:PORT/metrics, once for each replica"
            )
        urls.append(_written_alike(url))

    return tuple(urls)


def _written_alike(url: str) -> str:
    """Return a valid URL in the one form in which all texts for the same URL are equal."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    if parts.port not in {None, _DEFAULT_PORTS[parts.scheme]}:
        host = f"{host}:{parts.port}"
    return parts._replace(netloc=host).geturl()


def _server_at(url: str) -> tuple[str, str, int | None, str]:
    """Return what names a server in the URL of one; the same for all names of this machine."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if host in _OWN_HOSTS:
        host = "localhost"
    return parts.scheme, host, parts.port, parts.path


def _url_problem(url: str) -> str:
    """Return what is wrong with a URL; empty if it names a server or a page.

    A part that may hold a secret is named but not quoted, because CI logs keep the message.
    """
    if "@" in url:
        return (
            "got a URL with a user or a password, needed one without; put a token into a variable"
            f" and name it with {_TOKEN_ENV}"
        )

    if not url.isprintable() or not url.isascii():
        return "got a URL with characters that no URL has"
    parts = _split_server_url(url)
    if parts is None:
        return "got something that isn't the URL of a server"
    if parts.query or parts.fragment:
        return f"got '{parts.hostname}' with a query or a fragment, needed a URL without one"
    if _ODD_IN_PATHS.search(parts.path):
        return f"got '{parts.hostname}' with a path that no server has"
    return ""


def _split_server_url(url: str) -> SplitResult | None:
    """Return the parts of a URL; None if it isn't the URL of a server."""
    try:
        parts = urlsplit(url)
        # `parts.port` raises ValueError too if the port is malformed.
        has_server = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None

    if parts.scheme not in {"http", "https"} or not has_server:
        return None

    # `urlsplit` removes the brackets of an address.
    is_bracketed = "[" in parts.netloc
    if not _is_host(parts.hostname or "", is_address=is_bracketed):
        return None
    return parts


def _is_host(name: str, *, is_address: bool) -> bool:
    """Return whether a host can have this name, or whether it is a valid address.

    Args:
        name: the name or the address.
        is_address: True if only an address is valid.
    """
    try:
        # A name of digits and dots can only be an address.
        if is_address or _NUMBERS.fullmatch(name):
            ipaddress.ip_address(name)
            return True
        # httpx decodes a name in punycode, which may raise errors of idna (they are ValueErrors).
        httpx.URL(f"http://{name}").host.encode("idna")
    except (httpx.InvalidURL, ValueError):
        return False
    return _HOST_NAME.fullmatch(name) is not None
