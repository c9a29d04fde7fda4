"""The archiver: archives ended tasks by age, and removes what was archived long ago (rule 19).

Removing a record is the one step that forgets, so it is slow on purpose: a worker may still
hold the body of the task's first marker, and would run the task again if the ledger were gone.

Example::

    archiver = Archiver(ledger, retention_s=30 * 24 * 3600)
    await archiver.sweep()              # now and then; a record is removed over several sweeps
"""

from __future__ import annotations

import logging

from buquet._core.record import with_deletion_mark
from buquet._core.rfc3339 import parse_ms
from buquet.deadletters import archive
from buquet.errors import NewerLayout, StoreError, Unavailable
from buquet.ledger import Ledger, Loaded
from buquet.listing import shard_pages
from buquet.protocol.task import TERMINAL, TaskStatus
from buquet.store.interface import FenceExpired, Undecided
from buquet.store.retry import Retrying

log = logging.getLogger("buquet.archiver")

LEAST_RETENTION_S = 7 * 24 * 3600
"""No record is removed sooner after it was first due: a scheduler must not make its task anew."""

AFTER_ARCHIVING_S = 3600
"""The first marker is deleted this long after the task was archived."""

MARKER_BODY_LIVES_S = 25 * 60
"""A claim that rests on a marker read before it was deleted acts no later than this."""

MARK_LIVES_S = 3600
"""A deletion mark older than this may be replaced: its writer is gone."""


class Archiver:
    """Archives and removes old records of one queue.

    Parameters
    ----------
    ledger, store:
        The protocol's steps, and the queue's store.
    retention_s:
        How long an ended task is kept, seconds; at least 7 days.

    Raises
    ------
    ValueError
        The retention is too short.
    """

    def __init__(self, ledger: Ledger, store: Retrying, *, retention_s: float) -> None:
        if retention_s < LEAST_RETENTION_S:
            raise ValueError(f"retention_s must be at least {LEAST_RETENTION_S} (7 days), not {retention_s}")
        self._ledger = ledger
        self._store = store
        self._clock = ledger.clock
        self._retention_ms = int(retention_s * 1000)
        self._marker_gone_at: dict[str, float] = {}
        """When the first marker of an archived task was seen to be absent, `clock.monotonic()`."""

    async def sweep(self) -> int:
        """Look at every record once; return how many were archived or removed.

        Raises
        ------
        Unavailable
            The store did not answer.
        StoreError
            It refused a listing; a record that it refuses is left alone, with a warning.
        """
        acted = 0
        for shard in self._ledger.keys.shards():
            async for page in shard_pages(self._store, self._ledger.keys, shard, after=""):
                for task_id in page:
                    acted += await self._look_at(task_id)
        return acted

    async def _look_at(self, task_id: str) -> bool:
        try:
            loaded = await self._ledger.load(task_id)
            if loaded is None or loaded.record.status not in TERMINAL or not self._is_old(loaded):
                return False
            if loaded.record.status != TaskStatus.Archived:
                return await archive(self._ledger, loaded)
            return await self._remove(loaded)
        except (ValueError, NewerLayout, FenceExpired) as error:
            # A ValueError: it cannot be read, or its id does not tell its first marker.
            log.debug("task %s left alone: %s", task_id, error)
            return False
        except Unavailable:
            raise
        except StoreError as error:
            log.warning("task %s left alone: %s", task_id, error)
            return False

    def _is_old(self, loaded: Loaded) -> bool:
        record = loaded.record
        since_ms = max(parse_ms(record.first_due), parse_ms(record.completed_at or record.updated_at))
        return self._store.time.lower_ms() - since_ms > self._retention_ms

    async def _remove(self, loaded: Loaded) -> bool:
        record = loaded.record
        if self._age_s(record.updated_at) < AFTER_ARCHIVING_S:
            return False
        if record.deletion_marked_at is not None and self._age_s(record.deletion_marked_at) < MARK_LIVES_S:
            return False
        gone_at = self._marker_gone_at.get(record.id)
        if gone_at is None:
            await self._delete_marker(loaded)
            return False
        if self._clock.monotonic() - gone_at < MARKER_BODY_LIVES_S:
            return False
        return await self._delete_ledger(loaded)

    def _age_s(self, moment: str) -> float:
        return (self._store.time.lower_ms() - parse_ms(moment)) / 1000

    async def _delete_marker(self, loaded: Loaded) -> None:
        keys = self._ledger.keys
        key = keys.marker_key(keys.first_marker(loaded.record.id))
        await self._store.delete(key, read_at=loaded.read_at)
        await self._store.delete(keys.failed(loaded.record.id), read_at=loaded.read_at)
        if await self._store.get(key) is None:
            self._marker_gone_at[loaded.record.id] = self._clock.monotonic()

    async def _delete_ledger(self, loaded: Loaded) -> bool:
        """Mark the record, then delete it: only the mark's writer sends that, and only once."""
        record = loaded.record
        nonce = self._ledger.mint_nonce()
        marked = with_deletion_mark(record, at_ms=self._store.time.now_ms(), nonce=nonce)
        read_at = self._clock.monotonic()
        if await self._ledger.replace(marked, loaded.etag, nonce) is None:
            return False
        try:
            await self._store.once.delete(self._ledger.keys.ledger(record.id), read_at=read_at)
        except Undecided as error:
            log.debug("task %s: deletion not confirmed: %s", record.id, error)
            return False
        del self._marker_gone_at[record.id]
        return True
