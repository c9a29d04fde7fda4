"""A store in this process only, for tests and simulation.

A `MemoryBucket` is the server, a `MemoryStore` one client of it. Each request is one atomic
step, and control is given up before and after it, as on a network: so other tasks run between
a request and its effect, and between the effect and the reply.

Errors: `FenceExpired` for a decision that is too old, nothing else.

Example::

    bucket = MemoryBucket(clock)
    store = MemoryStore(clock, bucket)
    await store.put("tasks/1", b"{}", IfAbsent(read_at=clock.monotonic()))
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from hashlib import md5
from typing import TYPE_CHECKING, TypeVar

from buquet.clock import Clock, StoreClock
from buquet.store.interface import (
    Blob,
    Capabilities,
    Condition,
    Entry,
    IfAbsent,
    IfMatches,
    Page,
    Written,
    check_fence,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Object:
    body: bytes
    etag: str
    modified_ms: int


class MemoryBucket:
    """The objects, in key order, and the server's clock. Safe to use from several threads.

    Parameters
    ----------
    clock:
        The server's clock: `Date` and `LastModified` are its `unix()`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        # Sorted. Code points sort as their UTF-8 bytes do, which is S3's order.
        self._keys: list[str] = []

    def now_ms(self) -> int:
        """The server's time, Unix ms."""
        return int(self._clock.unix() * 1000)

    def get(self, key: str) -> _Object | None:
        """Return the object at `key`, None if there is none."""
        return self._objects.get(key)

    def put(self, key: str, body: bytes, condition: Condition) -> str | None:
        """Write if `condition` is met; return the ETag, None if it is not met."""
        etag = md5(body, usedforsecurity=False).hexdigest()
        with self._lock:
            old = self._objects.get(key)
            if isinstance(condition, IfAbsent) and old is not None:
                return None
            if isinstance(condition, IfMatches) and (old is None or old.etag != condition.etag):
                return None
            if old is None:
                insort(self._keys, key)
            self._objects[key] = _Object(body, etag, self.now_ms())
        return etag

    def delete(self, key: str) -> None:
        """Delete the object at `key` if there is one."""
        with self._lock:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    def list(self, prefix: str, after: str, limit: int) -> tuple[list[tuple[str, _Object]], bool]:
        """Return up to `limit` objects under `prefix` after `after`, and whether more follow."""
        with self._lock:
            keys = self._keys
            first = bisect_right(keys, after) if after >= prefix else bisect_left(keys, prefix)
            found: list[tuple[str, _Object]] = []
            for index in range(first, len(keys)):
                key = keys[index]
                if not key.startswith(prefix):
                    break
                if len(found) == limit:
                    return found, True
                found.append((key, self._objects[key]))
        return found, False


_SHARED: dict[tuple[str, str], MemoryBucket] = {}


def shared_bucket(clock: Clock, name: str, bucket: str) -> MemoryBucket:
    """Return this process's bucket of that name, the same one at every call.

    It lives as long as the process, so that a producer may close its queue before a worker
    opens one.

    Parameters
    ----------
    clock:
        The bucket's clock if it is made by this call.
    name:
        What follows `memory:` in the endpoint.
    bucket:
        The bucket's name.
    """
    return _SHARED.setdefault((name, bucket), MemoryBucket(clock))


class MemoryStore:
    """A client of a `MemoryBucket`.

    Parameters
    ----------
    clock:
        The client's clock.
    bucket:
        The bucket; by default an empty one of its own on the same clock.
    resolution_ms:
        The step of `Date` and `LastModified`, in ms: 1000 truncates them to whole seconds, as
        S3 has them.
    """

    capabilities = Capabilities(name="memory")

    def __init__(self, clock: Clock, bucket: MemoryBucket | None = None, *, resolution_ms: int = 1) -> None:
        self.time = StoreClock(clock)
        self._clock = clock
        self._bucket = MemoryBucket(clock) if bucket is None else bucket
        self._resolution_ms = resolution_ms

    async def get(self, key: str) -> Blob | None:
        """Read an object; None if the key holds none."""
        found, date_ms = await self._request(lambda: self._bucket.get(key))
        if found is None:
            return None
        return Blob(key, found.body, found.etag, self._truncated(found.modified_ms), date_ms)

    async def head(self, key: str) -> Entry | None:
        """Read an object's entry without its body; None if the key holds none."""
        found, _ = await self._request(lambda: self._bucket.get(key))
        return None if found is None else self._entry(key, found)

    async def put(
        self,
        key: str,
        body: bytes,
        condition: Condition,
        *,
        ours: Callable[[bytes], bool] | None = None,  # noqa: ARG002 - one attempt needs none
    ) -> Written | None:
        """Write an object; None if the condition was not met."""

        def step() -> str | None:
            if isinstance(condition, IfAbsent):
                check_fence(self.time, condition.read_at)
            return self._bucket.put(key, body, condition)

        etag, _ = await self._request(step)
        return None if etag is None else Written(etag)

    async def delete(self, key: str, *, read_at: float | None) -> None:
        """Delete an object; a missing one is no error."""
        await self.delete_many([key], read_at=read_at)

    async def delete_many(self, keys: Sequence[str], *, read_at: float | None) -> list[str]:
        """Delete up to `max_keys` objects in one request; none ever fails."""
        if len(keys) > self.capabilities.max_keys:
            raise ValueError(f"at most {self.capabilities.max_keys} keys in one request, not {len(keys)}")

        def step() -> None:
            check_fence(self.time, read_at)
            for key in keys:
                self._bucket.delete(key)

        await self._request(step)
        return []

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """List keys under `prefix` that sort after `after`."""
        most = min(limit, self.capabilities.max_keys)
        (found, truncated), date_ms = await self._request(lambda: self._bucket.list(prefix, after, most))
        return Page(tuple(self._entry(key, item) for key, item in found), truncated, date_ms)

    async def create_bucket(self) -> None:
        """Do nothing: a bucket is there when it is first written to."""

    async def refuses_old_signatures(self, key: str) -> bool:  # noqa: ARG002 - none is sent
        """Return True: no request arrives later than its caller waits."""
        return True

    async def close(self) -> None:
        """Do nothing: the bucket is the process's."""

    async def _request(self, step: Callable[[], T]) -> tuple[T, int]:
        """Run one atomic step as a round trip; return its result and the reply's `Date`."""
        sent = self._clock.monotonic()
        await self._clock.sleep(0)
        result = step()
        date_ms = self._truncated(self._bucket.now_ms())
        await self._clock.sleep(0)
        self.time.observe(date_ms, resolution_ms=self._resolution_ms, sent=sent)
        return result, date_ms

    def _truncated(self, moment_ms: int) -> int:
        return moment_ms - moment_ms % self._resolution_ms

    def _entry(self, key: str, item: _Object) -> Entry:
        return Entry(key, len(item.body), item.etag, self._truncated(item.modified_ms))
