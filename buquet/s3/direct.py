"""Exchanges straight on aiohttp's pooled connections, one level below its `ClientSession`.

aiohttp finds, opens (DNS, TCP, TLS) and pools the connections and parses the answers; the
bytes of a request are our own. So a small PUT costs about half of a session's CPU time
(`make bench`). The parts used here are not aiohttp's public ones: `fits` tells whether the
installed release has them.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from buquet.s3.exchange import KEEP_ALIVE_S, UNSIGNED_HEADERS, Limits, Response, TransportError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp.connector import Connection

_FAILURES = (aiohttp.ClientError, aiohttp.EofStream, HttpProcessingError, TimeoutError, OSError)
_WITH_BODY = frozenset({"PUT", "POST"})

PIECE_BYTES = 1 << 16

MOST_SPOILT = 8
"""So many connections on which the server spoke unasked are closed, then the exchange has failed."""


class Direct:
    """A `Wire` on the connections of a `TCPConnector`.

    Parameters
    ----------
    origin:
        Scheme and host of every request.
    limits:
        Bounds of time.
    """

    def __init__(self, origin: str, limits: Limits) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        # The number of connections is bounded by the client, which must wait before it signs.
        self._connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        self._connecting = aiohttp.ClientTimeout(connect=limits.connect_s)
        # Never sent: it tells the connector where to connect to.
        self._address = ClientRequest("GET", URL(origin, encoded=True), loop=self._loop)
        self._always = {"host": origin.partition("://")[2], **UNSIGNED_HEADERS}

    async def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Send one request and read the whole answer."""
        head = self._head(method, target, headers, len(body))
        deadline = self._loop.time() + self._limits.total_s
        sent = False
        try:
            connection = await self._connect()
            sent = True
            try:
                return await self._ask(connection, head, body, deadline, bodiless=method == "HEAD")
            finally:
                # Back to the pool if its answer was read to the end: `_ask` then has let it go.
                connection.close()
        except _FAILURES as error:
            failure = TransportError.of(error, sent=sent)
        # Raised out here, so that nothing of the connection hangs on it as its context.
        raise failure

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._connector.closed

    async def close(self) -> None:
        """Close all connections, those in use as well."""
        await self._connector.close()

    def _head(self, method: str, target: str, headers: Mapping[str, str], length: int) -> bytes:
        lines = [f"{method} {target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in {**self._always, **headers}.items()]
        if length or method in _WITH_BODY:
            lines.append(f"content-length: {length}")
        head = "\r\n".join(lines) + "\r\n\r\n"
        if not head.count("\n") == head.count("\r") == len(lines) + 1:
            raise ValueError("a header must not hold a line break")
        return head.encode()

    async def _connect(self) -> Connection:
        """Return a connection on which nothing is under way."""
        # Bounded: a server may speak first on each new connection as well.
        for _ in range(MOST_SPOILT):
            connection = await self._connector.connect(self._address, [], self._connecting)
            protocol = connection.protocol
            # A pooled one may have been sent an answer that nobody asked for.
            if protocol is not None and not protocol.should_close:
                return connection
            connection.close()
        raise aiohttp.ServerDisconnectedError("the server spoke before it was asked, on each connection")

    def _quiet_s(self, length: int) -> float:
        # Under TLS it cannot be seen how much of a body was taken.
        is_hidden = self._address.is_ssl() and length > PIECE_BYTES
        return self._limits.total_s if is_hidden else self._limits.read_s

    async def _ask(
        self, connection: Connection, head: bytes, body: bytes, deadline: float, *, bodiless: bool
    ) -> Response:
        protocol, transport = connection.protocol, connection.transport
        if protocol is None or transport is None or transport.is_closing():
            raise aiohttp.ServerDisconnectedError
        protocol.set_response_params(skip_payload=bodiless, read_until_eof=True, auto_decompress=False)
        _write(transport, head + body)
        patience = _Patience(self._loop, transport, self._quiet_s(len(body)), deadline)
        try:
            message, content = await protocol.read()
            while message.code < 200:  # "100 Continue" and its like come before the answer
                message, content = await protocol.read()
            if not content.is_eof():
                patience.wait_for_the_rest(protocol)
            answer = Response(message.code, message.headers, await content.read())
        except _FAILURES:
            if patience.over:
                raise TimeoutError(patience.over) from None
            raise
        finally:
            patience.end()
        if not transport.get_write_buffer_size():  # else it was refused before it was sent whole
            connection.release()
        return answer


def _write(transport: asyncio.Transport, request: bytes) -> None:
    """Write in pieces: under TLS, what is written at once is not seen in the size of the buffer.

    Not `writelines`: from Python 3.12 on an empty item makes its loop spin for ever.
    """
    view = memoryview(request)
    for start in range(0, len(request), PIECE_BYTES):
        transport.write(view[start : start + PIECE_BYTES])


class _Patience:
    """Breaks a connection off when nothing goes on there, or when its time is over.

    Timers are a good part of what an exchange costs: most set this one, and cancel it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, quiet_s: float, deadline: float
    ) -> None:
        self.over = ""
        """Why it was broken off, if it was."""
        self._loop = loop
        self._transport = transport
        self._quiet_s = quiet_s
        self._deadline = deadline
        self._unsent = transport.get_write_buffer_size()
        self._timer = self._look_again()

    def wait_for_the_rest(self, protocol: ResponseHandler) -> None:
        """Leave the silences to aiohttp, which sees each piece of an answer come."""
        self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._look)
        protocol.read_timeout = self._quiet_s
        protocol.start_timeout()

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look_again(self) -> asyncio.TimerHandle:
        return self._loop.call_at(min(self._loop.time() + self._quiet_s, self._deadline), self._look)

    def _look(self) -> None:
        unsent = self._transport.get_write_buffer_size()
        if self._loop.time() >= self._deadline:
            self.over = "the whole exchange took too long"
        elif unsent < self._unsent:
            self._unsent = unsent
            self._timer = self._look_again()
            return
        else:
            self.over = f"no answer in {self._quiet_s:g} s"
        self._transport.abort()


def fits() -> bool:
    """Whether the installed aiohttp has the inner parts that `Direct` uses, and in the same form."""
    try:
        inspect.signature(aiohttp.TCPConnector.connect).bind(None, None, [], None)
        inspect.signature(ClientRequest).bind("GET", None, loop=None)
        inspect.signature(ResponseHandler.set_response_params).bind(
            None, skip_payload=False, read_until_eof=True, auto_decompress=False
        )
    except (AttributeError, TypeError):
        return False
    return all(
        hasattr(ResponseHandler, name) for name in ("should_close", "read", "read_timeout", "start_timeout")
    )
