"""The wire: one signed HTTP request a call, and the answer as it came.

Nothing is sent twice here and nothing is judged: retries and verdicts belong to the layers
above. A request is signed at the last moment, when a connection slot is free, and its
`before_sign` hook is called right before that.

Example::

    client = S3Client(endpoint, "us-east-1", credentials)
    response = await client.get("tasks/a/1.json", clock.unix)
    response.status, response.headers["ETag"], response.body

Errors: `TransportError`, and whatever `before_sign` and the credentials raise.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from buquet._core.sign import Signer, canonical_query, encode_path, payload_hash
from buquet.s3.exchange import Limits, Response
from buquet.s3.transport import Transport
from buquet.s3.xml import build_create_bucket, build_delete

if TYPE_CHECKING:
    from buquet.config import AccessKeys
    from buquet.s3.credentials import Credentials
    from buquet.s3.endpoint import Endpoint

BeforeSign = Callable[[], float]
"""Called right before a request is signed: returns the Unix time in seconds to sign it with.

What it raises ends the request, which then was not sent.
"""

Sending = Coroutine[Any, Any, Response]
"""A request that is sent when this is awaited."""

_NO_REGION = frozenset({"us-east-1", "auto"})
"""Regions that a `CreateBucket` does not name: S3 refuses the first, R2 means the second."""


class S3Client:
    """A client of one bucket. It belongs to the event loop that it is first used in.

    It may be left unclosed: its connections end with the loop, or with the client.

    Parameters
    ----------
    endpoint:
        The bucket's address.
    region:
        The region that signatures name.
    credentials:
        The source of keys.
    limits:
        Bounds of time and number.
    """

    def __init__(
        self, endpoint: Endpoint, region: str, credentials: Credentials, limits: Limits | None = None
    ) -> None:
        self.endpoint = endpoint
        self.region = region
        self.credentials = credentials
        limits = limits or Limits()
        self._slots = _Slots(limits.connections)
        self._transport = Transport(f"{endpoint.scheme}://{endpoint.host}", limits)
        self._signer: tuple[AccessKeys, Signer] | None = None

    def get(self, key: str, before_sign: BeforeSign) -> Sending:
        """Read an object."""
        return self._send("GET", key, before_sign)

    def head(self, key: str, before_sign: BeforeSign) -> Sending:
        """Read an object's headers."""
        return self._send("HEAD", key, before_sign)

    def put(self, key: str, body: bytes, headers: Mapping[str, str], before_sign: BeforeSign) -> Sending:
        """Write an object; `headers` carry the condition."""
        return self._send("PUT", key, before_sign, headers=headers, body=body)

    def delete(self, key: str, before_sign: BeforeSign) -> Sending:
        """Delete an object."""
        return self._send("DELETE", key, before_sign)

    def delete_many(self, keys: Sequence[str], before_sign: BeforeSign) -> Sending:
        """Delete up to 1,000 objects; the answer names those that failed."""
        body = build_delete(keys)
        # MinIO and older services insist on this checksum.
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        headers = {"content-md5": digest, "content-type": "application/xml"}
        return self._send("POST", "", before_sign, query=[("delete", "")], headers=headers, body=body)

    def list(self, prefix: str, after: str, limit: int, before_sign: BeforeSign) -> Sending:
        """List up to `limit` keys under `prefix` that sort after `after`."""
        query = [("list-type", "2"), ("encoding-type", "url"), ("max-keys", str(limit)), ("prefix", prefix)]
        if after:
            query.append(("start-after", after))
        return self._send("GET", "", before_sign, query=query)

    def create_bucket(self, before_sign: BeforeSign) -> Sending:
        """Create the bucket in the client's region."""
        body = b"" if self.region in _NO_REGION else build_create_bucket(self.region)
        return self._send("PUT", "", before_sign, body=body)

    async def close(self) -> None:
        """Close the connections. Safe to call twice."""
        await self._transport.close()

    async def _send(
        self,
        method: str,
        key: str,
        before_sign: BeforeSign,
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Response:
        host = self.endpoint.host
        path = encode_path(self.endpoint.path(key))
        target = f"{path}?{canonical_query(query)}" if query else path
        headers = headers or {}
        digest = payload_hash(body)
        if self._slots.free:
            self._slots.free -= 1
        else:
            await self._slots.wait()
        try:
            signer = self._signer_for(await self.credentials.get())
            signature = signer.sign(method, host, path, query, headers, digest, before_sign())
            wire = self._transport.wire()
            return await wire.exchange(method, target, {**headers, **signature}, body)
        finally:
            self._slots.leave()

    def _signer_for(self, keys: AccessKeys) -> Signer:
        if self._signer is None or self._signer[0] is not keys:
            signer = Signer(keys.access_key_id, keys.secret_access_key, self.region, keys.session_token)
            self._signer = keys, signer
        return self._signer[1]


class _Slots:
    """So many places; who leaves one gives it to who has waited longest.

    `asyncio.Semaphore` does the same for five times as many calls, a few per cent of a request.
    """

    def __init__(self, free: int) -> None:
        self.free = free
        """How many may be taken at once, by who counts this down; none while somebody waits."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for a place while none is free; it is taken then."""
        given = asyncio.get_running_loop().create_future()
        self._waiting.append(given)
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place back."""
        while self._waiting:
            given = self._waiting.popleft()
            if not given.done():
                given.set_result(None)
                return
        self.free += 1
