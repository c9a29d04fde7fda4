"""A store that takes one write a second to one key, as R2 does: completions wait, the worker does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from virtual import World, virtual

from buquet import RetryPolicy, Worker, WorkerRunOptions
from buquet.protocol.keys import Keys
from buquet.queue import Queue
from buquet.store.interface import Always, Capabilities, Undecided
from buquet.store.memory import MemoryStore
from buquet.store.pace import Paced
from buquet.store.retry import Retrying
from buquet.worker.run import UNSETTLED_TASKS

BURST = WorkerRunOptions(burst=True, with_monitor=False)
TASKS = 50
CONCURRENCY = 4
TRIP_S = 0.02
"""How long a request and its reply travel, each."""


class OneWriteASecond(MemoryStore):
    """Answers 429 to a write within a second of the one before to that key."""

    capabilities = Capabilities(name="one write a second", write_interval_s=1.0)

    def __init__(self, world: World) -> None:
        super().__init__(world.clock, world.bucket)
        self.refused: list[str] = []
        self._written_at: dict[str, float] = {}

    async def put(self, key: str, *arguments: Any, **options: Any) -> Any:
        await self._clock.sleep(TRIP_S)
        now = self._clock.monotonic()
        last = self._written_at.get(key, float("-inf"))
        self._written_at[key] = now
        if now - last < self.capabilities.write_interval_s:
            self.refused.append(key)
            raise Undecided("429 TooManyRequests", applied=False, key=key)
        written = await super().put(key, *arguments, **options)
        await self._clock.sleep(TRIP_S)
        return written


class Busy:
    """A handler that counts how many of it run, and how many tasks wait for their outcome."""

    def __init__(self, worker: Worker, duration_s: float = 0.0) -> None:
        self.most_running = 0
        self.most_unsettled = 0
        self._running = 0
        self._worker = worker
        self._duration_s = duration_s

    async def __call__(self, input: Any) -> None:
        self._running += 1
        self.most_running = max(self.most_running, self._running)
        counters = self._worker.counters
        unsettled = counters.claimed - counters.completed
        self.most_unsettled = max(self.most_unsettled, unsettled)
        await asyncio.sleep(self._duration_s)
        self._running -= 1


def queue_on(store: OneWriteASecond, world: World) -> Queue:
    """The layers as `connect` stacks them."""
    return Queue(Retrying(Paced(store, world.clock), world.clock), Keys())


async def run_all(queue: Queue, duration_s: float) -> tuple[Worker, Busy, list[str]]:
    ids = [(await queue.submit("do", number)).id for number in range(TASKS)]
    worker = Worker(queue, concurrency=CONCURRENCY)
    handler = Busy(worker, duration_s)
    worker.task("do")(handler)
    await worker.run(BURST)
    return worker, handler, ids


@pytest.mark.parametrize("duration_s", [0.0, 0.1, 1.5])
@virtual
async def test_the_worker_goes_on_while_completions_wait(world: World, duration_s: float) -> None:
    store = OneWriteASecond(world)
    queue = queue_on(store, world)
    began = world.clock.monotonic()
    _, handler, ids = await run_all(queue, duration_s)
    took_s = world.clock.monotonic() - began
    assert store.refused == []
    assert [(await queue.get(task_id)).status for task_id in ids] == ["completed"] * TASKS
    # Had each waited in its slot, it would be that long for the second between its writes alone.
    in_slots_s = TASKS * max(1.0, duration_s) / CONCURRENCY
    assert took_s < (in_slots_s / 2 if duration_s < 1 else in_slots_s * 1.3)
    assert handler.most_running == CONCURRENCY
    assert handler.most_unsettled <= UNSETTLED_TASKS * CONCURRENCY


@virtual
async def test_a_store_that_never_settles_does_not_pile_up_tasks(world: World) -> None:
    """However slow the outcomes are, a bounded number of tasks waits for them."""
    store = OneWriteASecond(world)
    store.capabilities = Capabilities(name="one write in ten seconds", write_interval_s=10.0)
    _, handler, _ = await run_all(queue_on(store, world), 0.0)
    assert store.refused == []
    assert handler.most_unsettled == UNSETTLED_TASKS * CONCURRENCY


@virtual
async def test_retries_are_paced_too(world: World) -> None:
    store = OneWriteASecond(world)
    queue = queue_on(store, world)
    policy = RetryPolicy(initial_interval_ms=1, jitter_percent=0)
    ids = [(await queue.submit("fails", None, max_retries=2, retry_policy=policy)).id for _ in range(8)]
    worker = Worker(queue, concurrency=CONCURRENCY)

    @worker.task("fails")
    async def fails(input: Any) -> None:
        raise ValueError("again")

    # A retry's marker is seen while its record waits: a burst must not take that for the end.
    await worker.run(BURST)
    tasks = [await queue.get(task_id) for task_id in ids]
    assert [(task.status, task.attempt) for task in tasks if task is not None] == [("failed", 3)] * 8
    assert store.refused == []
    # Each attempt's marker is there a second before its task: it must not be left for long.
    assert world.clock.monotonic() < 20


@virtual
async def test_the_store_of_these_tests_refuses_what_is_not_paced(world: World) -> None:
    store = OneWriteASecond(world)
    await store.put("key", b"1", Always())
    with pytest.raises(Undecided, match="429"):
        await store.put("key", b"2", Always())
    assert store.refused == ["key"]
