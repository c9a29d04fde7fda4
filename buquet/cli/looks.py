"""What `buquet tail` sees at each look at a queue: the transitions that are new.

Example::

    looks = Looks(queue, since_s=60)
    for transition in await looks.look(): ...
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from buquet._core import ident
from buquet._core.record import LogEntry, Record
from buquet._core.rfc3339 import parse_ms
from buquet.errors import NewerLayout, PoisonRecord
from buquet.listing import entries, readable
from buquet.protocol.session import Entry, decode
from buquet.queue import READS_AT_ONCE, Queue

READS_A_LOOK = 200
"""How many tasks a look reads at most; the others wait for the next one."""

LEDGER = "ledger "

MARKER_PAGES = 4
"""How many thousand markers a look lists at most."""

WINDOW_MS = 300_000
"""Ledgers are listed of tasks first due so long ago; an older one is news by its marker or lease."""

REMEMBERED = 100_000
"""Of so many tasks it is kept what was told last."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One entry of a task's log."""

    at: str
    id: str
    task_type: str
    status: str
    attempt: int
    worker_id: str | None
    error: str | None


class Looks:
    """One follower's view of a queue.

    Parameters
    ----------
    queue:
        The queue.
    since_s:
        How old the first transitions may be, seconds.
    """

    def __init__(self, queue: Queue, since_s: float) -> None:
        self.has_more = False
        """Whether the last look left something unread."""
        self._queue = queue
        self._keys = queue.keys
        self._since_ms = 0
        self._since_s = since_s
        self._window_ms = max(WINDOW_MS, int(since_s * 1000))
        self._signs: dict[str, frozenset[str]] = {}
        self._told: dict[str, LogEntry] = {}
        self._journals: dict[str, tuple[str, list[Entry]]] = {}

    @property
    def lists_a_look(self) -> int:
        """How many LISTs a look takes on a queue with less than a thousand of everything."""
        return 2 + len(self._keys.shards())

    async def look(self) -> list[Transition]:
        """Return what has happened since the last look, in order of time.

        Raises
        ------
        StoreError
            The store did not answer.
        """
        if not self._since_ms:
            await self._queue.now()
            self._since_ms = self._queue.store.time.now_ms() - int(self._since_s * 1000)
        now = await self._list()
        changed = [task_id for task_id, sign in now.items() if self._signs.get(task_id) != sign]
        for task_id in [task_id for task_id in self._signs if task_id not in now]:
            # A marker or a lease that is gone is news; a ledger has only left the window.
            if all(sign.startswith(LEDGER) for sign in self._signs[task_id]):
                del self._signs[task_id]
            else:
                changed.append(task_id)
        batch = changed[:READS_A_LOOK]
        self.has_more = len(changed) > len(batch)
        found: list[Transition] = []
        for start in range(0, len(batch), READS_AT_ONCE):
            part = batch[start : start + READS_AT_ONCE]
            for task_id, record in zip(part, await asyncio.gather(*map(self._read, part)), strict=True):
                if task_id in now:
                    self._signs[task_id] = now[task_id]
                else:
                    del self._signs[task_id]
                if record is not None:
                    found += self._news(record)
        return sorted(found, key=lambda transition: transition.at)

    async def _list(self) -> dict[str, frozenset[str]]:
        """Return for each task in the listings what they show of it."""
        signs: dict[str, set[str]] = {}
        for entry in await self._leases():
            signs.setdefault(entry.task_id, set()).add(f"lease {entry.lease_id}")
        after = ""
        for _ in range(MARKER_PAGES):
            page = await self._queue.store.list(self._keys.ready, after=after)
            for marker in readable(page, self._keys.parse_marker):
                signs.setdefault(marker.task_id, set()).add(f"marker {marker.attempt}")
            if not page.truncated:
                break
            after = page.entries[-1].key
        lists = await asyncio.gather(*map(self._ledgers, self._keys.shards()))
        for task_id, etag in (pair for pairs in lists for pair in pairs):
            signs.setdefault(task_id, set()).add(f"{LEDGER}{etag}")
        return {task_id: frozenset(seen) for task_id, seen in signs.items()}

    async def _ledgers(self, shard: str) -> list[tuple[str, str]]:
        """List the tasks of a shard that were first due of late, with their ETags."""
        prefix = f"{self._keys.tasks}{shard}/"
        oldest = ident.mint(self._queue.store.time.now_ms() - self._window_ms, 0, 0)
        found, after = [], prefix + oldest
        while True:
            page = await self._queue.store.list(prefix, after=after)
            for entry in page.entries:
                try:
                    found.append((self._keys.parse_ledger(entry.key), entry.etag))
                except PoisonRecord:
                    continue
            if not page.truncated:
                return found
            after = page.entries[-1].key

    async def _leases(self) -> list[Entry]:
        """Return the leases in all journals; a session is read when its ETag changes."""
        journals: dict[str, tuple[str, list[Entry]]] = {}
        async for listed in entries(self._queue.store, self._keys.sessions):
            known = self._journals.get(listed.key)
            if known is None or known[0] != listed.etag:
                known = listed.etag, await self._journal(listed.key)
            journals[listed.key] = known
        self._journals = journals
        return [entry for _, journal in journals.values() for entry in journal]

    async def _journal(self, key: str) -> list[Entry]:
        blob = await self._queue.store.get(key)
        try:
            return [] if blob is None else decode(blob.body).journal
        except (PoisonRecord, NewerLayout):
            return []

    async def _read(self, task_id: str) -> Record | None:
        try:
            return await self._queue.ledger.find(task_id)
        except (PoisonRecord, NewerLayout):
            return None

    def _news(self, record: Record) -> list[Transition]:
        """Return the entries of a task's log that were not told yet."""
        last = self._told.pop(record.id, None)
        fresh = record.log[record.log.index(last) + 1 :] if last in record.log else record.log
        self._told[record.id] = record.log[-1]
        if len(self._told) > REMEMBERED:
            del self._told[next(iter(self._told))]
        return [
            Transition(
                entry.at,
                record.id,
                record.task_type,
                entry.status,
                entry.attempt,
                entry.worker_id,
                entry.error,
            )
            for entry in fresh
            if parse_ms(entry.at) >= self._since_ms
        ]
