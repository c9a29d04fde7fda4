"""The S3 store: the client's answers, judged by the driver, as results and typed errors.

Each call is one attempt. Two refusals are mended on the spot, each once a call: a clock that
is off (from then on requests are signed with the store's time) and an expired session token.
Such a request was refused before anything happened, so its resend is a first attempt still.

Example::

    store = open_store(settings, StoreClock(clock))
    written = await store.put("a/b", b"{}", IfAbsent(clock.monotonic()))

Errors: `Undecided` where an attempt leaves it open what happened, `FenceExpired`,
`NoCredentials`, and the `StoreError` that names the cause (see `answer.failure`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial
from hashlib import md5
from itertools import starmap
from typing import TYPE_CHECKING

from buquet._core.rfc3339 import parse_http_date
from buquet.clock import JUMP_MS
from buquet.errors import BadEndpoint, StoreError
from buquet.s3.client import BeforeSign, S3Client
from buquet.s3.credentials import credentials_for
from buquet.s3.endpoint import Endpoint
from buquet.s3.exchange import Limits, Response, TransportError
from buquet.s3.xml import Error, MalformedXmlError, parse_deleted, parse_error, parse_listing
from buquet.store.answer import Answer, failure, subject, undecided
from buquet.store.driver import Driver, Operation, Verdict
from buquet.store.interface import (
    Blob,
    Capabilities,
    Condition,
    Entry,
    IfAbsent,
    IfMatches,
    Page,
    Undecided,
    Written,
    check_fence,
)
from buquet.store.registry import load, select

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from buquet.clock import StoreClock
    from buquet.config import Settings

_SETTLED = (Verdict.DONE, Verdict.ABSENT, Verdict.NOT_MET)

_NO_ERROR = Error()

_ENCRYPTION = "x-amz-server-side-encryption"
_CUSTOMER_KEY = f"{_ENCRYPTION}-customer-algorithm"

_OLD_S = 3600.0
"""The age of a signature that every store which looks at it refuses; the limit is 15 minutes."""


@dataclass(slots=True)
class _Request:
    """A request that can be signed and sent, and sent again; and how it was signed last."""

    operation: Operation
    key: str | None
    send: Callable[[BeforeSign], Awaitable[Response]]
    read_at: float | None = None
    signed_at: float = 0.0
    """`clock.monotonic()`."""
    generation: int = 0
    """That of the credentials."""
    by_store_time: bool = False


class _Trust(enum.Enum):
    """Which clock signs."""

    LOCAL_UNLESS_AHEAD = "local unless ahead"
    LOCAL = "local"
    STORE = "store"


class S3Store:
    """One bucket of an S3 service.

    Parameters
    ----------
    client:
        Sends the requests.
    driver:
        Judges the answers.
    clock:
        The store's time, which every answer feeds.
    """

    def __init__(self, client: S3Client, driver: Driver, clock: StoreClock) -> None:
        self._client = client
        self._driver = driver
        self._time = clock
        self._trusts = _Trust.LOCAL_UNLESS_AHEAD
        self._etags_are_md5: bool | None = None
        self._doubted: bytes | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What the driver says that the service can do."""
        return self._driver.capabilities

    @property
    def time(self) -> StoreClock:
        """The store's time."""
        return self._time

    async def get(self, key: str) -> Blob | None:
        """Read an object; None if the key holds none."""
        answer = await self._attempt(_Request(Operation.GET, key, partial(self._client.get, key)))
        if answer.verdict is Verdict.ABSENT:
            return None
        etag = _etag(answer)
        if not self._is_whole(answer, etag):
            raise undecided(answer, "its body is not the one that its ETag names")
        return Blob(key, answer.response.body, etag, _modified_ms(answer), answer.date_ms)

    async def head(self, key: str) -> Entry | None:
        """Read an object's entry; None if the key holds none.

        S3 gives no reason with the 404 of a HEAD, so a decision to delete must rest on a GET.
        """
        answer = await self._attempt(_Request(Operation.HEAD, key, partial(self._client.head, key)))
        if answer.verdict is Verdict.ABSENT:
            return None
        size = int(answer.response.headers.get("content-length", "0"))
        return Entry(key, size, _etag(answer), _modified_ms(answer))

    async def put(
        self,
        key: str,
        body: bytes,
        condition: Condition,
        *,
        ours: Callable[[bytes], bool] | None = None,  # noqa: ARG002 - for the retry layer
    ) -> Written | None:
        """Write an object; None if the condition was not met."""
        operation, read_at = Operation.PUT, None
        if isinstance(condition, IfAbsent):
            operation, read_at = Operation.CREATE, condition.read_at
        elif isinstance(condition, IfMatches):
            operation = Operation.REPLACE
        send = partial(self._client.put, key, body, self._driver.condition_headers(condition))
        answer = await self._attempt(_Request(operation, key, send, read_at))
        return None if answer.verdict is Verdict.NOT_MET else Written(_etag(answer))

    async def delete(self, key: str, *, read_at: float | None) -> None:
        """Delete an object; a missing one is no error."""
        await self._attempt(_Request(Operation.DELETE, key, partial(self._client.delete, key), read_at))

    async def delete_many(self, keys: Sequence[str], *, read_at: float | None) -> list[str]:
        """Delete up to `max_keys` objects in one request; return the keys that failed."""
        send = partial(self._client.delete_many, keys)
        answer = await self._attempt(_Request(Operation.DELETE_MANY, None, send, read_at))
        try:
            failed = parse_deleted(answer.response.body)
        except MalformedXmlError as error:
            raise undecided(answer, str(error)) from None
        return [key for key, code in failed.items() if code != "NoSuchKey"]

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """List keys under `prefix` that sort after `after`."""
        send = partial(self._client.list, prefix, after, min(limit, self._driver.max_keys))
        answer = await self._attempt(_Request(Operation.LIST, prefix, send))
        try:
            listing = parse_listing(answer.response.body)
        except MalformedXmlError as error:
            raise undecided(answer, str(error)) from None
        entries = tuple(starmap(Entry, listing.objects))
        return Page(entries, listing.truncated, answer.date_ms)

    async def create_bucket(self) -> None:
        """Create the bucket; one that is ours already is no error."""
        await self._attempt(_Request(Operation.CREATE_BUCKET, None, self._client.create_bucket))

    async def refuses_old_signatures(self, key: str) -> bool:
        """Read `key` with a signature of an hour ago; whether the store refuses that."""

        async def an_hour_ago(before_sign: BeforeSign) -> Response:
            return await self._client.get(key, lambda: before_sign() - _OLD_S)

        try:
            await self._attempt(_Request(Operation.GET, key, an_hour_ago), mended=frozenset(Verdict))
        except StoreError:
            return True
        return False

    async def close(self) -> None:
        """Close the connections. Safe to call twice."""
        await self._client.close()

    async def _attempt(self, request: _Request, mended: frozenset[Verdict] = frozenset()) -> Answer:
        """Send one request; return an answer that settles it, raise the error of any other.

        A refusal is not mended again if it is among `mended`.
        """
        try:
            response = await request.send(partial(self._before_sign, request))
        except TransportError as error:
            name = subject(request.operation, request.key)
            raise Undecided(
                f"{name} to {self._client.endpoint} got no answer: {error}",
                applied=None if error.sent else False,
                key=request.key,
            ) from error
        answer = self._read(request, response)
        verdict = answer.verdict
        if verdict in _SETTLED:
            return answer
        if verdict in mended or not await self._mend(verdict, request):
            raise failure(answer, self._client.endpoint, self._client.region)
        return await self._attempt(request, mended | {verdict})

    def _before_sign(self, request: _Request) -> float:
        """Hold the fence and note the moment; return the Unix time to sign with, in seconds."""
        if request.read_at is not None:
            check_fence(self._time, request.read_at)
        local_s = self._time.clock.unix()
        request.signed_at = self._time.clock.monotonic()
        request.generation = self._client.credentials.generation
        if self._trusts is _Trust.LOCAL_UNLESS_AHEAD:
            # A signature from the future would be good for longer than 15 minutes, and a request
            # that was held up could then act after the 20 that the protocol reckons with.
            request.by_store_time = self._time.synced and local_s * 1000 - self._time.upper_ms() > JUMP_MS
        else:
            request.by_store_time = self._trusts is _Trust.STORE
        return self._time.now_ms() / 1000 if request.by_store_time else local_s

    def _read(self, request: _Request, response: Response) -> Answer:
        """Learn the store's time from an answer, and judge what it says."""
        date_ms = _header_ms(response, "date")
        if date_ms is None:
            date_ms = self._time.now_ms()
        else:
            self._time.observe(date_ms, resolution_ms=1000, sent=request.signed_at)
        error = parse_error(response.body) if response.status >= 300 else _NO_ERROR
        verdict = self._driver.verdict(request.operation, response.status, error.code)
        return Answer(request.operation, request.key, response, error, verdict, date_ms)

    def _is_whole(self, answer: Answer, etag: str) -> bool:
        """Whether a body is what its ETag names, so that none that was cut short is believed.

        HTTP does not tell where a proxy has shortened `Content-Length` as well. A store whose
        ETags are no MD5 sums is known by a first body that comes twice.
        """
        body = answer.response.body
        if self._etags_are_md5 is False or not _is_md5(etag, answer):
            return True
        if etag == md5(body, usedforsecurity=False).hexdigest():
            self._etags_are_md5 = True
        elif self._etags_are_md5 is None and body == self._doubted:
            self._etags_are_md5 = False
        else:
            self._doubted = body
            return False
        return True

    async def _mend(self, verdict: Verdict, request: _Request) -> bool:
        """Remove the cause of a refusal; return whether the request is worth a resend."""
        if verdict is Verdict.SKEWED:
            # Whichever clock was refused, the other is right (a proxy may send its own Date).
            self._trusts = _Trust.LOCAL if request.by_store_time else _Trust.STORE
            return True
        if verdict is Verdict.EXPIRED:
            return await self._client.credentials.renew(request.generation)
        return False


def open_store(settings: Settings, time: StoreClock, limits: Limits | None = None) -> S3Store:
    """Put a store together: driver, address, credentials and client.

    Parameters
    ----------
    settings:
        What was configured; its kind is `s3`.
    time:
        The store's time; its clock also paces the credentials.
    limits:
        Bounds of time and of the number of connections.
    """
    driver = load(select(settings))
    region = settings.region or driver.default_region
    url = settings.endpoint
    if url is None and driver.default_endpoint is not None:
        url = driver.default_endpoint.format(region=region)
    if url is None:
        raise BadEndpoint(
            f"the driver {driver.name!r} needs an endpoint: pass endpoint=... or set S3_ENDPOINT"
        )
    endpoint = Endpoint.resolve(url, settings.bucket, path_style=driver.path_style)
    credentials = credentials_for(settings.keys, settings.profile, time.clock)
    return S3Store(S3Client(endpoint, region, credentials, limits), driver, time)


def _is_md5(etag: str, answer: Answer) -> bool:
    """Whether S3 makes such an object's ETag from its body alone.

    Not if it was copied in parts, or is encrypted with a key of KMS or the customer's:
    https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
    """
    headers = answer.response.headers
    by_kms = headers.get(_ENCRYPTION, "").startswith("aws:kms")
    return not ("-" in etag or by_kms or _CUSTOMER_KEY in headers)


def _etag(answer: Answer) -> str:
    """Return the ETag without quotes, the one form above the client."""
    etag = answer.response.headers.get("etag", "").strip('"')
    if not etag:
        # Success without an ETag is a proxy's, not the store's.
        raise undecided(answer, "the answer has no ETag")
    return etag


def _modified_ms(answer: Answer) -> int:
    modified_ms = _header_ms(answer.response, "last-modified")
    if modified_ms is None:
        raise undecided(answer, "the answer has no Last-Modified")
    return modified_ms


def _header_ms(response: Response, name: str) -> int | None:
    """Read a header that is an HTTP date, Unix ms; None where it is missing or no date."""
    try:
        return parse_http_date(response.headers.get(name, ""))
    except ValueError:
        return None
