"""Exchanges by aiohttp's `ClientSession`: through proxies, and with any aiohttp.

Its request and response objects cost more than all else on the way of a small request, which
is why `direct` serves where it can.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from buquet.s3.exchange import KEEP_ALIVE_S, UNSIGNED_HEADERS, Limits, Response, TransportError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGE_BYTES = 1 << 20
"""aiohttp warns of larger bodies that are not a file."""

_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)


class Session:
    """A `Wire` over a `ClientSession`.

    Parameters
    ----------
    origin:
        Scheme and host of every request.
    limits:
        Bounds of time.
    proxy:
        The proxy's URL, if requests go through one.
    """

    def __init__(self, origin: str, limits: Limits, proxy: str | None) -> None:
        self._origin = origin
        self._session = aiohttp.ClientSession(
            # The number of connections is bounded by the client, which must wait before it signs.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=limits.total_s, connect=limits.connect_s, sock_read=limits.read_s
            ),
            headers=UNSIGNED_HEADERS,
            skip_auto_headers=("accept", "content-type"),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            middlewares=(_once,),
            # Not `trust_env`: it also reads ~/.netrc, in a thread, for each request.
            proxy=proxy,
        )

    async def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Send one request and read the whole answer."""
        url = URL(self._origin + target, encoded=True)
        data = BytesIO(body) if len(body) > _LARGE_BYTES else body or None
        try:
            async with self._session.request(
                method, url, headers=headers, data=data, allow_redirects=False
            ) as answer:
                return Response(answer.status, answer.headers, await answer.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            failure = _failure(error)
        # Raised out here, because aiohttp's errors hold the request's headers, and a session
        # token among them: they must not hang on ours as its context.
        raise failure

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._session.closed

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


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
    return TransportError.of(error, sent=not isinstance(error, _NOT_SENT))
