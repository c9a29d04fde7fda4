"""Deleting markers in batches, off the critical path.

Example::

    deletions.add(key, read_at=read_at)     # a decision that rests on a read at `read_at`
    await deletions.flush()
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from buquet.errors import StoreError
from buquet.store.interface import FENCE_S, FenceExpired, Store

log = logging.getLogger("buquet.deletions")

OLDEST_S = FENCE_S / 2
"""A deletion that could not be sent for this long is dropped: whoever sees the marker next decides anew."""

AT_ONCE = 4
"""So many requests are sent at the same time: a busy store may take seconds for a thousand keys."""


class Deletions:
    """Marker keys that may be deleted, each with the time of the read that says so.

    Parameters
    ----------
    store:
        The bucket.
    on_deleted:
        Called with the keys that the store says are gone.
    """

    def __init__(self, store: Store, on_deleted: Callable[[Collection[str]], None] = lambda _: None) -> None:
        self._store = store
        self._on_deleted = on_deleted
        self._clock = store.time.clock
        self._waiting: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: str, *, read_at: float) -> None:
        """Note that `key` may be deleted; `read_at` is `clock.monotonic()` before the read."""
        self._waiting[key] = read_at

    async def flush(self) -> None:
        """Send what has gathered. What the store does not take now waits for the next flush."""
        fresh = self._clock.monotonic() - OLDEST_S
        self._waiting = {key: read_at for key, read_at in self._waiting.items() if read_at >= fresh}
        batch = dict(self._waiting)
        keys, size = list(batch), self._store.capabilities.max_keys
        chunks = [keys[start : start + size] for start in range(0, len(keys), size)]
        for start in range(0, len(chunks), AT_ONCE):
            some = chunks[start : start + AT_ONCE]
            await asyncio.gather(*(self._delete(chunk, min(map(batch.__getitem__, chunk))) for chunk in some))

    async def _delete(self, keys: list[str], read_at: float) -> None:
        try:
            failed = set(await self._store.delete_many(keys, read_at=read_at))
        except (StoreError, FenceExpired) as error:
            log.debug("%d markers not deleted: %s", len(keys), error)
            return
        gone = [key for key in keys if key not in failed]
        for key in gone:
            self._waiting.pop(key, None)
        self._on_deleted(gone)
