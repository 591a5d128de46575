"""A server over real HTTP whose answers a test works out itself."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import msgspec

from tests.doubles.vllm.app import ScriptedServer
from tests.doubles.vllm.launch import Launch
from tests.doubles.vllm.script import DEFAULTS, Script

Json = dict[str, Any]
Answer = Callable[[str, Json], Json | bytes | int]
"""The path and the body of a request in; the body of the answer, or the status of a refusal out."""


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Its URL, while it answers; each request has a thread of its own."""

    class Handler(BaseHTTPRequestHandler):
        wbufsize = -1  # head and body at once: between two packets lie 40 ms (delayed ACKs)

        def do_POST(self) -> None:
            raw_body = self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}"
            reply = answer(self.path, msgspec.json.decode(raw_body))
            status, body = (
                (reply, {"refused": "x" * 500}) if isinstance(reply, int) else (200, reply)
            )
            encoded = body if isinstance(body, bytes) else msgspec.json.encode(body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def gateway(
    url: str,
    *,
    refuses: Collection[str] = (),
    only_at: str = "/",
    change: Callable[[str, bytes], bytes] = lambda _, answer: answer,
    fails: Mapping[str, int] = {},
) -> contextlib.AbstractContextManager[str]:
    """The URL of a gateway to a server, which sends each answer in one piece.

    Args:
        url: the server.
        refuses: the fields for which it refuses a request.
        only_at: the beginning of the paths at which it refuses any.
        change: what it makes of the answer at a path.
        fails: the statuses with which it answers at paths instead of the server.
    """

    def forward(path: str, body: Json) -> bytes | int:
        if path in fails:
            return fails[path]
        if path.startswith(only_at) and not body.keys().isdisjoint(refuses):
            return 400
        method = "POST" if body else "GET"
        answer = httpx.request(method, url + path, json=body or None, timeout=60.0)
        if answer.status_code != httpx.codes.OK:
            return answer.status_code
        return change(path, answer.content)

    return answering(forward)


@contextlib.contextmanager
def replicas(*launches: Launch, script: Script = DEFAULTS) -> Iterator[Sequence[str]]:
    """The URLs of scripted servers, in a thread of this process."""
    loop = asyncio.new_event_loop()
    stack = contextlib.AsyncExitStack()

    async def begin() -> list[str]:
        servers = [ScriptedServer(launch, script).listening() for launch in launches]
        return [await stack.enter_async_context(server) for server in servers]

    urls = loop.run_until_complete(begin())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield urls
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
