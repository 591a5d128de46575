"""A server behind an ingress: a prefix, a token, TLS, and several replicas."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from specreg.core.address import Address
from specreg.core.errors import AttachError
from specreg.servers.attach import attach_server
from specreg.servers.server import Server
from tests.doubles.ingress import Ingress, make_certificate
from tests.doubles.vllm.launch import Launch
from tests.unit import builders
from tests.unit.builders.http_servers import replicas

TOKEN = "planted-token-0123"  # noqa: S105 - planted
VARIABLE = "TEAM_A"
REPLICA = Launch(model="some/target", name="toy", draft_tokens=3, counts=True)


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of this machine, which signs itself."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@contextlib.contextmanager
def ingress(
    *, count: int = 1, certificate: Path | None = None, **settings: object
) -> Iterator[Ingress]:
    """An ingress before some replicas."""
    with replicas(*[REPLICA] * count) as urls:
        double = dataclasses.replace(Ingress(backends=urls), **settings)  # type: ignore[arg-type]
        with double.listening(certificate) as listening:
            yield listening


def attached(address: Address, root: Path) -> Server:
    return attach_server(builders.SPEC, address, root=root, ready_within_s=5.0)


def refuse(address: Address, root: Path, words: str) -> str:
    with pytest.raises(AttachError, match=words) as refused:
        attached(address, root)
    message = str(refused.value)
    assert message.startswith(f"server at {address.url}: ")
    assert TOKEN not in message
    return message


def test_each_request_has_the_prefix_and_the_token(tmp_path: Path, certificate: Path) -> None:
    with ingress(prefix="/team-a", token=TOKEN, certificate=certificate) as double:
        address = Address(double.url, token_env=VARIABLE, ca_file=str(certificate))
        server = attached(address, tmp_path)
        server.check_alive()
    assert server.model == "toy"
    assert {authorization for _, authorization in double.seen} == {f"Bearer {TOKEN}"}
    assert {path.partition("/team-a")[0] for path, _ in double.seen} == {""}


def test_a_missing_and_a_wrong_token_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ingress(token=TOKEN) as double:
        refuse(Address(double.url), tmp_path, "HTTP 401 .*name that with --specreg-url-token-env")
        monkeypatch.setenv(VARIABLE, "another-token-4567")
        address = Address(double.url, token_env=VARIABLE)
        refuse(address, tmp_path, "HTTP 403 .*the token of --specreg-url-token-env isn't valid")


def test_a_wrong_prefix_is_no_server(tmp_path: Path) -> None:
    with ingress(prefix="/team-a") as double:
        address = Address(double.url.replace("team-a", "team-b"))
        refuse(address, tmp_path, "doesn't answer as vllm does, HTTP 404 .*; check the URL with it")


def test_an_unknown_authority_is_named_with_the_option(tmp_path: Path, certificate: Path) -> None:
    other = make_certificate(tmp_path / "other")
    with ingress(certificate=certificate) as double:
        for ca_file in ("", str(other)):
            address = Address(double.url, ca_file=ca_file)
            refuse(address, tmp_path, "certificate could not be verified.*--specreg-url-ca-file")


@pytest.mark.parametrize(
    ("year", "subject", "words"),
    [
        (2020, "IP:127.0.0.1", r"\(certificate has expired\); have it renewed"),
        (2999, "DNS:elsewhere", r"\(IP address mismatch.*\); use a host name"),
    ],
    ids=["expired", "of-another-host"],
)
def test_a_certificate_that_does_not_fit_says_why(
    tmp_path: Path, year: int, subject: str, words: str
) -> None:
    certificate = make_certificate(tmp_path / "certificate", year=year, subject=subject)
    with ingress(certificate=certificate) as double:
        refuse(Address(double.url, ca_file=str(certificate)), tmp_path, words)


def test_a_redirection_does_not_carry_the_token_elsewhere(tmp_path: Path) -> None:
    with ingress() as elsewhere, ingress(redirects_to=elsewhere.url) as double:
        address = Address(double.url, token_env=VARIABLE)
        message = refuse(address, tmp_path, "HTTP 307 .*; no redirection is followed; give the URL")
        assert elsewhere.url in message
    assert double.seen
    assert not elsewhere.seen


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, "can't be read, HTTP 403 .*the token of"),
        (404, "can't be read, HTTP 404 .*--specreg-metrics-url"),
    ],
)
def test_counters_that_an_ingress_keeps_back_are_read_elsewhere(
    tmp_path: Path, status: int, words: str
) -> None:
    with replicas(REPLICA) as (pod,):
        double = Ingress(backends=[pod], token=TOKEN, refused={"/metrics": status})
        with double.listening():
            address = Address(double.url, token_env=VARIABLE)
            refuse(address, tmp_path, words)
            page = f"{pod}/metrics"
            server = attached(dataclasses.replace(address, counters_urls=(page,)), tmp_path)
    assert server.counters_pages == (page,)


def test_replicas_behind_one_address_are_noticed(tmp_path: Path) -> None:
    with ingress(count=2) as double:
        words = "come from several replicas in turn.*; name each replica's own page"
        refuse(Address(double.url), tmp_path, words)
        # Each on its own page can be added up, and one twice can't.
        pages = tuple(f"{pod}/metrics" for pod in double.backends)
        server = attached(Address(double.url, counters_urls=pages), tmp_path)
        assert server.counters_pages == pages
        twice = (pages[0], pages[0].replace("127.0.0.1", "localhost"))
        refuse(Address(double.url, counters_urls=twice), tmp_path, "are of the same replica; name")
