"""The main job on every store: submitted, run, retried, failed, scheduled, listed, waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from buquet import (
    PermanentError,
    RetryableError,
    RetryPolicy,
    TaskContext,
    TaskStatus,
    Worker,
    WorkerRunOptions,
)
from buquet.connection import agree
from buquet.protocol.keys import Keys
from buquet.queue import Queue
from buquet.store.interface import Store
from buquet.store.retry import Retrying

SOON = RetryPolicy(initial_interval_ms=50, jitter_percent=0)


async def test_the_main_job(open_store: Callable[[], Store]) -> None:
    async def connected() -> Queue:
        store: Any = open_store()
        store = store if isinstance(store, Retrying) else Retrying(store, store.time.clock)
        manifest = await agree(store, "jobs/", None)
        return Queue(store, Keys("jobs/", manifest.shard_prefix_len))

    producer, *consumers = [await connected() for _ in range(3)]
    runs: dict[str, int] = {}
    workers = [worker_of(queue, f"w{number}", runs) for number, queue in enumerate(consumers)]
    working = [
        asyncio.create_task(worker.run(WorkerRunOptions(poll_interval_ms=200, with_monitor=False)))
        for worker in workers
    ]

    now = datetime.fromisoformat(await producer.now())
    later = await producer.submit("good", "later", schedule_at=now + timedelta(seconds=2))
    tasks = [await producer.submit("good", {"n": n, "text": "é🙂 + %"}, priority=n % 10) for n in range(40)]
    shaky = [await producer.submit("shaky", n, retry_policy=SOON) for n in range(5)]
    hopeless = await producer.submit("hopeless", None)
    stubborn = await producer.submit("stubborn", None, max_retries=1, retry_policy=SOON)
    unknown = await producer.submit("unknown", None, priority=0)

    for task in tasks:
        done = await producer.wait(task.id, timeout_s=60)
        assert (done.status, done.output) == (TaskStatus.Completed, task.input)
        assert (done.attempt, done.retry_count, done.worker_id) == (1, 0, None)
    for task in shaky:
        done = await producer.wait(task.id, timeout_s=60)
        assert (done.status, done.output, done.retry_count) == ("completed", 3, 2)
        history = await producer.get_history(task.id)
        assert [seen.status.value for seen in history] == ["pending", "running"] * 3 + ["completed"]
    done = await producer.wait(hopeless.id, timeout_s=60)
    assert (done.status, done.attempt, done.last_error) == ("failed", 1, "PermanentError: never")
    done = await producer.wait(stubborn.id, timeout_s=60)
    assert (done.status, done.attempt, done.last_error) == ("failed", 2, "ValueError: run 2")
    done = await producer.wait(later.id, timeout_s=60)
    assert done.completed_at is not None
    assert done.completed_at >= later.available_at
    waiting = await producer.get(unknown.id)
    assert waiting == unknown

    for worker in workers:
        await worker.stop()
    await asyncio.gather(*working)
    assert [runs[task.id] for task in tasks] == [1] * len(tasks)

    everything = [later, *tasks, *shaky, hopeless, stubborn, unknown]
    listed = [task for shard in producer.keys.shards() for task in await producer.list(shard)]
    assert sorted(task.id for task in listed) == sorted(task.id for task in everything)
    failed = [task.id for shard in producer.keys.shards() for task in await producer.list(shard, "failed")]
    assert sorted(failed) == sorted([hopeless.id, stubborn.id])
    assert await producer.list_ready(producer.keys.shard(unknown.id)) == [unknown.id]
    left = await producer.store.list("jobs/ready/")
    assert [entry.key for entry in left.entries] == [
        producer.keys.marker_key(producer.keys.first_marker(unknown.id))
    ]
    assert datetime.now(UTC) - listed[0].created_at < timedelta(minutes=5)


def worker_of(queue: Queue, name: str, runs: dict[str, int]) -> Worker:
    worker = Worker(queue, name, concurrency=8)

    @worker.task("good")
    async def good(input: Any, ctx: TaskContext) -> Any:
        runs[ctx.task_id] = runs.get(ctx.task_id, 0) + 1
        return input

    @worker.task("shaky")
    def shaky(_input: Any, ctx: TaskContext) -> int:
        if ctx.attempt < 3:
            raise RetryableError("not yet")
        return ctx.attempt

    @worker.task("hopeless")
    async def hopeless(_input: Any) -> None:
        raise PermanentError("never")

    @worker.task("stubborn")
    def stubborn(_input: Any, ctx: TaskContext) -> None:
        raise ValueError(f"run {ctx.attempt}")

    return worker
