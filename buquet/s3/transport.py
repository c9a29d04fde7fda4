"""One HTTP exchange: bytes out, a complete answer in. All that is known of aiohttp is here.

Example::

    response = await Transport(Limits()).exchange("GET", "http://host/bucket/key", headers, b"")

Errors: `TransportError`. Redirects are not followed, cookies not kept, bodies not unpacked,
certificates always verified, and nothing is ever sent twice.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

KEEP_ALIVE_S = 4.0
"""An idle connection is not used again after this.

S3 was seen to close idle connections after 5 to 20 s, and a request that meets the closing
is lost without a reply: https://github.com/JuliaCloud/AWSCore.jl/issues/35 and
https://github.com/vectordotdev/vector/pull/9703.
"""

_HEADERS = {"user-agent": "buquet", "accept-encoding": "identity"}
"""Sent but not signed, because proxies may change them."""

_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. Header names are compared without regard to case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class TransportError(Exception):
    """No complete answer came. Internal: the store turns it into `Undecided`.

    `sent` is False if the request certainly did not reach the store.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one client.

    Parameters
    ----------
    connections:
        Requests (and so sockets) at the same time; further ones wait, not yet signed.
    connect_s:
        Longest time for DNS, TCP and TLS.
    read_s:
        Longest silence while an answer is awaited or read.
    total_s:
        Longest time of an exchange as a whole, against answers that drip.
    """

    connections: int = 64
    connect_s: float = 5.0
    read_s: float = 15.0
    total_s: float = 30.0


class Transport:
    """Pooled connections. They belong to the event loop of the first exchange and end with it.

    Parameters
    ----------
    limits:
        Bounds of time.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None
        self._held: AsyncGenerator[None, None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Send one request and read the whole answer.

        Parameters
        ----------
        method, url, headers, body:
            The request, sent as it is: the URL is encoded already.
        """
        session = await self._opened(url)
        try:
            async with session.request(
                method, URL(url, encoded=True), headers=headers, data=body or None, allow_redirects=False
            ) as answer:
                return Response(answer.status, answer.headers, await answer.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            failure = _failure(error)
        # Raised out here, because aiohttp's errors hold the request's headers, and a session
        # token among them: they must not hang on ours as its context.
        raise failure

    async def close(self) -> None:
        """Close the connections. Safe to call twice."""
        if self._held is not None:
            await self._held.aclose()

    async def _opened(self, url: str) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None:
            self._session, self._loop = self._open(url), loop
            self._held = _hold(self._session)
            await anext(self._held)
            weakref.finalize(self, _abandon, self._session, loop)
        elif self._session.closed:
            raise RuntimeError("the connection is closed")
        elif self._loop is not loop:
            raise RuntimeError("the connection belongs to another event loop: connect again in this one")
        return self._session

    def _open(self, url: str) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            # The number of connections is bounded by the client, which must wait before it signs.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=self._limits.total_s,
                connect=self._limits.connect_s,
                sock_read=self._limits.read_s,
            ),
            headers=_HEADERS,
            skip_auto_headers=("accept", "content-type"),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            middlewares=(_once,),
            # Not `trust_env`: it also reads ~/.netrc, in a thread, for each request.
            proxy=_proxy(url),
        )


async def _hold(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    """Close the session when the loop ends or the last reference goes.

    An event loop finishes its asynchronous generators before it closes (`asyncio.run` sees
    to that), and one that is collected before. So a queue that nobody closes leaves no noise.
    """
    try:
        yield
    finally:
        await session.close()


def _abandon(session: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop) -> None:
    """Quieten a session whose loop was closed without finishing its generators."""
    if loop.is_closed():
        # With the loop gone there is nothing to wait for: the coroutine ends at the first step.
        with suppress(StopIteration):
            session.close().send(None)


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending a PUT again when a pooled connection fails.

    The resend would hide that the first request may have been applied: its own effect would
    look like somebody else's.
    """
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _failure(error) from None


def _failure(error: Exception) -> TransportError:
    said = str(error) or "timed out"
    return TransportError(f"{type(error).__name__}: {said}", sent=not isinstance(error, _NOT_SENT))


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for `url` (`HTTPS_PROXY`, `NO_PROXY`, ...)."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
