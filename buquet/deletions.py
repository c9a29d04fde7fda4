"""Deleting markers in batches, off the critical path.

Example::

    deletions.add(key, read_at=read_at)     # a decision that rests on a read at `read_at`
    await deletions.flush()
"""

from __future__ import annotations

import logging

from buquet.errors import StoreError
from buquet.store.interface import FENCE_S, FenceExpired, Store

log = logging.getLogger("buquet.deletions")

OLDEST_S = FENCE_S / 2
"""A deletion that could not be sent for this long is dropped: whoever sees the marker next decides anew."""


class Deletions:
    """Marker keys that may be deleted, each with the time of the read that says so.

    Parameters
    ----------
    store:
        The bucket.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
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
        keys = list(batch)
        size = self._store.capabilities.max_keys
        for start in range(0, len(keys), size):
            chunk = keys[start : start + size]
            try:
                failed = await self._store.delete_many(chunk, read_at=min(batch[key] for key in chunk))
            except (StoreError, FenceExpired) as error:
                log.debug("%d markers not deleted: %s", len(chunk), error)
                continue
            for key in set(chunk).difference(failed):
                self._waiting.pop(key, None)
