"""A store that counts its requests, for tests of request budgets.

Put it *below* the retry layer to count what goes over the wire, above it to count calls.

Example::

    store = CountingStore(MemoryStore(clock))
    ...
    assert store.counts == {"get": 1, "put": 2}
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from buquet.clock import StoreClock
    from buquet.store.interface import Blob, Capabilities, Condition, Entry, Page, Store, Written


class CountingStore:
    """A store that counts what is asked of the one below, failed requests included.

    Parameters
    ----------
    store:
        The store that does the work.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.counts: Counter[str] = Counter()
        """Requests by kind: get, head, put, delete, delete_many, list, create_bucket."""
        self.requests: list[tuple[str, str]] | None = None
        """Set it to a list to have (kind, key) appended for each request: of a listing the
        prefix, of a batch delete the first key."""

    @property
    def total(self) -> int:
        """All requests so far."""
        return self.counts.total()

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return self._store.capabilities

    @property
    def time(self) -> StoreClock:
        """The store's time."""
        return self._store.time

    async def get(self, key: str) -> Blob | None:
        """Read an object; None if the key holds none."""
        self._count("get", key)
        return await self._store.get(key)

    async def head(self, key: str) -> Entry | None:
        """Read an object's entry without its body; None if the key holds none."""
        self._count("head", key)
        return await self._store.head(key)

    async def put(
        self, key: str, body: bytes, condition: Condition, *, ours: Callable[[bytes], bool] | None = None
    ) -> Written | None:
        """Write an object; None if the condition was not met."""
        self._count("put", key)
        return await self._store.put(key, body, condition, ours=ours)

    async def delete(self, key: str, *, read_at: float | None) -> None:
        """Delete an object; a missing one is no error."""
        self._count("delete", key)
        await self._store.delete(key, read_at=read_at)

    async def delete_many(self, keys: Sequence[str], *, read_at: float | None) -> list[str]:
        """Delete up to `max_keys` objects in one request; return the keys that failed."""
        self._count("delete_many", keys[0] if keys else "")
        return await self._store.delete_many(keys, read_at=read_at)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """List keys under `prefix` that sort after `after`."""
        self._count("list", prefix)
        return await self._store.list(prefix, after=after, limit=limit)

    async def create_bucket(self) -> None:
        """Create the bucket; one that is ours already is no error."""
        self._count("create_bucket", "")
        await self._store.create_bucket()

    async def refuses_old_signatures(self, key: str) -> bool:
        """Read `key` with a signature of an hour ago; whether the store refuses that. Counts as a GET."""
        self._count("get", key)
        return await self._store.refuses_old_signatures(key)

    async def close(self) -> None:
        """Close the store below."""
        await self._store.close()

    def _count(self, kind: str, key: str) -> None:
        self.counts[kind] += 1
        if self.requests is not None:
            self.requests.append((kind, key))
