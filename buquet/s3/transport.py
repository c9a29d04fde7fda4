"""The client's connections: whose event loop they belong to, and when they end.

Example::

    wire = Transport("http://host", Limits()).wire()
    response = await wire.exchange("GET", "/bucket/key", headers, b"")

Errors: `TransportError`. Redirects are not followed, cookies not kept, bodies not unpacked,
certificates always verified, and nothing is ever sent twice.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from buquet.s3 import direct
from buquet.s3.session import Session

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from buquet.s3.exchange import Limits, Wire


class Transport:
    """Pooled connections. They belong to the event loop of the first exchange and end with it.

    Parameters
    ----------
    origin:
        Scheme and host of every request.
    limits:
        Bounds of time.
    """

    def __init__(self, origin: str, limits: Limits) -> None:
        self._origin = origin
        self._limits = limits
        self._wire: Wire | None = None
        self._held: AsyncGenerator[None, None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def wire(self) -> Wire:
        """Return who carries exchanges out.

        Raises
        ------
        RuntimeError
            The connections are closed, or belong to another event loop.
        """
        wire = self._wire
        if wire is None:
            return self._open()
        if wire.closed:
            raise RuntimeError("the connection is closed")
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("the connection belongs to another event loop: connect again in this one")
        return wire

    async def close(self) -> None:
        """Close the connections. Safe to call twice."""
        if self._held is not None:
            await self._held.aclose()

    def _open(self) -> Wire:
        proxy = _proxy(self._origin)
        wire: Wire
        if proxy is None and direct.fits():
            wire = direct.Direct(self._origin, self._limits)
        else:
            wire = Session(self._origin, self._limits, proxy)
        self._wire, self._loop = wire, asyncio.get_running_loop()
        self._held = _hold(wire)
        with suppress(StopIteration):  # it waits for nothing before it yields
            anext(self._held).send(None)
        weakref.finalize(self, _abandon, wire, self._loop)
        return wire


async def _hold(wire: Wire) -> AsyncGenerator[None, None]:
    """Close the wire when the loop ends or the last reference goes.

    An event loop finishes its asynchronous generators before it closes (`asyncio.run` sees
    to that), and one that is collected before. So a queue that nobody closes leaves no noise.
    """
    try:
        yield
    finally:
        await wire.close()


def _abandon(wire: Wire, loop: asyncio.AbstractEventLoop) -> None:
    """Quieten a wire whose loop was closed without finishing its generators."""
    if loop.is_closed():
        # With the loop gone there is nothing to wait for: the coroutine ends at the first step.
        with suppress(StopIteration):
            wire.close().send(None)


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for `url` (`HTTPS_PROXY`, `NO_PROXY`, ...)."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
