"""Exchanges straight on aiohttp's connections, one level below its `ClientSession`.

aiohttp finds and opens the connections (DNS, TCP, TLS) and parses the answers; the bytes of a
request are our own, and so is the choice of an idle connection. So a small PUT costs less than
half of a session's CPU time (`make bench`). The parts used here are not aiohttp's public ones:
`fits` tells whether the installed release has them.
"""

from __future__ import annotations

import asyncio
import inspect
import math
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
    from aiohttp.http_parser import RawResponseMessage

_FAILURES = (aiohttp.ClientError, aiohttp.EofStream, HttpProcessingError, TimeoutError, OSError)
_WITH_BODY = frozenset({"PUT", "POST"})
_BODILESS = frozenset({204, 304})

PIECE_BYTES = 1 << 16

MOST_SPOILT = 8
"""So many connections on which the server spoke unasked are closed, then the exchange has failed."""


class Direct:
    """A `Wire` on the connections of a `TCPConnector`.

    What a small request costs is mostly calls. So connections that may be used again are kept at
    hand here, and one timer serves all exchanges: most of their own would be set to be cancelled.

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
        self._connector = aiohttp.TCPConnector(limit=0)
        self._connecting = aiohttp.ClientTimeout(connect=limits.connect_s)
        # Never sent: it tells the connector where to connect to.
        self._address = ClientRequest("GET", URL(origin, encoded=True), loop=self._loop)
        self._hides_progress = self._address.is_ssl()
        always = {"host": origin.partition("://")[2], **UNSIGNED_HEADERS}
        self._always = "".join(f"{name}: {value}\r\n" for name, value in always.items())
        self._reads_to_end = frozenset({"GET"})
        """Methods whose answers are read to the connection's end if they give no length; costs 5 us."""
        self._idle: list[_Line] = []
        # A dict serves as a set that keeps its order.
        self._busy: dict[_Line, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf
        self.closed = False
        """Whether it was closed."""

    async def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Send one request and read the whole answer."""
        request = self._head(method, target, headers, len(body)) + body
        now = self._loop.time()
        deadline = now + self._limits.total_s
        line = self._idle_line(now)
        try:
            if line is None:
                async with asyncio.timeout_at(deadline):
                    line = await self._connect()
                now = self._loop.time()
            line.begin(now, self._quiet_s(len(body)), deadline)
            self._busy[line] = None
            if line.due < self._looks_at:
                self._look_at(line.due)
            try:
                return await line.ask(request, bodiless=method == "HEAD", to_end=method in self._reads_to_end)
            except _LengthlessError:
                self._reads_to_end |= {method}
                raise
            finally:
                del self._busy[line]
                if line.is_reusable and not self.closed:
                    self._idle.append(line)
                else:
                    line.abort()
        except _FAILURES as error:
            failure = TransportError.of(error, sent=line is not None)
        # Raised out here, so that nothing of the connection hangs on it as its context.
        raise failure

    async def close(self) -> None:
        """Close all connections, those in use as well."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for line in self._busy:
            line.abort()
        idle, self._idle = self._idle, []
        try:
            await self._connector.close()
        finally:
            for line in idle:
                line.close()

    def _head(self, method: str, target: str, headers: Mapping[str, str], length: int) -> bytes:
        head = ""
        for name, value in headers.items():
            head += f"{name}: {value}\r\n"
        if not head.count("\n") == head.count("\r") == len(headers):
            raise ValueError("a header must not hold a line break")
        if length or method in _WITH_BODY:
            head += f"content-length: {length}\r\n"
        return f"{method} {target} HTTP/1.1\r\n{self._always}{head}\r\n".encode()

    def _quiet_s(self, length: int) -> float:
        hidden = self._hides_progress and length > PIECE_BYTES
        return self._limits.total_s if hidden else self._limits.read_s

    # --- connections -----------------------------------------------------------------------

    def _idle_line(self, now: float) -> _Line | None:
        """Return the connection that was used last, if it is still good."""
        while self._idle:
            line = self._idle.pop()
            if line.is_good(now):
                return line
            line.close()
        return None

    async def _connect(self) -> _Line:
        """Return a new connection on which nothing is under way."""
        # Bounded: a server may speak first on each of them.
        for _ in range(MOST_SPOILT):
            connection = await self._connector.connect(self._address, [], self._connecting)
            line = _Line(connection, now := self._loop.time())
            if line.is_good(now):
                return line
            line.close()
        raise aiohttp.ServerDisconnectedError("the server spoke before it was asked, on each connection")

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._looks_at = self._loop.call_at(when, self._look), when

    def _look(self) -> None:
        """Break off the exchanges whose time is over, and close what has idled for too long."""
        self._timer, self._looks_at = None, math.inf
        now = self._loop.time()
        for line in self._busy:
            line.look(now)
        idle, self._idle = self._idle, []
        for line in idle:
            if line.is_good(now):
                self._idle.append(line)
            else:
                line.close()
        due = [line.due for line in self._busy] + [line.used_at + KEEP_ALIVE_S for line in self._idle]
        if due:
            self._look_at(min(due))


class _Line:
    """A connection, and for how long the exchange that is under way on it may go on.

    Parameters
    ----------
    connection:
        An open one.
    now:
        The loop's time.
    """

    __slots__ = (
        "_connection",
        "_deadline",
        "_over",
        "_protocol",
        "_quiet_s",
        "_transport",
        "_unsent",
        "due",
        "is_reusable",
        "used_at",
    )

    def __init__(self, connection: Connection, now: float) -> None:
        if connection.protocol is None or connection.transport is None:
            raise aiohttp.ServerDisconnectedError
        self._connection = connection
        self._protocol: ResponseHandler = connection.protocol
        self._transport: asyncio.Transport = connection.transport
        self.used_at = now
        """When its last exchange began."""

    def is_good(self, now: float) -> bool:
        """Whether a request may be sent: the server has neither closed it nor said anything unasked."""
        is_fresh = now - self.used_at < KEEP_ALIVE_S
        return is_fresh and not self._protocol.should_close and not self._transport.is_closing()

    def close(self) -> None:
        """Close a connection on which nothing is under way."""
        self._connection.close()

    def abort(self) -> None:
        """Close the connection at once: what is under way fails, what was not sent yet never will be."""
        self._transport.abort()
        self._connection.close()

    def begin(self, now: float, quiet_s: float, deadline: float) -> None:
        """Begin an exchange that may be silent for `quiet_s` seconds, and must end by `deadline`."""
        self.used_at = now
        self.due = min(now + quiet_s, deadline)
        """When it must be looked at."""
        self.is_reusable = False
        """Whether the answer was read to its end, so that another request may follow."""
        self._deadline = deadline
        self._quiet_s = quiet_s
        self._over = ""

    async def ask(self, request: bytes, *, bodiless: bool, to_end: bool) -> Response:
        """Send a request and read the whole answer.

        Parameters
        ----------
        request:
            Its head and body.
        bodiless:
            The answer has no body, whatever its length says.
        to_end:
            The body of an answer that gives no length is read to the connection's end.
        """
        protocol = self._protocol
        protocol.set_response_params(skip_payload=bodiless, read_until_eof=to_end, auto_decompress=False)
        self._unsent = self._write(request)
        try:
            message, content = await protocol.read()
            while message.code < 200:  # "100 Continue" and its like come before the answer
                self.due = min(asyncio.get_running_loop().time() + self._quiet_s, self._deadline)
                message, content = await protocol.read()
            if message.should_close and not (bodiless or to_end):
                _check_length(message)
            if content.is_eof():
                body = content.read_nowait()
            else:
                self._wait_for_the_rest()
                body = await content.read()
        except _FAILURES:
            if self._over:
                raise TimeoutError(self._over) from None
            raise
        # Unless it was refused before it was sent whole.
        self.is_reusable = not message.should_close and not self._transport.get_write_buffer_size()
        # So each byte that comes unasked is kept, and noticed, not taken for the beginning of an answer.
        protocol._parser = None  # noqa: SLF001
        return Response(message.code, message.headers, body)

    def look(self, now: float) -> None:
        """Break the exchange off if nothing goes on, or if its time is over."""
        if now < self.due:
            return
        unsent = self._transport.get_write_buffer_size()
        if now >= self._deadline:
            self._over = "the whole exchange took too long"
        elif unsent < self._unsent:
            self._unsent = unsent
            self.due = min(now + self._quiet_s, self._deadline)
            return
        else:
            self._over = f"no answer in {self._quiet_s:g} s"
        self.due = math.inf
        self._transport.abort()

    def _write(self, request: bytes) -> int:
        """Write in pieces, and return how many bytes are not sent yet.

        Under TLS, what is written at once is not seen in the size of the buffer.

        Not `writelines`: from Python 3.12 on an empty item makes its loop spin for ever.
        """
        if len(request) <= PIECE_BYTES:
            self._transport.write(request)
            return 0  # so little is no progress worth a look
        view = memoryview(request)
        for start in range(0, len(request), PIECE_BYTES):
            self._transport.write(view[start : start + PIECE_BYTES])
        return self._transport.get_write_buffer_size()

    def _wait_for_the_rest(self) -> None:
        """Leave the silences to aiohttp, which sees each piece of an answer come."""
        self.due = self._deadline
        self._protocol.read_timeout = self._quiet_s
        self._protocol.start_timeout()


class _LengthlessError(aiohttp.ClientPayloadError):
    """An answer without a length, whose body was not read: the next one will be."""


def _check_length(message: RawResponseMessage) -> None:
    if not (message.chunked or message.code in _BODILESS or "content-length" in message.headers):
        raise _LengthlessError("an answer without a length")


def fits() -> bool:
    """Whether the installed aiohttp has the inner parts that `Direct` uses, and in the same form."""
    try:
        inspect.signature(aiohttp.TCPConnector.connect).bind(None, None, [], None)
        inspect.signature(ClientRequest).bind("GET", None, loop=None)
        inspect.signature(ResponseHandler.set_response_params).bind(
            None, skip_payload=False, read_until_eof=True, auto_decompress=False
        )
        sets_parser = "_parser" in ResponseHandler.set_response_params.__code__.co_names
    except (AttributeError, TypeError):
        return False
    names = ("should_close", "read", "read_timeout", "start_timeout")
    return sets_parser and all(hasattr(ResponseHandler, name) for name in names)
