"""Attach to a server that somebody else runs, and check that it is the one that a case needs."""

import contextlib
import dataclasses
import ipaddress
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

import httpx

from specreg.core.errors import (
    AnswerError,
    AttachError,
    InvalidMeasurementError,
    ServerRefusedError,
)
from specreg.core.http import ask
from specreg.engines.engine import Identity
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import ServerSpec
from specreg.engines.wire_format import Form
from specreg.matrix.case import Case, Tier
from specreg.matrix.models import served_models
from specreg.servers.provision import check_version
from specreg.servers.server import Probe, Server, facts_of, identify, send_probe

_TIMEOUT_S = 10.0
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_.-]+")
_NUMBERS = re.compile(r"[\d.]+")
_SWITCH = {True: "on", False: "off"}
_KEY_STATUSES = {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}
"""The statuses with which a server answers a request that lacks its API key."""


class _Fact(NamedTuple):
    """A property of a server: what the server reports, and what the case needs."""

    name: str
    reported: str
    needed: str


def without_controls(tier: Tier, url: str) -> Tier:
    """Return a tier without controls, because only the server at the URL can be measured.

    Raises:
        AttachError: The URL is malformed, or has more than a scheme, a host and a port.
    """
    problem = _url_problem(url)
    if problem:
        raise AttachError(f"--specreg-attach: {problem}; give http://HOST:PORT")
    cases = tuple(dataclasses.replace(case, control=None) for case in tier.cases)
    return dataclasses.replace(tier, cases=cases)


def _url_problem(url: str) -> str:
    """Return what is wrong with a URL; empty if it names a server.

    A part that may hold a secret is named but not quoted, because CI logs keep the message.
    """
    if "@" in url:
        return "got a URL with a user or a password, needed one without; specreg sends neither"
    if not url.isprintable() or not url.isascii():
        return "got a URL with characters that no URL has"
    parts = _split_server_url(url)
    if parts is None:
        return "got something that isn't the URL of a server"
    if parts.query or parts.fragment:
        return f"got '{parts.hostname}' with a query or a fragment, needed a URL without one"
    if parts.path.strip("/"):
        return f"got '{url}', needed a URL without a path"
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
        name: The name or the address.
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


def check_attached(cases: Collection[Case], url: str, *, root: Path) -> None:
    """Check that the server at a URL can measure the cases, as far as it reports its settings.

    Args:
        cases: The cases.
        url: The URL of the server.
        root: The root of the repository, which relative model paths start from.

    Raises:
        AttachError: The cases need several servers, or the server at the URL isn't the one that
            they need, or no server answers there.
        UnsupportedError: As in `check_version`.
        ModelError: The models of the cases aren't available.
    """
    server_ids = sorted({case.server.id for case in cases})
    if len(server_ids) > 1:
        raise AttachError(
            f"--specreg-attach: {url} is one server, but the run needs {', '.join(server_ids)};"
            " choose cases of one server with -k or --engine"
        )
    for case in cases:
        identity = _identify_expected(case.server, url, root)
        check_version(case, identity.version)


def attach_server(spec: ServerSpec, url: str, *, root: Path, ready_within_s: float) -> Server:
    """Return the server at a URL once it has generated a token.

    Args:
        spec: The settings that the server must have.
        url: Where it answers: `http://HOST:PORT`.
        root: The root of the repository, which relative model paths start from.
        ready_within_s: How long it may take to generate a token, in seconds; more than 60 counts
            as 60.

    Raises:
        AttachError: No server answers at the URL, it isn't the one that the case needs, it
            generates no token, or its counters are missing.
        ModelError: The models aren't available.
    """
    identity = _identify_expected(spec, url, root)
    target, draft = served_models(root, spec)
    server = Server(
        spec=spec,
        engine=engine_named(spec.engine),
        base_url=url,
        model=identity.model,
        target=target,
        draft=draft,
        engine_version=identity.version,
    )
    try:
        server, probe = _first_probe(server, Form.COMPLETIONS, ready_within_s)
    except ServerRefusedError as error:
        raise AttachError(f"server at {url}: {error}; look at its log") from error
    _check_counted(server, probe)
    if not probe:
        message = f"server at {url}: is not ready, or generates no token"
        if probe.server_message:
            message += f", its last message: {probe.server_message}"
        raise AttachError(f"{message}; look at its log")
    if not server.engine.wire_format.accepts_only_text:
        # A model without a chat template refuses every chat, whatever is sent with it.
        with contextlib.suppress(ServerRefusedError):
            server, probe = _first_probe(server, Form.CHAT, ready_within_s)
        _check_counted(server, probe)
    _check_counters(server)
    return dataclasses.replace(server, facts=facts_of(server, log=""))


def _first_probe(server: Server, form: Form, timeout_s: float) -> tuple[Server, Probe]:
    """Send a first prompt, and find out which neutral values of sampling the server refuses.

    vLLM, SGLang, TensorRT-LLM and Triton take them all, but gateways refuse parameters that OpenAI
    doesn't have.

    Returns:
        The server without the values that it refuses, and whether it generated a token.

    Raises:
        ServerRefusedError: It refuses the prompt for another reason.
    """
    try:
        return server, send_probe(server, timeout_s=timeout_s, form=form)
    except ServerRefusedError:
        # Send each value in a request of its own.
        neutral = tuple(server.engine.wire_format.neutral_sampling.items())
        refused = server.refused
        for value in neutral:
            others = tuple(other for other in neutral if other != value)
            try:
                send_probe(
                    dataclasses.replace(server, refused=others), timeout_s=timeout_s, form=form
                )
            except ServerRefusedError:
                refused += (value,)
        if refused == server.refused:
            raise
        server = dataclasses.replace(server, refused=refused)
        return server, send_probe(server, timeout_s=timeout_s, form=form)


def _check_counted(server: Server, probe: Probe) -> None:
    """Check that the tokens of an answer can be counted.

    Raises:
        AttachError: Its text came without what its tokens are counted by.
    """
    if not probe.has_uncounted_text:
        return
    missing = "the number of tokens so far"
    if server.engine.wire_format.has_token_ids:
        missing = "the ids of its tokens"
    raise AttachError(
        f"server at {server.base_url}: sends text without {missing}, which a gateway strips; attach"
        " to the engine itself"
    )


def _check_counters(server: Server) -> None:
    """Check that a server that should speculate has the counters of its engine.

    Raises:
        AttachError: The counters are missing, or can't be read.
    """
    wire_format = server.engine.wire_format
    path = server.counters_path
    if path is None or server.spec.method == "none":
        return
    try:
        page = ask(server.base_url, "GET", path, within_s=_TIMEOUT_S)
        page.good()
        wire_format.parse_counters(page.text)
    except InvalidMeasurementError as error:
        raise AttachError(f"server at {server.base_url}: {error}") from error
    except AnswerError as error:
        advice = "look at its log"
        if error.status == httpx.codes.NOT_FOUND:
            flag = wire_format.counters_flag
            advice = f"start it with {flag}; a gateway has no such page, so attach to the engine"
        raise AttachError(
            f"server at {server.base_url}: its counters can't be read, {error}; {advice}"
        ) from error


def _identify_expected(spec: ServerSpec, url: str, root: Path) -> Identity:
    """Return the identity of the server at a URL, and check it against the settings of a case.

    Raises:
        AttachError: No server answers at the URL, or one with other settings.
        ModelError: The models aren't available.
    """
    engine = engine_named(spec.engine)
    try:
        identity = identify(engine, url, within_s=_TIMEOUT_S)
    except AttachError as error:
        raise AttachError(f"server at {url}: {error}") from error
    except AnswerError as error:
        if error.status in _KEY_STATUSES:
            message = f"needs an API key, {error}; start it without one, because specreg sends none"
        elif error.status is not None and error.status >= httpx.codes.INTERNAL_SERVER_ERROR:
            message = f"fails, {error}; look at its log, and at that of a gateway before it"
        else:
            message = f"doesn't answer as {engine.name} does, {error}; check the URL, and --engine"
        raise AttachError(f"server at {url}: {message}") from error
    target, draft = served_models(root, spec)
    for fact in _facts(spec, target, draft, identity):
        if fact.reported != fact.needed:
            raise AttachError(
                f"server at {url}: {fact.name} is '{fact.reported}', but the case needs"
                f" '{fact.needed}'; check the URL and --engine, choose other cases with -k, or"
                " start the server with the settings of the case"
            )
    return identity


def _facts(spec: ServerSpec, target: str, draft: str | None, identity: Identity) -> Iterator[_Fact]:
    """Yield each property that the server reports, with the value that the case needs.

    Only the last part of a path is compared, because the server may run on another machine.
    """
    yield _Fact("its engine", identity.engine or "unknown", spec.engine)
    if identity.target:
        yield _Fact("its model", Path(identity.target).name, Path(target).name)
    if identity.speculates is not None:
        needs_speculation = spec.method != "none"
        yield _Fact("its speculation", _SWITCH[identity.speculates], _SWITCH[needs_speculation])
    for name, value in engine_named(spec.engine).rendered_speculation(spec, draft).items():
        if name in identity.speculation:
            reported = Path(identity.speculation[name]).name
            yield _Fact(f"its {name}", reported, Path(str(value)).name)
