"""Attach to a server that others run, and check that it is the one that is asked for."""

import dataclasses
from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import urlsplit

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
from specreg.matrix.case import Case, ServerSpec, Tier
from specreg.matrix.models import served_models
from specreg.servers.provision import check_version
from specreg.servers.server import Server, generates, identify

_TIMEOUT_S = 10.0
_KEYLESS = {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}


def alone(tier: Tier, url: str) -> Tier:
    """Return the tier without controls: one server is there.

    Raises:
        AttachError: the URL is malformed, or has more than a host and a port.
    """
    if why := _why_unusable(url):
        raise AttachError(f"--specreg-attach: {why}; give http://HOST:PORT")
    cases = tuple(dataclasses.replace(case, control=None) for case in tier.cases)
    return dataclasses.replace(tier, cases=cases)


def _why_unusable(url: str) -> str:
    """Say what is wrong with a URL; empty where nothing is.

    A part that may hold a secret is named and not quoted: it would stand in a CI's log.
    """
    if "@" in url:
        return "got a URL with a user or a password, needed one without; specreg sends neither"
    if not url.isprintable() or not url.isascii():
        return "got a URL with characters that no URL has"
    try:
        parts = urlsplit(url)
        # Reading a malformed port raises too.
        is_server = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return "got no URL of a server"
    if not is_server:
        return "got no URL of a server"
    if parts.query or parts.fragment:
        return f"got '{parts.hostname}' with a query or a fragment, needed the server alone"
    if parts.path.strip("/"):
        return f"got '{url}', whose path is too much"
    return ""


def check_attached(cases: Collection[Case], url: str, *, root: Path) -> None:
    """Check that the server at a URL can measure the cases, as far as it says what it is.

    Raises:
        AttachError: they are of several servers, or nothing answers, or another server.
        UnsupportedError: its version is too old, or its engine takes no chat and the case is one.
        ModelError: the models of the cases can't be had.
    """
    servers = sorted({case.server.id for case in cases})
    if len(servers) > 1:
        raise AttachError(
            f"--specreg-attach: {url} is one server, the run asks for {', '.join(servers)};"
            " choose with -k or --engine"
        )
    for case in cases:
        check_version(case, _identified(case.server, url, root).version)


def attach_server(spec: ServerSpec, url: str, *, root: Path, ready_within_s: float) -> Server:
    """The server at `http://HOST:PORT`, which has generated a token within a time.

    Raises:
        AttachError: nothing answers, or something else than asked for, or without counters.
        ModelError: the models can't be had.
    """
    found = _identified(spec, url, root)
    target, draft = served_models(root, spec)
    server = Server(
        spec=spec,
        engine=engine_named(spec.engine),
        base_url=url,
        model=found.model,
        target=target,
        draft=draft,
        engine_version=found.version,
    )
    try:
        ready = generates(server, timeout_s=ready_within_s)
    except ServerRefusedError as error:
        raise AttachError(f"server at {url}: {error}; look at its log") from error
    if not ready:
        said = f", it said last: {ready.said}" if ready.said else ""
        message = f"server at {url}: is not ready, or generates no token{said}; look at its log"
        raise AttachError(message)
    _check_counters(server)
    return server


def _check_counters(server: Server) -> None:
    """Check that a server that is to speculate has the counters of its version."""
    wire_format = server.engine.wire_format
    path = wire_format.counters_path
    if path is None or server.spec.method == "none":
        return
    try:
        page = ask(server.base_url, "GET", path, within_s=_TIMEOUT_S)
        page.good()
        wire_format.parse_counters(page.text)
    except (AnswerError, InvalidMeasurementError) as error:
        is_missing = isinstance(error, AnswerError)
        advice = f"; start it with {wire_format.counters_flag}" if is_missing else ""
        raise AttachError(f"server at {server.base_url}: {error}{advice}") from error


def _identified(spec: ServerSpec, url: str, root: Path) -> Identity:
    """Identify the server at a URL; an AttachError where it isn't what is asked for."""
    engine = engine_named(spec.engine)
    try:
        found = identify(engine, url, within_s=_TIMEOUT_S)
    except AttachError as error:
        raise AttachError(f"server at {url}: {error}") from error
    except AnswerError as error:
        message = f"doesn't answer as {engine.name} does, {error}; check the URL, and --engine"
        if error.status in _KEYLESS:
            message = f"wants an API key, {error}; start it without one, specreg sends none"
        raise AttachError(f"server at {url}: {message}") from error
    for what, is_it, asked in _facts(spec, served_models(root, spec), found):
        if is_it != asked:
            raise AttachError(
                f"server at {url}: {what} is '{is_it}', the case asks for '{asked}'; check the URL"
                " and --engine, choose other cases with -k, or start it otherwise"
            )
    return found


def _facts(
    spec: ServerSpec, models: tuple[str, str | None], found: Identity
) -> Iterator[tuple[str, str, str]]:
    """Yield, by name, what the server says and what it should say; of paths the last part."""
    target, draft = models
    yield "its engine", found.engine or "unknown", spec.engine
    if found.target:
        yield "its model", Path(found.target).name, Path(target).name
    if found.speculates is not None:
        asked = "off" if spec.method == "none" else "on"
        yield "its speculation", "on" if found.speculates else "off", asked
    spelling = engine_named(spec.engine).spelling_of(spec.method)
    settings = spelling.render(draft, spec.draft_tokens, spec.tree)
    for name, value in settings.items():
        if name in found.speculation:
            yield f"its {name}", Path(found.speculation[name]).name, Path(str(value)).name
