"""Attach to a server that somebody else runs, and check that it is the one that a case needs."""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx

from specreg.core.address import Address
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
from specreg.servers.provision import Provision, check_version
from specreg.servers.server import ProbeResult, Server, facts_of, identify, send_probe

_TIMEOUT_S = 10.0
_READINGS = 8
"""How often a page of counters is read to find a balancer of several replicas. One that chooses
between two at random hides the other from so many readings once in 128 times."""
_BORN = re.compile(
    r"^(?P<name>process_start_time_seconds|\w[\w:]*_created(?:\{[^}\n]*\})?) (?P<born>\S+)$",
    re.MULTILINE,
)
"""The start of a process or of one of its counters in a page for Prometheus."""
_SWITCH = {True: "on", False: "off"}
_KEY_STATUSES = {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}
"""The statuses with which a server answers a request that lacks its API key."""


class _Fact(NamedTuple):
    """A property of a server: what the server reports, and what the case needs."""

    name: str
    reported: str
    needed: str


def with_controls_attached(tier: Tier, *, has_control: bool) -> Tier:
    """Return a tier whose cases have the controls that are attached to.

    Args:
        has_control: True if a server without speculation is attached to as well. It is the control
            of each case, also if the tier has no case that it measures.
    """
    cases = []
    for case in tier.cases:
        control = case.server.without_speculation if has_control and case.speculates else None
        cases.append(dataclasses.replace(case, control=control))
    return dataclasses.replace(tier, cases=tuple(cases))


def check_attached(cases: Collection[Case], provision: Provision, *, root: Path) -> None:
    """Check that the attached servers can measure the cases, as far as they report their settings.

    Args:
        provision: the addresses of the servers.
        root: the root of the repository, which relative model paths start from.

    Raises:
        AttachError: the cases need more servers, a server isn't the one that they need, or no
            server answers at an address.
        UnsupportedError: as in `check_version`.
        ModelError: the models of the cases aren't available.
    """
    ids_by_address: dict[Address, set[str]] = {}
    for case in cases:
        for spec in filter(None, (case.server, case.control)):
            ids_by_address.setdefault(provision.attached_at(spec), set()).add(spec.id)

    for address, server_ids in ids_by_address.items():
        if len(server_ids) > 1:
            raise AttachError(
                f"--specreg-attach: {address.url} is one server, but the run needs"
                f" {', '.join(sorted(server_ids))}; choose cases of one server with -k or --engine"
            )

    for case in cases:
        identity = _identify_expected(case.server, provision.attached_at(case.server), root)
        check_version(case, identity.version)
        if case.control is not None:
            _identify_expected(case.control, provision.attached_at(case.control), root)


def attach_server(
    spec: ServerSpec, address: Address, *, root: Path, ready_within_s: float
) -> Server:
    """Return the server at an address once it has generated a token.

    Args:
        spec: the settings that the server must have.
        address: where it answers.
        root: the root of the repository, which relative model paths start from.
        ready_within_s: how long it may take to generate a token, in seconds; more than 60 counts
            as 60.

    Raises:
        AttachError: no server answers there, it isn't the one that the case needs, it
            generates no token, or its counters are missing.
        ModelError: the models aren't available.
    """
    identity = _identify_expected(spec, address, root)
    target, draft = served_models(root, spec)
    server = Server(
        spec=spec,
        engine=engine_named(spec.engine),
        address=address,
        model=identity.model,
        target=target,
        draft=draft,
        engine_version=identity.version,
    )
    try:
        server, probe = _first_probe(server, Form.COMPLETIONS, ready_within_s)
    except ServerRefusedError as error:
        raise AttachError(f"{_named(address)}: {error}; look at its log") from error

    _check_counted(server, probe)
    if not probe:
        message = f"{_named(address)}: is not ready, or generates no token"
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


def _first_probe(server: Server, form: Form, timeout_s: float) -> tuple[Server, ProbeResult]:
    """Send a first prompt, and find out which neutral values of sampling the server refuses.

    vLLM, SGLang, TensorRT-LLM and Triton take them all, but gateways refuse parameters that OpenAI
    doesn't have.

    Returns:
        The server without the values that it refuses, and whether it generated a token.

    Raises:
        ServerRefusedError: it refuses the prompt for another reason.
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


def _check_counted(server: Server, probe: ProbeResult) -> None:
    """Check that the tokens of an answer can be counted.

    Raises:
        AttachError: its text came without what its tokens are counted by.
    """
    if not probe.has_uncounted_text:
        return
    missing = "the number of tokens so far"
    if server.engine.wire_format.has_token_ids:
        missing = "the ids of its tokens"
    raise AttachError(
        f"{_named(server.address)}: sends text without {missing}, which a gateway strips; attach"
        " to the engine itself"
    )


def _check_counters(server: Server) -> None:
    """Check that a server that should speculate has the counters of its engine.

    Raises:
        AttachError: the counters are missing, can't be read, or come from replicas that can't be
            told apart.
    """
    if server.spec.method == "none":
        return
    births = [_check_replica(server, page) for page in server.counters_pages]
    for one, other in itertools.combinations(births, 2):
        if one and one == other:
            raise AttachError(
                f"{_named(server.address)}: two pages of --specreg-metrics-url are of the same"
                " replica; name each replica's page once"
            )


def _check_replica(server: Server, page: str) -> Mapping[str, str]:
    """Check a page of counters, and that it is always the same replica's.

    Returns:
        The births of the replica's counters, as `_births_of` does.

    Raises:
        AttachError: as in `_check_counters`.
    """
    wire_format = server.engine.wire_format
    subject = f"{_named(server.address)}: its counters at {page}"
    births: Mapping[str, str] = {}
    counters = None
    for _ in range(_READINGS):
        try:
            # Each request has a connection of its own, so a balancer chooses anew.
            answer = ask(server.address, "GET", page, within_s=_TIMEOUT_S)
            answer.good()
            new_counters = wire_format.parse_counters(answer.text)
        except InvalidMeasurementError as error:
            raise AttachError(f"{_named(server.address)}: {error}") from error
        except AnswerError as error:
            advice = _advice_on(error, server.address) or "look at its log"
            if error.status == httpx.codes.NOT_FOUND:
                flag = wire_format.counters_flag
                advice = (
                    f"start it with {flag}; if a gateway has no such page, name the engine's own"
                    " with --specreg-metrics-url"
                )
            raise AttachError(f"{subject} can't be read, {error}; {advice}") from error
        new_births = _births_of(answer.text)
        is_reborn = any(births.get(name, born) != born for name, born in new_births.items())
        if is_reborn or (counters is not None and new_counters.steps < counters.steps):
            raise AttachError(
                f"{subject} come from several replicas in turn, behind one address, so nobody can"
                " add them up; name each replica's own page with --specreg-metrics-url, or attach"
                " to one replica"
            )
        births, counters = new_births, new_counters

    return births


def _births_of(page: str) -> Mapping[str, str]:
    """Return when each counter of a page began, by its name and labels, as far as the page says."""
    return {match["name"]: match["born"] for match in _BORN.finditer(page)}


def _named(address: Address) -> str:
    return f"server at {address.url}"


def _advice_on(error: AnswerError, address: Address) -> str:
    """Return what to do about an answer that comes from a gateway; empty if it may be a server's.

    Args:
        address: the address that it came from.
    """
    if error.status in _KEY_STATUSES:
        if address.token_env:
            return (
                "the token of --specreg-url-token-env isn't valid there; renew it, or name"
                " another variable"
            )
        return "put its token into a variable, and name that with --specreg-url-token-env"

    if error.status is not None and httpx.codes.is_redirect(error.status):
        return "no redirection is followed; give the URL that it leads to"
    return ""


def _identify_expected(spec: ServerSpec, address: Address, root: Path) -> Identity:
    """Return the identity of the server at an address, and check it against a case's settings.

    Raises:
        AttachError: no server answers there, or one with other settings.
        ModelError: the models aren't available.
    """
    engine = engine_named(spec.engine)
    subject = _named(address)
    try:
        identity = identify(engine, address, within_s=_TIMEOUT_S)
    except AttachError as error:
        raise AttachError(f"{subject}: {error}") from error
    except AnswerError as error:
        advice = _advice_on(error, address)
        if error.status in _KEY_STATUSES:
            message = f"needs an API key, {error}; {advice}"
        elif advice:
            message = f"is elsewhere, {error}; {advice}"
        elif error.status is not None and error.status >= httpx.codes.INTERNAL_SERVER_ERROR:
            message = f"fails, {error}; look at its log, and at that of a gateway before it"
        else:
            message = (
                f"doesn't answer as {engine.name} does, {error}; check the URL with its path, and"
                " --engine"
            )
        raise AttachError(f"{subject}: {message}") from error

    target, draft = served_models(root, spec)
    for fact in _facts(spec, target, draft, identity):
        if fact.reported != fact.needed:
            raise AttachError(
                f"{subject}: {fact.name} is '{fact.reported}', but the case needs"
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
