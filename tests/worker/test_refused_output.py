"""A store, or a proxy before it, that refuses an outcome for good must not take the slot for good."""

from __future__ import annotations

import asyncio
from typing import Any

from virtual import World, virtual

from buquet import Worker, WorkerRunOptions
from buquet.errors import AccessDenied, StoreError
from buquet.testing.faulty import Refused

BURST = WorkerRunOptions(burst=True, with_monitor=False)


class Limited:
    """A store behind a proxy that takes no body above 100 kB."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, key: str, body: bytes, condition: Any, **options: Any) -> Any:
        if len(body) > 100_000:
            raise StoreError("413 Content Too Large", key=key, status=413)
        return await self._store.put(key, body, condition, **options)


@virtual
async def test_an_output_that_the_store_refuses_fails_the_task(world: World) -> None:
    queue = world.queue()
    queue.store.once = Limited(queue.store.once)
    worker = Worker(queue, concurrency=1)
    worker.task("big")(returns("x" * 60_000))
    task = await queue.submit("big", "y" * 60_000)
    await worker.run(BURST)
    failed = await queue.get(task.id)
    assert failed is not None
    assert (failed.status, failed.attempt) == ("failed", 1)
    assert "the store refused the output: 413" in (failed.last_error or "")


@virtual
async def test_an_outcome_that_is_refused_until_the_lease_is_over_is_dropped(world: World) -> None:
    """Somebody else has taken the task over by then; the slot is needed."""
    refused = Refused(AccessDenied("not this one", status=403))
    queue = world.queue(plan=lambda kind, key: refused if kind == "put" and key in denied else None)
    denied: set[str] = set()

    async def deny(_input: object) -> None:
        denied.add(queue.keys.ledger(task.id))

    task = await queue.submit("do", {}, timeout_seconds=5, max_retries=0)
    worker = Worker(queue, concurrency=1)
    worker.task("do")(deny)
    other = world.queue()
    running = asyncio.create_task(worker.run(WorkerRunOptions(with_monitor=False)))
    await world.clock.sleep(25)
    loaded = await other.ledger.load(task.id)
    assert loaded is not None
    assert await other.ledger.take_back(loaded)
    await world.clock.sleep(10)
    assert worker.counters.lease_lost == 1
    await worker.stop()
    await running


def returns(output: str) -> Any:
    async def handle(_input: object) -> str:
        return output

    return handle
