"""The HTTP of the scripted servers, as h11 reads and writes it.

The tests start hundreds of scripted servers. aiohttp takes three times as long to import as this.
"""

import asyncio
import contextlib
import fnmatch
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus

import h11
import msgspec

Handler = Callable[["Request"], Awaitable["Response | None"]]
"""Answers a request: with a response, or with None if it wrote a stream."""
Routes = Mapping[tuple[str, str], Handler]
"""Handlers by method and path, as `fnmatch` reads it: `/v2/models/*/generate_stream`."""

_PIECE_BYTES = 2**16
_ENDING_S = 0.1
"""How long a request may go on after a signal."""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    status: int = HTTPStatus.OK
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"


class Request:
    """A request, with its whole body, and the connection that its answer is written to."""

    def __init__(self, method: str, path: str, body: bytes, connection: "_Connection") -> None:
        self.method = method
        self.path = path
        self.body = body
        self._connection = connection

    async def start_stream(self, content_type: str) -> None:
        """Writes the head of a stream, whose end is not known yet."""
        headers = [("Content-Type", content_type), ("Transfer-Encoding", "chunked")]
        await self._connection.send(h11.Response(status_code=HTTPStatus.OK, headers=headers))

    async def write(self, content: bytes) -> None:
        """Writes a part of a stream.

        Raises:
            ConnectionResetError: the client is gone.
        """
        await self._connection.send(h11.Data(data=content))

    def disconnect(self) -> None:
        """Ends the connection in the middle of an answer."""
        self._connection.close()


class _Connection:
    """One connection of a client, which sends one request after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = h11.Connection(h11.SERVER)

    async def read_request(self) -> Request | None:
        """Reads the next request; None if the client is gone.

        Raises:
            h11.RemoteProtocolError: it is no HTTP.
        """
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                self._protocol.receive_data(await self._reader.read(_PIECE_BYTES))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                path = head.target.decode().partition("?")[0]
                return Request(head.method.decode(), path, bytes(body), self)
            else:
                return None

    async def respond(self, response: Response) -> None:
        """Writes a whole answer."""
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
        ]
        await self.send(h11.Response(status_code=response.status, headers=headers))
        await self.send(h11.Data(data=response.body))

    async def send(self, event: h11.Event) -> None:
        """Writes a part of an answer.

        Raises:
            ConnectionResetError: the client is gone.
        """
        # A client never closes its half of a connection from which it still reads.
        if self._reader.at_eof() or self._writer.is_closing():
            raise ConnectionResetError
        self._writer.write(self._protocol.send(event) or b"")
        await self._writer.drain()

    async def end_answer(self) -> bool:
        """Ends an answer, and returns whether another request may follow."""
        await self.send(h11.EndOfMessage())
        if self._protocol.our_state is not h11.DONE:
            return False
        self._protocol.start_next_cycle()
        return True

    def close(self) -> None:
        self._writer.close()


class HttpServer:
    """A server of some routes."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._connections = set[asyncio.Task[None]]()

    def run(self, host: str, port: int, *, is_ended_by_signals: bool) -> None:
        """Serves until a signal comes."""
        asyncio.run(self._run(host, port, is_ended_by_signals=is_ended_by_signals))

    @contextlib.asynccontextmanager
    async def listening(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Serves in the running event loop; yields the base URL."""
        server = await asyncio.start_server(self._accept, host, port)
        async with server:
            try:
                yield f"http://{host}:{server.sockets[0].getsockname()[1]}"
            finally:
                server.close()
                if self._connections:
                    await asyncio.wait(self._connections, timeout=_ENDING_S)
                for connection in self._connections:
                    connection.cancel()

    async def _run(self, host: str, port: int, *, is_ended_by_signals: bool) -> None:
        is_ending = asyncio.Event()
        if is_ended_by_signals:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, is_ending.set)
        async with self.listening(host, port):
            await is_ending.wait()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.ensure_future(self._serve(_Connection(reader, writer)))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, connection: _Connection) -> None:
        """Answers what comes over one connection."""
        with (
            contextlib.closing(connection),
            contextlib.suppress(ConnectionError, h11.RemoteProtocolError),
        ):
            while request := await connection.read_request():
                response = await self._handler_of(request)(request)
                if response is not None:
                    await connection.respond(response)
                if not await connection.end_answer():
                    break

    def _handler_of(self, request: Request) -> Handler:
        for (method, pattern), handler in self._routes.items():
            if request.method == method and fnmatch.fnmatchcase(request.path, pattern):
                return handler
        return _answer_unknown


async def _answer_unknown(_: Request) -> Response:
    return Response(status=HTTPStatus.NOT_FOUND, body=b"404: Not Found")
