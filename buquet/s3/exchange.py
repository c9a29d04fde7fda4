"""What one HTTP exchange gives or fails with, and its bounds; whoever carries it out.

Example::

    Response(200, {"ETag": '"1"'}, b"{}")
    raise TransportError("ServerDisconnectedError: Server disconnected", sent=True)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

KEEP_ALIVE_S = 4.0
"""An idle connection is not used again after this.

S3 was seen to close idle connections after 5 to 20 s, and a request that meets the closing
is lost without a reply: https://github.com/JuliaCloud/AWSCore.jl/issues/35 and
https://github.com/vectordotdev/vector/pull/9703.
"""

UNSIGNED_HEADERS = {"user-agent": "buquet", "accept-encoding": "identity"}
"""Sent with each request but not signed, because proxies may change them."""


@dataclass(slots=True)
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

    @classmethod
    def of(cls, error: Exception, *, sent: bool) -> TransportError:
        """Say what aiohttp's error says, without holding on to it."""
        return cls(f"{type(error).__name__}: {str(error) or 'timed out'}", sent=sent)


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
        Longest time until the head of an answer is there, and longest silence while its body is read.
    total_s:
        Longest time of an exchange as a whole, against answers that drip.
    """

    connections: int = 64
    connect_s: float = 5.0
    read_s: float = 15.0
    total_s: float = 30.0


class Wire(Protocol):
    """Who carries exchanges out, in the event loop that it was made in."""

    async def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Send one request and read the whole answer; `target` is the path and the query, encoded.

        Raises
        ------
        TransportError
            No complete answer came.
        """

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    async def close(self) -> None:
        """Close all connections, those in use as well."""
