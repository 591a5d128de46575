"""An ingress as on Kubernetes: a path prefix, a token and TLS before a server or its replicas."""

import asyncio
import contextlib
import itertools
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

AUTHORITY = """
[ca]
default_ca = usual
[usual]
database = {folder}/index.txt
rand_serial = yes
new_certs_dir = {folder}
default_md = sha256
policy = any
[any]
commonName = supplied
[names]
subjectAltName = {subject}
basicConstraints = CA:TRUE
"""


def make_certificate(
    folder: Path, *, year: int = 2999, subject: str = "IP:127.0.0.1,DNS:localhost"
) -> Path:
    """Make a certificate that signs itself, and `key.pem` beside it.

    Args:
        folder: where both go; it is made.
        year: the year on whose first day it expires.
        subject: whose certificate it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    certificate = folder / "certificate.pem"
    key = folder / "key.pem"
    request = folder / "request.pem"
    authority = folder / "authority"
    authority.write_text(AUTHORITY.format(folder=folder, subject=subject))
    (folder / "index.txt").write_text("")
    new_key = ("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-keyout", str(key))
    signed = ("ca", "-batch", "-selfsign", "-notext", "-extensions", "names", "-keyfile", str(key))
    dates = ("-startdate", "20190101000000Z", "-enddate", f"{year}0101000000Z")
    in_and_out = ("-config", str(authority), "-in", str(request), "-out", str(certificate))
    for command in ((*new_key, "-out", str(request)), (*signed, *dates, *in_and_out)):
        subprocess.run(("openssl", *command), check=True, capture_output=True)  # noqa: S607
    return certificate


@dataclass(slots=True, kw_only=True)
class Ingress:
    """A reverse proxy, which passes on each chunk of an answer as it comes.

    Attributes:
        backends: the URLs of the replicas, which take turns.
        prefix: the path before those of the servers; any other is 404.
        token: what each request must carry; 401 without one, and 403 with another.
        open_paths: the paths that need no token.
        refused: the status with which it answers at a path of the servers instead of them.
        redirects_to: the URL to which it redirects every request; empty for none.
        seen: the path and the `Authorization` of each request so far.
        url: where it listens, with the prefix.
    """

    backends: Sequence[str]
    prefix: str = ""
    token: str = ""
    open_paths: Sequence[str] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    redirects_to: str = ""
    seen: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""
    _turns: Iterator[str] = field(init=False)

    def __post_init__(self) -> None:
        self._turns = itertools.cycle(self.backends)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request: refuse it, redirect it, or pass it on."""
        authorization = request.headers.get("Authorization", "")
        self.seen.append((request.path, authorization))
        path = request.path.removeprefix(self.prefix)
        if self.redirects_to:
            return web.Response(status=307, headers={"Location": self.redirects_to + path})
        if not request.path.startswith(f"{self.prefix}/"):
            return web.Response(status=404, text="default backend - 404")
        if self.token and path not in self.open_paths:
            if not authorization:
                return web.Response(status=401, text="Unauthorized")
            if authorization != f"Bearer {self.token}":
                return web.Response(
                    status=403, text=f"Forbidden: {authorization.removeprefix('Bearer ')}"
                )
        if path in self.refused:
            return web.Response(status=self.refused[path])
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method,
                next(self._turns) + path,
                data=await request.read(),
                headers={"Content-Type": "application/json"},
            ) as answer,
        ):
            passed = web.StreamResponse(status=answer.status)
            passed.content_type = answer.content_type
            await passed.prepare(request)
            async for piece in answer.content.iter_any():
                await passed.write(piece)
            await passed.write_eof()
            return passed

    @contextlib.contextmanager
    def listening(self, certificate: Path | None = None) -> Iterator["Ingress"]:
        """Answer in a thread, through TLS if it has a certificate."""
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_name("key.pem"))
        loop = asyncio.new_event_loop()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

        async def begin() -> int:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
            await site.start()
            port: int = runner.addresses[0][1]
            return port

        port = loop.run_until_complete(begin())
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{port}{self.prefix}"
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
