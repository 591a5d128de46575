"""Send requests to a server over HTTP, with limits on size and time, because servers may misbehave.

`specreg.load.chat_client` reads the streams of measured requests, with limits of its own.
"""

import asyncio
import os
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated

import msgspec

from specreg.core.address import Address
from specreg.core.certificates import trusted_certificates, why_not_trusted
from specreg.core.errors import AnswerError
from specreg.core.interrupts import check_signalled
from specreg.core.readable import readable_line
from specreg.core.server_words import MAX_QUOTED_CHARACTERS, find_error

if TYPE_CHECKING:
    import httpx

MAX_ANSWER_BYTES = 16 * 2**20
"""The largest size of an answer, or of a line in a stream. Pages of metrics take about 100 KiB."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**48)]
"""A number of tokens or steps that a server reports."""
Histogram = Annotated[tuple[Count, ...], msgspec.Meta(max_length=1024)]
"""The number of steps for each number of accepted drafts. Drafters draft far fewer than 1,024."""
ShortText = Annotated[str, msgspec.Meta(max_length=1024)]
"""The name of a model or an answer, or a version."""

HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """The response of a server.

    Attributes:
        path: the path of the request.
        status: the status of HTTP.
        content: the body, `MAX_ANSWER_BYTES` or less.
        location: where a redirection leads; empty for another answer.
    """

    path: str
    status: int
    content: bytes
    location: str = ""

    @property
    def text(self) -> str:
        """The content decoded as UTF-8, with `�` for each byte that isn't valid."""
        return self.content.decode(errors="replace")

    def good(self) -> bytes:
        """Return the content of an answer that isn't an error.

        Raises:
            AnswerError: the status isn't 2xx, or the content is an error: some servers answer an
                error with the status 200.
        """
        words = find_error(self.content)
        is_good = HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES
        if is_good and words is None:
            return self.content
        message = f"HTTP {self.status} from {self.path}"
        if self.location:
            message += f", which redirects to '{_without_query(self.location)}'"
        if words is not None:
            message += f": {words.text}"
        raise AnswerError(message, status=self.status)


async def read(
    client: "httpx.AsyncClient",
    method: str,
    path: str,
    *,
    within_s: float,
    body: bytes | None = None,
) -> HttpResponse:
    """Send a request, and read the whole answer, whatever its status.

    Args:
        client: the HTTP client of the server.
        method: the HTTP method.
        path: the path at the server.
        within_s: how long the whole answer may take, in seconds.
        body: the JSON to send; None to send nothing.

    Raises:
        AnswerError: the server can't be reached, or its answer is late, too long or not HTTP.
        KeyboardInterrupt: a signal came, and the event loop dropped its interrupt.
    """
    import aiohttp  # noqa: PLC0415 - takes long, and few commands ask a server
    import httpx  # noqa: PLC0415 - the same

    content = bytearray()
    try:
        async with (
            # A timeout of httpx would begin anew with each piece of an answer that drips.
            asyncio.timeout(within_s),
            client.stream(method, path, content=body, headers=HEADERS, timeout=None) as response,
        ):
            # The raw bytes aren't decompressed: a small answer could fill the memory.
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > MAX_ANSWER_BYTES:
                    raise AnswerError(f"{path}: answers more than {MAX_ANSWER_BYTES} bytes")
    except TimeoutError as error:
        raise AnswerError(f"{path}: no whole answer within {within_s:g} s", late=True) from error
    # The client of `specreg.load.chat_client` sends by aiohttp. Some of aiohttp's errors reach this
    # line unchanged, as for an answer that isn't HTTP.
    except (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError) as error:
        # If a signal came during a callback of the event loop, the loop may have dropped the
        # interrupt and closed the connection.
        check_signalled()
        raise _failure(path, error) from error

    return HttpResponse(
        path=path,
        status=response.status_code,
        content=bytes(content),
        location=response.headers.get("Location", ""),
    )


def ask(
    address: Address, method: str, path: str, *, within_s: float, body: bytes | None = None
) -> HttpResponse:
    """Send a single request to a server, outside of any event loop.

    Args:
        address: the address of the server.
        method: as in `read`.
        path: as in `read`.
        within_s: as in `read`.
        body: as in `read`.

    Raises:
        AnswerError: as for `read` and `trusted_certificates`, or the URL is malformed.
        KeyboardInterrupt: as for `read`.
    """
    import httpx  # noqa: PLC0415 - takes long, and few commands ask a server

    async def ask_once() -> HttpResponse:
        trusted = trusted_certificates(address)
        try:
            # With `trust_env`, a request to a server here could go to a proxy that is meant for the
            # internet.
            client = httpx.AsyncClient(
                base_url=address.url, headers=address.headers(), trust_env=False, verify=trusted
            )
        except httpx.InvalidURL as error:
            raise _failure(path, error) from error

        async with client:
            return await read(client, method, path, within_s=within_s, body=body)

    return asyncio.run(ask_once())


def _without_query(url: str) -> str:
    """Return a URL as a line without its query, which may hold a secret."""
    return readable_line(url.partition("?")[0], MAX_QUOTED_CHARACTERS)


def _failure(path: str, error: Exception) -> AnswerError:
    """Return the error for a request that an error of a library ended."""
    return AnswerError(f"{path}: {type(error).__name__}, {_cause_of(error)}")


def _cause_of(error: BaseException) -> str:
    """Return the cause of an error in a line: the system's own error, if the libraries hide one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return why_not_trusted(cause)
        # The words of the system are shorter than those that the libraries make of them.
        if isinstance(cause, OSError) and cause.errno:
            # The resolver of names has numbers of its own, below zero.
            if cause.errno < 0 and cause.strerror:
                return readable_line(cause.strerror)
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__

    return short_message(error) or "no words"


def short_message(error: BaseException) -> str:
    """Return the message of an error as a line of at most 300 characters.

    Some libraries quote a whole answer in their errors.
    """
    return readable_line(str(error), MAX_QUOTED_CHARACTERS)
