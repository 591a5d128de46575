"""Whatever a server does, its answer or the lack of one comes in time and in words."""

import itertools
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from specreg.core.address import Address
from specreg.core.errors import AnswerError, ServerDiedError
from specreg.core.http import MAX_ANSWER_BYTES, HttpResponse, ask
from specreg.servers.server import send_probe
from tests.unit import builders

OK = b"HTTP/1.1 200 OK\r\n"
TOKEN = (
    b'Connection: close\r\n\r\ndata: {"choices": [{"text": "a", "token_ids": [1]}]}\n\n'
    b"data: [DONE]\n\n"
)
"""Of an answer, as vLLM streams it."""
Say = Callable[[socket.socket], None]


@contextmanager
def saying(say: Say) -> Iterator[str]:
    """The URL of a server that says something to whoever connects."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(2**16)
            with suppress(OSError):
                say(self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def said(content: bytes) -> Say:
    return lambda client: client.sendall(content)


def dripping(content: bytes) -> Say:
    """Says this a byte at a time, each sooner than anybody would give up waiting for it."""

    def say(client: socket.socket) -> None:
        for byte in itertools.cycle(content):
            client.sendall(bytes((byte,)))
            time.sleep(0.05)

    return say


def endless(head: bytes, part: bytes) -> Say:
    def say(client: socket.socket) -> None:
        client.sendall(head)
        while True:
            client.sendall(part)

    return say


def mute(client: socket.socket) -> None:
    client.recv(1)


def test_an_answer_is_read_whatever_its_status_and_encoding() -> None:
    head = b"Content-Type: text/plain; charset=utf-16\r\nContent-Length: 4\r\n\r\n"
    with saying(said(b"HTTP/1.1 503 Busy\r\n" + head + b"a\xffbc")) as url:
        answer = ask(Address(url), "GET", "/health", within_s=5.0)
    assert answer == HttpResponse(path="/health", status=503, content=b"a\xffbc")
    assert answer.text == "a\N{REPLACEMENT CHARACTER}bc"
    with pytest.raises(AnswerError, match=r"^HTTP 503 from /health$") as error:
        answer.good()
    assert (error.value.status, error.value.late) == (503, False)


@pytest.mark.parametrize(
    "say",
    [
        mute,
        dripping(b"HTTP/1.1 200 OK and so on"),
        dripping(OK + b"A: b\r\n"),
        dripping(OK + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000),
        endless(OK, b"A: b\r\n" * 100),
    ],
    ids=["half-open", "drips-a-status", "drips-heads", "drips", "heads-without-end"],
)
def test_no_answer_is_waited_for_longer_than_is_said(say: Say) -> None:
    started = time.monotonic()
    with saying(say) as url, pytest.raises(AnswerError, match=r"^/v1/models: ") as error:
        ask(Address(url), "GET", "/v1/models", within_s=0.5)
    assert time.monotonic() - started < 2
    assert error.value.late == ("within 0.5 s" in str(error.value))


def test_an_answer_that_is_too_long_is_not_kept() -> None:
    say = endless(OK + b"Connection: close\r\n\r\n", b"x" * 2**20)
    words = f"^/metrics: answers more than {MAX_ANSWER_BYTES} bytes$"
    with saying(say) as url, pytest.raises(AnswerError, match=words):
        ask(Address(url), "GET", "/metrics", within_s=30.0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        OK + b"A: " + b"x" * 200_000 + b"\r\n\r\n",
        OK + b"Content-Length: 50\r\n\r\nshort",
    ],
    ids=["nothing", "ssh", "head", "broken-off"],
)
def test_what_is_no_http_is_told_in_a_line(content: bytes) -> None:
    with saying(said(content)) as url, pytest.raises(AnswerError) as error:
        ask(Address(url), "GET", "/version", within_s=5.0)
    assert str(error.value).startswith("/version: RemoteProtocolError, ")
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [("/health", "^/health: ConnectError, Connection refused$"), ("/\x00/config", "InvalidURL")],
)
def test_where_nothing_can_answer_the_error_says_why(path: str, words: str) -> None:
    with pytest.raises(AnswerError, match=words):
        ask(Address("http://127.0.0.1:9"), "GET", path, within_s=5.0)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "h x"])
def test_a_host_that_has_no_address_is_named_in_the_words_of_the_resolver(host: str) -> None:
    words = "^/: ConnectError, (Name or service not known|Temporary failure in|No address)"
    with pytest.raises(AnswerError, match=words):
        ask(Address(f"http://{host}:80"), "GET", "/", within_s=20.0)


def test_a_base_url_that_is_none_is_an_error_like_others() -> None:
    with pytest.raises(AnswerError, match="InvalidURL, Invalid IPv6 address"):
        ask(Address("http://[v1.x]:80"), "GET", "/", within_s=5.0)


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Connection: close\r\n\r\ndata: " + b"[" * 200_000,
        OK + b'Connection: close\r\n\r\ndata: {"choices": [{"token_ids": [1]}], "usage": 7}\n\n',
        b"\xff\xfe",
    ],
    ids=["deep", "wrong-type", "binary"],
)
def test_what_cannot_be_read_is_no_token(answer: bytes) -> None:
    with saying(said(answer)) as url:
        assert not send_probe(builders.server(url), timeout_s=5.0)


def test_a_server_that_takes_seconds_to_say_that_it_is_healthy_is_ready() -> None:
    """SGLang generates a token for that, and looks for it once a second."""
    answers = iter([b"Content-Length: 0\r\n\r\n", TOKEN])

    def say(client: socket.socket) -> None:
        answer = next(answers)
        if answer is not TOKEN:
            time.sleep(1.2)
        client.sendall(OK + answer)

    with saying(say) as url:
        assert send_probe(builders.server(url), timeout_s=30.0)


def test_a_server_that_says_no_http_any_more_died() -> None:
    with saying(said(b"\x00")) as url, pytest.raises(ServerDiedError):
        builders.server(url).check_alive()
