"""Pacing: for stores that limit how often one key may be written.

R2 answers 429 to more than one write a second to one key
(https://developers.cloudflare.com/r2/platform/limits/). `Paced` waits instead, until
`capabilities.write_interval_s` after the last reply for that key. It goes below the retry
layer, so that resends are paced too, and knows only of this process's own writes: what others
write to the key may still bring a 429, which the retry layer obeys.

Example::

    paced = Paced(store, clock) if store.capabilities.write_interval_s else store
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from buquet.clock import Clock, StoreClock
    from buquet.store.interface import Blob, Capabilities, Condition, Entry, Page, Store, Written


class Paced:
    """A store that keeps `write_interval_s` between two puts of one key.

    Deletes are not held back: no key is written again soon after them.

    Parameters
    ----------
    store:
        The store that makes single attempts.
    clock:
        The host's clock.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.unpaced = store
        """The store below."""
        self._clock = clock
        self._interval_s = store.capabilities.write_interval_s
        # When each key may be written next, soonest first; those that already may are dropped.
        self._free_at: dict[str, float] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return self.unpaced.capabilities

    @property
    def time(self) -> StoreClock:
        """The store's time."""
        return self.unpaced.time

    async def get(self, key: str) -> Blob | None:
        """Read an object; None if the key holds none."""
        return await self.unpaced.get(key)

    async def head(self, key: str) -> Entry | None:
        """Read an object's entry without its body; None if the key holds none."""
        return await self.unpaced.head(key)

    async def put(
        self, key: str, body: bytes, condition: Condition, *, ours: Callable[[bytes], bool] | None = None
    ) -> Written | None:
        """Write an object when its key may be written; None if the condition was not met."""
        await self._turn(key)
        try:
            return await self.unpaced.put(key, body, condition, ours=ours)
        finally:
            self._occupy(key)

    async def delete(self, key: str, *, read_at: float | None) -> None:
        """Delete an object; a missing one is no error."""
        await self.unpaced.delete(key, read_at=read_at)

    async def delete_many(self, keys: Sequence[str], *, read_at: float | None) -> list[str]:
        """Delete up to `max_keys` objects in one request; return the keys that failed."""
        return await self.unpaced.delete_many(keys, read_at=read_at)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """List keys under `prefix` that sort after `after`."""
        return await self.unpaced.list(prefix, after=after, limit=limit)

    async def create_bucket(self) -> None:
        """Create the bucket; one that is ours already is no error."""
        await self.unpaced.create_bucket()

    async def refuses_old_signatures(self, key: str) -> bool:
        """Read `key` with a signature of an hour ago; whether the store refuses that."""
        return await self.unpaced.refuses_old_signatures(key)

    async def close(self) -> None:
        """Close the store below."""
        await self.unpaced.close()

    async def _turn(self, key: str) -> None:
        """Wait until `key` may be written, and keep others from writing it at the same time."""
        while (wait_s := self._free_at.get(key, 0.0) - self._clock.monotonic()) > 0:
            await self._clock.sleep(wait_s)
        self._occupy(key)

    def _occupy(self, key: str) -> None:
        now = self._clock.monotonic()
        self._free_at.pop(key, None)
        self._free_at[key] = now + self._interval_s
        while (oldest := next(iter(self._free_at))) != key and self._free_at[oldest] <= now:
            del self._free_at[oldest]
