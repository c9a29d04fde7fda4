"""An HTTP proxy in front of a real store, with faults by rule.

It forwards each request as it came, `Host` and signature included, and the reply as it came,
unless a rule fires. Everything it did is in `seen`, so that a test can say what the store has
accepted whatever the client was told::

    async with FaultProxy(server.endpoint, Rule(DropReply(), WRITES, odds=0.1), seed=1) as proxy:
        ...                               # a client of proxy.endpoint
        await proxy.settle()              # what is late has arrived
    proxy.fired["DropReply"], proxy.most_sockets, proxy.seen

The first rule that fires decides. Its chance comes from the seed.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import parse_qs, unquote, urlsplit

import aiohttp
from yarl import URL

from buquet.store.driver import Operation

WRITES = frozenset({Operation.CREATE, Operation.REPLACE, Operation.PUT})
CONDITIONAL = frozenset({Operation.CREATE, Operation.REPLACE})
EVERY = frozenset(Operation)

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}

# --- faults --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refuse:
    """The request is answered with this error; `applied`: after the store has served it."""

    status: int
    code: str
    applied: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    more: str = ""
    """Further XML inside the error."""


@dataclass(frozen=True)
class Instead:
    """A reply of status `of` is turned into this error."""

    of: int
    status: int
    code: str


@dataclass(frozen=True)
class DropReply:
    """The request is served, then the connection closes without a word."""


@dataclass(frozen=True)
class DelayReply:
    """The request is served at once, its reply comes after `delay_s` seconds."""

    delay_s: float


@dataclass(frozen=True)
class Late:
    """The request is served `delay_s` seconds after the client was answered, or left unanswered."""

    delay_s: float
    answer: Refuse | None = None


@dataclass(frozen=True)
class Reset:
    """The request is served, and the connection reset amid the reply's body (or head, if it has none)."""


@dataclass(frozen=True)
class Truncate:
    """The request is served, and the connection closed amid the reply's body (or head)."""


@dataclass(frozen=True)
class WrongLength:
    """The reply's `Content-Length` is off by this many bytes (never below 0).

    What it leaves out comes a moment later, when the client may have taken the reply for whole.
    """

    by: int


@dataclass(frozen=True)
class Drip:
    """The reply comes in pieces of `size` bytes, `pause_s` seconds apart."""

    size: int
    pause_s: float


@dataclass(frozen=True)
class StaleList:
    """A listing shows what the same listing showed last time."""


@dataclass(frozen=True)
class Skew:
    """The reply's `Date` is off by this many seconds."""

    by_s: float


@dataclass(frozen=True)
class BusyKey:
    """429 to a write of a key that was written less than `interval_s` ago, as R2 answers."""

    interval_s: float


Fault = (
    Refuse
    | Instead
    | DropReply
    | DelayReply
    | Late
    | Reset
    | Truncate
    | WrongLength
    | Drip
    | StaleList
    | Skew
    | BusyKey
)


@dataclass(frozen=True)
class Rule:
    """When a fault happens.

    Parameters
    ----------
    fault:
        The fault.
    operations:
        The requests that it may hit.
    key:
        A regular expression found in the key (of a listing: the prefix).
    header:
        The name of a header that the request must bear, and a regular expression that its
        value must begin with.
    every:
        Only each so-manieth of those.
    odds:
        The chance of each of these.
    times:
        How often it fires at most.
    """

    fault: Fault
    operations: Collection[Operation] = EVERY
    key: str = ""
    header: tuple[str, str] | None = None
    every: int = 1
    odds: float = 1.0
    times: int | None = None


# --- messages ------------------------------------------------------------------------------


Headers = tuple[tuple[str, str], ...]


def _header(headers: Headers, name: str) -> str:
    return next((value for known, value in headers if known.lower() == name.lower()), "")


@dataclass(frozen=True)
class Request:
    """A request as it came. `key` is not encoded; of a listing it is the prefix."""

    method: str
    target: str
    headers: Headers
    body: bytes = field(repr=False)
    operation: Operation
    key: str

    def header(self, name: str) -> str:
        """The value of a header, "" if there is none."""
        return _header(self.headers, name)


@dataclass(frozen=True)
class Reply:
    """A reply as it goes out."""

    status: int
    headers: Headers
    body: bytes = field(repr=False)
    length: int

    def encoded(self) -> tuple[bytes, bytes]:
        """The head and the body."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += [f"Content-Length: {self.length}", "", ""]
        return "\r\n".join(lines).encode(), self.body

    def with_header(self, name: str, value: str) -> Reply:
        kept = tuple(pair for pair in self.headers if pair[0].lower() != name.lower())
        return replace(self, headers=(*kept, (name, value)))


@dataclass
class Seen:
    """One request, the fault that it met, and the store's own answer (None: it was not asked)."""

    request: Request
    fault: Fault | None
    status: int | None = None


# --- the proxy -----------------------------------------------------------------------------


class FaultProxy:
    """The proxy. `rules` may be changed while it runs.

    Parameters
    ----------
    upstream:
        The store's URL.
    rules:
        What goes wrong, in order.
    seed:
        Where the rules' chance comes from.
    """

    def __init__(self, upstream: str, *rules: Rule, seed: int = 0) -> None:
        self.rules = list(rules)
        self.seen: list[Seen] = []
        self.fired: Counter[str] = Counter()
        self.most_sockets = 0
        """How many connections were open at once, at most."""
        self._upstream = upstream
        self._chance = random.Random(seed)
        self._sockets: set[_Counted] = set()
        self._matched: Counter[int] = Counter()
        self._fired: Counter[int] = Counter()
        self._serving: set[asyncio.Task[None]] = set()
        self._late: set[asyncio.Task[None]] = set()
        self._listed: dict[str, Reply] = {}
        self._written_at: dict[str, float] = {}

    async def __aenter__(self) -> FaultProxy:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            auto_decompress=False,
        )
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Counted(self), "127.0.0.1", 0, backlog=512)
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in (*self._serving, *self._late):
            task.cancel()
        await asyncio.gather(*self._serving, *self._late, return_exceptions=True)
        await self._session.close()

    async def settle(self) -> None:
        """Wait until every late request has been served."""
        while self._late:
            await asyncio.wait(set(self._late))

    # --- connections -----------------------------------------------------------------------

    def opened(self, connection: _Counted) -> None:
        self._sockets.add(connection)
        # Two turns later the end of a connection that the client closed first is known as well.
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: loop.call_soon(self._measure))

    def closed(self, connection: _Counted) -> None:
        self._sockets.discard(connection)

    def _measure(self) -> None:
        self.most_sockets = max(self.most_sockets, len(self._sockets))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        with suppress(ConnectionError, asyncio.CancelledError, aiohttp.ClientError):
            while (request := await _read_request(reader)) is not None:
                seen = Seen(request, self._fault_of(request))
                self.seen.append(seen)
                if not await self._act(seen, writer):
                    break
        writer.close()

    # --- what goes wrong -------------------------------------------------------------------

    def _fault_of(self, request: Request) -> Fault | None:
        for number, rule in enumerate(self.rules):
            if self._fires(number, rule, request):
                self.fired[type(rule.fault).__name__] += 1
                return rule.fault
        return None

    def _fires(self, number: int, rule: Rule, request: Request) -> bool:
        if request.operation not in rule.operations or not re.search(rule.key, request.key):
            return False
        if rule.header and not re.match(rule.header[1], request.header(rule.header[0])):
            return False
        if not self._applies(rule.fault, request):
            return False
        self._matched[number] += 1
        fires = (
            self._matched[number] % rule.every == 0
            and self._chance.random() < rule.odds
            and (rule.times is None or self._fired[number] < rule.times)
        )
        self._fired[number] += fires
        return fires

    def _applies(self, fault: Fault, request: Request) -> bool:
        """Whether the fault could make a difference to this request."""
        if isinstance(fault, StaleList):
            return request.target in self._listed
        if isinstance(fault, BusyKey):
            now = asyncio.get_running_loop().time()
            return now - self._written_at.get(request.key, -1e9) < fault.interval_s
        return True

    async def _act(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        """Serve a request; return whether the connection goes on."""
        match seen.fault:
            case Refuse(applied=applied) as refuse:
                if applied:
                    await self._forward(seen)
                await _send(writer, _refusal(refuse))
            case BusyKey():
                await _send(writer, _refusal(Refuse(429, "TooManyRequests")))
            case Late(delay_s, answer):
                self._put_off(seen, delay_s)
                if answer is None:
                    return False
                await _send(writer, _refusal(answer))
            case fault:
                return await self._mangle(fault, await self._forward(seen), writer)
        return True

    async def _mangle(self, fault: Fault | None, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        """Send the store's reply, or what the fault leaves of it."""
        head, body = reply.encoded()
        half = head + body[: len(body) // 2] if body else head[: len(head) // 2]
        match fault:
            case DropReply():
                return False
            case Truncate():
                writer.write(half)
                return False
            case Reset():
                await _reset(writer, half)
                return False
            case Drip(size, pause_s):
                await _drip(writer, head + body, size, pause_s)
                return True
            case DelayReply(delay_s):
                await asyncio.sleep(delay_s)
        await _send(writer, _changed(fault, reply))
        return not isinstance(fault, WrongLength)

    def _put_off(self, seen: Seen, delay_s: float) -> None:
        async def late() -> None:
            await asyncio.sleep(delay_s)
            with suppress(aiohttp.ClientError):
                await self._forward(seen)

        task = asyncio.create_task(late())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    # --- forwarding ------------------------------------------------------------------------

    async def _forward(self, seen: Seen) -> Reply:
        request = seen.request
        async with self._session.request(
            request.method,
            URL(self._upstream + request.target, encoded=True),
            headers=[pair for pair in request.headers if pair[0].lower() not in HOP_BY_HOP],
            data=request.body or None,
            allow_redirects=False,
        ) as answer:
            body = await answer.read()
        seen.status = answer.status
        headers = tuple((n, v) for n, v in answer.headers.items() if n.lower() not in HOP_BY_HOP)
        length = int(answer.headers.get("Content-Length", len(body)))
        reply = Reply(answer.status, headers, body, length if request.method == "HEAD" else len(body))
        if request.operation in WRITES:
            self._written_at[request.key] = asyncio.get_running_loop().time()
        if request.operation is Operation.LIST:
            reply = self._listing(seen, reply)
        return reply

    def _listing(self, seen: Seen, reply: Reply) -> Reply:
        target = seen.request.target
        if not isinstance(seen.fault, StaleList):
            self._listed[target] = reply
            return reply
        stale = self._listed[target]
        return replace(reply, status=stale.status, body=stale.body, length=stale.length)


class _Counted(asyncio.StreamReaderProtocol):
    """A connection that is counted from its first moment until the client ends it."""

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(asyncio.StreamReader(limit=2**22), proxy.serve)
        self._proxy = proxy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._proxy.opened(self)

    def eof_received(self) -> bool:
        self._proxy.closed(self)
        return bool(super().eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        self._proxy.closed(self)
        super().connection_lost(exc)


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head[:-4].split("\r\n")
        method, target, _ = first.split(" ")
        headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
        body = await reader.readexactly(int(_header(headers, "content-length") or 0))
    except asyncio.IncompleteReadError:
        return None
    operation, key = _meaning(method, target, headers)
    return Request(method, target, headers, body, operation, key)


def _meaning(method: str, target: str, headers: Headers) -> tuple[Operation, str]:
    """Say what a request with the bucket in its path is about."""
    url = urlsplit(target)
    query = parse_qs(url.query, keep_blank_values=True)
    key = unquote(url.path).removeprefix("/").partition("/")[2]
    if not key:
        if "list-type" in query:
            return Operation.LIST, query["prefix"][0]
        return (Operation.DELETE_MANY if "delete" in query else Operation.CREATE_BUCKET), ""
    names = {name.lower() for name, _ in headers}
    if method == "PUT" and "if-none-match" in names:
        return Operation.CREATE, key
    if method == "PUT" and "if-match" in names:
        return Operation.REPLACE, key
    return Operation[method], key


def _refusal(refuse: Refuse, headers: Headers = ()) -> Reply:
    body = f"<?xml version='1.0'?><Error><Code>{refuse.code}</Code>{refuse.more}</Error>".encode()
    return Reply(refuse.status, (*headers, *refuse.headers.items()), body, len(body))


def _changed(fault: Fault | None, reply: Reply) -> Reply:
    match fault:
        case Instead(of=status) if status == reply.status:
            dated = tuple(pair for pair in reply.headers if pair[0].lower() == "date")
            return _refusal(Refuse(fault.status, fault.code), dated)
        case Skew(by_s):
            moved = parsedate_to_datetime(_header(reply.headers, "date")) + timedelta(seconds=by_s)
            return reply.with_header("Date", format_datetime(moved, usegmt=True))
        case WrongLength(by):
            return replace(reply, length=max(0, reply.length + by))
    return reply


async def _send(writer: asyncio.StreamWriter, reply: Reply) -> None:
    head, body = reply.encoded()
    writer.write(head + body[: reply.length])
    await writer.drain()
    if body[reply.length :]:
        await asyncio.sleep(0.02)
        writer.write(body[reply.length :])


async def _drip(writer: asyncio.StreamWriter, message: bytes, size: int, pause_s: float) -> None:
    for start in range(0, len(message), size):
        writer.write(message[start : start + size])
        await writer.drain()
        await asyncio.sleep(pause_s)


async def _reset(writer: asyncio.StreamWriter, part: bytes) -> None:
    writer.write(part)
    await writer.drain()
    await asyncio.sleep(0.01)  # a reset that overtakes the part would hide it
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
