"""An HTTP server on loopback that answers what it is told, the truth or not.

Each request takes the next answer of the script; the last one is repeated. An answer is raw
bytes, after which the connection stays open, or a coroutine function of the stream writer,
after which it is closed::

    async with Liar(answer(503), answer(200, b"body")) as liar:
        ...                       # requests to liar.endpoint
        liar.requests             # the heads of the requests as they came
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from hashlib import md5
from http import HTTPStatus

Act = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(status: int = 200, body: bytes = b"", **headers: str) -> bytes:
    """Return an honest answer; `_` in a header's name stands for `-`, and "" leaves it out."""
    etag = f'"{md5(body).hexdigest()}"'
    lines = {"date": formatdate(usegmt=True), "etag": etag, "content-length": str(len(body))}
    lines["last-modified"] = lines["date"]
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    return f"{head}\r\n".encode() + body


def error(status: int, code: str, more: str = "", **headers: str) -> bytes:
    """Return an S3 error; `more` is further XML."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>so it is</Message>{more}</Error>"
    return answer(status, body.encode(), etag="", **headers)


class Liar:
    """The server. `requests` are the heads that came, `connections` how many there were."""

    def __init__(self, *script: Act, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[str] = []
        self.connections = 0
        self._script = list(script)
        self._tls = tls
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Liar:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        self.endpoint = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self.connections += 1
        try:
            while head := await self.take(reader):
                self.requests.append(head)
                act = self._script.pop(0) if len(self._script) > 1 else self._script[0]
                if not isinstance(act, bytes):
                    await act(writer)
                    return
                writer.write(act)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def take(self, reader: asyncio.StreamReader) -> str:
        """Read one request and return its head; "" once there are no more."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return ""
        for line in head.lower().split("\r\n"):
            if line.startswith("content-length:"):
                await reader.readexactly(int(line.partition(":")[2]))
        return head
