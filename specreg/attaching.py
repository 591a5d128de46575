"""A server that somebody else runs: its URL in, a server that can be measured out."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from specreg.engines import Engine, engine_named
from specreg.engines._engine import Identity
from specreg.errors import AttachError, ServerRefusedError
from specreg.matrix import ServerSpec, Tier
from specreg.models import resolve_model
from specreg.server import Server, generates

_TIMEOUT_S = 10.0
_LOCAL = {"localhost", "127.0.0.1", "::1"}


def alone(tier: Tier, url: str) -> Tier:
    """A tier as one server of it can be measured: nothing stands beside that.

    Raises:
        AttachError: no server can be at such a URL, or several engines are asked for.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
        raise AttachError(f"--specreg-attach: got '{url}', needed http://HOST:PORT")
    engines = sorted({case.server.engine for case in tier.cases})
    if len(engines) > 1:
        message = f"--specreg-attach: the tier has {', '.join(engines)}; say --engine"
        raise AttachError(message)
    cases = tuple(dataclasses.replace(case, control=None) for case in tier.cases)
    return dataclasses.replace(tier, cases=cases)


def is_local(url: str) -> bool:
    """Whether a URL is of this machine."""
    return urlsplit(url).hostname in _LOCAL


@contextlib.contextmanager
def attach_server(spec: ServerSpec, url: str, *, root: Path) -> Iterator[Server]:
    """A server for as long as the context lasts; it goes on running afterwards.

    What it says of itself is held against what is asked for. How many tokens it drafts shows in its
    answers, and traffic of others in its counters: the checks of a measurement look at both.

    Args:
        spec: what is asked for.
        url: `http://HOST:PORT`.
        root: the repository's root, for relative model folders.

    Raises:
        AttachError: nothing answers there, or something else than asked for.
    """
    engine = engine_named(spec.engine)
    target = resolve_model(root, spec.target, padding_layers=spec.padding_layers)
    draft = resolve_model(root, spec.draft) if spec.draft is not None else None
    found = _identify(engine, url)
    _check(spec, target, url, found)
    server = Server(
        spec=spec,
        engine=engine,
        base_url=url,
        model=found.model,
        target=target,
        draft=draft,
        engine_version=found.version,
    )
    try:
        with httpx.Client(base_url=url, trust_env=False) as client:
            ready = generates(server, client, timeout_s=_TIMEOUT_S)
    except ServerRefusedError as error:
        raise AttachError(f"server at {url}: {error}; look at its log") from error
    if not ready:
        message = f"server at {url}: generates no token within {_TIMEOUT_S:g} s; look at its log"
        raise AttachError(message)
    yield server


def _identify(engine: Engine, url: str) -> Identity:
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False) as client:

        def fetch(method: str, path: str) -> bytes:
            return client.request(method, path).raise_for_status().content

        try:
            return engine.identify(fetch)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = (
                f"server at {url}: doesn't answer as {engine.name} does, {error}; check the URL,"
                " and --engine"
            )
            raise AttachError(message) from error


def _check(spec: ServerSpec, target: str, url: str, found: Identity) -> None:
    """Silent where the server is what is asked for, as far as it says."""
    if found.engine != spec.engine:
        message = (
            f"server at {url}: it is '{found.engine or 'unknown'}', asked for is '{spec.engine}';"
            " check the URL, and --engine"
        )
        raise AttachError(message)
    if found.target and Path(found.target).name != Path(target).name:
        message = (
            f"server at {url}: serves '{found.target}', the case asks for '{target}'; check the"
            " URL, or choose other cases with -k"
        )
        raise AttachError(message)
    speculates = spec.method != "none"
    if found.speculates is not None and found.speculates != speculates:
        does, asks = ("does", "without") if found.speculates else ("doesn't", "with")
        message = (
            f"server at {url}: {does} speculate, the case is one {asks} speculation; start it"
            " otherwise, or choose other cases with -k"
        )
        raise AttachError(message)
