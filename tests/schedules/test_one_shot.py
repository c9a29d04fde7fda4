"""Tasks for one later time: they hide nothing that is due, and each runs once when its time has come."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from virtual import World, requests

from buquet import Queue, Worker, WorkerRunOptions
from buquet.testing.clock import START, run_virtual
from buquet.worker.finder import PAGES_A_LOOK, Finder

DAYS = 30
DELAYED = 20_000
URGENT = 1_500
"""Delayed tasks of a higher priority, in each shard."""

THEN = datetime.fromtimestamp(START, UTC) + timedelta(days=DAYS)


async def _delay(queue: Queue, count: int, **options: Any) -> None:
    for _ in range(count):
        await queue.submit("do", None, schedule_at=THEN, **options)


async def _crowd(queue: Queue) -> None:
    """Put delayed tasks in front of everything, at the usual priority and above it."""
    await _delay(queue, DELAYED)
    per_shard: Counter[str] = Counter()
    while len(per_shard) < 16 or min(per_shard.values()) < URGENT:
        task = await queue.submit("do", None, schedule_at=THEN, priority=0)
        per_shard[queue.keys.shard(task.id)] += 1


async def _due(queue: Queue) -> set[str]:
    """Submit until there is a due task in every shard, of the least priority."""
    due: dict[str, str] = {}
    while len(due) < 16:
        task = await queue.submit("do", None, priority=9)
        due.setdefault(queue.keys.shard(task.id), task.id)
    return set(due.values())


def test_due_tasks_are_found_behind_delayed_ones() -> None:
    """A task that is the only one due, in whichever shard, within ⌈pages / 4⌉ polls of four pages."""

    async def scenario(clock: Any) -> None:
        world = World(clock)
        queue = world.queue()
        await _crowd(queue)
        due = await _due(queue)
        counts = requests(queue).counts
        polls_enough = math.ceil(len(world.keys("ready/")) / queue.store.capabilities.max_keys / PAGES_A_LOOK)
        assert polls_enough > 10
        for wanted in due:
            finder = Finder(queue.store, queue.keys, queue.keys.shards())
            polls = 0
            counts.clear()
            while not await finder.look(lambda seen, wanted=wanted: seen.marker.task_id == wanted):
                polls += 1
            assert polls < polls_enough
            assert counts == {"list": counts["list"]}
            assert counts["list"] <= PAGES_A_LOOK * (polls + 1)

    run_virtual(scenario)


def test_each_delayed_task_runs_once_and_not_before_its_time() -> None:
    async def scenario(clock: Any) -> None:
        world = World(clock)
        queue = world.queue()
        await _delay(queue, DELAYED)
        due = await queue.submit("do", None)
        first = await _run_for(world, 60)
        assert first == {due.id: 1}
        await clock.sleep(DAYS * 24 * 3600 - clock.monotonic() - 10)
        assert await _run_for(world, 9) == {}
        runs = await _run_for(world, 120)
        assert len(runs) == DELAYED
        assert set(runs.values()) == {1}
        assert world.keys("ready/") == []

    run_virtual(scenario)


async def _run_for(world: World, seconds: float) -> Counter[str]:
    """Let two workers work for a while; return how often each task was run."""
    runs: Counter[str] = Counter()

    async def do(_input: object, ctx: Any) -> None:
        runs[ctx.task_id] += 1

    workers = [Worker(world.queue(), concurrency=64) for _ in range(2)]
    for worker in workers:
        worker.task("do")(do)
    running = [asyncio.create_task(worker.run(WorkerRunOptions(with_monitor=False))) for worker in workers]
    await world.clock.sleep(seconds)
    for worker in workers:
        await worker.stop()
    await asyncio.wait(running)
    return runs
