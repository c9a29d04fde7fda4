"""Task ids in order, read page by page from the bucket's listings.

Keys that are no markers or ledgers are passed over; a key of another layout stops the reader.

Example::

    async for task_ids in shard_pages(store, keys, "a", after=""):
        ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from buquet.errors import PoisonRecord
from buquet.protocol.keys import LOWEST_PRIORITY, Keys
from buquet.store.interface import Entry, Page, Store

T = TypeVar("T")

AFTER_ALL = "~"
"""Sorts after every id."""


async def entries(store: Store, prefix: str) -> AsyncIterator[Entry]:
    """Yield everything under `prefix`, in key order, page by page."""
    after = ""
    while True:
        page = await store.list(prefix, after=after)
        for entry in page.entries:
            yield entry
        if not page.truncated:
            return
        after = page.entries[-1].key


async def shard_pages(store: Store, keys: Keys, shard: str, *, after: str) -> AsyncIterator[list[str]]:
    """Yield the ids of all tasks of a shard in order, after id `after`, in lists of any length.

    In each round the markers are listed before the ledgers, up to the same id, so that a task
    which is claimed meanwhile is in one of the two (rule 22).
    """
    tasks = f"{keys.tasks}{shard}/"
    while True:
        unclaimed, end = await _unclaimed(store, keys, shard, after)
        page = await store.list(tasks, after=tasks + after)
        if page.truncated:
            end = min(end, page.entries[-1].key.removeprefix(tasks))
        claimed = readable(page, keys.parse_ledger)
        yield sorted(task_id for task_id in {*unclaimed, *claimed} if after < task_id <= end)
        if end == AFTER_ALL:
            return
        after = end


async def _unclaimed(store: Store, keys: Keys, shard: str, after: str) -> tuple[list[str], str]:
    """List the never-claimed tasks of every priority; also the id up to which all were seen."""
    due = after.replace("-", "")[:12]

    async def one(priority: int) -> tuple[list[str], str]:
        prefix = f"{keys.ready}{shard}/{priority}/"
        # A first marker sorts like its id, because both begin with the time it is due.
        last = f"{prefix}{due}-{after}" if after else ""
        ids: list[str] = []
        end = after
        while end <= after:  # one page, unless it is full of foreign keys of one time
            page = await store.list(prefix, after=last)
            markers = readable(page, keys.parse_marker)
            ids += [marker.task_id for marker in markers if marker.attempt == 0]
            if not page.truncated:
                return ids, AFTER_ALL
            last = page.entries[-1].key
            last_due = last.removeprefix(prefix)[:12]
            end = max(f"{last_due[:8]}-{last_due[8:]}", after, *ids[-1:])
        return ids, end

    found = await asyncio.gather(*map(one, range(LOWEST_PRIORITY + 1)))
    return [task_id for ids, _ in found for task_id in ids], min(end for _, end in found)


def readable(page: Page, parse: Callable[[str], T]) -> list[T]:
    """Parse the keys of a page, leaving out those that nobody of this queue wrote."""
    read = []
    for entry in page.entries:
        try:
            read.append(parse(entry.key))
        except PoisonRecord:
            continue
    return read
