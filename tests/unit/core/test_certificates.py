"""A server behind TLS is asked if its certificate is trusted, and else the reason is named."""

import asyncio
import contextlib
import http.server
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from specreg.core.address import Address
from specreg.core.certificates import trusted_certificates
from specreg.core.errors import AnswerError
from specreg.core.http import ask, read
from specreg.engines.wire_format import Endpoint
from specreg.load.chat_client import new_client
from tests.doubles.ingress import make_certificate

VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class Pages(http.server.BaseHTTPRequestHandler):
    """Has one page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"page")

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that signs itself, and its key in one file."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@contextlib.contextmanager
def serving(certificate: Path) -> Iterator[str]:
    """Yield the URL of a server that has a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))

    class Server(http.server.ThreadingHTTPServer):
        def get_request(self) -> tuple[ssl.SSLSocket, object]:
            connection, address = super().get_request()
            return context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            ), address

        def handle_error(self, *_: object) -> None:
            """Stay silent of a client that hangs up."""

    with Server(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def url(certificate: Path) -> Iterator[str]:
    """The URL of a server that has the certificate."""
    with serving(certificate) as base_url:
        yield base_url


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_certificate_that_nobody_named_is_refused_and_the_reason_said(url: str) -> None:
    words = r"its certificate could not be verified \(self.signed certificate.*SSL_CERT_FILE"
    with pytest.raises(AnswerError, match=words):
        ask(Address(url), "GET", "/", within_s=5.0)


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_a_certificate_that_a_variable_names_is_trusted(
    url: str, certificate: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each client: for single questions, and for the load."""
    monkeypatch.setenv(name, str(certificate))
    assert ask(Address(url), "GET", "/", within_s=5.0).content == b"page"

    async def go() -> bytes:
        endpoint = Endpoint(address=Address(url), model="m", engine="vllm")
        async with new_client(endpoint, connections=1) as client:
            return (await read(client, "GET", "/", within_s=5.0)).content

    assert asyncio.run(go()) == b"page"


def test_a_folder_of_certificates_is_trusted(
    url: str, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("openssl", "x509", "-noout", "-hash", "-in", str(certificate))
    digest = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    (tmp_path / f"{digest}.0").symlink_to(certificate)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'empty'}:{tmp_path}")
    assert ask(Address(url), "GET", "/", within_s=5.0).content == b"page"


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("content", [None, "this is no certificate"])
def test_a_file_of_certificates_that_cannot_be_read_is_named(
    url: str, name: str, content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "certificates.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(name, str(path))
    with pytest.raises(AnswerError, match=f"{name} = '{path}': holds no certificates that can be"):
        ask(Address(url), "GET", "/", within_s=5.0)


@pytest.mark.parametrize(
    ("year", "subject", "words"),
    [
        (2020, "IP:127.0.0.1", r"\(certificate has expired\); have it renewed, or check the clock"),
        (2999, "DNS:elsewhere", r"\(IP address mismatch.*\); use a host name that the certific"),
    ],
    ids=["expired", "of-another-host"],
)
def test_a_certificate_that_is_known_and_does_not_fit_says_what_to_do(
    year: int, subject: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path, year=year, subject=subject)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(certificate) as url, pytest.raises(AnswerError, match=words):
        ask(Address(url), "GET", "/", within_s=5.0)


@pytest.mark.parametrize("name", VARIABLES)
def test_a_fifo_of_certificates_keeps_nobody_waiting(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setenv(name, str(tmp_path / "fifo"))
    with pytest.raises(AnswerError, match=r"is a FIFO, needed a regular file; name a file"):
        trusted_certificates(Address("https://host"))


def test_a_server_without_tls_is_named_as_such() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as plain:
        threading.Thread(target=plain.serve_forever, args=(0.01,)).start()
        address = Address(f"https://127.0.0.1:{plain.server_address[1]}")
        try:
            with pytest.raises(AnswerError, match=r"TLS failed \(.*\); check the scheme and"):
                ask(address, "GET", "/", within_s=5.0)
        finally:
            plain.shutdown()
