"""Cursors on real listings: pages of three keys, on stores that list in tree order too."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from buquet import Worker, WorkerRunOptions
from buquet._core import ident
from buquet.clock import SystemClock
from buquet.protocol.keys import Keys, Marker
from buquet.queue import Queue
from buquet.store.interface import Always, Page, Store
from buquet.store.retry import Retrying
from buquet.worker.finder import Finder


class SmallPages:
    """A store whose listings show three keys at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        return await self._store.list(prefix, after=after, limit=min(limit, 3))


def small_pages(store: Store) -> Retrying:
    return Retrying(SmallPages(store), SystemClock())  # type: ignore[arg-type]


async def test_every_due_marker_is_found_and_every_task_listed(open_store: Callable[[], Store]) -> None:
    store = small_pages(open_store())
    queue = Queue(store, Keys("jobs/"))
    keys = queue.keys
    await queue.now()
    now_ms = store.time.now_ms()
    due, puts = set(), []
    for shard in "0179af":
        for priority, due_ms, count in (
            (0, now_ms + 3_600_000, 7),
            (2, now_ms - 20_000, 2),
            (9, now_ms - 10_000, 4),
        ):
            for number in range(count):
                marker = Marker(shard, priority, due_ms, ident.mint(due_ms, priority, number + 1), 0)
                puts.append(store.put(keys.marker_key(marker), b"x", Always()))
                if due_ms < now_ms:
                    due.add(keys.marker_key(marker))
    await asyncio.gather(*puts)
    finder = Finder(store, keys, keys.shards())
    found: set[str] = set()
    while fresh := await finder.look(lambda seen: seen.key not in found, most_pages=sys.maxsize):
        found.update(seen.key for seen in fresh)
    assert found == due


async def test_claimed_and_unclaimed_tasks_are_listed_in_order(open_store: Callable[[], Store]) -> None:
    store = small_pages(open_store())
    queue = Queue(store, Keys())
    ids = [
        task.id for task in await asyncio.gather(*(queue.submit("do", n, priority=n % 3) for n in range(60)))
    ]
    worker = Worker(queue, shards=["0", "1", "2", "3", "4", "5", "6", "7"])
    worker.task("do")(lambda _input: None)
    await worker.run(WorkerRunOptions(max_tasks=15, with_monitor=False))
    for shard in queue.keys.shards():
        expected = sorted(task_id for task_id in ids if queue.keys.shard(task_id) == shard)
        paged: list[str] = []
        while page := await queue.list(shard, limit=2, after=paged[-1] if paged else None):
            paged += [task.id for task in page]
        assert paged == expected
