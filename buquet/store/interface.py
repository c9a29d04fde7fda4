"""The storage interface: what the queue asks of a bucket, and nothing more.

A store offers a handful of atomic requests. Each call is *one* attempt unless the store is
wrapped in `retry.Retrying`; conditions are a sum type, and what a put returns is what the
next condition takes::

    written = await store.put(key, body, IfAbsent())
    if written is not None:                       # None: the condition was not met
        await store.put(key, body2, IfMatches(written.etag))

Errors: `Undecided` when a single attempt left it open whether the request took effect (only
below the retry layer), `StoreError` and its kin for what no resend mends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from buquet.clock import StoreClock
from buquet.errors import BuquetError


@dataclass(frozen=True, slots=True)
class Always:
    """Write whatever is there."""


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Write only if the key holds no object (`If-None-Match: *`).

    `read_at` is the `clock.monotonic()` of the read (or the mint of an id) that the decision
    to create rests on. A request is never signed more than `FENCE_S` after it. None lifts
    the fence, which only the PUT of an empty marker may do: it is garbage at worst.
    """

    read_at: float | None


@dataclass(frozen=True, slots=True)
class IfMatches:
    """Write only over the version with this ETag (`If-Match`). Needs no fence: ETags never repeat."""

    etag: str


Condition = Always | IfAbsent | IfMatches

FENCE_S = 300.0
"""No create and no DELETE is signed later than this after the read that it rests on.

Stores refuse signatures older than 15 minutes, so nothing that was read acts later than
20 minutes after it was read.
"""


class Blob(NamedTuple):
    """An object as a GET returned it. Times in Unix ms; `date_ms` is the response's own time."""

    key: str
    body: bytes
    etag: str
    modified_ms: int
    date_ms: int


class Entry(NamedTuple):
    """An object as a listing or a HEAD shows it."""

    key: str
    size: int
    etag: str
    modified_ms: int


class Page(NamedTuple):
    """One page of a listing, in key order. `truncated`: more keys follow the last one."""

    entries: tuple[Entry, ...]
    truncated: bool
    date_ms: int


class Written(NamedTuple):
    """A put that took effect.

    `etag` is that of the object as it now stands. `body` is None where that is what was
    sent; where a lost reply was settled by a read and the object has been changed since, it
    is the body that was read.
    """

    etag: str
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do, as data. What correctness needs and is missing fails closed.

    `write_interval_s` is the least time between a reply and the next write to the same key;
    `checks_signatures` tells whether old signatures are refused (the fence leans on it);
    `max_keys` is the page size of LIST and of a batch delete.
    """

    name: str
    conditional_writes: bool = True
    checks_signatures: bool = True
    write_interval_s: float = 0.0
    max_keys: int = 1000


class FenceExpired(BuquetError):
    """The decision behind a create or a DELETE is too old to be signed; read and decide anew."""


class Undecided(BuquetError):
    """One attempt ended without telling whether it took effect.

    Parameters
    ----------
    message:
        What was seen: a status and code, a time-out, a closed connection.
    applied:
        False if the request certainly had no effect (429, 503 slow down before the write,
        connection refused), None if that is open.
    retry_after_s:
        What the store asked for, if it did.
    reread:
        The resend of an `If-Match` must be preceded by a read (409).
    """

    def __init__(
        self,
        message: str,
        *,
        applied: bool | None = None,
        retry_after_s: float | None = None,
        reread: bool = False,
        key: str | None = None,
    ) -> None:
        super().__init__(message)
        self.applied = applied
        self.retry_after_s = retry_after_s
        self.reread = reread
        self.key = key


def check_fence(clock: StoreClock, read_at: float | None) -> None:
    """Raise `FenceExpired` if a decision made at `read_at` may no longer be signed.

    Called right before a request is signed; `read_at` is in seconds of `clock.monotonic()`.
    """
    if read_at is None:
        return
    age = clock.clock.monotonic() - read_at
    if age > FENCE_S:
        raise FenceExpired(f"the decision is {age:.0f} s old, the fence is {FENCE_S:.0f} s")


class Store(Protocol):
    """One bucket. Implementations: `s3.S3Store`, `local.LocalStore`, `memory.MemoryStore`."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""

    @property
    def time(self) -> StoreClock:
        """The store's time; every response feeds it."""

    async def get(self, key: str) -> Blob | None:
        """Read an object; None if the key holds none."""

    async def head(self, key: str) -> Entry | None:
        """Read an object's entry without its body; None if the key holds none."""

    async def put(
        self, key: str, body: bytes, condition: Condition, *, ours: Callable[[bytes], bool] | None = None
    ) -> Written | None:
        """Write an object; None if the condition was not met (412, or 404 to an `If-Match`).

        `ours` tells the retry layer whether a body that it reads after a lost reply is, or
        stands on, what this call wrote; by default, whether it equals `body`. A store that
        makes one attempt ignores it.
        """

    async def delete(self, key: str, *, read_at: float | None) -> None:
        """Delete an object; a missing one is no error. Fenced by `read_at` like `IfAbsent`."""

    async def delete_many(self, keys: Sequence[str], *, read_at: float | None) -> list[str]:
        """Delete up to `max_keys` objects in one request; return the keys that failed."""

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """List keys under `prefix` (which ends in `/`) that sort after `after`."""

    async def create_bucket(self) -> None:
        """Create the bucket; one that is ours already is no error."""

    async def refuses_old_signatures(self, key: str) -> bool:
        """Read `key` with a signature of an hour ago; whether the store refuses that, as the fence needs."""

    async def close(self) -> None:
        """Release connections, threads and files. Safe to call twice."""
